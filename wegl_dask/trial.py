"""The stages of a job tried in this process on a few of its shards, in a folder of their own, task by task."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any

from distributed import Future
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from wegl_dask.embed import embed
from wegl_dask.fit import Fit, fit_model, prepare_fit
from wegl_dask.ingest import ShardCensus, ingest, write_plan
from wegl_dask.progress import Progress
from wegl_dask.records import PartRecord
from wegl_dask.reference import BLOCK_ROWS, ReferenceKind, import_clustering, mini_batch_kmeans
from wegl_dask.run import AnyTask, Run
from wegl_dask.scratch import scratch_folder
from wegl_dask.sources.base import SourcePlan
from wegl_dask.spec import JobSpec, ReferenceTable
from wegl_dask.storage import RunFolder
from wegl_dask.worker_environment import PRELOADED


@dataclass(frozen=True)
class TriedTask:
    """One task: its stage, the seconds it took, and the record of what it made.

    Attributes
    ----------
    stage : str
    seconds : float
    records : tuple of PartRecord
    """

    stage: str
    seconds: float
    records: tuple[PartRecord, ...]

    @property
    def written(self) -> int:
        """Bytes of the files that it wrote."""
        return sum(file.n_bytes for record in self.records for file in record.files)


@dataclass
class TrialRun(Run):
    """A run whose tasks are called here, one after another.

    Attributes
    ----------
    tried : list of TriedTask
        Filled in as the stages are run.
    """

    tried: list[TriedTask] = field(default_factory=list)

    @property
    def n_workers(self) -> int:
        """One task at a time."""
        return 1

    def intact(self, stage: str, records: Mapping[int, PartRecord], *, without: str = "") -> dict[int, PartRecord]:
        """Take the parts as they are: they were made a moment ago."""
        del stage, without
        return dict(records)

    def prepare(self, function: Callable[[], None]) -> Future | None:
        """Leave it: nothing else is going on that it could be done beside."""
        del function
        return None

    def compute(
        self,
        stage: str,
        function: Callable[[AnyTask], int],
        descriptors: Sequence[AnyTask],
        *,
        beside: Future | None = None,
    ) -> dict[int, PartRecord]:
        """Call the tasks, and note how long each takes."""
        del beside
        made: dict[int, PartRecord] = {}
        with self.progress(stage, len(descriptors)) as progress:
            for descriptor in descriptors:
                started = time.perf_counter()
                n_graphs = function(descriptor)
                seconds = time.perf_counter() - started
                records = self.folder.written_records(stage, descriptor.indices)
                self.tried.append(TriedTask(stage, seconds, tuple(records.values())))
                made |= records
                progress.update(1, n_graphs)
        return made


@dataclass(frozen=True)
class Trial:
    """What the stages did on some shards.

    Attributes
    ----------
    census : ShardCensus
        Of the shards that were tried.
    fit : Fit
    tasks : tuple of TriedTask
    import_seconds : float
        What the stage reference imports; it is not in the seconds of its task.
    row_seconds : float
        What k-means takes for one row in one pass; 0 for other references.
    """

    census: ShardCensus
    fit: Fit
    tasks: tuple[TriedTask, ...]
    import_seconds: float
    row_seconds: float

    def of_stage(self, stage: str) -> list[TriedTask]:
        """Select the tasks of one stage."""
        return [task for task in self.tasks if task.stage == stage]

    def seconds(self, stage: str) -> float:
        """Add up the seconds of a stage."""
        return sum(task.seconds for task in self.of_stage(stage))

    def written(self, stage: str) -> int:
        """Add up the bytes that a stage wrote."""
        return sum(task.written for task in self.of_stage(stage))

    @property
    def sampled(self) -> int:
        """Points that the reference was computed from."""
        return sum(int(record.extra["points"]) for task in self.of_stage("sample") for record in task.records)


@contextmanager
def trial_run(spec: JobSpec, progress: Callable[[str, int], Progress]) -> Iterator[TrialRun]:
    """Open a run in a temporary folder, which is removed in the end."""
    # A task is not to be timed with what it imports.
    for module in PRELOADED:
        import_module(module)
    with scratch_folder(purpose="plan") as scratch:
        path = f"{scratch}/run"
        output = spec.output.model_copy(update={"path": path, "keep_graphs": True})
        spec = spec.model_copy(update={"output": output})
        folder = RunFolder(path)
        # As in a worker. Here several threads would take less time, or on a busy machine, where they wait for one another, ten
        # times as long.
        with folder.lock() as lock, threadpool_limits(1):
            folder.claim(spec.to_toml())
            # The tasks are called by the run itself.
            no_client: Any = None
            yield TrialRun(spec, folder, lock, no_client, resumed=False, progress=progress)


def try_shards(
    run: TrialRun, plan: SourcePlan, shards: Collection[int], reference: Callable[[ShardCensus], ReferenceTable]
) -> Trial:
    """Run all stages on some shards.

    Parameters
    ----------
    run : TrialRun
    plan : SourcePlan
    shards : collection of int
        The shards that are read.
    reference : callable
        Says from these shards what reference is to be computed from them.
    """
    streams = [unit for unit in plan.units if len(unit.cuts) > 1]
    firsts = {unit.cuts[0].shard for unit in streams} & set(shards)
    # Reading a later part of a stream takes the time to get there as well, so only the first of each is timed.
    if firsts:
        _ingest(run, plan, firsts)
    timed = list(run.tried)
    census = _ingest(run, plan, shards)
    later = {cut.shard for unit in streams for cut in unit.cuts}
    run.tried[:] = timed + [task for task in run.tried[len(timed) :] if task.records[0].index not in later]
    table = reference(census)
    fit = prepare_fit(run.spec.model_copy(update={"reference": table}), census)
    import_seconds = _import_seconds(table.kind)
    model = fit_model(run, fit)
    row_seconds = _row_seconds(run, fit) if table.kind == "kmeans" else 0.0
    embed(run, census, model)
    return Trial(census, fit, tuple(run.tried), import_seconds, row_seconds)


def _ingest(run: TrialRun, plan: SourcePlan, shards: Collection[int]) -> ShardCensus:
    units = [replace(unit, cuts=tuple(cut for cut in unit.cuts if cut.shard in shards)) for unit in plan.units]
    part = replace(plan, units=tuple(unit for unit in units if unit.cuts))
    write_plan(run, 0, part, nodes_per_shard=0)
    return ingest(run, part)


def _import_seconds(reference: ReferenceKind) -> float:
    """Import what the reference needs, and say how long that takes in a process that has not done so."""
    started = time.perf_counter()
    if reference == "kmeans":
        import_clustering()
    elif reference == "barycenter":
        import ot.lp  # noqa: F401, PLC0415
    return time.perf_counter() - started


def _row_seconds(run: TrialRun, fit: Fit) -> float:
    """Time k-means on one mini-batch; the first time it starts up, and another process may get in the way of one."""
    (points,) = (
        run.folder.read_arrays(record.files[0])["points"][:BLOCK_ROWS] for record in run.folder.records("sample")[:1]
    )
    if len(points) < fit.n_points:
        return 0.0
    clusterer = mini_batch_kmeans(points[: fit.n_points], fit.spec.seed)
    seconds = []
    # Scikit-learn's threads are known since it was imported.
    with threadpool_limits(1):
        for _ in range(4):
            started = time.perf_counter()
            clusterer.partial_fit(points)
            seconds.append(time.perf_counter() - started)
    return min(seconds) / len(points)
