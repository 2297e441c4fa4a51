"""What a job will need before it runs: graphs, tasks, seconds, memory and disk, from trying it on a few shards.

Notes
-----
Of S shards, k are read, evenly over the collection, and every stage is run on them in this process
(`wegl_dask.trial`). Shards are cut by their size, so what they need adds up to S / k times what the tried ones did:

graphs      input rows, times the part of the tried shards' rows that became graphs
nodes       S / k times the nodes of the tried shards; N is nodes / graphs, rounded down, as in the job

With t the seconds of a tried task and W workers, a stage of n tasks takes

    max(ceil(n / W) mean(t), n C) + L

seconds: C (`TASK_SECONDS`) is the client's and the scheduler's share of a task, one after another, and L (`STAGE_SECONDS`)
a stage's own steps. Of the stages,

scan        is a task a piece; if there are many pieces, some are tried
ingest      is a task a unit, which for a stream that cannot be entered in the middle holds all shards: then the first
            is timed and the unit takes its seconds times its shards; units of molecules are divided among as many tasks
            as the job divides them among
merge       reads every result of the stage before it once, 16 a task
reference   adds E c (m' - m) to what it took, with E epochs of k-means, c the seconds of a row in a mini-batch, and m
            and m' the points of the tried shards and of the job, and it adds what it imports

The whole adds `START_SECONDS` for starting Python and the cluster. Memory is `wegl_dask.memory`'s sum for each stage, for the largest
of the tried shards. Bytes of graphs/ and data/ are S / k times those of the tried shards, and so are those that the stages
moments and sketch leave in scratch/; that of merge is so many times what a merge wrote, and that of sample goes by points.
"""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dask.system import CPU_COUNT

from wegl_dask import fork_server, slurm_client
from wegl_dask.claims import JOB_NAME, changed_keys
from wegl_dask.errors import JobFileError, SourceError
from wegl_dask.fit import MERGE_FAN_IN, Fit, memory_needed, sample_size
from wegl_dask.fitting import largest_sample, most_nodes
from wegl_dask.ingest import ShardCensus, check_columns, check_plan, divided, most_tasks, shard_size
from wegl_dask.local_client import memory_of_a_worker
from wegl_dask.memory import (
    FORKED,
    STARTED_ANEW,
    Extent,
    Imported,
    Terms,
    ingest_terms,
    kept_bytes,
    require_fitting,
    total_bytes,
)
from wegl_dask.progress import Progress, format_bytes
from wegl_dask.records import PartRecord
from wegl_dask.reference import START_ROWS
from wegl_dask.sources import open_source
from wegl_dask.sources.base import Cut, SourcePlan, Unit
from wegl_dask.spec import JobSpec, ReferenceTable
from wegl_dask.storage import RunFolder
from wegl_dask.trial import Trial, TrialRun, trial_run, try_shards

TRIED_SHARDS = 4
TRIED_PIECES = 8

START_SECONDS = 1.2
STAGE_SECONDS = 0.2
TASK_SECONDS = 0.0019
"""Measured by ``jobs/benchmarks/scheduling.py``."""


@dataclass(frozen=True)
class StageForecast:
    """What one stage will need.

    Attributes
    ----------
    name : str
    tasks : int
    work : float
        Seconds of all tasks.
    seconds : float
        From its start to its end.
    peak_bytes : int
        Memory of a worker.
    """

    name: str
    tasks: int
    work: float
    seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Forecast:
    """What a job will need.

    Attributes
    ----------
    graphs, nodes, shards, tried : int
        `tried` shards are what all the numbers come from.
    n_points, dimension : int
        N and d.
    workers : int
    memory_limit : int or None
        Of a worker, in bytes; None where it is not known.
    stages : tuple of StageForecast
    terms : mapping of str to mapping
        What takes the memory in each stage.
    imported : Imported
        What a worker holds of what it imports.
    outputs : mapping of str to int
        Bytes by subfolder of the run; ``scratch`` is removed in the end.
    """

    graphs: int
    nodes: int
    shards: int
    tried: int
    n_points: int
    dimension: int
    workers: int
    memory_limit: int | None
    stages: tuple[StageForecast, ...]
    terms: Mapping[str, Terms]
    imported: Imported
    outputs: Mapping[str, int]

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return sum(stage.tasks for stage in self.stages)

    @property
    def seconds(self) -> float:
        """From the command to its end."""
        return START_SECONDS + sum(stage.seconds for stage in self.stages)

    @property
    def peak_bytes(self) -> int:
        """Memory of a worker in the stage that needs most, with what it keeps of other stages."""
        return max(stage.peak_bytes for stage in self.stages) + kept_bytes(self.terms, self.memory_limit, self.imported)

    def require_fitting(self, output: str) -> None:
        """Refuse a job that has not the memory or the disk that it needs.

        Raises
        ------
        JobFileError
            With both numbers.
        """
        if self.memory_limit is not None:
            require_fitting(self.terms, self.memory_limit, self.imported)
        if "://" not in output:
            needed, free = sum(self.outputs.values()), _free_bytes(Path(output))
            if needed > free:
                raise JobFileError(
                    f"the run folder needs about {format_bytes(needed)} of disk, and {output} has {format_bytes(free)}: "
                    "choose another output.path, or lower reference.points or projection.components"
                )


