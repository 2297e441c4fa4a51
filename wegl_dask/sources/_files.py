"""The files of a data set, opened by name alike whether they lie in a folder or inside a zip."""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

from fsspec.implementations.local import LocalFileSystem

from wegl_dask.errors import SourceError
from wegl_dask.sources.paths import explained, filesystem_of, is_remote, local_path


@dataclass(frozen=True)
class FileSet:
    """Files below one folder, or below one folder of a zip.

    Attributes
    ----------
    url : str
        The folder or the zip: a path, an fsspec URL or package://NAME/PATH.
    is_zip : bool
    prefix : str
        What comes before a file's name: "" or a folder with a slash at its end.
    sizes : mapping of str to int
        Names of the files, relative to `prefix`, with their sizes in bytes, uncompressed if a zip compresses them.
    """

    url: str
    is_zip: bool
    prefix: str
    sizes: Mapping[str, int]

    @classmethod
    def in_folder(cls, url: str) -> "FileSet":
        """List a folder, three levels deep; one that does not exist has no files."""
        fs, path = filesystem_at(url)
        path = path.rstrip("/")
        found: dict[str, Any] = {}
        with explained(url), suppress(FileNotFoundError):
            found = fs.find(path, maxdepth=3, detail=True)
        sizes = {name[len(path) + 1 :]: int(info["size"] or 0) for name, info in found.items()}
        return cls(url.rstrip("/"), is_zip=False, prefix="", sizes=sizes)

    @classmethod
    def in_zip(cls, url: str) -> "FileSet":
        """List a zip; one that does not exist has no files."""
        fs, path = filesystem_at(url)
        with explained(url):
            is_there = fs.isfile(path)
        if not is_there:
            return cls(url, is_zip=True, prefix="", sizes={})
        with _open_zip(url) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist() if not info.is_dir()}
        return cls(url, is_zip=True, prefix="", sizes=sizes)

    def around(self, name: str) -> "FileSet | None":
        """Narrow the set to the folder that has the file `name`, the one nearest to the top; None if there is none."""
        folders = [path[: -len(name)] for path in self.sizes if path == name or path.endswith(f"/{name}")]
        if not folders:
            return None
        prefix = min(folders, key=lambda folder: (folder.count("/"), folder))
        sizes = {path[len(prefix) :]: size for path, size in self.sizes.items() if path.startswith(prefix)}
        return FileSet(self.url, self.is_zip, self.prefix + prefix, sizes)

    def describe(self, name: str) -> str:
        """Where the file `name` is, for messages."""
        return f"{self.url}/{self.prefix}{name}"

    def _member(self, archive: zipfile.ZipFile, path: str) -> BinaryIO:
        try:
            # A binary stream, but for the file's number.
            return archive.open(path)  # type: ignore[return-value]
        # A damaged directory leads anywhere; an encrypted file is a RuntimeError.
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, ValueError) as error:
            raise SourceError(f"{self.url}/{path} cannot be read: {error}; fetch the zip again") from error

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """Open a file for reading bytes; the stream can seek, in a zip by decompressing."""
        path = f"{self.prefix}{name}"
        if self.is_zip:
            with _open_zip(self.url) as archive, self._member(archive, path) as member:
                yield member
        else:
            fs, folder = filesystem_at(self.url)
            with explained(self.describe(name)):
                stream = fs.open(f"{folder.rstrip('/')}/{path}", "rb")
            with stream:
                yield stream


def filesystem_at(url: str) -> tuple[Any, str]:
    """Split a local path, an fsspec URL or the name of a package's file into a file system and the path on it."""
    return filesystem_of(url) if is_remote(url) else (LocalFileSystem(), str(local_path(url).absolute()))


@contextmanager
def _open_zip(url: str) -> Iterator[zipfile.ZipFile]:
    fs, path = filesystem_at(url)
    with explained(url):
        stream = fs.open(path, "rb")
    with stream:
        try:
            with explained(url):
                archive = zipfile.ZipFile(stream)
        except zipfile.BadZipFile as error:
            raise SourceError(f"{url} cannot be read: {error}; fetch it again") from error
        with archive:
            yield archive
