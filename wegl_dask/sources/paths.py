"""Where input files are: paths, globs, folders, fsspec URLs and files of installed packages become a list of files."""

import importlib.util
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from wegl_dask.errors import SourceError, WeglError
from wegl_dask.stores import missing_package

COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
"""Endings of compressed files that `wegl_dask.sources.streams` reads."""

PACKAGE = "package://"

_MAGIC = frozenset("*?[")

_FILE_URL = re.compile(r"^(file|local)://")
"""What a URL begins with that is a local path."""

_STAMPS = ("ETag", "etag", "LastModified", "last_modified", "mtime", "updated", "created")
"""What file systems know of a file that changes with its content."""


def expand(path: str | Sequence[str], endings: tuple[str, ...]) -> list[str]:
    """List the files that a path of the job file stands for.

    A name that exists is taken as it is, whatever characters it holds; only then is it read as a glob. A folder stands
    for the files below it, at any depth, that have one of `endings`; a glob for the files it matches that do, and for
    the folders it matches. Names that begin with ``.`` or ``_`` are passed over in folders, and in globs that do not
    ask for them.

    Parameters
    ----------
    path : str or sequence of str
        A file, a glob, a folder, or several: local paths (``~`` is expanded), fsspec URLs, or ``package://NAME/PATH``,
        a file of an installed package.
    endings : tuple of str
        Lower-case endings such as ``.csv``; the case of the file's is not looked at. A file that is named in full may
        have another.

    Returns
    -------
    list of str
        Names for `wegl_dask.sources.streams.open_stream`, each once: in the order of `path`, those of one glob or
        folder sorted. Local paths and package files are written as `path` writes them.

    Raises
    ------
    SourceError
        If something is not there or cannot be listed, or a glob or a folder holds no file with such an ending, or one
        with a name that is not UTF-8.
    """
    names = [path] if isinstance(path, str) else path
    if not names:
        raise SourceError("source.path is an empty list: name at least one file, glob or folder")
    files = list(dict.fromkeys(file for name in names for file in _expand_one(name, endings)))
    for file in files:
        try:
            file.encode()
        except UnicodeEncodeError as error:
            raise SourceError(
                f"the name of the file {file!r} is not UTF-8, and the output could not name it: rename the file"
            ) from error
    return files


def folder_around(path: str | Sequence[str], folder: str, files: Sequence[str]) -> str | None:
    """Find the one among `path` by which files in `folder` would be read; None if there is none.

    Parameters
    ----------
    path : str or sequence of str
        As of `expand`: a folder, if the files will lie in it at any depth; a glob, if it matches one of them or a folder
        that they will lie in.
    folder : str
        A local path or an fsspec URL; it need not exist.
    files : sequence of str
        Paths in `folder` of files that will be there, whatever their endings.
    """
    names = [path] if isinstance(path, str) else path
    return next((name for name in names if not name.startswith(PACKAGE) and _reads_from(name, folder, files)), None)


def _reads_from(name: str, folder: str, files: Sequence[str]) -> bool:
    base, pattern, parts = _apart(name, folder)
    written = [[*parts, *file.split("/")] for file in files]
    below = [path[len(base) :] for path in written if path[: len(base)] == base]
    # The globs of fsspec are asked for files alone.
    return bool(below) and (not pattern or any(_matches(path, pattern, folders=not is_remote(name)) for path in below))


def _apart(name: str, folder: str) -> tuple[list[str], list[str], list[str]]:
    """Split the name of some input into what is literal and what is left, as of a glob, and a folder into its parts."""
    local, own = (_FILE_URL.sub("", text) for text in (name, folder))
    if "://" in local or "://" in own:
        parts = local.rstrip("/").split("/")
        base = [*takewhile(lambda part: not _MAGIC.intersection(part), parts)]
        return base, parts[len(base) :], own.rstrip("/").split("/")
    literal, rest = _literal(local_path(local))
    return [*literal.resolve().parts], rest, [*Path(own).resolve().parts]


