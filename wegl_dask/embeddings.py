"""The embeddings as Parquet: the columns of a part, and how it is written."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from wegl_dask.errors import JobFileError
from wegl_dask.graphs import IntArray
from wegl_dask.job_checks import MAX_WIDE_COLUMNS, is_of_vector, of_vector_refusal
from wegl_dask.sources.base import LabelSchema
from wegl_dask.transport import TransportEmbeddings

Dtype = Literal["float32", "float16"]
Layout = Literal["list", "wide"]

ROW_GROUP_BYTES = 64 * 2**20
"""Bytes of embeddings, as float32, in one row group; no more than two groups are in memory when a part is written."""

VERSION_KEYS = ("versions",)
"""Metadata that may differ between the parts of a run that was continued after an update."""

FLOAT16_MAX = float(np.finfo(np.float16).max)

VECTOR_COLUMN = "embedding"
"""Name of the column of vectors in the layout "list"."""


@dataclass(frozen=True)
class EmbeddingFormat:
    """What the embedding parts of a run look like.

    Attributes
    ----------
    n_points, dimension : int
        N and d: a vector has N * d entries, row-major.
    labels : LabelSchema
    extra_columns : mapping of str to str
        Columns passed through to the output: name to Arrow type, as ``str(type)``.
    dtype : {"float32", "float16"}
    layout : {"list", "wide"}
        One column of fixed-size lists, or one column a dimension: ``e0000``, ``e0001``, ...
    metadata : mapping
        JSON values kept in every part: versions, fingerprints, the seed. Nothing that differs between two runs of the
        same job.

    Raises
    ------
    JobFileError
        If an extra column has the name of another one, or the wide layout would have too many columns.
    """

    n_points: int
    dimension: int
    labels: LabelSchema = field(default_factory=LabelSchema)
    extra_columns: Mapping[str, str] = field(default_factory=dict)
    dtype: Dtype = "float32"
    layout: Layout = "list"
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.layout == "wide" and self.width > MAX_WIDE_COLUMNS:
            raise JobFileError(
                f'output.layout = "wide" would need {self.width} columns (N = {self.n_points} times d = {self.dimension}); '
                f'at most {MAX_WIDE_COLUMNS} are written. Use output.layout = "list", or a smaller reference.points or '
                "projection.components"
            )
        taken = sorted(set(self.extra_columns) & {*_row_fields(self.labels), *self.vector_columns})
        if taken:
            raise JobFileError(
                f"source.extra_columns: {', '.join(taken)} is the name of a column that every part has; rename it in the "
                "input"
            )

    @property
    def width(self) -> int:
        """Entries of a vector, N * d."""
        return self.n_points * self.dimension

    @property
    def vector_columns(self) -> list[str]:
        """Names of the columns that hold the vector."""
        if self.layout == "list":
            return [VECTOR_COLUMN]
        digits = max(4, len(str(self.width - 1)))
        return [f"e{i:0{digits}d}" for i in range(self.width)]

    @property
    def row_group_rows(self) -> int:
        """Rows of a row group; it depends on the width alone."""
        return max(1, ROW_GROUP_BYTES // (4 * self.width))

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns, types and metadata of a part; each metadata entry is a JSON value."""
        extra = {name: pa.type_for_alias(alias) for name, alias in self.extra_columns.items()}
        columns = [*(_row_fields(self.labels) | extra).items()]
        metadata = {
            "n_points": self.n_points,
            "dimension": self.dimension,
            "dtype": self.dtype,
            "layout": self.layout,
            "label_kind": self.labels.kind,
            "class_names": self.labels.class_names,
            "task_names": self.labels.task_names,
            **self.metadata,
        }
        return pa.schema(
            [*(pa.field(name, kind) for name, kind in columns), *self._vector_fields()],
            metadata={key: json.dumps(metadata[key], ensure_ascii=False) for key in sorted(metadata)},
        )

    @classmethod
    def from_schema(cls, schema: pa.Schema) -> "EmbeddingFormat":
        """Find the format of a part from its schema; ValueError where that is not the schema of a part."""
        try:
            metadata = {key.decode(): json.loads(value) for key, value in (schema.metadata or {}).items()}
            labels = LabelSchema(
                metadata.pop("label_kind"), tuple(metadata.pop("class_names")), tuple(metadata.pop("task_names"))
            )
            made = {key: metadata.pop(key) for key in ("n_points", "dimension", "dtype", "layout")}
            columns = schema.names[: -made["n_points"] * made["dimension"] if made["layout"] == "wide" else -1]
            extra = {name: str(schema.field(name).type) for name in columns if name not in _row_fields(labels)}
            found = cls(**made, labels=labels, extra_columns=extra, metadata=metadata)
            as_told = found.schema
            repeated = labels.repeated_name()
        except (KeyError, TypeError, OverflowError, RecursionError, JobFileError) as error:
            raise ValueError(f"not the columns of an embedding part: {error}") from error
        if repeated is not None:
            raise ValueError(f"the metadata entry {repeated[0]} names {repeated[1]!r} twice")
        if not as_told.equals(schema):
            raise ValueError("the columns are not those that the metadata tells of")
        return found

    def fits(self, other: "EmbeddingFormat") -> bool:
        """Whether parts of both formats belong to one run: equal, versions of packages aside."""

        def identity(part: EmbeddingFormat) -> EmbeddingFormat:
            return replace(part, metadata={k: v for k, v in part.metadata.items() if k not in VERSION_KEYS})

        return identity(self) == identity(other)

    def write(self, file: BinaryIO, blocks: Iterable["EmbeddingRows"]) -> int:
        """Write a part, row group by row group; equal rows give equal bytes however they are cut into blocks.

        Parameters
        ----------
        file : binary file
        blocks : iterable of EmbeddingRows
            In the order of the output.

        Returns
        -------
        int
            Rows written.

        Raises
        ------
        JobFileError
            If a value is too large for float16.
        """
        vector_columns = set(self.vector_columns)
        rest = [_leaf_path(column) for column in self.schema if column.name not in vector_columns]
        vector = [_leaf_path(column) for column in self.schema if column.name in vector_columns]
        # DuckDB cannot read the byte-stream-split of 2-byte values.
        encoding = dict.fromkeys(vector, "BYTE_STREAM_SPLIT") if self.dtype == "float32" else None
        writer = pq.ParquetWriter(
            file,
            self.schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=rest,
            column_encoding=encoding,
            write_statistics=rest,
            write_page_checksum=True,
        )
        rows = 0
        with writer:
            for table in _regrouped(map(self._table, blocks), self.row_group_rows):
                writer.write_table(table, row_group_size=self.row_group_rows)
                rows += table.num_rows
        return rows

    def vectors(self, table: pa.Table) -> npt.NDArray[np.floating]:
        """Look at the vectors in rows of a part as an array of the type they are stored in: (n_rows, N * d)."""
        if self.layout == "wide":
            return np.column_stack([table.column(name).to_numpy() for name in self.vector_columns])
        flat = table.column(VECTOR_COLUMN).combine_chunks().flatten().to_numpy()
        vectors: npt.NDArray[np.floating] = flat.reshape(table.num_rows, self.width)
        return vectors

    def _vector_fields(self) -> list[pa.Field]:
        entry = pa.from_numpy_dtype(np.dtype(self.dtype))
        if self.layout == "wide":
            return [pa.field(name, entry, nullable=False) for name in self.vector_columns]
        entries = pa.list_(pa.field("element", entry, nullable=False), self.width)
        return [pa.field(VECTOR_COLUMN, entries, nullable=False)]

    def _table(self, block: "EmbeddingRows") -> pa.Table:
        values = np.ascontiguousarray(block.vectors, dtype=np.float32)
        if values.shape != (block.rows.num_rows, self.width):
            raise ValueError(f"vectors of shape {values.shape}; {(block.rows.num_rows, self.width)} is needed")
        if self.dtype == "float16":
            self._require_float16(values, block)
            values = values.astype(np.float16)
        if self.layout == "wide":
            vector = [pa.array(column) for column in np.ascontiguousarray(values.T)]
        else:
            kind = self.schema.field(VECTOR_COLUMN).type
            vector = [pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), type=kind)]
        solution = {
            "num_nodes": pa.array(block.num_nodes, pa.int32()),
            "transport_cost": pa.array(block.transport_cost, pa.float64()),
            "solver": pa.array(block.solver, pa.string()),
            "regularisation": pa.array(block.regularisation, pa.float64(), from_pandas=True),
        }
        names = [name for name in self.schema.names if name not in set(self.vector_columns)]
        columns = [solution[name] if name in solution else block.rows.column(name) for name in names]
        return pa.Table.from_arrays([*columns, *vector], schema=self.schema)

    def _require_float16(self, values: npt.NDArray[np.float32], block: "EmbeddingRows") -> None:
        too_large = np.argwhere(np.abs(values) > FLOAT16_MAX)
        if len(too_large):
            row, column = too_large[0]
            where = block.rows.slice(int(row), 1).to_pylist()[0]
            raise JobFileError(
                f"{where['source_file']}, row {where['source_row']} (id {where['graph_id']}): entry {column} of the "
                f'embedding is {values[row, column]:g}, and output.dtype = "float16" ends at {FLOAT16_MAX:g}. Use '
                '"float32", or projection.standardize = true'
            )


