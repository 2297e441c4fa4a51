"""Parquet files of one molecule a row: cut into shards by their row groups, and read back batch by batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, BinaryIO
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wegl_dask.errors import SourceError
from wegl_dask.folders import resources_told_apart
from wegl_dask.sources._hashes import hash_row_groups
from wegl_dask.sources._text import changed_since_scan
from wegl_dask.sources.base import Cut
from wegl_dask.sources.columns import Row
from wegl_dask.sources.streams import open_stream
from wegl_dask.sources.text_tables import Choose, Visit

NODES_PER_ROW = 25
"""Atoms of a drug-like molecule, about."""

_ROWS_PER_BATCH = 4096
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file, read by row groups; a large row group is one unit of several cuts."""

    name: str

    def n_rows(self) -> int:
        """Read the number of rows."""
        with self._opened() as (file, _):
            return int(file.metadata.num_rows)

    def columns(self) -> list[str]:
        """Read the names of the columns."""
        with self._opened() as (file, _):
            names: list[str] = file.schema_arrow.names
            return names

    def scan(self, choose: Choose, nodes_per_shard: int, visit: Visit | None) -> list[list[dict[str, Any]]]:
        """Cut the file; see `wegl_dask.sources.text_tables.TextTable.scan`."""
        rows_per_cut = max(1, nodes_per_shard // NODES_PER_ROW)
        with self._opened() as (file, stream):
            columns = choose(file.schema_arrow.names)
            for column in columns:
                self._check_type(file.schema_arrow.field(column))
            if visit is not None:
                groups = range(file.metadata.num_row_groups)
                visit(self._rows(file, groups, columns, first_row=0))
            units = []
            for groups, first_row, n_rows in _gathered(file.metadata, rows_per_cut):
                with self._explained():
                    hashed = hash_row_groups(file.metadata, stream, groups, columns)
                where = {"groups": [groups.start, groups.stop], "group_row": first_row, "hash": hashed}
                n_cuts = max(1, round(n_rows / rows_per_cut)) if len(groups) == 1 else 1
                edges = [first_row + n_rows * i // n_cuts for i in range(n_cuts + 1)]
                units.append(
                    [
                        {
                            "n_rows": stop - start,
                            "fingerprint": hashed,
                            "where": {**where, "first_row": start},
                        }
                        for start, stop in pairwise(edges)
                    ]
                )
        return units

    def rows(self, cuts: Sequence[Cut]) -> Iterator[tuple[Cut, Iterator[Row]]]:
        """Read the wanted columns; see `wegl_dask.sources.text_tables.TextTable.rows`."""
        where = cuts[0].where
        groups, columns = range(*where["groups"]), where["columns"]
        with self._opened() as (file, stream):
            if (
                file.metadata.num_row_groups < groups.stop
                or not set(columns) <= set(file.schema_arrow.names)
                or hash_row_groups(file.metadata, stream, groups, columns) != where["hash"]
            ):
                raise changed_since_scan(self.name, "holds other rows")
            next_row = where["first_row"]
            rows = self._rows(file, groups, columns, first_row=where["group_row"], start=next_row)
            for cut in cuts:
                skipped = cut.where["first_row"] - next_row
                yield cut, islice(rows, skipped, skipped + cut.n_rows)
                next_row = cut.where["first_row"] + cut.n_rows

    def _rows(
        self, file: pq.ParquetFile, groups: range, names: Sequence[str], *, first_row: int, start: int = 0
    ) -> Iterator[Row]:
        """Read rows from number `start` on, of row groups whose first has the number `first_row`."""
        batches = file.iter_batches(_ROWS_PER_BATCH, row_groups=list(groups), columns=list(names))
        while True:
            with self._explained():
                batch = next(batches, None)
                if batch is None:
                    return
                passed_over = min(max(0, start - first_row), batch.num_rows)
                batch, first_row = batch.slice(passed_over), first_row + passed_over
                columns = [_texts(batch.column(name)) for name in names]
            for row in zip(*columns, strict=True):
                # A value that is no text is a reason why there is none.
                problem = next((value for value in row if isinstance(value, UnicodeDecodeError)), None)
                yield first_row, row if problem is None else f"the row holds bytes that are no UTF-8 text: {problem}"
                first_row += 1

    def _check_type(self, field: pa.Field) -> None:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        if pa.types.is_nested(kind):
            raise SourceError(f"{self.name}: column {field.name!r} is of type {kind}; texts or numbers are needed")

    @contextmanager
    def _opened(self) -> Iterator[tuple[pq.ParquetFile, BinaryIO]]:
        with open_stream(self.name) as stream:
            with self._explained():
                file = pq.ParquetFile(stream, buffer_size=_READ_BYTES)
            yield file, stream

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            with resources_told_apart(self.name):
                yield
        # A damaged footer holds names that are no text.
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            what = str(error).splitlines()[0]
            raise SourceError(
                f"{self.name} cannot be read as Parquet: {what}; check the file or make it again"
            ) from error


def _gathered(metadata: pq.FileMetaData, rows_per_cut: int) -> Iterator[tuple[range, int, int]]:
    """Put small row groups together: the groups, the number of their first row, and of their rows."""
    first_group = first_row = n_rows = 0
    for group in range(metadata.num_row_groups):
        n_more = metadata.row_group(group).num_rows
        if n_rows and n_rows + n_more > rows_per_cut:
            yield range(first_group, group), first_row, n_rows
            first_group, first_row, n_rows = group, first_row + n_rows, 0
        n_rows += n_more
    if n_rows:
        yield range(first_group, metadata.num_row_groups), first_row, n_rows


def _texts(column: pa.Array) -> list[str | UnicodeDecodeError | None]:
    """Write values as text, numbers in their shortest form, booleans as 0 and 1, and UUIDs in digits and hyphens.

    NaN, which pandas has for a number that is missing, is no text.
    """
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if isinstance(column.type, pa.BaseExtensionType):
        if column.type.extension_name == "arrow.uuid":
            return [None if value is None else str(UUID(bytes=value)) for value in column.storage.to_pylist()]
        column = column.storage
    if pa.types.is_fixed_size_binary(column.type):
        column = pc.cast(column, pa.binary())
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type):
        if pa.types.is_floating(column.type):
            column = pc.if_else(pc.is_nan(column), None, column)
        texts: list[str | UnicodeDecodeError | None] = pc.cast(column, pa.string()).to_pylist()
        return texts
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        column = pc.cast(pc.cast(column, pa.large_string()), pa.large_binary())
    return [None if value is None else _decoded(value) for value in column.to_pylist()]


def _decoded(value: bytes) -> str | UnicodeDecodeError:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        return error
