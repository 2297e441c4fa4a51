"""A folder on a local disk or an object store, in which a file is there whole or not at all.

A local file is written under a temporary name in the same folder, flushed to the disk and renamed. An object store gets
one put, which shows nothing before it is complete. On a remote file system whose put is not atomic (HDFS, SFTP) a process
that is killed can leave a torn file; the records of `wegl_dask.storage` find it.
"""

import contextlib
import errno
import hashlib
import io
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from wegl_dask.errors import JobFileError, WeglError
from wegl_dask.stores import missing_package, refuse_secrets
from wegl_dask.training.names import TRAIN_FOLDER

Content = bytes | Callable[[BinaryIO], int | None]
"""What a file is made of: its bytes, or a function that writes them to a binary file and may return a number of rows."""

TEMPORARY_PREFIX = ".tmp-"
"""How the names of files begin that are not whole yet."""

S3_CLIENT = {"connect_timeout": 10, "read_timeout": 20, "retries": {"mode": "standard", "total_max_attempts": 4}}
"""How long S3's client waits for an answer, in seconds, and how often it asks: about 90 s at the worst for one request.
A value under ``config_kwargs``, in the storage options or in fsspec's configuration, goes before these."""

_HASH_BLOCK = 1 << 22

NO_THREAD = "Failed to launch worker thread"
"""What Arrow says, in place of what it was to read, where the system starts no more threads for it."""


class StorageError(WeglError):
    """A disk or a store did not do what it was asked to; it may do so later."""


@dataclass(frozen=True)
class Written:
    """What was written to a file: its size in bytes, its SHA-256, and the number of rows that the writer returned."""

    n_bytes: int
    sha256: str
    rows: int | None


