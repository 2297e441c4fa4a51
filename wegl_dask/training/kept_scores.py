"""What fits that are done have given, kept in a model's folder, so that a training that was stopped goes on where it was."""

import hashlib
import io
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from wegl_dask.checksums import fingerprint
from wegl_dask.claims import MAX_REQUESTS, remove_all
from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.locks import Lock
from wegl_dask.training.names import KEPT_NAME
from wegl_dask.training.problem import FloatMatrix

KEEP_SECONDS = 10.0
"""There may be a file for so many seconds of a training: at most so many seconds of finished work are not in one."""


class Keepable(Protocol):
    """A task whose result can be told from the arrays in it. Its repr says what the result follows from."""

    def arrays_of(self, result: Any) -> Sequence[FloatMatrix] | None:
        """Take the arrays out of a result, scores or what was measured; None where there is more to it."""

    def result_of(self, arrays: Sequence[FloatMatrix]) -> Any:
        """Put a result together again."""


class KeptScores:
    """The arrays of the tasks of a training, in files of its folder, those of some tasks in each.

    Parameters
    ----------
    folder : Folder
        Of the model that is trained.
    lock : Lock
        Of the folder.
    follows_from : str
        Fingerprint of what the arrays follow from, beyond what the tasks say.
    clock : callable, optional
        Returns seconds that never go back; `time.monotonic` by default.

    Attributes
    ----------
    n_found : int
        Results that need not be computed again.
    """

    def __init__(
        self, folder: Folder, lock: Lock, follows_from: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.n_found = 0
        self._folder = folder
        self._lock = lock
        self._follows_from = follows_from
        self._clock = clock
        self._start = clock()
        self._n_written = 0
        self._found = self._names()
        self._unwritten: dict[str, FloatMatrix] = {}

    def find(self, step: str, tasks: Sequence[Keepable]) -> dict[int, Any]:
        """Find the results of tasks that were done earlier, by number. A file that was altered is passed over."""
        keys = {self._key(step, task): number for number, task in enumerate(tasks)}
        found: dict[int, Any] = {}
        with ThreadPoolExecutor(MAX_REQUESTS) as pool:
            contents = pool.map(self._folder.read_if_there, self._found)
        for name, content in zip(self._found, contents, strict=True):
            if content is None or name != _name_for(content) or not zipfile.is_zipfile(io.BytesIO(content)):
                continue
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                names: dict[str, list[str]] = {}
                for each in arrays.files:
                    names.setdefault(each.partition("-")[0], []).append(each)
                for key in keys.keys() & names.keys():
                    number = keys[key]
                    found[number] = tasks[number].result_of([arrays[each] for each in names[key]])
        self.n_found += len(found)
        return found

    def add(self, step: str, task: Keepable, result: Any) -> None:
        """Keep a result; it is written with others, as `KEEP_SECONDS` has it."""
        arrays = task.arrays_of(result)
        if arrays is not None:
            key = self._key(step, task)
            self._unwritten |= {f"{key}-{i}": array for i, array in enumerate(arrays)}
        if self._clock() - self._start >= KEEP_SECONDS * (self._n_written + 1):
            self.write()

    def write(self) -> None:
        """Write what has not been written; WeglError if the lock was lost."""
        if self._unwritten:
            self._lock.ensure_held()
            buffer = io.BytesIO()
            arrays: Mapping[str, Any] = self._unwritten
            np.savez(buffer, **arrays)
            content = buffer.getvalue()
            self._folder.write(_name_for(content), content)
            self._unwritten = {}
            self._n_written += 1

    def clear(self) -> None:
        """Remove everything that was written, now or by trainings that were stopped; WeglError if the lock was lost."""
        self._lock.ensure_held()
        remove_all(self._folder, self._names())

    def _names(self) -> list[str]:
        # What has no size is no file.
        return [name for name, size in self._folder.listing().items() if size is not None and KEPT_NAME.fullmatch(name)]

    def _key(self, step: str, task: Keepable) -> str:
        return fingerprint(self._follows_from, step, repr(task))


@contextmanager
def scores_kept(folder: Folder, lock: Lock, follows_from: str) -> Iterator[KeptScores]:
    """Keep scores in a folder if the block is left early, however it is left; when it has ended they are removed."""
    kept = KeptScores(folder, lock, follows_from)
    try:
        yield kept
    except BaseException as error:
        try:
            kept.write()
        except WeglError as failed:
            if str(failed) != str(error):
                error.add_note(f"The last scores could not be kept: {failed}")
        raise
    kept.clear()


def _name_for(content: bytes) -> str:
    """Name a file by what is in it."""
    return f"fits-{hashlib.sha256(content).hexdigest()[:32]}.npz"
