"""Graph shards: a batch of graphs, its labels and its ids as one Parquet file, a row a graph."""

import io
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import IO, Annotated, Any, TypeAlias

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field, TypeAdapter, ValidationError

from wegl_dask.errors import SourceError
from wegl_dask.folders import resources_told_apart
from wegl_dask.graphs import (
    ALL_ATTRIBUTES,
    EdgeRepairs,
    GraphBatch,
    GraphSchema,
    IntArray,
    UsedAttributes,
    canonical_edges,
    find_invalid,
    in_single_precision,
    offsets_from_counts,
)
from wegl_dask.row_ranges import RowRanges
from wegl_dask.shard_layout import is_laid_out, write_laid_out
from wegl_dask.sources.base import NUMBERING_KEYS, REJECTED_SCHEMA, LabelSchema, SourceShard, StoredShard

ShardFile: TypeAlias = str | os.PathLike[str] | IO[bytes]
"""A local path, an fsspec URL, or an open binary file that can seek."""

ROW_COLUMNS = ("graph_id", "source_file", "source_row", "label", "split")
"""Columns of `Shard.rows` that every collection has; extra columns follow."""

ORIGIN = ("source_file", "source_row")
"""Those that tell every row from every other: where in the input it comes from."""

GRAPH_COLUMNS = (
    "num_nodes",
    "edge_source",
    "edge_target",
    "node_categories",
    "node_attributes",
    "edge_categories",
    "edge_attributes",
)
"""Columns of the file that hold the graphs."""

LIST_COLUMNS = GRAPH_COLUMNS[1:]
"""Those that hold a list a graph."""

_METADATA_KEYS = (
    "node_category_counts",
    "edge_category_counts",
    "node_attribute_width",
    "edge_attribute_width",
    "label_kind",
    "class_names",
    "task_names",
)
_UNNAMED = "unnamed"
"""Key of the metadata that says which rows have no id, if there are any."""

_GRAPH_SCHEMA = TypeAdapter(GraphSchema)
_ROW_RANGES = TypeAdapter(dict[str, list[Annotated[list[int], Field(min_length=2, max_length=2)]]])
_LABEL_SCHEMA = TypeAdapter(LabelSchema)
_INT32_MAX = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Shard:
    """A graph shard as read.

    Attributes
    ----------
    graphs : GraphBatch
    rows : pyarrow.Table
        One row a graph: `ROW_COLUMNS`, then the extra columns.
    labels : LabelSchema
    unnamed : dict of str to list
        See `wegl_dask.sources.base.SourceShard`.
    whole : pyarrow.Table or None
        The table as it stands in the file, where all of its rows were read.
    """

    graphs: GraphBatch
    rows: pa.Table
    labels: LabelSchema
    unnamed: RowRanges = field(default_factory=dict)
    whole: pa.Table | None = None


@dataclass(frozen=True)
class ShardSummary:
    """What can be known of a graph shard without reading its graphs.

    Attributes
    ----------
    schema : GraphSchema
    labels : LabelSchema
    extra_columns : dict of str to pyarrow.DataType
    node_counts : int64, (n_graphs,)
    row_group_rows, row_group_edges : tuple of int
        Rows of each row group of the file, and listed edges in it.
    has_split : bool
        Some graph names its split.
    numbering : dict
        Which values of the source the categories stand for, see `wegl_dask.sources.base.SourcePlan.numbering`.
    """

    schema: GraphSchema
    labels: LabelSchema
    extra_columns: dict[str, pa.DataType]
    node_counts: IntArray
    row_group_rows: tuple[int, ...]
    row_group_edges: tuple[int, ...]
    has_split: bool
    numbering: dict[str, Any]


@dataclass(frozen=True)
class IngestedShard:
    """A shard whose graphs can all be embedded, and the rows that cannot.

    Attributes
    ----------
    graphs : GraphBatch
        Valid, with canonical edges and float32 attributes.
    rows : pyarrow.Table
        One row a graph of `graphs`.
    rejected : pyarrow.Table
        Columns of `wegl_dask.sources.base.REJECTED_SCHEMA`.
    repairs : EdgeRepairs
    """

    graphs: GraphBatch
    rows: pa.Table
    rejected: pa.Table
    repairs: EdgeRepairs