@dataclass(frozen=True)
class Folder:
    """A folder, which need not exist yet. It can be pickled; a worker opens it for itself.

    Names of files are relative to the folder, with ``/`` between their parts.

    Attributes
    ----------
    url : str
        A local path (made absolute, ``~`` expanded, otherwise taken as it is) or a URL that fsspec understands.
    storage_options : mapping
        Arguments for the file system, such as credentials; left out of messages.

    Raises
    ------
    JobFileError
        If the path is not UTF-8 text, or a URL names no folder.
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    def __post_init__(self) -> None:
        local = re.sub(r"^(file|local)://", "", self.url)
        remote = re.match(r"[a-z][a-z0-9+.:-]*://", local, flags=re.IGNORECASE)
        if remote:
            refuse_secrets(self.url, "the folder")
            if not local[remote.end() :].strip("/"):
                raise JobFileError(
                    f"the folder {self.url!r} has no name: write for example {remote.group()}bucket/folder"
                )
        url = self.url.rstrip("/") if remote else str(Path(local).expanduser().absolute())
        try:
            url.encode()
        except UnicodeEncodeError as error:
            # Python has it as halves of characters, which Arrow and the files of a run cannot hold.
            raise JobFileError(f"the folder {url!r} has a name that is not UTF-8 text: rename it") from error
        object.__setattr__(self, "url", url)

    @property
    def is_local(self) -> bool:
        """Whether the folder is on a disk of this machine, or mounted as one."""
        return "://" not in self.url

    def location(self, name: str = "") -> str:
        """Full path or URL of a file, for messages and for other programs."""
        return f"{self.url}/{name}" if name else self.url

    def subfolder(self, name: str) -> "Folder":
        """Return a subfolder as a folder of its own, whether or not it is there."""
        return Folder(self.location(name), self.storage_options)

    def read(self, name: str) -> bytes:
        """Read a file whole.

        Raises
        ------
        WeglError
            If it is not there or cannot be read.
        """
        content = self.read_if_there(name)
        if content is None:
            raise WeglError(f"cannot read {self.location(name)}: it is not there")
        return content

    def read_if_there(self, name: str) -> bytes | None:
        """Read a file whole; None where there is no such file."""
        with self._explained("read", name), contextlib.suppress(FileNotFoundError):
            if self.is_local:
                return self._regular(name).read_bytes()
            store, root = self._store()
            content: bytes = store.cat_file(f"{root}/{name}")
            return content
        return None

    def write(self, name: str, content: Content, *, lasting: bool = True) -> Written:
        """Write a file; it appears under its name when it is whole, in place of an older one.

        Parameters
        ----------
        name : str
            Missing folders are created.
        content : bytes or callable
            See `Content`. For an object store it is gathered in memory first.
        lasting : bool, default True
            Flush a local file to the disk before it appears. Without that a power failure can leave a torn file, which
            its record finds, and many small files take half the time.

        Returns
        -------
        Written

        Raises
        ------
        WeglError
            If the disk is full, the folder is read-only or the store refuses. Nothing is left behind.
        """
        if self.is_local:
            with self._explained("write", name):
                return _write_local(Path(self.url, name), content, lasting=lasting)
        buffer = io.BytesIO()
        written = _write_hashed(buffer, content)
        with self._explained("write", name):
            store, root = self._store()
            store.pipe_file(f"{root}/{name}", buffer.getvalue())
        return written

    def write_together(self, contents: Mapping[str, Content]) -> None:
        """Write several files, of which the last vouches for the others: it goes first and comes last.

        Parameters
        ----------
        contents : mapping of str to Content
            By name. On a local disk none takes the place of an older one before all are written; on an object store each
            does so in turn.

        Raises
        ------
        WeglError
            As `write`. On a local disk all files are as they were.
        """
        *_, last = contents
        if not self.is_local:
            self.remove(last)
            for name, content in contents.items():
                self.write(name, content)
            return
        written = {}
        with contextlib.ExitStack() as temporaries:
            for name, content in contents.items():
                with self._explained("write", name):
                    beside = _beside(Path(self.url, name), content, lasting=True)
                    written[name], _ = temporaries.enter_context(beside)
            self.remove(last)
            for name, temporary in written.items():
                with self._explained("write", name):
                    temporary.replace(Path(self.url, name))
                    _flush_folder(temporary.parent)

    def remove(self, name: str) -> None:
        """Remove a file; one that is not there is no error."""
        with self._explained("remove", name), contextlib.suppress(FileNotFoundError):
            if self.is_local:
                Path(self.url, name).unlink()
            else:
                store, root = self._store()
                store.rm_file(f"{root}/{name}")

    def remove_if_empty(self, name: str) -> None:
        """Remove a subfolder that holds nothing; object stores have no folders to remove."""
        if self.is_local:
            with self._explained("remove", name):
                try:
                    Path(self.url, name).rmdir()
                except OSError as error:
                    # Others may write to it, or remove it, at this very moment: only the system can tell.
                    if error.errno not in {errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST}:
                        raise

    def listing(self, name: str = "") -> dict[str, int | None]:
        """List what is in the folder or a subfolder of it: size in bytes of each file, None for a folder, by name.

        Where there is no such folder, nothing is listed.

        Raises
        ------
        WeglError
            If it cannot be listed, or an S3 store has no such bucket, in which no folder would come to be.
        """
        with self._explained("list", name), _no_folder_is_empty():
            if self.is_local:
                return _list_local(Path(self.url, name))
            store, root = self._store()
            path = f"{root}/{name}".rstrip("/")
            return {
                PurePosixPath(entry["name"]).name: None if entry["type"] == "directory" else int(entry["size"])
                for entry in store.ls(path, detail=True)
                if entry["name"].strip("/") != path.strip("/")
            }
        return {}

    def size(self, name: str) -> int | None:
        """Size of a file in bytes, asked for by its name, so that it does not depend on a listing; None if it is not there."""
        with self._explained("read", name), contextlib.suppress(FileNotFoundError):
            if self.is_local:
                return Path(self.url, name).stat().st_size
            store, root = self._store()
            return int(store.size(f"{root}/{name}"))
        return None

    def modified(self, name: str) -> datetime | None:
        """When a file was last written, by the clock of whoever stores it; None if that is not known or it is not there."""
        with self._explained("read", name), contextlib.suppress(FileNotFoundError, NotImplementedError):
            if self.is_local:
                return datetime.fromtimestamp(Path(self.url, name).stat().st_mtime).astimezone()
            store, root = self._store()
            moment: datetime = store.modified(f"{root}/{name}")
            return moment
        return None

    def times(self, name: str = "") -> dict[str, datetime]:
        """When the files of a subfolder were last written, by name, by the clock of whoever stores them.

        Files of which the store does not tell are left out.
        """
        with self._explained("list", name), contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if self.is_local:
                return _times_local(Path(self.url, name))
            store, root = self._store()
            entries = store.ls(f"{root}/{name}".rstrip("/"), detail=True)
            found = {PurePosixPath(entry["name"]).name: _entry_time(entry) for entry in entries}
            return {file: moment for file, moment in found.items() if moment is not None}
        return {}

    def sha256(self, name: str) -> str | None:
        """Hash a file, read in blocks; None where there is no such file."""
        digest = hashlib.sha256()
        with self._explained("read", name), contextlib.suppress(FileNotFoundError), self._open(name) as file:
            while block := file.read(_HASH_BLOCK):
                digest.update(block)
            return digest.hexdigest()
        return None

    @contextlib.contextmanager
    def parquet(self, name: str) -> Iterator[pq.ParquetFile]:
        """Open a Parquet file for reading; one on an object store is fetched whole, in one request.

        Raises
        ------
        WeglError
            If it is not there, or is not Parquet, or turns out to be damaged while it is read.
        """
        # A path is read by Arrow itself, without going through Python.
        source = str(self._regular(name)) if self.is_local else pa.BufferReader(self.read(name))
        with self._explained_parquet(name), pq.ParquetFile(source, page_checksum_verification=True) as file:
            yield file

    def parquet_footer(self, name: str) -> pq.FileMetaData:
        """Read the footer of a Parquet file and no more; see `parquet` for the errors."""
        with self._explained_parquet(name):
            if self.is_local:
                return pq.read_metadata(str(self._regular(name)))
            with self._explained("read", name), self._open(name) as file:
                return pq.read_metadata(file)

    def _regular(self, name: str) -> Path:
        """Find the path of a file on a disk; a pipe in its place would be waited for without end."""
        path = Path(self.url, name)
        with contextlib.suppress(OSError):
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise WeglError(f"{self.location(name)} is no file: remove it, and run the job again")
        return path

    def _open(self, name: str) -> BinaryIO:
        if self.is_local:
            return self._regular(name).open("rb")
        store, root = self._store()
        file: BinaryIO = store.open(f"{root}/{name}", "rb")
        return file

    def _store(self) -> tuple[Any, str]:
        """Find the file system (fsspec keeps its instances) and the folder's path on it."""
        try:
            store, root = fsspec.core.url_to_fs(self.url, **self._client_options())
        except ImportError as error:
            raise missing_package(self.url, error) from error
        except ValueError as error:
            raise JobFileError(
                f"{self.url} is no place to read or write: {error}. Give a path, or a URL that fsspec understands"
            ) from error
        if self._is_on_s3:
            # Each of them would be a round of attempts of the client, which repeats whatever is worth repeating.
            store.retries = 1
        # Other processes write here too: a listing that this one remembers is out of date.
        store.invalidate_cache()
        return store, root.rstrip("/")

    @property
    def _is_on_s3(self) -> bool:
        return self.url.startswith(("s3://", "s3a://"))

    def _client_options(self) -> dict[str, Any]:
        if not self._is_on_s3:
            return {**self.storage_options}
        configured = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
        client = {**S3_CLIENT, **configured, **self.storage_options.get("config_kwargs", {})}
        # With a cache of listings, what another process has written since the last listing would not be there.
        return {"use_listings_cache": False, **self.storage_options, "config_kwargs": client}

    @contextlib.contextmanager
    def _explained(self, action: str, name: str) -> Iterator[None]:
        """Turn failures of the disk or the store into one line that names the file and what to do."""
        # The clients of object stores raise exceptions of their own, without a common base.
        kinds = (OSError,) if self.is_local else (Exception,)
        try:
            yield
        except (WeglError, pa.ArrowException):
            raise
        except kinds as error:
            raise StorageError(f"cannot {action} {self.location(name)}: {_reason(error)}") from error

    @contextlib.contextmanager
    def _explained_parquet(self, name: str) -> Iterator[None]:
        try:
            with resources_told_apart(self.location(name)):
                yield
        except WeglError:
            raise
        # A damaged footer holds names that are no text.
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            # Arrow reports damage as an OSError too; one from the system has a number.
            if getattr(error, "errno", None) is not None:
                raise StorageError(f"cannot read {self.location(name)}: {_reason(error)}") from error
            what = str(error).splitlines()[0]
            again = "Run the job again: damaged parts are remade"
            if name.startswith(f"{TRAIN_FOLDER}/"):
                again = "Train the model again"
            raise WeglError(f"{self.location(name)} is not a whole Parquet file ({what}). {again}") from error