@dataclass(frozen=True)
class EmbeddingRows:
    """Some embedded graphs on their way into a part.

    Attributes
    ----------
    rows : pyarrow.Table
        One row a graph: ``graph_id``, ``source_file``, ``source_row``, ``label``, ``split`` and the extra columns.
    num_nodes : int, (n_graphs,)
    transport_cost : float64, (n_graphs,)
    solver : sequence of str
        ``"exact"`` or ``"sinkhorn"``, one a graph.
    regularisation : float64, (n_graphs,)
        NaN where the plan is exact.
    vectors : float, (n_graphs, N * d)
    """

    rows: pa.Table
    num_nodes: IntArray
    transport_cost: npt.NDArray[np.float64]
    solver: Sequence[str]
    regularisation: npt.NDArray[np.float64]
    vectors: npt.NDArray[np.floating]

    @classmethod
    def of(
        cls, rows: pa.Table, num_nodes: IntArray, embeddings: TransportEmbeddings, kept: IntArray
    ) -> "EmbeddingRows":
        """Put the rows and the embeddings of the graphs `kept` together; all arguments are of the same graphs."""
        if len(kept) < rows.num_rows:
            rows = rows.take(pa.array(kept))
        return cls(
            rows=rows,
            num_nodes=num_nodes[kept],
            transport_cost=embeddings.transport_cost[kept],
            solver=np.where(embeddings.entropic[kept], "sinkhorn", "exact").tolist(),
            regularisation=embeddings.regularization[kept],
            vectors=embeddings.phi[kept],
        )