def ingest_shard(
    source_shard: SourceShard, *, max_nodes: int | None, directed: bool, used: UsedAttributes = ALL_ATTRIBUTES
) -> IngestedShard:
    """Check the graphs of a shard as its source read it, and bring the valid ones into canonical form.

    Parameters
    ----------
    source_shard : SourceShard
    max_nodes : int or None
        Largest number of nodes allowed.
    directed : bool
        How edges are read, see `wegl_dask.graphs.canonical_edges`.
    used : UsedAttributes
        The attributes that are checked, by default all.

    Returns
    -------
    IngestedShard
        Where both the source and the checks rejected rows, `rejected` is sorted by ``source_file``, then
        ``source_row``.
    """
    valid = reject_graphs(source_shard, find_invalid(source_shard.graphs, max_nodes=max_nodes, used=used))
    graphs, repairs = canonical_edges(in_single_precision(valid.graphs), directed=directed)
    return IngestedShard(graphs, valid.rows, valid.rejected, repairs)


def reject_graphs(shard: SourceShard, reasons: Mapping[int, str]) -> SourceShard:
    """Move graphs of a shard to its rejected rows, by their numbers; these are sorted where there were some before."""
    if not reasons:
        return shard
    bad = np.array(sorted(reasons), dtype=np.int64)
    rejected = shard.rows.select(REJECTED_SCHEMA.names[:-1]).take(pa.array(bad))
    rejected = rejected.append_column("reason", pa.array([reasons[graph] for graph in bad.tolist()], pa.string()))
    if shard.rejected.num_rows:
        rejected = pa.concat_tables([shard.rejected, rejected.cast(REJECTED_SCHEMA)])
        rejected = rejected.sort_by([("source_file", "ascending"), ("source_row", "ascending")])
    kept = np.delete(np.arange(shard.graphs.n_graphs), bad)
    return replace(
        shard,
        graphs=shard.graphs.take(kept),
        rows=shard.rows.take(pa.array(kept)),
        rejected=rejected.cast(REJECTED_SCHEMA),
    )


def shard_table(
    graphs: GraphBatch, rows: pa.Table, labels: LabelSchema, numbering: Mapping[str, Any] | None = None
) -> pa.Table:
    """Lay out graphs, ids and labels as the table that a graph shard holds.

    Parameters
    ----------
    graphs : GraphBatch
        Valid, without virtual nodes.
    rows : pyarrow.Table
        One row a graph: `ROW_COLUMNS`, then extra columns.
    labels : LabelSchema
        What the column ``label`` of `rows` means.
    numbering : mapping, optional
        Which values of the source the categories stand for, as JSON values.

    Returns
    -------
    pyarrow.Table
        `ROW_COLUMNS`, `GRAPH_COLUMNS`, the extra columns; the schemas are in the metadata.

    Raises
    ------
    SourceError
        If an extra column has the name of a column that a shard has anyway.
    ValueError
        If `rows` does not fit `graphs` or `labels`, or a column would have more than 2**31 - 1 values.
    """
    if graphs.has_virtual_nodes:
        raise ValueError("virtual nodes are added when graphs are embedded; a shard is written without them")
    if rows.num_rows != graphs.n_graphs:
        raise ValueError(f"there are {rows.num_rows} rows for {graphs.n_graphs} graphs; one a graph is needed")
    label_type = rows.schema.field("label").type
    if label_type != labels.arrow_type:
        raise ValueError(f'labels of kind "{labels.kind}" are of type {labels.arrow_type}, not {label_type}')
    extra = [name for name in rows.column_names if name not in ROW_COLUMNS]
    for name in extra:
        if name in GRAPH_COLUMNS:
            raise SourceError(
                f"the extra column {name!r} has the name of a column that every graph shard has; "
                f"rename it: taken are {', '.join((*ROW_COLUMNS, *GRAPH_COLUMNS))}"
            )
    schema, nodes, edges = graphs.schema, graphs.node_offsets, graphs.edge_offsets
    columns = {
        **{name: rows.column(name) for name in ROW_COLUMNS},
        "num_nodes": pa.array(graphs.node_counts.astype(np.int32)),
        "edge_source": _lists(edges, graphs.edge_source[:, None], np.int32),
        "edge_target": _lists(edges, graphs.edge_target[:, None], np.int32),
        "node_categories": _lists(nodes, graphs.node_categories, _category_dtype(schema.node_category_counts)),
        "node_attributes": _lists(nodes, graphs.node_attributes, np.float32),
        "edge_categories": _lists(edges, graphs.edge_categories, _category_dtype(schema.edge_category_counts)),
        "edge_attributes": _lists(edges, graphs.edge_attributes, np.float32),
        **{name: rows.column(name) for name in extra},
    }
    return pa.table(columns).replace_schema_metadata(_metadata(schema, labels, numbering or {}))