def _matches(parts: Sequence[str], pattern: Sequence[str], *, folders: bool) -> bool:
    """Whether a glob matches a path below what is literal in it, or one of the folders on the way, if `folders` count."""
    skipped = _skipped(pattern)
    shown = [*takewhile(lambda part: not part.startswith(skipped), parts)]
    ends = range(1, len(shown) + 1) if folders else [len(parts)] if len(shown) == len(parts) else []
    return any(_fits(parts[:end], pattern) for end in ends)


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fits(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def is_same_file(one: str, other: str) -> bool:
    """Whether two names are of one file on this machine, a relative one from whatever folder it was given.

    Examples
    --------
    >>> is_same_file("/data/in/a.csv", "in/a.csv"), is_same_file("/data/a.csv", "/data/mon/../a.csv")
    (True, True)
    >>> is_same_file("/data/mon/a.csv", "/data/tue/a.csv")
    False
    """
    names = [_FILE_URL.sub("", name) for name in (one, other)]
    if any(map(is_remote, names)):
        return one == other
    paths = [local_path(name) for name in names]
    relative = [path for path in paths if not path.is_absolute()]
    if len(relative) == 1:
        (absolute,) = (path.resolve() for path in paths if path.is_absolute())
        # Dots go as far as they can without knowing the folder.
        parts = Path(os.path.normpath(relative[0])).parts
        return absolute.parts[-len(parts) :] == parts
    return paths[0].resolve() == paths[1].resolve()


def ending_of(name: str) -> str:
    """Return the ending of a file's name in lower case, without that of a compression: ``.csv`` of ``A.CSV.gz``."""
    return PurePosixPath(name.lower().removesuffix(compression_of(name))).suffix


def compression_of(name: str) -> str:
    """Return the ending of a compressed file's name, one of `COMPRESSIONS`; "" for any other."""
    return next((ending for ending in COMPRESSIONS if name.lower().endswith(ending)), "")


def size_of(name: str) -> int:
    """Size in bytes of a file as it is stored, compressed or not."""
    with explained(name):
        if is_remote(name):
            filesystem, path = filesystem_of(name)
            return int(filesystem.size(path) or 0)
        return local_path(name).stat().st_size


@contextmanager
def explained(name: str) -> Iterator[None]:
    """Turn failures of the disk or the store into a `SourceError` that names the file."""
    # The clients of object stores raise exceptions of their own, without a common base.
    kinds = (Exception,) if is_remote(name) else (OSError,)
    try:
        yield
    except WeglError:
        raise
    except kinds as error:
        reason = error.strerror or error if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise SourceError(f"{name} cannot be read: {reason}; check the path and its access") from error


def is_remote(name: str) -> bool:
    """Whether a name is an fsspec URL, rather than a local path or a file of a package."""
    return ("://" in name or "::" in name) and not name.startswith(PACKAGE) and not os.path.lexists(name)


def local_path(name: str) -> Path:
    """Path on this machine of a local file or a file of an installed package."""
    if not name.startswith(PACKAGE):
        return Path(name) if os.path.lexists(name) else Path(name).expanduser()
    package, _, inside = name.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise SourceError(f"{name}: there is no installed package {package!r}; install it, or correct source.path")
    return Path(spec.submodule_search_locations[0], inside)


def filesystem_of(url: str) -> tuple[Any, str]:
    """Split an fsspec URL into its file system and the path on it."""
    try:
        filesystem, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise missing_package(url, error) from error
    except ValueError as error:
        raise SourceError(f"{url} is not a path or URL that can be read: {error}; correct source.path") from error
    return filesystem, path


def _expand_one(name: str, endings: tuple[str, ...]) -> list[str]:
    with explained(name):
        if is_remote(name):
            return _expand_remote(name, endings)
        path = local_path(name)
        if path.is_file():
            return [name if name.startswith(PACKAGE) or path == Path(name) else str(path)]
        files = _expand_local(name, path, endings)
    if name.startswith(PACKAGE):
        package = name.removeprefix(PACKAGE).partition("/")[0]
        root = local_path(PACKAGE + package)
        return [f"{PACKAGE}{package}/{Path(file).relative_to(root).as_posix()}" for file in files]
    return files


def state_of(name: str) -> str:
    """Tell whether a file is the one that it was: text that differs once it was written again, or cannot be known to be."""
    with explained(name):
        if not is_remote(name):
            found = local_path(name).stat()
            return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
        filesystem, path = filesystem_of(name)
        filesystem.invalidate_cache()
        info = filesystem.info(path)
    stamps = [str(info[key]) for key in _STAMPS if info.get(key)]
    return f"{info.get('size')} {stamps}" if stamps else secrets.token_hex(8)


def _expand_local(name: str, path: Path, endings: tuple[str, ...]) -> list[str]:
    if path.is_dir():
        return _checked(name, "folder", _files_below(path), endings)
    if os.path.lexists(path):
        what = "a broken link" if path.is_symlink() else "neither a file nor a folder"
        raise SourceError(f"{name} is {what}; source.path takes files, globs and folders")
    if not _MAGIC.intersection(str(path)):
        raise SourceError(f"{name} does not exist; correct source.path")
    return _checked(name, "glob", _files_matching(path), endings)


def _files_below(folder: Path) -> Iterator[str]:
    """Walk a folder, following links but into no folder twice."""
    seen: set[str] = set()

    def refuse(error: OSError) -> None:
        raise error

    for parent, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(entry for entry in folders if not entry.startswith((".", "_")))
        for entry in files:
            file = Path(parent, entry)
            # A broken link is kept: opening it says so. A pipe or a socket is no input.
            if not entry.startswith((".", "_")) and (file.is_file() or not file.exists()):
                yield str(file)


def _files_matching(pattern: Path) -> Iterator[str]:
    """Match a glob; the folders in front of it that exist are taken literally."""
    base, rest = _literal(pattern)
    try:
        matches = list(base.glob("/".join(rest)))
    except ValueError as error:
        raise SourceError(f"{pattern} is not a glob that can be read: {error}; correct source.path") from error
    skipped = _skipped(rest)
    for match in matches:
        if any(part.startswith(skipped) for part in match.relative_to(base).parts):
            continue
        if match.is_dir():
            yield from _files_below(match)
        elif match.is_file() or match.is_symlink():
            yield str(match)


def _literal(pattern: Path) -> tuple[Path, list[str]]:
    """Split a path into the folders in front that exist, whatever characters they hold, and the rest."""
    base, rest = Path(), list(pattern.parts)
    while rest and (base / rest[0]).is_dir():
        base /= rest.pop(0)
    return base, rest


def _skipped(pattern: Sequence[str]) -> tuple[str, ...]:
    """Find the beginnings of names that are passed over, below what is literal in a path: those not asked for."""
    return tuple(mark for mark in (".", "_") if not any(part.startswith(mark) for part in pattern))


def _expand_remote(url: str, endings: tuple[str, ...]) -> list[str]:
    filesystem, path = filesystem_of(url)
    if filesystem.isfile(path):
        return [url]
    base: Sequence[str] = path.rstrip("/").split("/")
    rest: Sequence[str] = ()
    if filesystem.isdir(path):
        what, found = "folder", filesystem.find(path)
    elif _MAGIC.intersection(path):
        what, found = "glob", [file for file in filesystem.glob(path) if filesystem.isfile(file)]
        literal = [*takewhile(lambda part: not _MAGIC.intersection(part), base)]
        base, rest = literal, base[len(literal) :]
    else:
        raise SourceError(f"{url} does not exist; correct source.path")
    skipped = _skipped(rest)
    shown = [file for file in found if not any(part.startswith(skipped) for part in file.split("/")[len(base) :])]
    files = _checked(url, what, shown, endings)
    if "::" in url:
        return [url.replace(path, file, 1) for file in files]
    return [filesystem.unstrip_protocol(file) for file in files]


def _checked(name: str, what: str, found: Iterable[str], endings: tuple[str, ...]) -> list[str]:
    """Keep the files that have one of the endings, sorted; there has to be one."""
    found = set(found)
    kept = sorted(file for file in found if file.lower().endswith(endings))
    if not kept:
        others = f", but {len(found)} with another" if found else ""
        raise SourceError(
            f"the {what} {name} holds no file with an ending of {', '.join(endings)}{others}; correct source.path"
        )
    return kept