def forecast(
    spec: JobSpec, *, workers: int | None = None, progress: Callable[[str, int], Progress] = Progress
) -> Forecast:
    """Predict what a job will need; nothing is written where it will run.

    Parameters
    ----------
    spec : JobSpec
    workers : int, optional
        Number of workers, if it is not in the job file or is to be another one.
    progress : callable
        Makes the progress display of a stage.

    Raises
    ------
    WeglError
        If the job cannot be run as it is.
    """
    if spec.model.path is not None:
        raise JobFileError("model.path is set: the stages of a fit are what is planned, and this job has none")
    workers, limit = _cluster(spec, workers)
    # The trial is run here, where there need not be a GPU.
    on_processor = spec.model_copy(update={"cluster": spec.cluster.model_copy(update={"device": "cpu"})})
    with trial_run(on_processor, progress) as run:
        source = _Source.of(spec, run)

        def reference(census: ShardCensus) -> ReferenceTable:
            n_points = spec.reference.points or source.points_per_graph(census, spec.nodes.virtual_node)
            return spec.reference.model_copy(
                update={"points": n_points, "max_nodes": _tried_nodes(spec.reference, census, source, n_points)}
            )

        trial = try_shards(run, source.plan, source.tried(), reference)
    return _assemble(spec, source, trial, workers, limit)


@dataclass(frozen=True)
class _Source:
    """How the collection is cut, as far as it was looked at.

    Attributes
    ----------
    plan : SourcePlan
        Of the pieces that were scanned.
    pieces, scanned : int
        Pieces there are, and pieces that were scanned; 0 where an earlier run has done it.
    scan_seconds : float
        Of all scanned pieces.
    known : frozenset of int
        Shards that the run folder has already.
    """

    plan: SourcePlan
    pieces: int
    scanned: int
    scan_seconds: float
    known: frozenset[int] = frozenset()

    @classmethod
    def of(cls, spec: JobSpec, run: TrialRun) -> "_Source":
        """Take the plan of the run folder, or scan some pieces of the source."""
        earlier = _earlier_run(spec, run)
        if earlier is not None:
            return earlier
        source = open_source(spec.source, spec.task)
        nodes_per_shard = spec.source.nodes_per_shard or shard_size(source.estimated_nodes())
        pieces = source.pieces()
        chosen = [pieces[i] for i in _evenly(len(pieces), TRIED_PIECES)]
        started = time.perf_counter()
        plan = source.plan([source.scan(piece, nodes_per_shard) for piece in chosen])
        seconds = time.perf_counter() - started
        if not plan.units:
            raise SourceError(f"the source holds no graphs: {', '.join(map(str, pieces[:3]))}")
        check_columns(spec, plan, None)
        check_plan(spec, plan)
        # As the job's workers will read it.
        plan = SourcePlan.from_json(json.loads(json.dumps(plan.to_json())))
        return cls(plan, len(pieces), len(chosen), seconds)

    @property
    def scale(self) -> float:
        """How many times what was scanned the collection is."""
        return self.pieces / self.scanned if self.scanned else 1.0

    @property
    def shards(self) -> int:
        """Number of shards."""
        return round(self.scale * len(self._cuts))

    def ingest_tasks(self, spec: JobSpec, workers: int) -> tuple[float, float]:
        """Say how many units the ingest has to read, and how many tasks that is."""
        missing = [[cut.shard for cut in unit.cuts if cut.shard not in self.known] for unit in self.plan.units]
        n_units = self.scale * sum(map(bool, missing))
        most = most_tasks(spec, round(n_units), workers)
        return n_units, self.scale * sum(len(divided(shards, most)) for shards in missing)

    def tried(self) -> list[int]:
        """Choose the shards that are tried: evenly, and the first of every stream that some are taken from."""
        shards = [cut.shard for cut in self._cuts]
        chosen = {shards[i] for i in _evenly(len(shards), TRIED_SHARDS)}
        for unit in self.plan.units:
            own = {cut.shard for cut in unit.cuts}
            if len(own) > 1 and own & chosen:
                chosen.add(unit.cuts[0].shard)
        return sorted(chosen)

    def points_per_graph(self, census: ShardCensus, virtual_node: bool) -> int:
        """Estimate the mean number of points a graph of the collection, rounded down."""
        nodes = census.total("nodes") / len(census.records) * self.shards
        return max(1, int(nodes / self.graphs(census)) + virtual_node)

    def graphs(self, census: ShardCensus) -> int:
        """Estimate the number of graphs of the collection."""
        rows: float = self.scale * sum(cut.n_rows for cut in self._cuts)
        return max(1, round(rows * census.total("graphs") / census.n_rows))

    @property
    def _cuts(self) -> list[Cut]:
        return [cut for unit in self.plan.units for cut in unit.cuts]


