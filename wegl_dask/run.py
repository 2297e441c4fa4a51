"""What the stages of a run share: the job, the folder, the cluster, and how the parts of a stage are completed."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from distributed import Client, Future

from wegl_dask import tasks
from wegl_dask.bags import run_stage
from wegl_dask.locks import Lock
from wegl_dask.logs import log_event
from wegl_dask.progress import Progress
from wegl_dask.records import PartRecord, Work
from wegl_dask.sources import reading_packages
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder

_log = logging.getLogger(__name__)


class Task(Protocol):
    """Descriptor of one task: some hundred bytes that say which parts it makes, and of what."""

    @property
    def indices(self) -> tuple[int, ...]:
        """Indices of the parts that it makes."""


class PartTask(Task, Protocol):
    """Descriptor of a task that makes one part."""

    @property
    def index(self) -> int:
        """Index of the part."""

    @property
    def input_fingerprint(self) -> str:
        """Hash of everything the part is made from."""


AnyTask = TypeVar("AnyTask", bound=Task)
AnyPartTask = TypeVar("AnyPartTask", bound=PartTask)


@dataclass
class Run:
    """A job under way.

    Attributes
    ----------
    spec : JobSpec
    folder : RunFolder
        Claimed for the job.
    lock : Lock
        Of the folder, held.
    client : distributed.Client
    resumed : bool
        Parts of an earlier run may be there; their bytes are checked before they are used.
    progress : callable
        Makes the progress display of a stage from its name and number of parts.
    finished_before : bool
        The run has been finished at some time. What it lacks now is made anew from its plans, and of its source only what
        those parts were made from is looked at: it may have changed otherwise, and most often has where rows were appended.
    stage_seconds : dict of str to float
        Filled in by `timed`.
    work : dict of str to Work
        Of the parts of each stage that were made, or found, for this run.
    parts_made : int
        Parts that this run has made itself.
    """

    spec: JobSpec
    folder: RunFolder
    lock: Lock
    client: Client
    resumed: bool
    progress: Callable[[str, int], Progress]
    finished_before: bool = False
    stage_seconds: dict[str, float] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    parts_made: int = 0

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the ``with`` block to the stage's seconds."""
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        self.stage_seconds[stage] = round(self.stage_seconds.get(stage, 0.0) + seconds, 3)

    def finished(self, stage: str, expected: Mapping[int, str]) -> dict[int, PartRecord]:
        """Find the parts that are whole and made from what they would be made from now, by index."""
        found = self.folder.finished(stage, expected)
        return self.intact(stage, found) if self.resumed else found

    def intact(self, stage: str, records: Mapping[int, PartRecord], *, without: str = "") -> dict[int, PartRecord]:
        """Keep the records of parts that were not altered; see `altered`."""
        altered = self.altered(stage, records, without=without)
        for index in altered:
            _log.warning("%s: part %d was altered after it was written; it is made again", stage, index)
        return {index: record for index, record in records.items() if index not in set(altered)}

    def altered(self, stage: str, records: Mapping[int, PartRecord], *, without: str = "") -> list[int]:
        """Find the parts whose files do not hold the bytes that were written, checked on the workers.

        The files in the subfolder `without` are not looked at.
        """
        descriptors = [tasks.CheckTask(stage, index, without) for index in records]
        checked = run_stage(
            self.client, f"check-{stage}", partial(tasks.check_part, self.folder), descriptors, retries=self._retries
        )
        return sorted(task.index for task, outcome in checked if not outcome.result)

    def prepare(self, function: Callable[[], None]) -> Future:
        """Let one worker prepare for a later task, while the stages before it go on.

        Parameters
        ----------
        function : callable

        Returns
        -------
        Future
            What `compute` is given as `beside`.
        """
        return self.client.submit(function, pure=False)

    def compute(
        self,
        stage: str,
        function: Callable[[AnyTask], int],
        descriptors: Sequence[AnyTask],
        *,
        beside: Future | None = None,
    ) -> dict[int, PartRecord]:
        """Run tasks on the cluster, `beside` a result if given, and show the progress: the records they wrote, by index."""
        if not descriptors:
            return {}
        self.lock.ensure_held()
        done: list[int] = []
        n_parts = sum(len(task.indices) for task in descriptors)
        under_way = self.n_threads * n_parts / len(descriptors)
        with self.progress(stage, n_parts) as progress:
            outcomes = run_stage(
                self.client,
                stage,
                function,
                descriptors,
                retries=self._retries,
                beside=beside,
                packages=reading_packages(self.spec.source),
            )
            for task, outcome in outcomes:
                done += task.indices
                progress.update(len(task.indices), outcome.result, under_way=under_way)
                log_event(
                    "part",
                    f"{stage}: {task}",
                    stage=stage,
                    shards=task.indices,
                    worker=outcome.worker,
                    graphs=outcome.result,
                    seconds=outcome.seconds,
                )
        # They do not come with the tasks' results: they can be large.
        records = self.folder.written_records(stage, sorted(done))
        self._account(stage, records)
        return records

    def make(
        self,
        stage: str,
        function: Callable[[AnyTask], int],
        descriptors: Sequence[AnyTask],
        *,
        beside: Future | None = None,
    ) -> dict[int, PartRecord]:
        """Make parts of the run: their records by index. From here on the run is not finished."""
        if descriptors and not self.parts_made:
            self.folder.unmark_success()
        made = self.compute(stage, function, descriptors, beside=beside)
        self.parts_made += len(made)
        return made

    def complete(
        self, stage: str, function: Callable[[AnyPartTask], int], descriptors: Sequence[AnyPartTask]
    ) -> dict[int, PartRecord]:
        """Make the parts of a stage that are missing: the records of all, in the order of `descriptors`."""
        with self.timed(stage):
            records = self.finished(stage, {task.index: task.input_fingerprint for task in descriptors})
            self._account(stage, records)
            records |= self.make(stage, function, [task for task in descriptors if task.index not in records])
        return {task.index: records[task.index] for task in descriptors}

    @property
    def n_threads(self) -> int:
        """Tasks that the workers that are there do at a time."""
        return sum(self.client.nthreads().values())

    @property
    def n_workers(self) -> int:
        """Tasks that will be done at a time: Slurm starts workers one after another, and the first begins alone."""
        return max(self.n_threads, self.spec.cluster.slurm_workers)

    def _account(self, stage: str, records: Mapping[int, PartRecord]) -> None:
        self.work[stage] = self.work.get(stage, Work()).plus(Work.of(records.values()))

    @property
    def _retries(self) -> int:
        return self.spec.cluster.retries