def write_shard(
    file: ShardFile,
    graphs: GraphBatch,
    rows: pa.Table,
    labels: LabelSchema,
    numbering: Mapping[str, Any] | None = None,
    *,
    unnamed: RowRanges | None = None,
) -> None:
    """Write a graph shard; equal input gives equal bytes. See `shard_table` for parameters and errors, `Shard` for `unnamed`."""
    with _opened(file, "wb") as target:
        write_laid_out(_with_unnamed(shard_table(graphs, rows, labels, numbering), unnamed), target)


def shard_bytes(
    graphs: GraphBatch,
    rows: pa.Table,
    labels: LabelSchema,
    numbering: Mapping[str, Any] | None = None,
    *,
    unnamed: RowRanges | None = None,
    stored: StoredShard | None = None,
) -> bytes:
    """Encode a graph shard as `write_shard` does; where `stored` has the very same table in that form, take its bytes."""
    table = _with_unnamed(shard_table(graphs, rows, labels, numbering), unnamed)
    if stored is not None and _is_same_table(stored.table, table) and is_laid_out(stored.content):
        return stored.content
    buffer = io.BytesIO()
    write_laid_out(table, buffer)
    return buffer.getvalue()


def read_shard(file: ShardFile, row_range: tuple[int, int] | None = None) -> Shard:
    """Read a graph shard, or the rows ``start:stop`` of it; only the row groups that hold them are read.

    Raises
    ------
    SourceError
        If the file cannot be read, is damaged, is no graph shard, or has no such rows; the message names it.
    """
    with _reading(file) as (name, parquet):
        schema, labels, extra = _check_schema(parquet.schema_arrow, name)
        start, stop = row_range or (0, parquet.metadata.num_rows)
        found = _read_rows(parquet, (start, stop), name)
        table = _typed(found, schema, labels, extra, name)
        _check_rows_are_named(table, name, start)
        _check_labels(table.column("label").combine_chunks(), labels, name, start)
        rows, unnamed = table.select([*ROW_COLUMNS, *extra]), _unnamed(parquet.schema_arrow, name)
        whole = found if stop - start == parquet.metadata.num_rows else None
        return Shard(_graphs_of(table, schema, name, start), rows, labels, unnamed, whole)


def origins(rows: pa.Table) -> Iterator[tuple[str, int]]:
    """Say for every row where in the input it comes from, see `ORIGIN`."""
    return zip(*(rows.column(name).to_pylist() for name in ORIGIN), strict=True)


def summarize_shard(file: ShardFile) -> ShardSummary:
    """Read the footer, the number of nodes and the splits of a graph shard; see `read_shard` for the errors."""
    with _reading(file) as (name, parquet):
        schema, labels, extra = _check_schema(parquet.schema_arrow, name)
        table = parquet.read(columns=["num_nodes", "split"], use_threads=False)
        rows = _row_group_rows(parquet)
        if table.num_rows != sum(rows):
            raise SourceError(
                f"{name} is damaged: its footer tells of {sum(rows)} rows, and there are {table.num_rows}; restore it or "
                "make it again"
            )
        return ShardSummary(
            schema=schema,
            labels=labels,
            extra_columns=extra,
            node_counts=_node_counts(table, name, 0),
            row_group_rows=rows,
            row_group_edges=_row_group_edges(parquet),
            has_split=table.column("split").null_count < table.num_rows,
            numbering=_numbering(parquet.schema_arrow, name),
        )


def _is_same_table(stored: pa.Table, table: pa.Table) -> bool:
    # With `check_metadata` the name of a list's entries would matter, which Parquet changes.
    return bool(stored.equals(table)) and stored.schema.metadata == table.schema.metadata


def _with_unnamed(table: pa.Table, unnamed: RowRanges | None) -> pa.Table:
    if not unnamed:
        return table
    return table.replace_schema_metadata({**table.schema.metadata, _UNNAMED: json.dumps(unnamed, ensure_ascii=False)})


