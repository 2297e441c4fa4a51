"""The lock of a run folder: one run at a time writes in it, and a run that died locks nobody out.

On a disk it is `flock` on the file ``.lock``, which the kernel releases when the process ends, however it ends. An
object store, and a file system without `flock`, gets an object ``.lock`` that its owner renews every `RENEWED_EVERY`
seconds; one that is `DEAD_AFTER` seconds old belongs to a dead run. Whoever wants the lock measures ages by the clock of
the store alone, by writing beside it; whoever only asks does not write, and watches a lock that seems dead being renewed.
Two runs that start there within a moment of one another are told apart by who wrote last: each writes, waits
`SETTLING` seconds and looks whose lock it is. A run that is suspended for longer than `DEAD_AFTER` can lose its lock,
which `Lock.ensure_held` reports.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from wegl_dask.errors import WeglError
from wegl_dask.folders import TEMPORARY_PREFIX, Folder

LOCK_NAME = ".lock"

RENEWED_EVERY = 10.0
"""Seconds between two renewals of a lock on an object store."""

DEAD_AFTER = 60.0
"""Seconds without renewal after which such a lock belongs to a run that died."""

ASKED_FOR = 0.1
"""Seconds for which a lock of a file may be held by a process that only asks whether it is held."""

CLOCKS_DIFFER = 3600.0
"""Seconds by which this machine's clock may be ahead of a store's."""

WATCHED = 1.5
"""Renewals for which such a lock is watched that is dead if this machine's clock is right."""

SETTLING = 1.0
"""Seconds between writing such a lock and looking whether it is still the own one."""


_NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
"""What a file system says that has no `flock`."""


class Other(NamedTuple):
    """What holds the lock of a folder that cannot be taken.

    Attributes
    ----------
    writes : str
        What it does, to be followed by the folder.
    way_out : str
        What can be done instead of waiting.
    """

    writes: str
    way_out: str


RUN = Other("another run is writing in", "choose another folder")
TRAINING = Other("another training of this model is writing in", "train another model")


class Lock(Protocol):
    """A lock that is held."""

    def ensure_held(self) -> None:
        """Raise WeglError if the lock was lost: another run may be writing in the folder."""


@contextlib.contextmanager
def locked(folder: Folder, *, other: Other = RUN) -> Iterator[Lock]:
    """Hold the lock of a folder; the lock file is gone afterwards.

    Parameters
    ----------
    folder : Folder
    other : Other, optional
        What may hold it, for messages; a run by default.

    Raises
    ------
    WeglError
        If another one holds it: the message names its host, its process and since when.
    """
    lock: _FileLock | _RenewedLock | None = _file_lock(folder, other) if folder.is_local else None
    if lock is None:
        lock = _RenewedLock(folder, other)
    try:
        yield lock
    finally:
        lock.release()


def is_held(folder: Folder) -> bool:
    """Whether a run holds the lock of a folder that has one; a run that was killed leaves its file behind.

    On a disk the file is locked as long as the run lives, on whichever host; where the file system cannot say, and on an
    object store, its holder renews it. There a lock that seems to have died within the last hour is watched, which takes
    some 15 seconds; a clock of this machine that is behind makes a dead run seem to live on for as long as it is behind.
    """
    if folder.is_local:
        try:
            descriptor = os.open(Path(folder.url, LOCK_NAME), os.O_RDONLY)
        except FileNotFoundError:
            return False
        with open(descriptor, "rb"):  # noqa: PTH123 - it is a descriptor
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise WeglError(f"cannot lock {folder.location(LOCK_NAME)}: {error.strerror}") from error
            else:
                return False
    renewed = folder.modified(LOCK_NAME)
    age = 0.0 if renewed is None else (datetime.now(UTC) - renewed).total_seconds()
    return age < DEAD_AFTER or (age < CLOCKS_DIFFER and _is_renewed(folder, renewed))


def _is_renewed(folder: Folder, before: datetime | None) -> bool:
    """Watch whether a lock that is an object gets another date: no two clocks have to agree, and nothing is written."""
    deadline = time.monotonic() + WATCHED * RENEWED_EVERY
    while time.monotonic() < deadline:
        time.sleep(RENEWED_EVERY / 10)
        renewed = folder.modified(LOCK_NAME)
        if renewed != before:
            # It has no date when its run has ended.
            return renewed is not None
    return False


def refuse_held(folder: Folder) -> None:
    """Raise WeglError, as `locked` would, if another run holds the lock of a folder; it is not taken."""
    holder = folder.read_if_there(LOCK_NAME)
    if holder is not None and (is_held(folder) if folder.is_local else _age(folder) < DEAD_AFTER):
        raise _refusal(folder, holder, RUN)


