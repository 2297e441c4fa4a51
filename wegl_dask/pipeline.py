"""A whole job: from the source to the embeddings in Parquet, stage by stage, each resumed where an earlier run left it.

::

    scan -> plan -> ingest -> moments -> merge -> projection -> sample -> reference -> embed

Every stage is a bag of descriptors; its results are on storage, with a record each, before the next one starts. What a
part is made from goes into its record as a fingerprint, so a part is made again exactly when that has changed.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from distributed import Client

from wegl_dask import fork_server
from wegl_dask.appended import append_command, complete_appends, finished_plans
from wegl_dask.claims import examine, require_writable
from wegl_dask.embed import embed, not_embedded, package_versions
from wegl_dask.embeddings import EmbeddingFormat
from wegl_dask.errors import WeglError
from wegl_dask.fit import Fit, fit_model, memory_needed, prepare_fit
from wegl_dask.given_model import GivenModel
from wegl_dask.ingest import (
    ShardCensus,
    ingest,
    plan_source,
    refuse_output_among_input,
    require_same_source,
    require_source,
)
from wegl_dask.locks import refuse_held
from wegl_dask.memory import FORKED, STARTED_ANEW, require_fitting
from wegl_dask.performance import performance_report, require_bokeh
from wegl_dask.plans import restore_plans, unplanned_shards
from wegl_dask.progress import Progress, counted, listed
from wegl_dask.records import PartRecord
from wegl_dask.run import Run
from wegl_dask.scheduler_client import require_packages
from wegl_dask.sources import reading_packages
from wegl_dask.sources.base import SourcePlan
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder
from wegl_dask.worker_devices import require_device

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSummary:
    """What a run has done.

    Attributes
    ----------
    location : str
        The run folder.
    rows, rejected : int
        Graphs in ``graphs/`` or ``data/``, and rows in ``rejected/``.
    reasons : dict of str to int
        Rejected rows by reason, the values in it left out.
    repairs : dict of str to int
        Edges dropped, merged and added when the graphs were read.
    shards : int
    n_points, dimension : int
        N and d; 0 where only graphs were made.
    solved : dict of str to int
        Graphs by the solver that gave their plan.
    stage_seconds : dict of str to float
    parts_made : int
        Parts that this run made; the others were there.
    n_bytes : int
        Size of the parts in ``data/``, or ``graphs/``.
    notes : tuple of str
        Choices that the job left to the data.
    """

    location: str
    rows: int
    rejected: int
    reasons: Mapping[str, int]
    repairs: Mapping[str, int]
    shards: int
    n_points: int
    dimension: int
    solved: Mapping[str, int]
    stage_seconds: Mapping[str, float]
    parts_made: int
    n_bytes: int
    notes: tuple[str, ...]


def refuse_early(spec: JobSpec, *, overwrite: bool = False) -> None:
    """Refuse what can be told without workers, so that nobody waits for them in vain; nothing is written.

    A data set that is not there and may be downloaded is downloaded.

    Parameters
    ----------
    spec : JobSpec
    overwrite : bool, default False
        What an earlier run left in the folder will be cleared.

    Raises
    ------
    WeglError
        If the model cannot be used, the run folder is another job's or held by another run, or the source or a package
        is missing.
    """
    spec, _ = GivenModel.of(spec, overwrite=overwrite)
    refuse_output_among_input(spec)
    if spec.output.performance_report:
        require_bokeh()
    folder = RunFolder(spec.output.path)
    require_writable(folder)
    refuse_held(folder)
    examine(folder, spec.to_toml(), overwrite=overwrite)
    # Of a run that was finished all may be there that is needed.
    if overwrite or not _was_finished(folder):
        require_source(spec)


def run_job(
    spec: JobSpec,
    client: Client,
    *,
    overwrite: bool = False,
    progress: Callable[[str, int], Progress] = Progress,
) -> RunSummary:
    """Run a whole job, or what is missing of it: fit a model and embed, or embed with the model that the job names.

    Parameters
    ----------
    spec : JobSpec
    client : distributed.Client
    overwrite : bool, default False
        Clear what an earlier run left in the folder.
    progress : callable
        Makes the progress display of a stage.

    Raises
    ------
    WeglError
        If anything stops the job; what was finished stays valid.
    """
    require_device(client, spec.cluster.device)
    require_packages(client, reading_packages(spec.source))
    spec, given = GivenModel.of(spec, overwrite=overwrite)
    with _claimed(spec, client, overwrite=overwrite, progress=progress) as run:
        return _run_fit(run) if given is None else _run_with(run, given)


def _run_fit(run: Run) -> RunSummary:
    """Fit a model to the graphs, and embed them with it."""
    plan = plan_source(run)
    # Where not all graphs are wanted, what the shards hold is known from their records; which ones are, once there is a model.
    census = ingest(run, plan, None if _wants_all_graphs(run) else set())
    fit = prepare_fit(run.spec, census)
    _check_output(run, plan, fit.n_points, fit.dimension)
    if not run.folder.has_succeeded():
        _check_memory(run, fit)
    if not _wants_all_graphs(run):
        finished = run.finished("reference", {0: fit.fingerprint})
        census = ingest(run, plan, not_embedded(run, census, finished[0]) if finished else None)
    model = fit_model(run, fit)
    return _end(run, None, census, model, notes=_notes(run.spec, fit))


def _run_with(run: Run, given: GivenModel) -> RunSummary:
    """Embed the graphs with a model that was fitted before."""
    plan = plan_source(run, given)
    _check_output(run, plan, given.model.n_points, given.model.dimension)
    model, used = given.place(run), given.model.points.nodes.used
    shards = None
    if not _wants_all_graphs(run):
        shards = not_embedded(run, ingest(run, plan, set(), used=used), model)
    census = ingest(run, plan, shards, used=used)
    return _end(run, given, census, model, notes=(f"model: {given.path}",))


def _was_finished(folder: RunFolder) -> bool:
    """Say whether a run has finished at some time, whatever was lost of it since."""
    return folder.has_succeeded() or folder.has_manifest() or len(folder.records("plan")) > 1


def _end(
    run: Run, given: GivenModel | None, census: ShardCensus, model: PartRecord, *, notes: tuple[str, ...]
) -> RunSummary:
    """Embed the graphs, make what is missing of appends, and finish.

    Raises
    ------
    OtherInputError
        If nothing was missing, and the source has changed in another way than was appended.
    """
    records = embed(run, census, model)
    appended = complete_appends(run, model, [*census.records.values(), *records.values()])
    if run.finished_before and run.parts_made:
        notes = (
            *notes,
            f"{counted(run.parts_made, 'part')} made anew; what else has changed in the source was not looked at",
        )
    elif run.finished_before and is_complete(run.folder):
        require_same_source(run, given)
    return finish(run, census, model, records, appended=appended, notes=notes)


def ingest_job(
    spec: JobSpec,
    client: Client,
    *,
    overwrite: bool = False,
    progress: Callable[[str, int], Progress] = Progress,
) -> RunSummary:
    """Run the stages up to the graph shards; parameters and errors as of `run_job`."""
    require_packages(client, reading_packages(spec.source))
    spec, given = GivenModel.of(spec, overwrite=overwrite)
    with _claimed(spec, client, overwrite=overwrite, progress=progress) as run:
        used = None if given is None else given.model.points.nodes.used
        census = ingest(run, plan_source(run, given), used=used)
        if run.finished_before and not run.parts_made:
            require_same_source(run, given)
        return summarize(run, census, notes=())


@contextmanager
def _claimed(
    spec: JobSpec, client: Client, *, overwrite: bool, progress: Callable[[str, int], Progress]
) -> Iterator[Run]:
    folder = RunFolder(spec.output.path)
    refuse_output_among_input(spec)
    with folder.lock() as lock:
        claim = folder.claim(spec.to_toml(), overwrite=overwrite)
        folder.clean_temporary()
        if claim.other_versions:
            _log.warning("parts of this run were made by version %s of wegl-dask", ", ".join(claim.other_versions))
        restore_plans(folder)
        finished_before = _was_finished(folder)
        with performance_report(folder) if spec.output.performance_report else nullcontext():
            yield Run(spec, folder, lock, client, claim.resumed, progress, finished_before)


def _wants_all_graphs(run: Run) -> bool:
    """Whether all graph shards are wanted; of a run that goes on and keeps none, those are that are still to be embedded."""
    return run.spec.output.keep_graphs or not run.resumed


def _check_output(run: Run, plan: SourcePlan, n_points: int, dimension: int) -> None:
    """Refuse what cannot be written before anything is computed for it."""
    EmbeddingFormat(
        n_points=n_points,
        dimension=dimension,
        labels=plan.labels,
        extra_columns=plan.extra_columns,
        dtype=run.spec.output.dtype,
        layout=run.spec.output.layout,
    )


def _check_memory(run: Run, fit: Fit) -> None:
    """Refuse what no worker could hold, before it dies of it."""
    workers = run.client.scheduler_info(n_workers=-1)["workers"].values()
    limits = [int(worker["memory_limit"]) for worker in workers if worker["memory_limit"]]
    if limits:
        imported = FORKED if run.spec.cluster.kind == "local" and fork_server.is_started() else STARTED_ANEW
        require_fitting(memory_needed(fit, imported), min(limits), imported)


def finish(
    run: Run,
    census: ShardCensus,
    model: PartRecord,
    records: Mapping[int, PartRecord],
    *,
    appended: Sequence[PartRecord] = (),
    notes: tuple[str, ...],
) -> RunSummary:
    """End a run: remove what is left over, write the manifest, and mark the run as finished.

    Parameters
    ----------
    run : Run
    census : ShardCensus
        Of the shards of one plan: the job's, or an append's. Other plans and their parts are kept if they are finished.
    model : PartRecord
        Of the stage reference.
    records : mapping of int to PartRecord
        Of the stage embed, for the shards of `census`.
    appended : sequence of PartRecord
        Of the parts of other plans that this run has made or looked at.
    notes : tuple of str
        For the summary.
    """
    folder = run.folder
    own = [*census.records.values(), *records.values(), *appended]
    there = [*_but(folder.records(), own), *own]
    plans, parts = finished_plans(there)
    others = [record for record in parts if record.index not in records]
    embedded = [*(record for record in others if record.stage == "embed"), *records.values()]
    kept = [model, *others, *census.records.values(), *records.values()]
    folder.remove_scratch()
    removed = folder.keep_only([*plans, *kept])
    # What workers have begun that did not live to end it.
    folder.clean_temporary()
    if not run.spec.output.keep_graphs:
        folder.remove_graphs()
    if run.parts_made or not is_complete(folder):
        for stage in ("ingest", "embed") if run.spec.output.keep_graphs else ("embed",):
            _require_undisturbed(run, stage, {record.index: record for record in own if record.stage == stage})
        folder.write_manifest(
            kept,
            stage_seconds=run.stage_seconds,
            work=run.work,
            versions=package_versions(run.spec),
            summary={
                "rows": sum(record.rows("data") for record in embedded),
                "rejected": sum(record.rows("rejected") for record in kept),
                "n_points": model.extra["n_points"],
                "dimension": model.extra["dimension"],
            },
            plans=plans,
        )
        folder.mark_success()
    notes = (*notes, *_undone(folder, there, plans, own), *_strangers(removed, there))
    if others:
        rows = sum(record.rows("data") for record in embedded)
        notes = (
            *notes,
            f"in all, with what was appended: {counted(rows, 'graph')} in {counted(len(embedded), 'part')}",
        )
    return summarize(run, census, notes=notes, model=model, records=records)


def _undone(
    folder: RunFolder, records: Sequence[PartRecord], plans: Sequence[PartRecord], own: Sequence[PartRecord]
) -> Iterator[str]:
    """Say what of other plans was removed at the end of a run, and how it is made again."""
    kept = {plan.index for plan in plans}
    for record in records:
        if record.stage == "plan" and record.index not in kept:
            command = append_command(folder, record.extra["appended"])
            yield f"an append that was not finished was undone: append again, by  {command}"
    again = f"append again, by  wegl-dask append {folder.location()}"
    if lost := unplanned_shards(records) - {record.index for record in own}:
        yield f"{counted(len(lost), 'part')} without the record of a plan removed: if it was an append's, {again}"


def _strangers(removed: Sequence[str], records: Sequence[PartRecord]) -> Iterator[str]:
    """Say which parts were removed that no record vouched for: somebody may have put them there."""
    recorded = {path for record in records for path in (record.path, *(file.path for file in record.files))}
    if strangers := sorted(set(removed) - recorded):
        yield f"removed, being of no record of this run: {listed(strangers, 1)}"


def _but(records: Sequence[PartRecord], own: Sequence[PartRecord]) -> list[PartRecord]:
    """Leave out what a run has just written: listings may lag behind it."""
    paths = {record.path for record in own}
    return [record for record in records if record.path not in paths]


def is_complete(folder: RunFolder) -> bool:
    """Say whether a run has finished, with its manifest."""
    try:
        folder.read_manifest()
    except WeglError:
        return False
    return folder.has_succeeded()


def _require_undisturbed(run: Run, stage: str, records: Mapping[int, PartRecord]) -> None:
    """Look once more at what is to be called finished.

    A task of a run that was killed may live on, on a worker of an existing scheduler, and write into the folder late.
    """
    run.lock.ensure_held()
    expected = {index: record.input_fingerprint for index, record in records.items()}
    there = run.folder.finished(stage, expected, by_name=True)
    changed = [index for index, record in records.items() if index not in there or there[index].files != record.files]
    if changed:
        raise WeglError(
            f"{run.folder.location()}: part {changed[0]} of the stage {stage} was written anew while the job was running "
            f"({len(changed)} parts in all), by a task of an earlier run perhaps: run the job again, it makes them again"
        )


def summarize(
    run: Run,
    census: ShardCensus,
    *,
    notes: tuple[str, ...],
    model: PartRecord | None = None,
    records: Mapping[int, PartRecord] | None = None,
) -> RunSummary:
    """Sum up what was done: graphs read, or embedded where there are `records` of the stage embed."""
    parts, subfolder = (census.records, "graphs") if records is None else (records, "data")
    reasons, solved = census.reasons, Counter[str]()
    for record in (records or {}).values():
        reasons.update(record.extra.get("reasons", {}))
        solved.update(record.extra["solved"])
    return RunSummary(
        location=run.folder.location(),
        rows=sum(record.rows(subfolder) for record in parts.values()),
        rejected=census.n_rejected + sum(record.rows("rejected") for record in (records or {}).values()),
        reasons=dict(reasons.most_common()),
        repairs={
            name: census.total(name) for name in ("self_loops_dropped", "parallel_edges_merged", "reverse_edges_added")
        },
        shards=len(parts),
        n_points=model.extra["n_points"] if model else 0,
        dimension=model.extra["dimension"] if model else 0,
        solved=dict(solved),
        stage_seconds=dict(run.stage_seconds),
        parts_made=run.parts_made,
        n_bytes=sum(file.n_bytes for record in parts.values() for file in record.files if file.folder == subfolder),
        notes=notes,
    )


def _notes(spec: JobSpec, fit: Fit) -> tuple[str, ...]:
    """Say what was chosen for the user."""
    notes = []
    if spec.nodes.features is None:
        notes.append(f"node features: {', '.join(fit.settings.features)} (nodes.features is not set)")
    if spec.edges.features is None:
        notes.append(f"edge features: {fit.settings.edge_features} (edges.features is not set)")
    labels = fit.census.plan.labels
    if spec.task == "auto" and labels.kind != "none":
        found = {
            "class": f"{len(labels.class_names)} classes: {', '.join(labels.class_names[:5])}"
            + (", ..." if len(labels.class_names) > 5 else ""),
            "target": "one number a graph",
            "tasks": f"{len(labels.task_names)} tasks",
        }[labels.kind]
        notes.append(f"labels: {found} (task is not set)")
    return tuple(notes)
