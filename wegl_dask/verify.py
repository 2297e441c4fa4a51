"""Checking a run folder against its own records: nothing missing, nothing altered, nothing that does not belong."""

import contextlib
import hashlib
import io
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wegl_dask.checksums import unsealed
from wegl_dask.claims import JOB_NAME, RUN_JSON, SUCCESS_NAME
from wegl_dask.embeddings import VECTOR_COLUMN, EmbeddingFormat
from wegl_dask.errors import JobFileError, WeglError
from wegl_dask.folders import TEMPORARY_PREFIX, resources_told_apart
from wegl_dask.model_files import MODEL_JSON
from wegl_dask.plans import planned_shards
from wegl_dask.progress import Progress, unshown
from wegl_dask.recomputed import differences
from wegl_dask.records import PART_FOLDERS, RECORD_FOLDER, RECORD_NAME, PartFile, PartRecord, part_index, part_path
from wegl_dask.refitted import FittedPoints
from wegl_dask.row_ranges import row_ranges
from wegl_dask.saved_model import Model, Origin
from wegl_dask.shards import read_shard
from wegl_dask.sources.base import REJECTED_SCHEMA, SourcePlan
from wegl_dask.spec import JobSpec
from wegl_dask.storage import MANIFEST_NAME, RunFolder

_KEY_COLUMNS = ["graph_id", "source_file", "source_row"]


