"""Input files as streams of bytes, decompressed by their ending; whatever goes wrong is one error that names the file."""

import bz2
import gzip
import io
import lzma
import zlib
from typing import Any, BinaryIO, Protocol, cast

import zstandard

from wegl_dask.errors import SourceError
from wegl_dask.sources.paths import compression_of, explained, filesystem_of, is_remote, local_path

_BUFFER_BYTES = 1 << 18
_ZSTD_INPUT_BYTES = 1 << 14


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def open_stream(name: str) -> BinaryIO:
    """Open a file for reading bytes, decompressed if its name ends in .gz, .bz2, .xz or .zst.

    Parameters
    ----------
    name : str
        As `wegl_dask.sources.paths.expand` gives it.

    Returns
    -------
    BinaryIO
        Close it after use. Only files that are not compressed can seek.

    Raises
    ------
    SourceError
        If it cannot be opened; and while reading, if it cannot be read, is cut off or is not what its ending says.
    """
    with explained(name):
        if is_remote(name):
            filesystem, path = filesystem_of(name)
            stored: BinaryIO = filesystem.open(path, "rb")
        else:
            stored = local_path(name).open("rb")
    match compression_of(name):
        case ".gz":
            content: _Readable = gzip.GzipFile(fileobj=stored)
        case ".bz2":
            content = bz2.BZ2File(stored)
        case ".xz":
            content = lzma.LZMAFile(stored)  # noqa: SIM115 -- closed with `stored`
        case ".zst":
            content = _ZstdFile(stored)
        case _:
            content = stored
    return cast("BinaryIO", io.BufferedReader(_Explained(name, stored, content), _BUFFER_BYTES))


class _Explained(io.RawIOBase):
    """A stream whose errors are `SourceError` and name the file."""

    def __init__(self, name: str, stored: BinaryIO, content: _Readable) -> None:
        self._name = name
        self._stored = stored
        self._content = content

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._content is self._stored and self._stored.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        if not self.seekable():
            raise io.UnsupportedOperation(f"{self._name} is compressed: it can be read from the start only")
        return self._stored.seek(offset, whence)

    def tell(self) -> int:
        return self._stored.tell()

    def readinto(self, buffer: Any, /) -> int:
        try:
            with explained(self._name):
                data = self._content.read(len(buffer))
        except EOFError as error:
            raise SourceError(f"{self._name} is cut off: its compressed data have no end; fetch it again") from error
        except (zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
            raise SourceError(f"{self._name} is damaged: {error}; fetch it again") from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stored.close()
        super().close()


class _ZstdFile:
    """Frames of Zstandard, one after another. `zstandard` has a reader, but it takes a cut-off file for a whole one."""

    def __init__(self, stored: BinaryIO) -> None:
        self._stored = stored
        self._frame: Any = None
        self._ready = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        while not self._ready:
            between_frames = self._frame is None or self._frame.eof
            data = self._frame.unused_data if self._frame is not None and between_frames else b""
            data = data or self._stored.read(_ZSTD_INPUT_BYTES)
            if not data and between_frames:
                return b""
            if not data:
                raise EOFError
            if between_frames:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._ready = memoryview(self._frame.decompress(data))
        data, self._ready = bytes(self._ready[:size]), self._ready[size:]
        return data
