"""An append: the rows of a source that a finished run does not have yet, embedded with its model into new parts.

The first plan of a run is its job's; every append leaves one of its own beside it, whose shards are numbered on. An append
that is killed goes on when it is started again; one that is refused leaves the run as it was.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tomli_w
from distributed import Client

from wegl_dask.appended import append_command, append_of, finished_plans, killed_appends, missing_shards
from wegl_dask.bags import StageError
from wegl_dask.claims import changed_keys, examine, require_writable
from wegl_dask.embed import embed
from wegl_dask.errors import JobFileError, SourceError, TooManyRejectedError, WeglError, lost_connection
from wegl_dask.given_model import GivenModel
from wegl_dask.graphs import UsedAttributes
from wegl_dask.ingest import (
    CutKey,
    ShardCensus,
    cut_key,
    cut_keys,
    ingest,
    require_source,
    scan_source,
    settled,
    shard_inputs,
    write_plan,
)
from wegl_dask.known_rows import KnownRows, Places, RowKey, known_rows
from wegl_dask.locks import refuse_held
from wegl_dask.pipeline import RunSummary, finish, is_complete, summarize
from wegl_dask.plans import planned_shards, restore_plans, unplanned_shards
from wegl_dask.progress import Progress, counted
from wegl_dask.records import PartRecord, part_path
from wegl_dask.run import Run
from wegl_dask.scheduler_client import require_packages
from wegl_dask.sources import reading_packages
from wegl_dask.sources.base import SourcePlan, Unit
from wegl_dask.sources.paths import is_same_file
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder
from wegl_dask.toml import read_toml
from wegl_dask.worker_devices import require_device

APPENDED_TABLES = ("source", "task", "cluster")
"""Keys and tables that an append takes from a job file; all others are those of the run."""

NUMBERED_KINDS = ("tud", "ogb", "pyg")
"""Kinds of sources whose graphs are numbered."""

_RUN_AGAIN = "run the run's job again, which makes anew what is missing or was altered, before appending to it"


def append_spec(out: str, job_toml: str | None, overrides: Sequence[str] = ()) -> JobSpec:
    """Put the job of an append together.

    Parameters
    ----------
    out : str
        The run folder.
    job_toml : str, optional
        A job file whose `APPENDED_TABLES` are taken; the run's own by default.
    overrides : sequence of str
        Assignments such as ``"source.path=new.smi"``.

    Raises
    ------
    JobFileError
        If something is asked for that would make other embeddings than those of the run.
    """
    folder = RunFolder(out)
    own = folder.job_toml()
    try:
        values = read_toml(own)
        given = {} if job_toml is None else read_toml(job_toml)
    except ValueError as error:
        raise JobFileError(f"the job file, or {folder.location('job.toml')}, is not TOML: {error}") from error
    if not isinstance(values.get("output"), dict):
        raise JobFileError(f"{folder.location('job.toml')} has no table [output]: it is not as a run has left it")
    values |= {key: given[key] for key in APPENDED_TABLES if key in given}
    values["output"]["path"] = out
    spec = JobSpec.from_toml(tomli_w.dumps(values), overrides, where="the append's job")
    changes = [change for change in changed_keys(own, spec.to_toml()) if not change.startswith(("source.", "task:"))]
    if changes:
        raise JobFileError(
            f"an append embeds as the run in {folder.location()} did, and this would change {'; '.join(changes)}: set keys of "
            "source and cluster alone"
        )
    return spec


def refuse_append_early(spec: JobSpec, *, key: RowKey = "row") -> None:
    """Refuse what can be told without workers; see `append_job` and `wegl_dask.pipeline.refuse_early`.

    Raises
    ------
    JobFileError
        If rows are to be known by their ids, and the source has none.
    WeglError
        If the run has not finished, is held by another command or its model cannot be used, or the source or a package is
        missing.
    """
    if key == "id" and spec.source.kind in NUMBERED_KINDS:
        raise JobFileError(
            f"graphs of a source of kind {spec.source.kind!r} have no ids but their numbers, by which those of another file "
            "would be taken for known ones: append without --by-id"
        )
    folder = RunFolder(spec.output.path)
    require_writable(folder)
    refuse_held(folder)
    examine(folder, folder.job_toml())
    first = folder.record("plan", 0)
    if first is None and not folder.has_manifest():
        raise _unfinished(folder)
    given = GivenModel.read(folder.url)
    if spec.model.path is not None:
        given.completed(spec)
    require_source(spec)


def _unfinished(folder: RunFolder) -> WeglError:
    return WeglError(f"the run in {folder.location()} has not finished: run its job again before appending to it")


def append_job(
    spec: JobSpec, client: Client, *, key: RowKey = "row", progress: Callable[[str, int], Progress] = Progress
) -> RunSummary:
    """Embed the rows of a source that are new to a finished run.

    Parameters
    ----------
    spec : JobSpec
        See `append_spec`.
    client : distributed.Client
    key : {"row", "id"}, default "row"
        What a row is known by: its file and number, for files that come new or grow at their end; or its ``graph_id``,
        for files that are written anew, under another name each time. A row that was rejected is known as well.
    progress : callable
        Makes the progress display of a stage.

    Returns
    -------
    RunSummary
        Of the new rows.

    Raises
    ------
    WeglError
        If the run has not finished, or anything stops the append. The run is as it was before where the input is at
        fault, and else goes on when it is appended to again.
    """
    require_device(client, spec.cluster.device)
    require_packages(client, reading_packages(spec.source))
    folder = RunFolder(spec.output.path)
    with folder.lock() as lock:
        folder.claim(folder.job_toml())
        folder.clean_temporary()
        restore_plans(folder)
        given = GivenModel.read(folder.url)
        if spec.model.path is not None:
            spec = given.completed(spec)
        run = Run(settled(spec, folder), folder, lock, client, resumed=True, finished_before=True, progress=progress)
        notes = _finish_killed(run, given, key)
        return _append(run, given, key, notes=notes)


def _finish_killed(run: Run, given: GivenModel, key: RowKey) -> tuple[str, ...]:
    """End an append of another source that was killed, since nobody may come back for it: what to say of it.

    One of the same source in another way is left: this one is in its place, and makes of it what holds.

    Raises
    ------
    WeglError
        If it cannot be finished. Where the input is at fault it is undone, if it was read at all, and else it stays.
    """
    own = _appended(run, key)
    for plan in killed_appends(run.folder.records()):
        appended = plan.extra["appended"]
        if _input_of(appended) == _input_of(own):
            continue
        command = append_command(run.folder, appended)
        other = replace(run, spec=append_of(run.spec, appended), stage_seconds={}, work={}, parts_made=0)
        try:
            found = _append(other, given, appended["key"])
        except (SourceError, JobFileError, TooManyRejectedError, StageError) as error:
            stays = bool(killed_appends(run.folder.records()))
            rest = "To give it up, run the run's job again" if stays else "It was undone: start this append again"
            raise type(error)(
                f"an append that was killed has to be finished first, {command}, and cannot be: {error}. {rest}"
            ) from error
        return (
            f"an append that was killed was finished first, {command}: {counted(found.rows, 'graph')}",
            *found.notes,
        )
    return ()


def _input_of(appended: Mapping[str, Any]) -> dict[str, Any]:
    """Choose what says which input is appended, in whatever way."""
    return {key: value for key, value in appended["source"].items() if key in {"kind", "path", "root", "name"}}


def _appended(run: Run, key: RowKey) -> dict[str, Any]:
    """Say what is appended, for the record of its plan."""
    source = run.spec.source.model_dump(mode="json", exclude_none=True)
    return {"source": source, "task": run.spec.task, "key": key}


def _append(run: Run, given: GivenModel, key: RowKey, *, notes: tuple[str, ...] = ()) -> RunSummary:
    folder = run.folder
    model = _model_record(run)
    there = folder.records()
    plans, records = finished_plans(there)
    if not plans or plans[0].index:
        raise _unfinished(folder)
    if lacking := missing_shards(there):
        raise WeglError(
            f"part {min(lacking)} of the run in {folder.location()}, which was appended to it, has no whole record: {_RUN_AGAIN}"
        )
    if folder.has_succeeded() and (unplanned := unplanned_shards(there)):
        raise WeglError(
            f"the record of a plan of the run in {folder.location()} is lost, that of {part_path('data', min(unplanned))}: "
            f"{_RUN_AGAIN}"
        )
    _require_unaltered(run, records)
    plan = _new_shards(run, given, plans, records, key)
    is_pending = len(folder.records("plan")) > len(plans)
    if not plan.units or not (is_pending or is_complete(folder)):
        _finish_first(run, model, plans[0], records)
    if not plan.units:
        return _nothing_new(run, plan, model, notes)
    folder.unmark_success()
    used = given.model.points.nodes.used
    known = _begin(run, plan, key, [model, *plans, *records], used, append=plans[-1].index + 1)
    try:
        census = ingest(run, plan, plan_index=known.append, known=known, used=used)
        if not census.total("graphs") + census.n_rejected:
            _undo(folder, [model, *plans, *records])
            return _nothing_new(run, plan, model, notes)
        if n_known := census.total("known"):
            notes = (*notes, f"{counted(n_known, 'row')} of the shards that were read again were there before")
        return finish(run, census, model, embed(run, census, model), notes=notes)
    except (SourceError, JobFileError, TooManyRejectedError):
        _await_tasks(run.client)
        _undo(folder, [model, *plans, *records])
        raise


def _undo(folder: RunFolder, finished: Iterable[PartRecord]) -> None:
    """Leave a run as it was before an append."""
    folder.remove_scratch()
    folder.keep_only(finished)
    folder.mark_success()


def _nothing_new(run: Run, plan: SourcePlan, model: PartRecord, notes: tuple[str, ...]) -> RunSummary:
    return summarize(run, ShardCensus(plan, {}), notes=(*notes, "no row is new"), model=model, records={})


def _require_unaltered(run: Run, records: Iterable[PartRecord]) -> None:
    """Refuse to append to parts that are not as they were written: rows that are known are looked up in them."""
    for stage, folder in (("ingest", "graphs"), ("embed", "data")):
        own = {record.index: record for record in records if record.stage == stage}
        without = "graphs" if not run.spec.output.keep_graphs else ""
        for index in run.altered(stage, own, without=without)[:1]:
            raise WeglError(
                f"{run.folder.location(part_path(folder, index))}, or what was rejected with it, was altered after it was "
                f"written: {_RUN_AGAIN}"
            )


def _await_tasks(client: Client) -> None:
    """Wait for the tasks of a stage that has failed: one that runs already is not stopped when it is cancelled.

    Raises
    ------
    WeglError
        If the scheduler is gone: what the tasks still write is not known then.
    """

    async def settled(dask_worker: Any) -> None:
        while any(str(task.key).lstrip("('").startswith(("ingest", "embed")) for task in dask_worker.state.executing):  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.05)

    # A task that was handed out before the rest were cancelled may only now reach its worker. Messages to a worker keep
    # their order, so when this one is done, those before it have been received.
    try:
        fences = {address: client.submit(int, workers=[address], pure=False) for address in client.nthreads()}
        # One that has died has no tasks, and its fence is never reached.
        while not all(fences[address].done() for address in client.nthreads() if address in fences):
            time.sleep(0.05)
        client.run(settled, on_error="return")
    except OSError as error:
        raise lost_connection("append") from error


def _model_record(run: Run) -> PartRecord:
    record = run.folder.record("reference", 0)
    found = {} if record is None else run.finished("reference", {0: record.input_fingerprint})
    if not found:
        raise WeglError(f"the model in {run.folder.location('model')} is missing or was altered: {_RUN_AGAIN}")
    return found[0]


def _new_shards(
    run: Run, given: GivenModel, plans: Sequence[PartRecord], records: Sequence[PartRecord], key: RowKey
) -> SourcePlan:
    """Scan the source: the plan of the shards that are not in an earlier plan, numbered on.

    Raises
    ------
    SourceError
        If the source does not fit the run, or rows that are known by their place have moved or are gone.
    """
    base = SourcePlan.from_json(plans[0].extra["plan"])
    plan, _ = scan_source(run, plans[0].extra["nodes_per_shard"])
    plan = plan.numbered_as(given.schema, given.origin.numbering)
    plan = _labelled_as(plan, base, run.spec.source.kind)
    known: set[CutKey] = set().union(*(cut_keys(SourcePlan.from_json(record.extra["plan"])) for record in plans))
    if key == "row":
        _require_all_rows(plan, known_rows(record for record in records if record.stage == "ingest"))
        if run.spec.source.kind in {"smiles", "sdf", "graph_parquet"}:
            _require_other_content(plan, known)
    units = []
    shard = 1 + max(shard for record in plans for shard in planned_shards(record))
    for unit in plan.units:
        cuts = []
        for cut in unit.cuts:
            if cut_key(unit.piece, cut) not in known:
                cuts.append(replace(cut, shard=shard))
                shard += 1
        if cuts:
            units.append(Unit(unit.piece, tuple(cuts)))
    return replace(plan, units=tuple(units))


def _require_all_rows(plan: SourcePlan, known: Places) -> None:
    """Refuse a file that has fewer rows than it had when they were embedded."""
    counts: Counter[str] = Counter()
    for unit in plan.units:
        counts[unit.piece] += sum(cut.n_rows for cut in unit.cuts)
    for piece, count in counts.items():
        before = known[piece][-1][1] if piece in known else 0
        if count < before:
            raise SourceError(
                f"{piece} has {counted(count, 'row')}, and had {before:,} when they were embedded: restore it. To append, a file "
                "may only get new rows at its end"
            )


def _require_other_content(plan: SourcePlan, known: set[CutKey]) -> None:
    """Refuse a file that is known by another path: all its rows would be there twice."""
    paths: dict[tuple[str, ...], list[str]] = {}
    for piece, *content in known:
        paths.setdefault(tuple(content), []).append(piece)
    for piece, *content in sorted(cut_keys(plan) - known):
        for before in paths.get(tuple(content), ()):
            if is_same_file(piece, before):
                raise SourceError(
                    f"{piece} holds rows that the run has from {before}: it is the same file, which is to be named as the run "
                    "does, from the folder that the run was started in; or use --by-id"
                )


def _labelled_as(plan: SourcePlan, base: SourcePlan, kind: str) -> SourcePlan:
    """Read labels and columns as those of the run are, so that all parts are alike.

    Raises
    ------
    SourceError
        If the source has labels of another kind, or other columns are passed through.
    """
    if plan.extra_columns != base.extra_columns:
        raise SourceError(
            f"source.extra_columns passes through {list(plan.extra_columns)}, and the run has {list(base.extra_columns)}: "
            "name the same"
        )
    # New rows may be without labels where a source can read them all the same.
    may_lack = plan.labels.kind == "none" and kind in {"smiles", "sdf", "networkx", "pyg"}
    is_alike = plan.labels.kind == base.labels.kind and plan.labels.task_names == base.labels.task_names
    if kind == "graph_parquet":
        is_alike = plan.labels == base.labels
    if not (is_alike or may_lack) or ("classes" in plan.details) != ("classes" in base.details):
        raise SourceError(
            f"the source has labels of kind {plan.labels.kind!r} {list(plan.labels.class_names or plan.labels.task_names)}, "
            f"and the run has {base.labels.kind!r} {list(base.labels.class_names or base.labels.task_names)}: append rows "
            "with labels alike"
        )
    classes = {"classes": base.details["classes"]} if "classes" in base.details else {}
    return replace(plan, labels=base.labels, details={**plan.details, **classes})


def _begin(
    run: Run, plan: SourcePlan, key: RowKey, records: Sequence[PartRecord], used: UsedAttributes, *, append: int
) -> KnownRows:
    """Write down what is appended, for the workers and for later runs, and keep of an append that was killed what holds.

    What it has left beyond that would be taken for shards of this one, by their numbers.

    Parameters
    ----------
    records : sequence of PartRecord
        Of what is finished.
    append : int
        Index of the append.
    """
    folder = run.folder
    known, rows = KnownRows.before(append, key, records)
    expected = shard_inputs(run.spec, plan, known, used)
    ingested = [record for record in folder.records("ingest") if record.input_fingerprint == expected.get(record.index)]
    begun = {record.index for record in ingested}
    embedded = [record for record in folder.records("embed") if record.index in begun]
    folder.keep_only([*records, *ingested, *embedded])
    known.keep(folder, rows)
    write_plan(run, append, plan, appended=_appended(run, key))
    return known


def _finish_first(run: Run, model: PartRecord, plan: PartRecord, records: Sequence[PartRecord]) -> None:
    """End what an earlier run or append, which was killed near its end, has left undone."""
    shards = planned_shards(plan)
    ingested, embedded = (
        {record.index: record for record in records if record.stage == stage and record.index in shards}
        for stage in ("ingest", "embed")
    )
    census = ShardCensus(SourcePlan.from_json(plan.extra["plan"]), ingested)
    finish(run, census, model, embedded, notes=())
