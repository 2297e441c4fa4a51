"""The run folder: parts that are whole or not there, the records that vouch for them, and what a run leaves behind.

::

    OUT/
      job.toml               the job as run
      graphs/part-00000.parquet ...
      rejected/part-00000.parquet ...
      model/model.json, model/arrays.npz
      data/part-00000.parquet ...
      records/embed-00000.json ...    one a stage and shard, written after the files it lists
      records/run.json       which versions have written here
      scratch/               intermediate arrays, removed at the end
      manifest.json          the records merged
      _SUCCESS               written last
      .lock                  while a run is going on
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from wegl_dask.checksums import sealed, unsealed
from wegl_dask.claims import (
    JOB_NAME,
    MAX_REQUESTS,
    OWN_NAMES,
    SUCCESS_NAME,
    Claim,
    claim,
    own_files,
    remove_all,
)
from wegl_dask.errors import WeglError
from wegl_dask.folders import TEMPORARY_PREFIX, Folder
from wegl_dask.locks import Lock, locked
from wegl_dask.model_files import npz_arrays, read_model
from wegl_dask.records import (
    PART_FOLDERS,
    PART_NAME,
    RECORD_FOLDER,
    RECORD_NAME,
    SCRATCH_FOLDER,
    SCRATCH_NAME,
    PartFile,
    PartRecord,
    PartRecorder,
    Work,
    json_bytes,
    record_path,
)
from wegl_dask.toml import read_toml
from wegl_dask.training.names import TRAIN_FOLDER
from wegl_dask.version import NUMERICS_VERSION

MANIFEST_NAME = "manifest.json"


class RunFolder(Folder):
    """The folder of one run, as the client and every worker see it. It is small and can be pickled.

    Examples
    --------
    >>> folder = RunFolder("memory://storage-example")
    >>> with folder.recording("embed", 0, "fingerprint of the input") as part:
    ...     _ = part.write("data", b"the bytes of a Parquet file", rows=3)
    >>> list(folder.finished("embed", {0: "fingerprint of the input", 1: "another"}))
    [0]
    >>> folder.finished("embed", {0: "the input has changed"})
    {}
    """

    # Before the first part

    def lock(self) -> contextlib.AbstractContextManager[Lock]:
        """Hold the folder's lock during a ``with`` block; see `wegl_dask.locks.locked`."""
        return locked(self)

    def claim(self, job_toml: str, *, overwrite: bool = False) -> Claim:
        """Make the folder this job's; see `wegl_dask.claims.claim`. The lock must be held."""
        return claim(self, job_toml, overwrite=overwrite)

    def clean_temporary(self, *subfolders: str) -> None:
        """Remove the beginnings of files that killed processes left in some subfolders. Their lock must be held.

        Parameters
        ----------
        *subfolders : str
            By default those that the run's own lock is for. Every model that is trained has one of its own.
        """
        under_lock = ("", *(each for each in OWN_NAMES if not each.startswith(TRAIN_FOLDER)))
        leftovers = [
            f"{subfolder}/{name}".lstrip("/")
            for subfolder in subfolders or under_lock
            for name in self.listing(subfolder)
            if name.startswith(TEMPORARY_PREFIX)
        ]
        remove_all(self, leftovers)

    def job_toml(self) -> str:
        """Read the job file as run; WeglError where the folder has none."""
        content = self.read_if_there(JOB_NAME)
        if content is None:
            raise WeglError(f"{self.location()} is not a run folder: it has no {JOB_NAME}. Check the path")
        return content.decode(errors="replace")

    def job(self) -> dict[str, Any]:
        """Read the keys of the job file as run; WeglError where the folder has none, or one that is damaged."""
        try:
            return read_toml(self.job_toml())
        except ValueError as error:
            raise WeglError(f"{self.location(JOB_NAME)} is damaged: {error}") from error

    def keeps_graphs(self) -> bool:
        """Whether a finished run is to have its graph shards, see ``output.keep_graphs``."""
        match self.job():
            case {"output": {"keep_graphs": False}}:
                return False
            case _:
                return True

    # Parts

    @contextlib.contextmanager
    def recording(
        self, stage: str, index: int, input_fingerprint: str, *, since: float | None = None
    ) -> Iterator[PartRecorder]:
        """Write the files of one part; its record appears when the ``with`` block ends without an error.

        Parameters
        ----------
        stage : str
            A word in lower-case letters.
        index : int
            Index of the shard.
        input_fingerprint : str
            Hash of everything the part is made from, see `finished`.
        since : float, optional
            Moment by `time.perf_counter` at which the work on it began; now if not given.
        """
        recorder = PartRecorder(self, stage, index, input_fingerprint, since)
        yield recorder
        recorder.finish()

    def records(self, stage: str | None = None) -> list[PartRecord]:
        """Read the records of a stage, or of all, sorted by stage and index; what is not a whole record is left out."""
        paths = [
            f"{RECORD_FOLDER}/{name}"
            for name in self.listing(RECORD_FOLDER)
            if (match := RECORD_NAME.fullmatch(name)) and stage in (None, match["stage"])
        ]
        with ThreadPoolExecutor(MAX_REQUESTS) as pool:
            found = [record for record in pool.map(self._read_record, paths) if record is not None]
        return sorted(found, key=lambda record: (record.stage, record.index))

    def record(self, stage: str, index: int) -> PartRecord | None:
        """Read one record; None where it is not there or not whole."""
        return self._read_record(record_path(stage, index))

    def written_records(self, stage: str, indices: Iterable[int]) -> dict[int, PartRecord]:
        """Read records that tasks have written, each by its name, since a listing may lag behind: by index.

        Raises
        ------
        WeglError
            If one is not there.
        """

        def read(index: int) -> PartRecord:
            record = self.record(stage, index)
            if record is None:
                raise WeglError(
                    f"{self.location()}: the record of part {index} of the stage {stage} is not there, although a "
                    "worker has written it. All workers and this machine must see the same folder: see output.path"
                )
            return record

        with ThreadPoolExecutor(MAX_REQUESTS) as pool:
            return {record.index: record for record in pool.map(read, indices)}

    def finished(
        self, stage: str, expected_inputs: Mapping[int, str], *, by_name: bool = False
    ) -> dict[int, PartRecord]:
        """Find the parts that need not be made again.

        Parameters
        ----------
        stage : str
        expected_inputs : mapping of int to str
            What each part would be made from now, by shard index: a hash of its input and of every setting that
            matters.
        by_name : bool, default False
            Ask for the parts that the listings do not show by their names: listings may lag behind. To be used where
            all parts should be there, as it takes two requests or more for each.

        Returns
        -------
        dict of int to PartRecord
            The parts whose record names the expected input and whose files are there in the recorded size, by index
            in ascending order; see `part_is_intact` for what is in them.
        """
        records = [r for r in self.records(stage) if expected_inputs.get(r.index) == r.input_fingerprint]
        listings = {name: self.listing(name) for name in {file.folder for r in records for file in r.files}}
        records = [r for r in records if all(listings[f.folder].get(f.name) == f.n_bytes for f in r.files)]
        if by_name:
            unseen = expected_inputs.keys() - {record.index for record in records}
            with ThreadPoolExecutor(MAX_REQUESTS) as pool:
                found = pool.map(lambda index: self._finished_one(stage, index, expected_inputs[index]), sorted(unseen))
                records = sorted([*records, *filter(None, found)], key=lambda record: record.index)
        return {record.index: record for record in records}

    def part_is_intact(self, record: PartRecord) -> bool:
        """Whether the files that a record lists are there and hold the bytes that were written."""
        return all(self.sha256(file.path) == file.sha256 for file in record.files)

    def parts_are_intact(self, records: Sequence[PartRecord]) -> list[bool]:
        """Ask `part_is_intact` of many parts, several at a time."""
        with ThreadPoolExecutor(MAX_REQUESTS) as pool:
            return list(pool.map(self.part_is_intact, records))

    def keep_only(self, records: Iterable[PartRecord]) -> list[str]:
        """Remove the parts and records of earlier runs, on other input, that are not among `records`: the paths of those.

        Only names that this package writes are removed, and never the scratch folder or the model.
        """
        records = list(records)
        kept = {record.path for record in records} | {file.path for record in records for file in record.files}
        patterns = {**dict.fromkeys(PART_FOLDERS, PART_NAME), RECORD_FOLDER: RECORD_NAME}
        extra = [
            f"{subfolder}/{name}"
            for subfolder, pattern in patterns.items()
            for name in self.listing(subfolder)
            if pattern.fullmatch(name) and f"{subfolder}/{name}" not in kept
        ]
        # Records go first: one that is there vouches for its files. Of these, plans: one without the record of what was known
        # before it would be that of a finished append.
        plans = record_path("plan", 0).rpartition("-")[0]
        remove_all(self, [path for path in extra if path.startswith(plans)])
        remove_all(
            self, [path for path in extra if path.startswith(f"{RECORD_FOLDER}/") and not path.startswith(plans)]
        )
        remove_all(self, [path for path in extra if not path.startswith(f"{RECORD_FOLDER}/")])
        return extra

    def _finished_one(self, stage: str, index: int, expected_input: str) -> PartRecord | None:
        record = self.record(stage, index)
        if record is None or record.input_fingerprint != expected_input:
            return None
        return record if all(self.size(file.path) == file.n_bytes for file in record.files) else None

    def _read_record(self, path: str) -> PartRecord | None:
        content = self.read_if_there(path)
        if content is None:
            return None
        try:
            record = PartRecord.from_bytes(content)
            is_in_place = record.path == path
        except (ValueError, KeyError, TypeError):
            return None
        return record if is_in_place else None

    # Between the stages

    def read_written(self, path: str, sha256: str) -> bytes:
        """Read a file of a part whole.

        Parameters
        ----------
        path, sha256 : str
            Of its `PartFile`.

        Raises
        ------
        WeglError
            If it is not there, or is not the file that was written: a worker may still work for a run that was killed
            when the next has begun, and what it leaves must not become a part of another run.
        """
        content = self.read(path)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise self.taken_over(path)
        return content

    def read_arrays(self, file: PartFile) -> dict[str, np.ndarray]:
        """Read what `PartRecorder.write_arrays` wrote; see `read_written` for the errors."""
        return npz_arrays(self.read_written(file.path, file.sha256), self.location(file.path))

    def taken_over(self, path: str) -> WeglError:
        """Make the error that says what a task may see in a folder in which another run works."""
        return WeglError(
            f"{self.location(path)} is not what this run has written: the folder was cleared or became another job's while a "
            "task of this one was running, or the file is damaged. Run the job again, it is remade"
        )

    def read_model(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Read the model; see `wegl_dask.model_files.read_model`."""
        return read_model(self)

    # At the end

    def remove_graphs(self) -> None:
        """Remove the graph shards."""
        self._remove_subfolder("graphs")

    def remove_scratch(self) -> None:
        """Remove the intermediate arrays, and the records that list them."""
        names = filter(None, map(SCRATCH_NAME.fullmatch, self.listing(SCRATCH_FOLDER)))
        remove_all(self, sorted({f"{RECORD_FOLDER}/{name['record']}.json" for name in names}))
        self._remove_subfolder(SCRATCH_FOLDER)

    def write_manifest(
        self,
        records: Iterable[PartRecord],
        *,
        stage_seconds: Mapping[str, float],
        work: Mapping[str, Work],
        versions: Mapping[str, str],
        summary: Mapping[str, Any],
        plans: Iterable[PartRecord] = (),
    ) -> None:
        """Merge the records of the run into manifest.json.

        Parameters
        ----------
        records : iterable of PartRecord
        stage_seconds : mapping of str to float
            Wall-clock time of each stage, in the order of the stages; that of "merge" is in "moments".
        work : mapping of str to Work
            Of the parts of each stage that this run has used; it counts where a stage has no part among `records`.
        versions : mapping of str to str
            Versions of the packages that matter, by name.
        summary : mapping
            JSON values about the run as a whole.
        plans : iterable of PartRecord
            How the input was cut, which cannot be found out again once it has changed.
        """
        records = sorted(records, key=lambda record: (record.stage, record.index))
        stages = {}
        for stage in (*stage_seconds, *sorted({*work, *(r.stage for r in records)} - set(stage_seconds))):
            own = [r for r in records if r.stage == stage]
            done = Work.of(own) if own else work.get(stage, Work())
            stages[stage] = {
                "seconds": stage_seconds.get(stage),
                "parts": done.parts,
                "part_seconds": round(done.seconds, 3),
                "bytes": sum(file.n_bytes for r in own for file in r.files),
                "rows": {
                    name: sum(r.rows(name) for r in own)
                    for name in PART_FOLDERS
                    if any(file.folder == name for r in own for file in r.files)
                },
            }
        manifest = {
            "numerics_version": NUMERICS_VERSION,
            "versions": dict(sorted(versions.items())),
            "stages": stages,
            "summary": dict(summary),
            "plans": [record.to_json() for record in plans],
            "records": [record.to_json() for record in records],
        }
        self.write(MANIFEST_NAME, json_bytes(sealed(manifest), indent=1))

    def read_manifest(self) -> dict[str, Any]:
        """Read manifest.json, without its checksum; WeglError where the run has not finished or the file is damaged."""
        content = self.read(MANIFEST_NAME)
        try:
            return unsealed(content)
        except ValueError as error:
            raise WeglError(f"{self.location(MANIFEST_NAME)} is damaged: {error}. Run the job again") from error

    def mark_success(self) -> None:
        """Write ``_SUCCESS``: everything else is there."""
        self.write(SUCCESS_NAME, b"")

    def unmark_success(self) -> None:
        """Remove ``_SUCCESS``, before the first change to a finished run."""
        self.remove(SUCCESS_NAME)

    def has_succeeded(self) -> bool:
        """Whether the run is finished."""
        return self.read_if_there(SUCCESS_NAME) is not None

    def has_manifest(self) -> bool:
        """Whether there is a manifest, whole or not: the run has been finished at some time."""
        return MANIFEST_NAME in self.listing()

    def _remove_subfolder(self, subfolder: str) -> None:
        remove_all(self, [f"{subfolder}/{name}" for name in own_files(self, subfolder)])
        self.remove_if_empty(subfolder)
