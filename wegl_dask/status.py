"""How far a run is, and the trainings on it, from what they have left in its folder: running, killed or finished."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import PurePosixPath
from typing import Any, Literal

from wegl_dask.claims import MAX_REQUESTS, earlier_versions
from wegl_dask.errors import OtherJobError
from wegl_dask.folders import Folder
from wegl_dask.locks import LOCK_NAME, is_held
from wegl_dask.plans import appends_under_way, planned_shards
from wegl_dask.records import PART_FOLDERS, RECORD_FOLDER, PartRecord
from wegl_dask.sources.base import SourcePlan
from wegl_dask.storage import RunFolder
from wegl_dask.training.names import KEPT_NAME, METRICS_FILE, MODEL_NAMES, TRAIN_FOLDER, ModelName, training_folder

State = Literal["finished", "running", "stopped"]

STAGES = ("scan", "ingest", "moments", "merge", "sketch", "projection", "sample", "reference", "embed")
"""Stages that leave records, in their order."""


@dataclass(frozen=True)
class Speed:
    """How fast the stage is that a run is at.

    Attributes
    ----------
    graphs_per_second : float
    seconds_left : float
        Until the stage is done, if it goes on as since the run was started.
    """

    graphs_per_second: float
    seconds_left: float


@dataclass(frozen=True)
class StageStatus:
    """How far one stage is.

    Attributes
    ----------
    name : str
    parts : int
        Parts that are there.
    missing : tuple of int, or None
        Indices of the shards that have no part yet; None while it is not known which there will be.
    graphs : int
        Graphs in those parts; 0 for stages that are not about graphs.
    seconds : float
        Time that the parts took, added up over all workers.
    speed : Speed or None
        Of the stage that the run is at; None for all others, and before there is something to tell it from.
    """

    name: str
    parts: int
    missing: tuple[int, ...] | None
    graphs: int
    seconds: float
    speed: Speed | None = None


@dataclass(frozen=True)
class TrainingStatus:
    """How far the training of a model on a run is.

    Attributes
    ----------
    model : str
    state : {"finished", "running", "stopped"}
        One that was stopped can be continued; the results of one before it may be there.
    holder : str
        Which process trains it, if any is known to.
    """

    model: ModelName
    state: State
    holder: str


@dataclass(frozen=True)
class RunStatus:
    """How far a run is.

    Attributes
    ----------
    location : str
    state : {"finished", "running", "stopped"}
        A run that is neither finished nor running can be continued.
    holder : str
        Which process holds the folder, if any is known to.
    planned_rows : int or None
        Rows of the input; None while they have not been counted.
    stages : tuple of StageStatus
        Of the stages that have left a record, and of "ingest" and "embed" once the input is cut into shards.
    rejected : dict of str to int
        Rows rejected so far, by reason, the values in it left out.
    n_bytes : int
        Size of the embeddings so far.
    is_refused : bool
        Whether more rows were rejected than the job allows: it stops again unless more are allowed.
    is_append : bool
        Whether nothing is missing but what an append that was not finished has still to add.
    appended : frozenset of int
        Shards of appends that were not finished.
    obstacle : str
        Why this version of the package cannot go on with the run, and what to do; empty where it can.
    absent : tuple of str
        Files of parts and of the model that records say are there, and are not.
    trainings : tuple of TrainingStatus
        Of the models of which there is anything, in the order of their names.
    """

    location: str
    state: State
    holder: str
    planned_rows: int | None
    stages: tuple[StageStatus, ...]
    rejected: Mapping[str, int]
    n_bytes: int
    is_refused: bool
    is_append: bool
    appended: frozenset[int]
    obstacle: str
    absent: tuple[str, ...]
    trainings: tuple[TrainingStatus, ...]


def read_status(folder: RunFolder) -> RunStatus:
    """Read how far a run is; nothing is changed in its folder.

    Raises
    ------
    WeglError
        If it is not a run folder, its job file is damaged, or the store cannot be read.
    """
    job = folder.job()
    records = folder.records()
    rows = _planned_rows(records)
    reasons: Counter[str] = Counter()
    for record in records:
        reasons.update(record.extra.get("reasons", {}))
    holder, since = _holder(folder)
    state: State = "running" if holder else "finished" if folder.has_succeeded() else "stopped"
    stages = [stage for name in STAGES if (stage := _stage(name, records, rows)) is not None]
    if state == "running":
        stages = [_timed(folder, stage, records, since) for stage in stages]
    n_rows = None if rows is None else sum(rows.values())
    appended = frozenset(shard for plan in appends_under_way(records) for shard in planned_shards(plan))
    missing = {shard for stage in stages for shard in stage.missing or ()}
    return RunStatus(
        location=folder.location(),
        state=state,
        holder=holder,
        planned_rows=n_rows,
        stages=tuple(stages),
        rejected=dict(reasons.most_common()),
        n_bytes=sum(file.n_bytes for record in records for file in record.files if file.folder == "data"),
        is_refused=n_rows is not None and reasons.total() > _allowed_fraction(job) * n_rows,
        is_append=bool(appended) and not missing - appended,
        appended=appended,
        obstacle=_obstacle(folder),
        absent=tuple(_absent(folder, records)),
        trainings=tuple(_trainings(folder)),
    )


def _obstacle(folder: RunFolder) -> str:
    try:
        earlier_versions(folder)
    except OtherJobError as error:
        return str(error)
    return ""


def _absent(folder: RunFolder, records: Sequence[PartRecord]) -> Iterator[str]:
    kept = {*PART_FOLDERS, "model"} if folder.keeps_graphs() else {"rejected", "data", "model"}
    listings = {name: folder.listing(name) for name in sorted(kept)}
    for record in records:
        for file in record.files:
            if file.folder in kept and file.name not in listings[file.folder]:
                yield file.path


def index_ranges(indices: Sequence[int]) -> str:
    """Write sorted indices down in ranges.

    Examples
    --------
    >>> index_ranges([3, 4, 5, 9])
    '3-5, 9'
    """
    ranges: list[list[int]] = []
    for index in indices:
        if ranges and ranges[-1][-1] == index - 1:
            ranges[-1][1:] = [index]
        else:
            ranges.append([index])
    return ", ".join("-".join(map(str, ends)) for ends in ranges)


def _allowed_fraction(job: Mapping[str, Any]) -> float:
    """Look up which part of the rows may be rejected; all of them where a job file of another version does not say it."""
    match job:
        case {"source": {"max_rejected_fraction": int() | float() as fraction}}:
            return fraction
        case _:
            return 1.0


def _planned_rows(records: Sequence[PartRecord]) -> dict[int, int] | None:
    """Rows of the input in each shard, by its index; None where the input is not cut yet."""
    plans = [record for record in records if record.stage == "plan"]
    if not plans:
        return None
    known = {record.index: int(record.extra.get("known", 0)) for record in records if record.stage == "ingest"}
    return {
        cut.shard: cut.n_rows - known.get(cut.shard, 0)
        for plan in plans
        for unit in SourcePlan.from_json(plan.extra["plan"]).units
        for cut in unit.cuts
    }


def _stage(name: str, records: Sequence[PartRecord], planned: Mapping[int, int] | None) -> StageStatus | None:
    own = [record for record in records if record.stage == name]
    is_planned = planned is not None and name in {"ingest", "embed"}
    if not own and not is_planned:
        return None
    there = {record.index for record in own}
    return StageStatus(
        name=name,
        parts=len(own),
        missing=tuple(sorted(set(planned or ()) - there)) if is_planned else None,
        graphs=sum(record.rows("graphs") + record.rows("data") for record in own),
        seconds=sum(record.seconds for record in own),
    )


def _timed(folder: RunFolder, stage: StageStatus, records: Sequence[PartRecord], since: datetime | None) -> StageStatus:
    """Add the speed to a stage that lacks parts, from when the records of this run's parts were written."""
    if not stage.missing or since is None:
        return stage
    times = folder.times(RECORD_FOLDER)
    made = [
        (times[name], record)
        for record in records
        if record.stage == stage.name and times.get(name := PurePosixPath(record.path).name, since) > since
    ]
    if not made:
        return stage
    begun = min(written - timedelta(seconds=record.seconds) for written, record in made)
    seconds = (max(written for written, _ in made) - max(begun, since)).total_seconds()
    if seconds == 0:
        return stage
    graphs = sum(record.rows("graphs") + record.rows("data") for _, record in made)
    return replace(stage, speed=Speed(graphs / seconds, seconds / len(made) * len(stage.missing)))


