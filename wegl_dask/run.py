"""What the stages of a run share: the job, the folder, the cluster, and how the parts of a stage are completed."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from distributed import Client

from wegl_dask import tasks
from wegl_dask.bags import run_stage
from wegl_dask.progress import Progress
from wegl_dask.records import PartRecord
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder
from wegl_dask.tasks import Record

Descriptor = TypeVar("Descriptor")

_log = logging.getLogger(__name__)


@dataclass
class Run:
    """A job under way.

    Attributes
    ----------
    spec : JobSpec
    folder : RunFolder
        Locked and claimed.
    client : distributed.Client
    resumed : bool
        Parts of an earlier run may be there; their bytes are checked before they are used.
    progress : callable
        Makes the progress display of a stage from its name and number of parts.
    stage_seconds : dict of str to float
        Filled in by `timed`.
    parts_made : int
        Parts that this run has made itself.
    """

    spec: JobSpec
    folder: RunFolder
    client: Client
    resumed: bool
    progress: Callable[[str, int], Progress]
    stage_seconds: dict[str, float] = field(default_factory=dict)
    parts_made: int = 0

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the ``with`` block to the stage's seconds."""
        started = time.perf_counter()
        yield
        seconds = time.perf_counter() - started
        self.stage_seconds[stage] = round(self.stage_seconds.get(stage, 0.0) + seconds, 3)

    def finished(self, stage: str, expected: Mapping[int, str]) -> dict[int, PartRecord]:
        """Find the parts that are whole and made from what they would be made from now."""
        found = self.folder.finished(stage, expected)
        return self.intact(stage, found) if self.resumed else found

    def intact(self, stage: str, records: Mapping[int, PartRecord]) -> dict[int, PartRecord]:
        """Keep the records whose files hold the bytes that were written, checked on the workers."""
        check = partial(tasks.check_part, self.folder)
        values = [record.to_json() for record in records.values()]
        kept = {
            int(record["index"])
            for record in run_stage(
                self.client,
                f"check of {stage}",
                check,
                values,
                describe=lambda value: f"part {value['index']}",
                retries=0,
            )
        }
        for index in sorted(set(records) - kept):
            _log.warning("%s: part %d was altered after it was written; it is made again", stage, index)
        return {index: record for index, record in records.items() if index in kept}

    def make(
        self,
        stage: str,
        function: Callable[[Descriptor], list[Record]],
        descriptors: Sequence[Descriptor],
        *,
        n_parts: int,
        describe: Callable[[Descriptor], str],
    ) -> dict[int, PartRecord]:
        """Make parts on the cluster and show the progress: their records by index."""
        made: dict[int, PartRecord] = {}
        if not descriptors:
            return made
        if not self.parts_made:
            self.folder.unmark_success()
        with self.progress(stage, n_parts) as progress:
            results = run_stage(
                self.client, stage, function, descriptors, describe=describe, retries=self.spec.cluster.retries
            )
            for values in results:
                record = PartRecord.from_json(values)
                made[record.index] = record
                self.parts_made += 1
                progress.update(1, record.extra.get("graphs", record.rows("data")))
        return made

    def complete(
        self,
        stage: str,
        function: Callable[[tasks.ShardTask], list[Record]],
        descriptors: Sequence[tasks.ShardTask],
    ) -> dict[int, PartRecord]:
        """Make the parts of a stage that are missing: the records of all, in order of the shards."""
        with self.timed(stage):
            finished = self.finished(stage, {task.shard: task.input_fingerprint for task in descriptors})
            missing = [task for task in descriptors if task.shard not in finished]
            made = self.make(
                stage, function, missing, n_parts=len(missing), describe=lambda task: f"shard {task.shard}"
            )
            records = finished | made
        return {task.shard: records[task.shard] for task in descriptors}
