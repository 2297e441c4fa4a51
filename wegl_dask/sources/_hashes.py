"""Hashes of whole input files, and of parts of Parquet files."""

import hashlib
from collections.abc import Collection
from typing import BinaryIO

import pyarrow.parquet as pq

from wegl_dask.checksums import fingerprint
from wegl_dask.sources.streams import open_stream

_BLOCK_BYTES = 1 << 20


def hash_file(name: str) -> str:
    """Hash what a file holds to 32 hexadecimal digits (BLAKE2b), a block at a time."""
    digest = hashlib.blake2b(digest_size=16)
    with open_stream(name) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def hash_row_groups(
    metadata: pq.FileMetaData, stream: BinaryIO, groups: range, columns: Collection[str] | None = None
) -> str:
    """Hash the stored bytes of some row groups of a Parquet file, of the columns named or of all."""
    digest = hashlib.blake2b(digest_size=16)
    for group in groups:
        chunks = [metadata.row_group(group).column(i) for i in range(metadata.num_columns)]
        for chunk in [chunk for chunk in chunks if columns is None or chunk.path_in_schema in columns]:
            stream.seek(min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset))
            left = chunk.total_compressed_size
            while left and (data := stream.read(min(left, _BLOCK_BYTES))):
                digest.update(data)
                left -= len(data)
    return digest.hexdigest()


def cut_fingerprint(hashed: str, start: int, stop: int) -> str:
    """Hash what a file holds, of which the hash is given, and which of its graphs are those of a cut."""
    return fingerprint(hashed, f"{start}:{stop}")
