"""Training as a job: a run folder in, a model and what it is worth out."""

import time
from typing import Any

from wegl_dask.reading import read_embeddings
from wegl_dask.spec import ClusterTable, TrainTable
from wegl_dask.storage import RunFolder
from wegl_dask.training.metrics import choose_metric
from wegl_dask.training.models import make_learner
from wegl_dask.training.problem import Problem
from wegl_dask.training.protocols import default_protocol, evaluate_cv, evaluate_split
from wegl_dask.training.results import Trained, data_fingerprint
from wegl_dask.training.spreading import open_workers

COLUMNS = ("graph_id", "label", "split")


def train(run: RunFolder, table: TrainTable, cluster: ClusterTable, *, seed: int) -> dict[str, Any]:
    """Train and measure a model on the embeddings of a run, and write it to the run folder.

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
        If the run cannot be read, or its labels do not go with the model, protocol or metric.
    """
    started = time.perf_counter()
    data = data_fingerprint(run)
    problem = Problem.of(read_embeddings(run.url, COLUMNS, storage_options=run.storage_options))
    protocol = table.protocol or default_protocol(problem)
    metric = choose_metric(problem.kind, protocol, table.metric)
    learner = make_learner(table.model, problem, metric=metric.name, time_budget=table.time_budget)
    with open_workers(cluster) as workers:
        if protocol == "split":
            seeds = range(seed, seed + table.seeds)
            outcome = evaluate_split(problem, learner, metric, workers, seeds=seeds)
        else:
            outcome = evaluate_cv(problem, learner, metric, workers, n_folds=table.folds, seed=seed)
    trained = Trained(
        model=table.model,
        protocol=protocol,
        metric=metric,
        problem=problem,
        outcome=outcome,
        seed=seed,
        threshold=learner.threshold,
        data=data,
        seconds=time.perf_counter() - started,
    )
    return trained.write(run)