def _lists(offsets: IntArray, values: npt.NDArray[Any], dtype: npt.DTypeLike) -> pa.ListArray:
    """Lay out rows of `values`, (n, width), as one list a graph; `offsets` count rows."""
    width = values.shape[1]
    if int(offsets[-1]) * width > _INT32_MAX:
        raise ValueError(f"a column of a shard holds at most {_INT32_MAX} values, not {int(offsets[-1]) * width}")
    with np.errstate(over="raise"):
        flat = np.ascontiguousarray(values, dtype=dtype).reshape(-1)
    return pa.ListArray.from_arrays(pa.array((offsets * width).astype(np.int32)), pa.array(flat))


def _category_dtype(counts: tuple[int, ...]) -> type[np.integer[Any]]:
    return np.int16 if max(counts, default=0) <= np.iinfo(np.int16).max + 1 else np.int32


def _metadata(schema: GraphSchema, labels: LabelSchema, numbering: Mapping[str, Any]) -> dict[str, str]:
    values = {
        "node_category_counts": schema.node_category_counts,
        "edge_category_counts": schema.edge_category_counts,
        "node_attribute_width": schema.node_attribute_width,
        "edge_attribute_width": schema.edge_attribute_width,
        "label_kind": labels.kind,
        "class_names": labels.class_names,
        "task_names": labels.task_names,
        **({"numbering": dict(numbering)} if numbering else {}),
    }
    return {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}


def _check_schema(found: pa.Schema, name: str) -> tuple[GraphSchema, LabelSchema, dict[str, pa.DataType]]:
    """Read the schemas from a file's metadata, and the names and types of its extra columns."""
    _check_columns(found, name)
    stored = {key.decode(): value.decode() for key, value in (found.metadata or {}).items()}
    values: dict[str, Any] = {}
    for key in _METADATA_KEYS:
        if key not in stored:
            raise SourceError(
                f"{name} is no graph shard: its schema metadata has no entry {key}; needed are {', '.join(_METADATA_KEYS)}"
            )
        try:
            values[key] = json.loads(stored[key])
        except (ValueError, RecursionError):
            raise SourceError(f"{name}: the schema metadata entry {key} is not JSON: {stored[key]!r}") from None
    values["kind"] = values["label_kind"]
    try:
        schema, labels = _GRAPH_SCHEMA.validate_python(values), _LABEL_SCHEMA.validate_python(values)
    except ValidationError as error:
        problem = error.errors()[0]
        raise SourceError(
            f"{name}: the schema metadata entry {problem['loc'][0]} is {problem['input']!r}: {problem['msg']}"
        ) from error
    _check_names(labels, name)
    known = {*ROW_COLUMNS, *GRAPH_COLUMNS}
    return schema, labels, {field.name: field.type for field in found if field.name not in known}


def _check_columns(found: pa.Schema, name: str) -> None:
    """Raise SourceError for a column that is missing, there twice or no list where lists are needed."""
    needed = (*ROW_COLUMNS, *GRAPH_COLUMNS)
    for column in needed:
        if column not in found.names:
            raise SourceError(f"{name} is no graph shard: the column {column} is missing; it needs {', '.join(needed)}")
    for column, n_columns in Counter(found.names).items():
        if n_columns > 1:
            raise SourceError(
                f"{name} is no graph shard: it has {n_columns} columns of the name {column}; keep one, or rename the others"
            )
    for column in LIST_COLUMNS:
        kind = found.field(column).type
        if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
            raise SourceError(f"{name} is no graph shard: the column {column} is of type {kind}; lists are needed")


def _check_names(labels: LabelSchema, name: str) -> None:
    repeated = labels.repeated_name()
    if repeated is not None:
        key, double = repeated
        raise SourceError(
            f"{name}: the schema metadata entry {key} names {double!r} twice, and the two could not be told apart: give each "
            "a name of its own"
        )


def _numbering(found: pa.Schema, name: str) -> dict[str, Any]:
    """Read which values the categories stand for; a shard whose categories are numbers does not say."""
    text = (found.metadata or {}).get(b"numbering", b"{}")
    try:
        numbering = json.loads(text)
        unknown = set(numbering) - set(NUMBERING_KEYS)
    except (ValueError, TypeError, RecursionError):
        raise SourceError(f"{name}: the schema metadata entry numbering is not JSON: {text!r}") from None
    if unknown or not isinstance(numbering, dict):
        raise SourceError(
            f"{name}: the schema metadata entry numbering is {text!r}; its keys are {', '.join(NUMBERING_KEYS)}"
        )
    return numbering