class _FileLock:
    """A lock by `flock`, held as long as the file descriptor is open."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def ensure_held(self) -> None:
        if not _is_at(self._descriptor, self._path):
            raise WeglError(f"{self._path} was removed while the run was writing here: run the job again")

    def release(self) -> None:
        # Removed while it is locked: whoever opened it meanwhile finds that it is no longer there, and tries again.
        if _is_at(self._descriptor, self._path):
            self._path.unlink()
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def _file_lock(folder: Folder, other: Other) -> _FileLock | None:
    """Take the lock by `flock`; None where the file system has no such thing."""
    path = Path(folder.url, LOCK_NAME)
    is_first_try = True
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            is_taken = isinstance(error, FileExistsError)
            taken = "there is a file, or a link that leads nowhere, in its place"
            why = taken if is_taken else {errno.ENOSPC: "the disk is full"}.get(error.errno or 0, error.strerror)
            raise WeglError(f"cannot write in {folder.location()}: {why}. Choose another folder") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            with open(descriptor, "rb") as file:  # noqa: PTH123 - it is a descriptor
                holder = file.read()
            if isinstance(error, BlockingIOError):
                if not is_first_try:
                    raise _refusal(folder, holder, other) from error
                is_first_try = False
                time.sleep(ASKED_FOR)
                continue
            if error.errno in _NO_LOCKS:
                return None
            raise WeglError(f"cannot lock {path}: {error.strerror}") from error
        if _is_at(descriptor, path):
            break
        os.close(descriptor)
    lock = _FileLock(path, descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(_self_description()).encode(), 0)
    except OSError as error:
        lock.release()
        raise WeglError(f"cannot write {path}: {error.strerror}. Free some space, or choose another folder") from error
    return lock


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


class _RenewedLock:
    """A lock that is an object, renewed by a thread."""

    def __init__(self, folder: Folder, other: Other = RUN) -> None:
        self._folder = folder
        self._other = other
        self._content = json.dumps(_self_description() | {"token": secrets.token_hex(16)}).encode()
        self._released = threading.Event()
        self._taken_by: bytes | None = None
        self._take()
        self._renewed = time.monotonic()
        self._thread = threading.Thread(target=self._renew, name="wegl-dask lock", daemon=True)
        self._thread.start()

    def ensure_held(self) -> None:
        if self._taken_by is not None:
            raise _refusal(self._folder, self._taken_by, self._other)
        age = time.monotonic() - self._renewed
        if age > DEAD_AFTER:
            raise WeglError(
                f"{self._folder.location(LOCK_NAME)} could not be renewed for {age:.0f} s, so another run may have taken "
                "it: check the connection to the store and run the job again"
            )

    def release(self) -> None:
        self._released.set()
        self._thread.join()
        self._remove()

    def _remove(self) -> None:
        """Remove the lock if it is this run's; if the store cannot be reached now, it dies by itself."""
        with contextlib.suppress(WeglError):
            if self._folder.read_if_there(LOCK_NAME) == self._content:
                self._folder.remove(LOCK_NAME)

    def _take(self) -> None:
        holder = self._folder.read_if_there(LOCK_NAME)
        if holder and _age(self._folder) < DEAD_AFTER:
            raise _refusal(self._folder, holder, self._other)
        try:
            self._folder.write(LOCK_NAME, self._content)
            self._released.wait(SETTLING)
            holder = self._folder.read_if_there(LOCK_NAME)
        except BaseException:
            # Who stops it here would be told by the next command that it is still running.
            self._remove()
            raise
        if holder != self._content:
            raise _refusal(self._folder, holder, self._other)

    def _renew(self) -> None:
        while not self._released.wait(RENEWED_EVERY):
            # A store that cannot be reached is tried again; `ensure_held` looks at how long that has been going on.
            with contextlib.suppress(WeglError):
                holder = self._folder.read_if_there(LOCK_NAME)
                if holder != self._content:
                    self._taken_by = holder or b""
                    return
                self._folder.write(LOCK_NAME, self._content)
                self._renewed = time.monotonic()


def _age(folder: Folder) -> float:
    """Seconds since a lock that is an object was renewed; infinite for one that has gone meanwhile."""
    probe = f"{TEMPORARY_PREFIX}clock-{secrets.token_hex(8)}"
    folder.write(probe, b"what time is it?")
    now = folder.modified(probe)
    folder.remove(probe)
    if now is None:
        raise WeglError(
            f"{folder.location(LOCK_NAME)} is the lock of another run, and this store does not tell whether it "
            "is still renewed: if that run has ended, remove the lock and run the job again"
        )
    renewed = folder.modified(LOCK_NAME)
    return (now - renewed).total_seconds() if renewed else float("inf")


def _self_description() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _refusal(folder: Folder, holder: bytes | None, other: Other) -> WeglError:
    try:
        found = json.loads(holder or b"")
        who = f"process {found['pid']} on {found['host']}, since {found['since']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        who = "its lock does not say which"
    hint = "" if folder.is_local else f" (if it died, its lock counts for nothing {DEAD_AFTER:.0f} s after that)"
    return WeglError(
        f"{other.writes} {folder.location()} ({who}): wait until it ends or stop it{hint}, or {other.way_out}"
    )
