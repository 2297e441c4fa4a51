"""How a graph shard is laid out as a Parquet file: its row groups, its compression and its checksums."""

import io
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

_ROW_GROUP_ROWS = 4096
_COMPRESSION = "zstd"
_COMPRESSION_LEVEL = 1

_NUMBER = 0x15
"""What stands before a number in the header of a page: that it is the next field, and one of 32 bits."""

_CONTINUED = 0x80
"""Bit of a byte of a number that more bytes follow."""


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
    """Whether a Parquet file is as large, as soon read and as well guarded as `write_laid_out` makes it.

    That is, whether it has row groups of the same numbers of rows, compression, and a checksum for every page, as far as
    the first page of each column of a row group says.
    """
    metadata = pq.read_metadata(io.BytesIO(content))
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    groups = [group for group in groups if group.num_rows]
    full, rest = divmod(metadata.num_rows, _ROW_GROUP_ROWS)
    if [group.num_rows for group in groups] != [_ROW_GROUP_ROWS] * full + [rest] * (rest > 0):
        return False
    chunks = [group.column(column) for group in groups for column in range(metadata.num_columns)]
    return all(
        chunk.compression.lower() == _COMPRESSION and _has_checksum(content, first_page_offset(chunk))
        for chunk in chunks
    )


def first_page_offset(chunk: pq.ColumnChunkMetaData) -> int:
    """Say where in the file the pages of a column of a row group begin."""
    offset: int = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
    return offset


def _has_checksum(content: bytes, at: int) -> bool:
    """Whether the page that begins there has one: it is the fourth field of its header, after its kind and two sizes."""
    for _ in range(3):
        if content[at] != _NUMBER:
            return False
        at += 1
        while content[at] & _CONTINUED:
            at += 1
        at += 1
    return content[at] == _NUMBER