def _earlier_run(spec: JobSpec, run: TrialRun) -> _Source | None:
    """Look for the plan and the graph shards of an earlier run of the same job, and copy those that are tried."""
    folder = RunFolder(spec.output.path)
    job = folder.read_if_there(JOB_NAME)
    record = folder.record("plan", 0)
    if job is None or record is None:
        return None
    try:
        if changed_keys(job.decode(errors="replace"), spec.to_toml()):
            return None
    except ValueError:
        return None
    plan = SourcePlan.from_json(record.extra["plan"])
    shards = folder.listing("graphs")
    known = {
        made.index: made
        for made in folder.records("ingest")
        if all(file.folder != "graphs" or shards.get(file.name) == file.n_bytes for file in made.files)
    }
    found = _Source(plan, 0, 0, 0.0, frozenset(known))
    for shard in found.tried():
        if shard in known:
            _copy_part(folder, run.folder, known[shard])
    return found


def _copy_part(source: RunFolder, target: RunFolder, record: PartRecord) -> None:
    for file in record.files:
        target.write(file.path, source.read(file.path))
    target.write(record.path, source.read(record.path))


def _tried_nodes(reference: ReferenceTable, census: ShardCensus, source: _Source, n_points: int) -> int:
    """Say how many nodes are to be drawn from the tried shards: as many as the job draws from them, or k-means begins with."""
    most = most_nodes(reference.max_nodes, n_points)
    share = math.ceil(most * len(census.records) / source.shards)
    return min(most, max(share, START_ROWS, 20 * n_points))


def _assemble(spec: JobSpec, source: _Source, trial: Trial, workers: int, limit: int | None) -> Forecast:
    census, fit = trial.census, trial.fit
    scale = source.shards / len(census.records)
    graphs = source.graphs(census)
    nodes = round(scale * census.total("nodes"))
    shards = {shard: record.extra for shard, record in census.records.items()}
    imported = FORKED if spec.cluster.kind == "local" and fork_server.POSSIBLE else STARTED_ANEW
    table = spec.reference.model_copy(update={"points": fit.n_points})
    whole = replace(
        fit,
        spec=fit.spec.model_copy(update={"reference": table}),
        n_nodes=round(scale * fit.n_nodes),
        n_graphs=round(scale * fit.n_graphs),
    )
    terms = {
        "ingest": ingest_terms(Extent.of_shards(shards, virtual_node=False), source.plan.schema, source.shards),
        **memory_needed(whole, imported),
    }
    stages = []

    def add(name: str, tasks: float, mean_seconds: float, parallel: int = workers) -> None:
        count = max(1, round(tasks))
        seconds = max(math.ceil(count / min(parallel, count)) * mean_seconds, count * TASK_SECONDS) + STAGE_SECONDS
        stages.append(
            StageForecast(name, count, count * mean_seconds, seconds, total_bytes(terms.get(name, {}), imported))
        )

    def mean(stage: str) -> float:
        tried = trial.of_stage(stage)
        return trial.seconds(stage) / len(tried) if tried else 0.0

    if source.pieces:
        add("scan", source.pieces, source.scan_seconds / source.scanned)
    n_units, n_tasks = source.ingest_tasks(spec, workers)
    if n_units:
        add("ingest", n_tasks, _unit_seconds(source.plan.units, trial) * n_units / n_tasks)
    fitted = scale * len(trial.of_stage("moments"))
    add("moments", fitted, mean("moments"))
    merged = sum(math.ceil(fitted / MERGE_FAN_IN**level) for level in range(1, _levels(fitted) + 1))
    files = len(trial.of_stage("moments")) + len(trial.of_stage("merge")) - 1
    add("merge", merged, trial.seconds("merge") / files * min(fitted, MERGE_FAN_IN))
    if trial.of_stage("sketch"):
        add("sketch", fitted, mean("sketch"))
    add("projection", 1, mean("projection"))
    add("sample", scale * len(trial.of_stage("sample")), mean("sample"))
    add("reference", 1, _reference_seconds(spec, trial, whole.n_nodes))
    add("embed", source.shards, mean("embed"))
    return Forecast(
        graphs=graphs,
        nodes=nodes,
        shards=source.shards,
        tried=len(census.records),
        n_points=fit.n_points,
        dimension=fit.dimension,
        workers=workers,
        memory_limit=limit,
        stages=tuple(stages),
        terms=terms,
        imported=imported,
        outputs={
            "graphs": round(scale * _bytes_of(census.records.values(), "graphs")),
            "data": round(scale * trial.written("embed")),
            "scratch": _scratch_bytes(trial, whole, scale, merged),
            "model": trial.written("reference"),
        },
    )