@contextlib.contextmanager
def resources_told_apart(location: str) -> Iterator[None]:
    """Tell what Arrow raises for want of memory or threads from what it raises of a damaged file, of the same kinds.

    Raises
    ------
    MemoryError
    StorageError
        If the system starts no more threads.
    """
    try:
        yield
    except pa.ArrowMemoryError as error:
        raise MemoryError(str(error)) from error
    except (pa.ArrowException, OSError) as error:
        if NO_THREAD not in str(error):
            raise
        raise StorageError(f"cannot read {location}: {str(error).splitlines()[0]}; {_KEPT}") from error


_KEPT = "what was finished stays valid; run the same command again"


_REASONS = {
    errno.ENOSPC: f"the disk is full. Free some space; {_KEPT}",
    errno.EDQUOT: f"the disk quota is used up. Free some space; {_KEPT}",
    errno.EFBIG: f"the file would be larger than it may be. Raise the limit that `ulimit -f` shows; {_KEPT}",
    errno.EROFS: "the file system is read-only. Choose another folder, or mount it for writing",
    errno.ENOENT: "it is not there",
    errno.ENOTDIR: "there is a file where a folder should be. Check the path, or move the file",
    errno.EEXIST: "there is a file where a folder should be. Check the path, or move the file",
    errno.EISDIR: "there is a folder where a file should be. Move it, and run the job again",
    errno.ELOOP: "its links lead back to itself. Check the path",
}