def _unnamed(found: pa.Schema, name: str) -> RowRanges:
    """Read which rows have no id."""
    text = (found.metadata or {}).get(_UNNAMED.encode(), b"{}")
    try:
        return _ROW_RANGES.validate_json(text)
    except ValidationError:
        raise SourceError(
            f"{name}: the schema metadata entry {_UNNAMED} is {text!r}; it has to be ranges of rows by their source file"
        ) from None


def _typed(
    table: pa.Table, schema: GraphSchema, labels: LabelSchema, extra: dict[str, pa.DataType], name: str
) -> pa.Table:
    """Order and cast the columns as `shard_table` writes them; other programs write wider types than it does."""
    node_categories = pa.from_numpy_dtype(_category_dtype(schema.node_category_counts))
    edge_categories = pa.from_numpy_dtype(_category_dtype(schema.edge_category_counts))
    types = {
        "graph_id": pa.string(),
        "source_file": pa.string(),
        "source_row": pa.int64(),
        "label": labels.arrow_type,
        "split": pa.string(),
        "num_nodes": pa.int32(),
        "edge_source": pa.list_(pa.int32()),
        "edge_target": pa.list_(pa.int32()),
        "node_categories": pa.list_(node_categories),
        "node_attributes": pa.list_(pa.float32()),
        "edge_categories": pa.list_(edge_categories),
        "edge_attributes": pa.list_(pa.float32()),
        **extra,
    }
    return pa.table({column: _cast(table, column, types[column], name) for column in types}, schema=pa.schema(types))