def _levels(files: float) -> int:
    """Levels of the tree in which moments are merged."""
    return max(1, math.ceil(round(math.log(max(files, 1.0), MERGE_FAN_IN), 9)))


def _unit_seconds(units: Sequence[Unit], trial: Trial) -> float:
    """Mean seconds of a task of the ingest, all shards of the unit included."""
    tried = trial.of_stage("ingest")
    if not tried:
        return 0.0
    cuts = {cut.shard: len(unit.cuts) for unit in units for cut in unit.cuts}
    return sum(task.seconds * cuts[task.records[0].index] / len(task.records) for task in tried) / len(tried)


def _reference_seconds(spec: JobSpec, trial: Trial, n_nodes: int) -> float:
    """Seconds of the stage reference for the whole collection."""
    reference = spec.reference
    sample = largest_sample(n_nodes, reference.max_nodes, dimension=trial.fit.dimension, n_points=trial.fit.n_points)
    more_rows = max(0, sample - trial.sampled)
    return trial.seconds("reference") + trial.import_seconds + reference.epochs * trial.row_seconds * more_rows


def _scratch_bytes(trial: Trial, whole: Fit, scale: float, merges: int) -> int:
    """Bytes that all stages leave in scratch/, for `scale` times as many shards as were tried, and so many merges."""
    of_shards = scale * (trial.written("moments") + trial.written("sketch"))
    of_merges = merges * trial.written("merge") / len(trial.of_stage("merge"))
    # The tried shards may draw more than their share, see `_tried_nodes`.
    of_sample = trial.written("sample") * sample_size(whole) / max(1, trial.sampled)
    return round(of_shards + of_merges + trial.written("projection") + of_sample)


def _bytes_of(records: Iterable[PartRecord], folder: str) -> int:
    return sum(file.n_bytes for record in records for file in record.files if file.folder == folder)


def _cluster(spec: JobSpec, workers: int | None) -> tuple[int, int | None]:
    """Find the number of workers and the memory of each."""
    table = spec.cluster
    if table.kind == "local":
        workers = workers or table.workers or CPU_COUNT
        return workers, memory_of_a_worker(table.memory_limit, workers)
    if table.kind == "slurm":
        return workers or table.slurm_workers, slurm_client.memory_of_a_worker(table)
    if workers is None:
        raise JobFileError(
            f'cluster.kind = "{table.kind}", and how many workers the scheduler has is not asked: give --workers'
        )
    return workers, None


def _evenly(n: int, wanted: int) -> list[int]:
    """Choose up to `wanted` of n positions, in the middle of equal parts.

    Examples
    --------
    >>> _evenly(9, 3), _evenly(2, 3)
    ([1, 4, 7], [0, 1])
    """
    wanted = min(n, wanted)
    return [(2 * i + 1) * n // (2 * wanted) for i in range(wanted)]


def _free_bytes(path: Path) -> int:
    """Free disk where a folder is or will be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return shutil.disk_usage(path).free
