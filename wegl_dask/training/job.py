"""Training as a job: a run folder in, a model and what it is worth out."""

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from wegl_dask.checksums import fingerprint
from wegl_dask.errors import JobFileError, WeglError
from wegl_dask.locks import TRAINING, locked
from wegl_dask.reading import read_embeddings
from wegl_dask.spec import LARGEST_SEED, ClusterTable, TrainTable
from wegl_dask.storage import RunFolder
from wegl_dask.training.fits import FITS_VERSION
from wegl_dask.training.kept_scores import scores_kept
from wegl_dask.training.metrics import choose_metric
from wegl_dask.training.models import make_learner
from wegl_dask.training.names import TRAIN_FOLDER, training_folder
from wegl_dask.training.problem import Problem
from wegl_dask.training.protocols import default_protocol, evaluate_cv, evaluate_split
from wegl_dask.training.results import Trained, data_fingerprint
from wegl_dask.training.spreading import open_workers

COLUMNS = ("graph_id", "label", "split")


def train(run: RunFolder, table: TrainTable, cluster: ClusterTable, *, seed: int) -> dict[str, Any]:
    """Train and measure a model on the embeddings of a run, and write it to the run folder.

    The model's folder is locked meanwhile, so that its files are of one training; other models may be trained beside it.
    Scores of fits that are done are kept there until the training has ended: one that was stopped, and is begun again in the
    same way, goes on with them.

    Parameters
    ----------
    run : RunFolder
        Finished.
    table : TrainTable
    cluster : ClusterTable
        Where the fits are done.
    seed : int
        The first of the seeds.

    Returns
    -------
    dict
        What metrics.json holds.

    Raises
    ------
    WeglError
        If the run cannot be read, its labels do not go with the model, protocol or metric, or the same model is being
        trained on it by another process.
    """
    started = time.perf_counter()
    fitted_to = _fitted_to(run.job())
    if not run.has_succeeded():
        raise WeglError(
            f"the run in {run.location()} has not finished, or is being appended to: run the job again, or append"
        )
    data = data_fingerprint(run)
    problem = Problem.of(read_embeddings(run.url, COLUMNS, storage_options=run.storage_options))
    protocol = table.protocol or default_protocol(problem)
    metric = choose_metric(problem.kind, protocol, table.metric)
    learner = make_learner(table.model, problem, metric=metric.name, time_budget=table.time_budget)
    seeds = _seeds(seed, table.seeds)
    versions = {package: version(package) for package in learner.packages}
    folder = training_folder(table.model)
    with ExitStack() as after:
        unlocked = after.enter_context(ExitStack())
        # Before the fits: they may take hours, and a folder that cannot be written in is found here.
        at = run.subfolder(folder)
        lock = after.enter_context(locked(at, other=TRAINING))
        unlocked.callback(run.remove_if_empty, TRAIN_FOLDER)
        unlocked.callback(run.remove_if_empty, folder)
        run.clean_temporary(folder)
        # Of the folds a task has but the name.
        follows_from = json.dumps([data, protocol, table.folds, seed, FITS_VERSION, versions])
        kept = after.enter_context(scores_kept(at, lock, fingerprint(follows_from)))
        with open_workers(cluster, kept=kept, packages=learner.packages) as workers:
            if protocol == "split":
                outcome = evaluate_split(problem, learner, metric, workers, seeds=seeds)
            else:
                outcome = evaluate_cv(problem, learner, metric, workers, n_folds=table.folds, seed=seed)
        trained = Trained(
            model=table.model,
            protocol=protocol,
            metric=metric,
            problem=problem,
            outcome=replace(outcome, notes=(*outcome.notes, fitted_to)),
            seed=seed,
            threshold=learner.threshold,
            data=data,
            versions=versions,
            seconds=time.perf_counter() - started,
            fits_found=kept.n_found,
        )
        lock.ensure_held()
        return trained.write(run)


def _seeds(first: int, n_seeds: int) -> range:
    if first + n_seeds - 1 > LARGEST_SEED:
        raise JobFileError(
            f"seed = {first} and train.seeds = {n_seeds} make {first + n_seeds - 1} the last seed, and the largest is "
            f"{LARGEST_SEED}: lower one of them"
        )
    return range(first, first + n_seeds)


def _fitted_to(job: Mapping[str, Any]) -> str:
    """Say which graphs had a part in the embedding, from the job file of a run."""
    if job.get("model", {}).get("path"):
        return "the embedding is that of another run's model"
    if job.get("projection", {}).get("fit_on") == "train":
        return 'the embedding has seen the graphs of "train", without their labels'
    return "the embedding has seen all graphs, without their labels (transductive)"