@contextlib.contextmanager
def _no_folder_is_empty() -> Iterator[None]:
    """Take a folder that is not there for one that holds nothing, unless there is no bucket for it."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if _has_no_bucket(error):
            raise


def _has_no_bucket(error: Exception) -> bool:
    """Whether S3 has answered that there is no such bucket; s3fs makes it the same error as that of a missing object."""
    response = getattr(error.__cause__, "response", None) or {}
    return bool(response.get("Error", {}).get("Code") == "NoSuchBucket")


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    match number, error:
        case (int(), _) if number in _REASONS:
            return _REASONS[number]
        case (_, PermissionError()):
            return f"permission denied ({error}). Choose another folder, or change its rights"
        case (_, FileNotFoundError()) if _has_no_bucket(error):
            return "there is no such bucket. Check the path, or make the bucket"
        case (_, FileNotFoundError()):
            return f"not found ({error})"
        case (int(), OSError()):
            return f"{error.strerror or error}; {_KEPT}"
        case _:
            return f"{type(error).__name__}: {error}; {_KEPT}"


def _list_local(path: Path) -> dict[str, int | None]:
    result: dict[str, int | None] = {}
    with os.scandir(path) as entries:
        for entry in entries:
            # Another process may rename or remove a file between the listing and the look at it.
            with contextlib.suppress(FileNotFoundError):
                result[entry.name] = None if entry.is_dir() else entry.stat().st_size
    return result


def _times_local(path: Path) -> dict[str, datetime]:
    result = {}
    with os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file():
                    result[entry.name] = datetime.fromtimestamp(entry.stat().st_mtime).astimezone()
    return result


def _entry_time(entry: Mapping[str, Any]) -> datetime | None:
    """Find the time in an entry of a listing, which every store has under another name."""
    keys = ("LastModified", "last_modified", "mtime", "created")
    match next((entry[key] for key in keys if key in entry), None):
        case datetime(tzinfo=zone) as moment if zone is not None:
            return moment
        case float() | int() as seconds:
            return datetime.fromtimestamp(seconds, UTC)
        case _:
            return None


def _write_local(path: Path, content: Content, *, lasting: bool) -> Written:
    with _beside(path, content, lasting=lasting) as (temporary, written):
        temporary.replace(path)
    if lasting:
        _flush_folder(path.parent)
    return written


@contextlib.contextmanager
def _beside(path: Path, content: Content, *, lasting: bool) -> Iterator[tuple[Path, Written]]:
    """Write a file under a temporary name beside the one that it is for; it is removed unless it was renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f"{TEMPORARY_PREFIX}{path.name}-{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            written = _write_hashed(file, content)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        yield temporary, written
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _flush_folder(path: Path) -> None:
    """Flush a folder to the disk: without that a rename itself could be lost when the power fails."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_hashed(file: BinaryIO, content: Content) -> Written:
    writer = _HashingWriter(file)
    if isinstance(content, bytes):
        writer.write(content)
        rows = None
    else:
        rows = content(writer)  # type: ignore[arg-type]
    return Written(writer.tell(), writer.digest.hexdigest(), rows)


class _HashingWriter(io.RawIOBase):
    """Passes bytes on to a file and hashes them on the way. Closing it leaves the file open."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self.digest = hashlib.sha256()
        self._file = file
        self._n_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._n_bytes

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.digest.update(view)
        self._file.write(view)
        self._n_bytes += len(view)
        return len(view)
