"""Reading the embeddings of a run back as arrays."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from wegl_dask.claims import JOB_NAME, SUCCESS_NAME
from wegl_dask.embeddings import VECTOR_COLUMN, EmbeddingFormat
from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.model_files import MODEL_JSON, read_model
from wegl_dask.records import RECORD_FOLDER, RECORD_NAME, part_index, part_path
from wegl_dask.sources.base import LabelSchema
from wegl_dask.storage import MANIFEST_NAME, RunFolder

READERS = 8
"""Files that are read at a time."""


@dataclass(frozen=True)
class Embeddings:
    """The embeddings of a run, in the order of the input.

    Attributes
    ----------
    X : float32, (n_graphs, N * d)
        Row-major: the displacement of the first reference point, then of the second, ...
    rows : pyarrow.Table
        The other columns that were read.
    n_points, dimension : int
        N and d.
    labels : LabelSchema
    metadata : dict
        The schema metadata of the parts: versions, fingerprints, the seed.
    reference : float64, (N, d), or None
        The reference; None where the parts were read without their model.

    Examples
    --------
    >>> e = read_embeddings("runs/quickstart")
    >>> e.graph_id[:3].tolist(), e.n_points, e.dimension
    (['1', '2', '3'], 16, 20)
    """

    X: npt.NDArray[np.float32]
    rows: pa.Table
    n_points: int
    dimension: int
    labels: LabelSchema
    metadata: dict[str, Any]
    reference: npt.NDArray[np.float64] | None

    @cached_property
    def y(self) -> npt.NDArray[np.int64] | npt.NDArray[np.float64] | None:
        """The labels.

        None where there are none; (n_graphs,) int64 for classes, float64 for targets; (n_graphs, n_tasks) float64 for
        tasks. An unknown label is NaN, and classes are float64 where there is one.
        """
        if self.labels.kind == "none":
            return None
        column = self._column("label").combine_chunks()
        if self.labels.kind != "tasks":
            values: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
            return values
        n_tasks = len(self.labels.task_names)
        tasks = np.full((len(column), n_tasks), np.nan)
        tasks[column.is_valid().to_numpy(zero_copy_only=False)] = (
            column.flatten().to_numpy(zero_copy_only=False).reshape(-1, n_tasks)
        )
        return tasks

    @cached_property
    def split(self) -> npt.NDArray[np.object_] | None:
        """The split of each graph, as str, None where it has none; None altogether where no graph has one."""
        column = self._column("split")
        return None if column.null_count == len(column) else column.to_numpy()

    @cached_property
    def graph_id(self) -> npt.NDArray[np.object_]:
        """The id of each graph, as str."""
        ids: npt.NDArray[np.object_] = self._column("graph_id").to_numpy()
        return ids

    @cached_property
    def num_nodes(self) -> npt.NDArray[np.int32]:
        """The number of nodes of each graph."""
        counts: npt.NDArray[np.int32] = self._column("num_nodes").to_numpy()
        return counts

    @cached_property
    def transport_cost(self) -> npt.NDArray[np.float64]:
        """<pi, C> of each graph: its squared 2-Wasserstein distance to the reference where the plan is exact."""
        costs: npt.NDArray[np.float64] = self._column("transport_cost").to_numpy()
        return costs

    def _column(self, name: str) -> pa.ChunkedArray:
        if name not in self.rows.column_names:
            raise WeglError(
                f"the column {name} was not read: name it in read_embeddings(..., columns=[...]), or leave columns out, "
                "which reads them all"
            )
        return self.rows.column(name)


def read_embeddings(
    path: str | os.PathLike[str],
    columns: str | Sequence[str] | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    allow_unfinished: bool = False,
) -> Embeddings:
    """Read the embeddings of a run.

    Parameters
    ----------
    path : str or path-like
        A run folder or its folder data/: a path or any fsspec URL.
    columns : str or sequence of str, optional
        The columns to read besides the vector; all by default. An attribute of the result needs its column.
    storage_options : mapping, optional
        Arguments for the file system.
    allow_unfinished : bool, default False
        Read what is there of a run that has not finished.

    Raises
    ------
    WeglError
        If there are no parts, the run has not finished, a part is missing or damaged, or parts do not belong together.

    Examples
    --------
    >>> import wegl_dask
    >>> e = wegl_dask.read_embeddings("runs/quickstart")
    >>> e.X.shape, e.y.shape
    ((4991, 320), (4991,))
    """
    data, run = find_parts(Folder(os.fspath(path), storage_options or {}))
    names = part_names(data, run, allow_unfinished=allow_unfinished)
    with ThreadPoolExecutor(READERS) as pool:
        footers = list(pool.map(data.parquet_footer, names))
    form = common_format(data, names, footers)
    rows_before = np.cumsum([0, *(footer.num_rows for footer in footers)])
    X = np.empty((int(rows_before[-1]), form.width), dtype=np.float32)
    # Gone through more than once.
    wanted = columns if columns is None else [columns] if isinstance(columns, str) else list(columns)
    chosen = _chosen_columns(form, wanted, data)

    def read(part: int) -> pa.Table:
        return _read_part(data, names[part], form, chosen, X[rows_before[part] : rows_before[part + 1]])

    with ThreadPoolExecutor(READERS) as pool:
        tables = list(pool.map(read, range(len(names))))
    has_model = run is not None and run.read_if_there(MODEL_JSON) is not None
    return Embeddings(
        X=X,
        rows=pa.concat_tables(tables),
        n_points=form.n_points,
        dimension=form.dimension,
        labels=form.labels,
        metadata=dict(form.metadata),
        reference=read_model(run)[1]["reference"] if run is not None and has_model else None,
    )


def find_parts(folder: Folder) -> tuple[Folder, Folder | None]:
    """Find the folder of the parts and the run folder around it, if there is one."""
    listing = folder.listing()
    if JOB_NAME in listing or "data" in listing:
        return folder.subfolder("data"), folder
    around = Folder(folder.url.rpartition("/")[0] or "/", folder.storage_options)
    return folder, around if JOB_NAME in around.listing() else None


def _recorded(run: Folder, stage: str) -> set[int]:
    """Find the indices that a stage has records of."""
    matches = map(RECORD_NAME.fullmatch, run.listing(RECORD_FOLDER))
    return {int(match["index"]) for match in matches if match and match["stage"] == stage}


def part_names(data: Folder, run: Folder | None, *, allow_unfinished: bool) -> list[str]:
    """List the parts in the order of the shards, after checking that all of them are there, in the size they were written."""
    sizes = data.listing()
    by_index = {index: name for name in sizes if (index := part_index(name)) is not None}
    if run is not None and not allow_unfinished and run.read_if_there(SUCCESS_NAME) is None:
        other_way = ", or read what is there in Python, with read_embeddings(..., allow_unfinished=True)"
        is_append = bool(_recorded(run, "known"))
        what = "wegl-dask status  says what is to be started again" if is_append else "run the job again"
        raise WeglError(f"the run in {run.location()} has not finished: {what}{other_way if by_index else ''}")
    if not by_index:
        raise WeglError(f"there are no embeddings in {data.location()}: give a run folder, or its folder data/")
    if not allow_unfinished:
        expected = set(range(max(by_index) + 1))
        if run is not None:
            recorded = _recorded(run, "embed")
            strangers = sorted(set(by_index) - recorded) if recorded else []
            if strangers:
                raise WeglError(
                    f"{data.location(by_index[strangers[0]])} is of no record of this run"
                    f"{f', and {len(strangers) - 1} more parts are' if len(strangers) > 1 else ''}: move it away"
                )
            expected |= recorded
            _require_sizes(data, run, sizes)
        missing = sorted(expected - set(by_index))
        if missing:
            raise WeglError(
                f"{data.location(part_path('data', missing[0]).rpartition('/')[2])} is missing"
                f"{f', and {len(missing) - 1} more parts are' if len(missing) > 1 else ''}: run the job again"
            )
    return [by_index[index] for index in sorted(by_index)]


def _require_sizes(data: Folder, run: Folder, sizes: Mapping[str, int | None]) -> None:
    """Refuse parts that are not of the size that the manifest has: one may have been put in place of another."""
    if MANIFEST_NAME not in run.listing():
        return
    manifest = RunFolder(run.url, run.storage_options).read_manifest()
    try:
        files = {file["path"]: int(file["bytes"]) for record in manifest["records"] for file in record["files"]}
    except (KeyError, TypeError, ValueError) as error:
        raise WeglError(
            f"{run.location(MANIFEST_NAME)} is damaged: {error!r} in its records. Run the job again"
        ) from error
    for path, n_bytes in files.items():
        folder, _, name = path.rpartition("/")
        if folder == "data" and name in sizes and sizes[name] != n_bytes:
            raise WeglError(
                f"{data.location(name)} is not the part that was written, which has {n_bytes:,} bytes: run the job again"
            )


def common_format(data: Folder, names: Sequence[str], footers: Sequence[pq.FileMetaData]) -> EmbeddingFormat:
    """Find the format that all parts have."""
    schemas: list[pa.Schema] = []
    formats: list[EmbeddingFormat] = []
    for name, footer in zip(names, footers, strict=True):
        schema = footer.schema.to_arrow_schema()
        # Most parts have the same schema to the letter, and a wide one takes long to compare with its format.
        if any(schema.equals(known, check_metadata=True) for known in schemas):
            continue
        try:
            found = EmbeddingFormat.from_schema(schema)
        except ValueError as error:
            raise WeglError(f"{data.location(name)} is no embedding part of this package: {error}") from error
        if formats and not found.fits(formats[0]):
            raise WeglError(
                f"{data.location(name)} is of another job or model than {names[0]}: run the job again with --overwrite"
            )
        schemas.append(schema)
        formats.append(found)
    return formats[0]


def _chosen_columns(form: EmbeddingFormat, columns: Sequence[str] | None, data: Folder) -> list[str]:
    vector = set(form.vector_columns)
    there = [name for name in form.schema.names if name not in vector]
    unknown = sorted(set(columns or ()) - set(there))
    if unknown:
        raise WeglError(f"{data.location()} has no column {', '.join(unknown)}; there are {', '.join(there)}")
    return [name for name in there if columns is None or name in columns]


def _read_part(
    data: Folder, name: str, form: EmbeddingFormat, columns: list[str], X: npt.NDArray[np.float32]
) -> pa.Table:
    """Read a part, row group by row group: the vectors into `X`, the other columns as a table."""
    tables = [form.schema.empty_table().select(columns)]
    start = 0
    with data.parquet(name) as file:
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=[*columns, *form.vector_columns], use_threads=False)
            _fill(X[start : start + table.num_rows], table, form)
            tables.append(table.select(columns))
            start += table.num_rows
    return pa.concat_tables([table.replace_schema_metadata(None) for table in tables])


def _fill(X: npt.NDArray[np.float32], table: pa.Table, form: EmbeddingFormat) -> None:
    """Copy the vectors of a table into `X`."""
    if form.layout == "wide":
        for position, name in enumerate(form.vector_columns):
            X[:, position] = table.column(name).to_numpy()
        return
    start = 0
    for chunk in table.column(VECTOR_COLUMN).chunks:
        X[start : start + len(chunk)] = chunk.flatten().to_numpy().reshape(len(chunk), form.width)
        start += len(chunk)