def _trainings(folder: RunFolder) -> Iterator[TrainingStatus]:
    there = folder.listing(TRAIN_FOLDER)
    models = [model for model in MODEL_NAMES if model in there]
    names = [training_folder(model) for model in models]
    # On an object store it can take seconds to see that a lock is not renewed.
    with ThreadPoolExecutor(MAX_REQUESTS) as pool:
        holders = [holder for holder, _ in pool.map(_holder, map(folder.subfolder, names))]
    for model, name, holder in zip(models, names, holders, strict=True):
        files = folder.listing(name)
        if holder:
            yield TrainingStatus(model, "running", holder)
        elif LOCK_NAME in files or any(map(KEPT_NAME.fullmatch, files)):
            yield TrainingStatus(model, "stopped", "")
        elif METRICS_FILE in files:
            yield TrainingStatus(model, "finished", "")


def _holder(folder: Folder) -> tuple[str, datetime | None]:
    """Find who holds a folder, and since when; "" where nobody does."""
    lock = folder.read_if_there(LOCK_NAME)
    if lock is None or not is_held(folder):
        return "", None
    try:
        found = json.loads(lock)
        host, process, since = str(found["host"]), int(found["pid"]), found["since"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "a process that its lock does not name", None
    return f"process {process} on {host}, since {since}", _moment(since)


def _moment(text: object) -> datetime | None:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None