@dataclass(frozen=True)
class Problem:
    """Something in a run folder that is not as it should be: the file, relative to the folder, and what it is."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


def verify_run(folder: RunFolder, *, deep: bool = False, progress: Callable[..., Progress] = unshown) -> list[Problem]:
    """Check a finished run, with one file in memory at a time.

    Always: the run has finished; every shard of the plan was ingested and embedded; each of its rows was embedded or
    rejected; every record has its files, in the recorded size and SHA-256, with the recorded number of rows and the
    columns of the run; no other file is among the parts.

    Parameters
    ----------
    folder : RunFolder
    deep : bool, default False
        Look into the rows too: no row of the input, (``source_file``, ``source_row``), occurs twice in data/ and
        rejected/; vectors are finite. Where the graph shards were kept, embeddings come in their order, with their
        ids, and are those that follow from the graphs and the model: all of them are computed anew, in this process,
        and their plans proven optimal. In a run without other problems that has fitted its model, the points that this
        was fitted to have the mean and the variances that it says, see `wegl_dask.refitted`.
    progress : callable
        Makes the progress display from its name and the number of records; nothing is shown by default.

    Returns
    -------
    list of Problem
        Empty when all is well.

    Raises
    ------
    WeglError
        If it is not a run folder, its job file is damaged, or the store cannot be read.
    """
    problems = [*_problems(folder, deep=deep, progress=progress)]
    if deep and not problems and folder.keeps_graphs():
        problems += _check_fit(folder, progress)
    return problems


def are_of_append(paths: Iterable[str], shards: Collection[int]) -> bool:
    """Whether files that are missing or wrong are no more than those of an append, which is to make some shards."""
    names = [path.rpartition("/")[2] for path in paths]
    return all(
        name == SUCCESS_NAME or name.startswith(TEMPORARY_PREFIX) or part_index(name) in shards for name in names
    )


def _problems(folder: RunFolder, *, deep: bool, progress: Callable[..., Progress]) -> Iterator[Problem]:
    keeps_graphs = folder.keeps_graphs()
    records = folder.records()
    yield from _check_versions(folder)
    yield from _check_job(folder)
    lost: list[PartRecord] = []
    if folder.has_succeeded():
        listed, damage = _read_manifest(folder)
        if damage:
            yield Problem(MANIFEST_NAME, f"damaged: {damage}")
        whole = {record.path for record in records}
        lost = [record for record in listed if record.path not in whole]
        yield from _check_records(folder, whole, lost)
    else:
        yield Problem("_SUCCESS", "missing: the run has not finished")
    yield from _check_shards(records, lost)
    recorded = {file.path: file for record in records for file in record.files}
    listings = {name: folder.listing(name) for name in {*PART_FOLDERS, *(file.folder for file in recorded.values())}}
    yield from _check_strangers(listings, {*recorded, *(file.path for record in lost for file in record.files)})
    if not keeps_graphs:
        recorded = {path: file for path, file in recorded.items() if file.folder != "graphs"}
    model = None
    if deep and folder.read_if_there(MODEL_JSON) is not None:
        try:
            model = Model.from_files(*folder.read_model())
        except WeglError as error:
            yield Problem(MODEL_JSON, str(error))
    check = _PartCheck(folder, recorded, listings, model, deep=deep)
    with progress("verify", len(records)) as shown:
        for record in records:
            yield from check.record(record)
            shown.update()


def _check_job(folder: RunFolder) -> Iterator[Problem]:
    try:
        JobSpec.from_toml(folder.job_toml(), where="job")
    except JobFileError as error:
        yield Problem(JOB_NAME, f"not that of a run ({error})")


def _check_fit(folder: RunFolder, progress: Callable[..., Progress]) -> Iterator[Problem]:
    """Compare the model of a whole run, unless it was given, with the points that it was fitted to."""
    plan, model = (folder.record(stage, 0) for stage in ("plan", "reference"))
    if plan is None or model is None or JobSpec.from_toml(folder.job_toml()).model.path is not None:
        return
    shards = sorted(planned_shards(plan))
    description, arrays = folder.read_model()
    points = FittedPoints(Model.from_files(description, arrays), Origin.from_description(description))
    with progress("verify the fit", len(shards)) as shown:
        for shard in shards:
            points.add(read_shard(io.BytesIO(folder.read(part_path("graphs", shard)))))
            shown.update()
    for what in points.differences():
        yield Problem(MODEL_JSON, what)


def _read_manifest(folder: RunFolder) -> tuple[list[PartRecord], str]:
    """Read the records in the manifest; if it is damaged, none, and how."""
    try:
        return [PartRecord.from_json(entry) for entry in folder.read_manifest()["records"]], ""
    except (WeglError, ValueError, KeyError, TypeError) as error:
        what = error.__cause__ if isinstance(error, WeglError) else repr(error)
        return [], str(what or error)


def _check_records(folder: RunFolder, whole: Collection[str], lost: Sequence[PartRecord]) -> Iterator[Problem]:
    """Report the records that only the manifest has, and those that are not whole."""
    missing = sorted(record.path for record in lost)
    for path in missing:
        yield Problem(path, f"missing or damaged, but listed in {MANIFEST_NAME}")
    there = {f"{RECORD_FOLDER}/{name}" for name in folder.listing(RECORD_FOLDER) if RECORD_NAME.fullmatch(name)}
    for path in sorted(there.difference(whole, missing)):
        yield Problem(path, "damaged: it is no whole record")


def _check_versions(folder: RunFolder) -> Iterator[Problem]:
    content = folder.read_if_there(RUN_JSON)
    try:
        unsealed(content or b"")
    except ValueError as error:
        yield Problem(RUN_JSON, f"missing or damaged: {error}")


def _check_shards(records: Sequence[PartRecord], lost: Sequence[PartRecord]) -> Iterator[Problem]:
    """Compare the shards that were planned, ingested and embedded, and their numbers of rows; `lost` is reported."""
    planned = {
        cut.shard: cut.n_rows
        for record in records
        if record.stage == "plan"
        for unit in SourcePlan.from_json(record.extra["plan"]).units
        for cut in unit.cuts
    }
    ingested = {record.index: record for record in records if record.stage == "ingest"}
    embedded = {record.index: record for record in records if record.stage == "embed"}
    lost_shards = {stage: {record.index for record in lost if record.stage == stage} for stage in ("ingest", "embed")}
    unplanned = sorted({*ingested, *embedded} - planned.keys())
    if unplanned and not any(record.stage == "plan" for record in lost):
        what = f"no record of the plan of {len(unplanned)} shards, of which the first is shard {unplanned[0]}"
        yield Problem(RECORD_FOLDER, what)
    for index in sorted({*planned, *ingested, *embedded}):
        if index not in ingested:
            if index not in lost_shards["ingest"]:
                yield Problem(part_path("graphs", index), "no record of the shard")
            continue
        graphs, rejected = ingested[index].rows("graphs"), ingested[index].rows("rejected")
        # Rows that were known before an append are in the input and in other shards.
        known = int(ingested[index].extra.get("known", 0))
        if graphs + rejected + known != planned.get(index, graphs + rejected + known):
            yield Problem(
                part_path("graphs", index),
                f"{graphs} graphs and {rejected} rejected for {planned[index] - known} rows of the input",
            )
        if index not in embedded:
            if index not in lost_shards["embed"]:
                yield Problem(part_path("data", index), "no record of the part: the shard was not embedded")
            continue
        rows, rejected = embedded[index].rows("data"), embedded[index].rows("rejected")
        if rows + rejected != graphs:
            yield Problem(
                part_path("data", index), f"{rows} rows and {rejected} rejected for {graphs} graphs of the shard"
            )


def _check_strangers(listings: dict[str, dict[str, int | None]], recorded: Collection[str]) -> Iterator[Problem]:
    for folder in PART_FOLDERS:
        for name in sorted(listings[folder]):
            if name.startswith(TEMPORARY_PREFIX):
                yield Problem(f"{folder}/{name}", "left by a process that was killed; the next run removes it")
            elif f"{folder}/{name}" not in recorded:
                yield Problem(f"{folder}/{name}", "not of this run: no record lists it")


class _PartCheck:
    """Looks into files, one at a time, and remembers what the next ones must agree with."""

    def __init__(
        self,
        folder: RunFolder,
        recorded: Collection[str],
        listings: Mapping[str, Mapping[str, int | None]],
        model: Model | None,
        *,
        deep: bool,
    ) -> None:
        self._folder = folder
        self._recorded = recorded
        self._listings = listings
        self._model = model
        self._deep = deep
        self._format: EmbeddingFormat | None = None
        self._seen = _SeenRows()

    def record(self, record: PartRecord) -> Iterator[Problem]:
        """Check the files of a record that are wanted, and in depth the rows of an embedding part."""
        files = [file for file in record.files if file.path in self._recorded]
        there = [file for file in files if self._listings[file.folder].get(file.name) is not None]
        for file in files:
            if file not in there:
                yield Problem(file.path, "missing")
        problems = [*self._files(there)]
        shard = part_path("graphs", record.index)
        if self._deep and record.stage == "embed" and shard in self._recorded:
            problems += self._order(record, shard)
            if self._model is not None and not problems:
                problems += self._values(record, self._model)
        yield from problems

    def _files(self, files: Sequence[PartFile]) -> Iterator[Problem]:
        for file in files:
            content = self._folder.read(file.path)
            if len(content) != file.n_bytes:
                yield Problem(file.path, f"{len(content)} bytes; {file.n_bytes} were written")
            elif hashlib.sha256(content).hexdigest() != file.sha256:
                yield Problem(file.path, "altered: its SHA-256 is not that of what was written")
            elif file.folder in PART_FOLDERS:
                yield from self._parquet(file, content)

    def _order(self, record: PartRecord, shard: str) -> Iterator[Problem]:
        """Compare the rows of an embedding part with those of its graph shard."""
        data = part_path("data", record.index)
        rejected = [file.path for file in record.files if file.folder == "rejected"]
        try:
            expected, found = self._keys(shard), self._keys(data)
            left_out = {row for path in rejected for row in _as_tuples(self._keys(path))}
        except WeglError:
            # Damage is reported where the file is checked.
            return
        expected_rows = [row for row in _as_tuples(expected) if row not in left_out]
        found_rows = _as_tuples(found)
        if expected_rows != found_rows:
            pairs = enumerate(zip(expected_rows, found_rows, strict=False))
            where = next((f"; row {i} is {b} instead of {a}" for i, (a, b) in pairs if a != b), "")
            yield Problem(
                data,
                f"its {len(found_rows)} rows are not the {len(expected_rows)} embedded graphs of {shard}, in order{where}",
            )

    def _values(self, record: PartRecord, model: Model) -> Iterator[Problem]:
        """Compare the embeddings of a part with what follows from its graph shard and the model."""
        # Damage of the shard is reported where the file is checked.
        with contextlib.suppress(WeglError):
            for what in differences(self._folder, model, record):
                yield Problem(part_path("data", record.index), what)

    def _keys(self, path: str) -> pa.Table:
        with self._folder.parquet(path) as file:
            rows = file.read(columns=_KEY_COLUMNS, use_threads=False)
        if sorted(rows.column_names) != sorted(_KEY_COLUMNS):
            raise WeglError(f"{path} has not the columns {', '.join(_KEY_COLUMNS)}")
        return rows

    def _parquet(self, file: PartFile, content: bytes) -> Iterator[Problem]:
        try:
            with resources_told_apart(file.path), pq.ParquetFile(pa.BufferReader(content)) as parquet:
                if parquet.metadata.num_rows != file.rows:
                    yield Problem(file.path, f"{parquet.metadata.num_rows} rows; its record says {file.rows}")
                problem = self._columns(file, parquet.schema_arrow)
                if problem is not None:
                    yield problem
                elif self._deep and file.folder != "graphs":
                    yield from self._rows(file, parquet)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            yield Problem(file.path, f"not a Parquet file: {str(error).splitlines()[0]}")

    def _columns(self, file: PartFile, schema: pa.Schema) -> Problem | None:
        if file.folder == "rejected" and not schema.equals(REJECTED_SCHEMA):
            return Problem(file.path, f"has columns {schema.names}; {REJECTED_SCHEMA.names} are needed")
        if file.folder == "data":
            try:
                found = EmbeddingFormat.from_schema(schema)
            except ValueError as error:
                return Problem(file.path, str(error))
            self._format = self._format or found
            if not found.fits(self._format):
                return Problem(file.path, "of another job or model than the parts before it")
        return None

    def _rows(self, file: PartFile, parquet: pq.ParquetFile) -> Iterator[Problem]:
        yield from self._seen.add(file.path, parquet.read(columns=_KEY_COLUMNS[1:], use_threads=False))
        if file.folder != "data":
            return
        columns = EmbeddingFormat.from_schema(parquet.schema_arrow).vector_columns
        for group in range(parquet.num_row_groups):
            table = parquet.read_row_group(group, columns=columns, use_threads=False)
            for name in columns:
                for chunk in table.column(name).chunks:
                    values = (chunk.flatten() if name == VECTOR_COLUMN else chunk).to_numpy()
                    if not np.isfinite(values).all():
                        yield Problem(file.path, f"NaN or infinity in column {name}, row group {group}")


class _SeenRows:
    """Which rows of the input have occurred: disjoint intervals, by source file.

    The parts of a shard cover a range of the input together, so that the intervals stay few.
    """

    def __init__(self) -> None:
        self._starts: dict[str, list[int]] = {}
        self._ends: dict[str, list[int]] = {}

    def add(self, path: str, rows: pa.Table) -> Iterator[Problem]:
        """Add the rows of a part; report, once a source file, the first that occurred before."""
        for name, ranges in row_ranges([rows]).items():
            repeated = [row for start, end in ranges if (row := self._insert(name, start, end)) is not None]
            if repeated:
                yield Problem(path, f"row {repeated[0]} of {name} occurs a second time")

    def _insert(self, name: str, start: int, end: int) -> int | None:
        """Add an interval, joined to its neighbours; the first number that was there before, or None."""
        starts, ends = self._starts.setdefault(name, []), self._ends.setdefault(name, [])
        i = bisect_right(starts, start)
        if i and ends[i - 1] > start:
            return start
        if i < len(starts) and starts[i] < end:
            return starts[i]
        joins_left, joins_right = bool(i) and ends[i - 1] == start, i < len(starts) and starts[i] == end
        if joins_left and joins_right:
            ends[i - 1] = ends.pop(i)
            del starts[i]
        elif joins_left:
            ends[i - 1] = end
        elif joins_right:
            starts[i] = start
        else:
            starts.insert(i, start)
            ends.insert(i, end)
        return None


def _as_tuples(rows: pa.Table) -> list[tuple[str, str, int]]:
    return list(zip(*(rows.column(name).to_pylist() for name in _KEY_COLUMNS), strict=True))
