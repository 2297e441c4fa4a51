"""Hashes of whole input files."""

import hashlib

from wegl_dask.sources.streams import open_stream

_BLOCK_BYTES = 1 << 20


def hash_file(name: str) -> str:
    """Hash what a file holds to 32 hexadecimal digits (BLAKE2b), a block at a time."""
    digest = hashlib.blake2b(digest_size=16)
    with open_stream(name) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