def require_free_names(extra_columns: Iterable[str], layout: Layout, most_entries: int) -> None:
    """Refuse columns passed through that have the name of one that every part has, before anything is computed.

    Parameters
    ----------
    extra_columns : iterable of str
    layout : {"list", "wide"}
    most_entries : int
        How long a vector may be.

    Raises
    ------
    JobFileError
    """
    own = {*_row_fields(LabelSchema()), *([VECTOR_COLUMN] if layout == "list" else [])}
    for name in extra_columns:
        if name in own:
            raise JobFileError(
                f'an extra column of the source: "{name}" is the name of a column that every part has; rename it in the input'
            )
        if layout == "wide" and is_of_vector(name, most_entries):
            raise JobFileError(f"an extra column of the source: {of_vector_refusal(name)}")


def _row_fields(labels: LabelSchema) -> dict[str, pa.DataType]:
    return {
        "graph_id": pa.string(),
        "source_file": pa.string(),
        "source_row": pa.int64(),
        "label": labels.arrow_type,
        "split": pa.string(),
        "num_nodes": pa.int32(),
        "transport_cost": pa.float64(),
        "solver": pa.string(),
        "regularisation": pa.float64(),
    }


def _leaf_path(column: pa.Field) -> str:
    """Path in the Parquet schema of the values of a column."""
    nested = pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)
    return f"{column.name}.list.element" if nested else str(column.name)


def _regrouped(tables: Iterable[pa.Table], n_rows: int) -> Iterator[pa.Table]:
    """Cut a stream of tables anew into tables of `n_rows` rows; the last one may be smaller.

    Their columns are contiguous: where a column is cut would show in the pages of the file.
    """
    held: list[pa.Table] = []
    n_held = 0
    for table in tables:
        held.append(table)
        n_held += table.num_rows
        while n_held >= n_rows:
            joined = pa.concat_tables(held)
            yield joined.slice(0, n_rows).combine_chunks()
            held, n_held = [joined.slice(n_rows)], n_held - n_rows
    if n_held:
        yield pa.concat_tables(held).combine_chunks()