def _cast(table: pa.Table, column: str, wanted: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        return table.column(column).cast(wanted)
    except pa.ArrowException as error:
        what = " ".join(str(error).split())
        raise SourceError(
            f"{name}, column {column}: {what}; values that fit the type {wanted} are needed there: restore the file, or cast "
            "the column"
        ) from error


def _read_rows(parquet: pq.ParquetFile, row_range: tuple[int, int], name: str) -> pa.Table:
    start, stop = row_range
    if not 0 <= start <= stop <= parquet.metadata.num_rows:
        raise SourceError(
            f"{name} has {parquet.metadata.num_rows} rows, and rows {start} to {stop} were asked for; "
            "the file is not the one that was planned"
        )
    first = offsets_from_counts(np.array(_row_group_rows(parquet), dtype=np.int64))
    groups = np.flatnonzero((first[:-1] < stop) & (first[1:] > start))
    table = parquet.read_row_groups(groups.tolist(), use_threads=False)
    return table.slice(start - int(first[groups[0]]) if len(groups) else 0, stop - start)


def _row_group_edges(parquet: pq.ParquetFile) -> tuple[int, ...]:
    """Count the listed edges of each row group; a graph without edges counts as one, as Parquet has it."""
    leaves = [parquet.schema.column(i).path for i in range(len(parquet.schema.names))]
    edges = next(i for i, path in enumerate(leaves) if path.startswith("edge_source."))
    return tuple(parquet.metadata.row_group(i).column(edges).num_values for i in range(parquet.num_row_groups))


def _row_group_rows(parquet: pq.ParquetFile) -> tuple[int, ...]:
    return tuple(parquet.metadata.row_group(i).num_rows for i in range(parquet.num_row_groups))


def _graphs_of(table: pa.Table, schema: GraphSchema, name: str, first_row: int) -> GraphBatch:
    node_offsets = offsets_from_counts(_node_counts(table, name, first_row))
    sources = table.column("edge_source").combine_chunks()
    edge_offsets = offsets_from_counts(np.diff(sources.offsets.to_numpy()))

    def flat(column: str, offsets: IntArray, width: int) -> npt.NDArray[Any]:
        return _flat(table.column(column).combine_chunks(), offsets, width, f"{name}, column {column}", first_row)

    return GraphBatch(
        schema=schema,
        node_offsets=node_offsets,
        edge_offsets=edge_offsets,
        edge_source=flat("edge_source", edge_offsets, 1)[:, 0],
        edge_target=flat("edge_target", edge_offsets, 1)[:, 0],
        node_categories=flat("node_categories", node_offsets, len(schema.node_category_counts)),
        node_attributes=flat("node_attributes", node_offsets, schema.node_attribute_width),
        edge_categories=flat("edge_categories", edge_offsets, len(schema.edge_category_counts)),
        edge_attributes=flat("edge_attributes", edge_offsets, schema.edge_attribute_width),
    )


def _check_rows_are_named(table: pa.Table, name: str, first_row: int) -> None:
    """Raise SourceError for a row without an id, or that does not say where in the input it comes from."""
    for column in ("graph_id", *ORIGIN):
        values = table.column(column)
        if values.null_count:
            row = first_row + pc.index(pc.is_null(values), True).as_py()
            raise SourceError(
                f"{name}, column {column}: row {row} is null; a graph shard has a value in every row there: fill it in, such "
                "as the number of the row"
            )


def _node_counts(table: pa.Table, name: str, first_row: int) -> IntArray:
    # Other programs write other types of numbers.
    column = _cast(table, "num_nodes", pa.int32(), name).combine_chunks()
    counts: IntArray = column.fill_null(-1).to_numpy().astype(np.int64)
    bad = np.flatnonzero(counts < 0)
    if len(bad):
        raise SourceError(
            f"{name}, column num_nodes: row {first_row + bad[0]} is {column[int(bad[0])]}; it must be 0 or more"
        )
    return counts


def _check_labels(column: pa.Array, labels: LabelSchema, name: str, first_row: int) -> None:
    """Raise SourceError for a label that is none of the classes, or of too few or too many tasks."""
    if labels.kind == "tasks":
        found, allowed = pc.list_value_length(column), [len(labels.task_names)] * 2
        what = "labels; {} are needed"
    elif labels.kind == "class":
        found, allowed = column, [0, len(labels.class_names) - 1]
        what = "as its class; there are {}"
    else:
        return
    wrong = pc.or_(pc.less(found, allowed[0]), pc.greater(found, allowed[1])).fill_null(False)
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        needed = len(labels.task_names or labels.class_names)
        raise SourceError(f"{name}, column label: row {first_row + row} has {found[row]} {what.format(needed)}")


def _flat(lists: pa.ListArray, offsets: IntArray, width: int, where: str, first_row: int) -> npt.NDArray[Any]:
    """Look at a column of lists as rows, (offsets[-1], width), after checking the length of every list."""
    found = lists.offsets.to_numpy().astype(np.int64)
    wrong = np.flatnonzero(np.diff(found) != np.diff(offsets) * width)
    if len(wrong):
        row = int(wrong[0])
        needed = int(offsets[row + 1] - offsets[row])
        raise SourceError(
            f"{where}: row {first_row + row} has {found[row + 1] - found[row]} values; {needed} rows of {width} values are needed"
        )
    values = lists.values.slice(found[0], found[-1] - found[0])
    if lists.null_count or values.null_count:
        raise SourceError(f"{where} has null values; a graph shard has none there")
    flat: npt.NDArray[Any] = values.to_numpy()
    return flat.reshape(int(offsets[-1]), width)


@contextmanager
def _reading(file: ShardFile) -> Iterator[tuple[str, pq.ParquetFile]]:
    """Open a Parquet file, with a name for messages, and turn what goes wrong with it into a `SourceError`."""
    name = str(file if isinstance(file, str | os.PathLike) else getattr(file, "name", "graph shard in memory"))
    try:
        with (
            resources_told_apart(name),
            _opened(file, "rb") as source,
            pq.ParquetFile(source, page_checksum_verification=True) as parquet,
        ):
            yield name, parquet
    except FileNotFoundError as error:
        raise SourceError(f"there is no graph shard {name}: restore it, or check the path") from error
    # A damaged footer holds names that are no text.
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        what = " ".join(str(error).split())
        raise SourceError(f"cannot read the graph shard {name}: {what}; restore it or make it again") from error


@contextmanager
def _opened(file: ShardFile, mode: str) -> Iterator[str | IO[bytes]]:
    """Give what pyarrow reads fastest: a local path as it is, the file behind a URL, an open file as it is."""
    if isinstance(file, str) and "://" in file:
        with fsspec.open(file, mode) as stream:
            yield stream
    else:
        yield os.fspath(file) if isinstance(file, str | os.PathLike) else file
