"""Temporary folders that are removed in the end, or by the next command if this one is killed."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "wegl-dask-"
_LOCK = "lock-of-a-temporary-folder-of-wegl-dask"
"""Tells our folders from others' too, whose names may begin alike."""


@contextmanager
def scratch_folder(parent: str | os.PathLike[str] | None = None, *, purpose: str = "") -> Iterator[str]:
    """Make a temporary folder, and remove those whose command was killed before it could.

    Parameters
    ----------
    parent : path, optional
        Where; the system's folder for temporary files if not given.
    purpose : str
        Part of its name.

    Yields
    ------
    str
        The folder. It holds a file, which is locked.

    Raises
    ------
    OSError
        If no folder can be made in `parent`.
    """
    place = Path(parent or tempfile.gettempdir())
    folder = tempfile.TemporaryDirectory(
        prefix=f"{PREFIX}{purpose}{purpose and '-'}", dir=place, ignore_cleanup_errors=True
    )
    with folder as path, (Path(path) / f"new-{_LOCK}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Under its name it is locked from the start: who finds it unlocked there knows that the owner is dead.
        Path(lock.name).rename(Path(path) / _LOCK)
        _sweep(place)
        yield path


def _sweep(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError), (folder / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
