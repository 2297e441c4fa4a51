"""How a graph shard is laid out as a Parquet file: its row groups, its compression, and checksums of its pages."""

import io
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

_ROW_GROUP_ROWS = 4096
_COMPRESSION = "zstd"
_COMPRESSION_LEVEL = 1


def write_laid_out(table: pa.Table, target: str | IO[bytes]) -> None:
    """Write a table as a graph shard is laid out."""
    pq.write_table(
        table,
        target,
        row_group_size=_ROW_GROUP_ROWS,
        compression=_COMPRESSION,
        compression_level=_COMPRESSION_LEVEL,
        write_page_checksum=True,
    )


def is_laid_out(content: bytes) -> bool:
    """Whether a Parquet file has the row groups and the compression that `write_laid_out` gives it: its size and its speed."""
    metadata = pq.read_metadata(io.BytesIO(content))
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    groups = [group for group in groups if group.num_rows]
    full, rest = divmod(metadata.num_rows, _ROW_GROUP_ROWS)
    if [group.num_rows for group in groups] != [_ROW_GROUP_ROWS] * full + [rest] * (rest > 0):
        return False
    chunks = [group.column(column) for group in groups for column in range(metadata.num_columns)]
    return all(chunk.compression.lower() == _COMPRESSION for chunk in chunks)
