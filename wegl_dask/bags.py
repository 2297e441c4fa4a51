"""Run one stage: a Dask bag of small descriptors, submitted in waves, handed on as they complete."""

import pickle
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import NamedTuple, TypeVar

from dask.bag import Bag
from distributed import CancelledError, Client, Future, as_completed, get_worker
from distributed.scheduler import KilledWorker

from wegl_dask.errors import MORE_MEMORY, WeglError, lost_connection
from wegl_dask.folders import StorageError
from wegl_dask.freed_memory import give_back_freed
from wegl_dask.lost_workers import NO_WORKERS
from wegl_dask.version import __version__
from wegl_dask.worker_checks import check_versions, own_versions, versions_digest

Descriptor = TypeVar("Descriptor")

WAVE = 500
"""Descriptors in one bag, which at some hundred bytes each are far less than a megabyte."""

WAVE_BYTES = 500_000
"""Of the descriptors in one bag, which are fewer where they are large, as those of a block of a thousand files."""

UNDER_WAY = 4 * WAVE
"""Descriptors that the scheduler knows of at a time, so that its load does not grow with the data."""


class Outcome(NamedTuple):
    """What came of a descriptor: what the function returned, the worker's address, and the seconds that it took."""

    result: int
    worker: str
    seconds: float


class OtherVersions(NamedTuple):
    """What a worker returns that has other versions of the packages that matter: its address and its versions."""

    worker: str
    versions: dict[str, str]


class StageError(WeglError):
    """Some parts of a stage failed after all retries, for a reason that the package has no words for."""


def run_stage(
    client: Client,
    stage: str,
    function: Callable[[Descriptor], int],
    descriptors: Sequence[Descriptor],
    *,
    retries: int,
    beside: Future | None = None,
    packages: tuple[str, ...] = (),
) -> Iterator[tuple[Descriptor, Outcome]]:
    """Apply `function` to every descriptor on the cluster.

    Parameters
    ----------
    client : distributed.Client
    stage : str
        Name of the stage, for messages and for Dask's dashboard.
    function : callable
        From a descriptor to a number. It runs on a worker, may run more than once, and leaves its results on storage.
        A `WeglError` that it raises ends the stage, since it would come again; one that was caused by the system or a
        store may pass, and is tried again like any other exception.
    descriptors : sequence
        A few hundred bytes each; ``str(descriptor)`` names it in messages.
    retries : int
        Times a descriptor is tried again after an exception.
    beside : Future, optional
        A result on the cluster. The descriptors are done where it is, and anywhere if it is not there yet; should it be
        lost meanwhile, it is made again first.
    packages : tuple of str, optional
        What the results follow from beyond the packages that matter to any job.

    Yields
    ------
    descriptor
    Outcome
        In the order in which they complete.

    Raises
    ------
    WeglError
        The first that a task raised, or that the scheduler is gone, or all workers for good, or that a worker has joined
        with other versions of the packages that matter, at once; or a `StageError` that lists what failed when everything
        else was done.
    """
    attempt = partial(_attempt, function, versions_digest(packages), packages)
    waiting: dict[str, tuple[Future, Descriptor]] = {}
    failures: list[tuple[Descriptor, BaseException]] = []
    completed = as_completed(loop=client.loop)
    submitted = 0
    try:
        while submitted < len(descriptors) or waiting:
            while submitted < len(descriptors) and len(waiting) <= UNDER_WAY - WAVE:
                _require_connected(client)
                wave = _wave(descriptors, submitted)
                futures = client.compute(_bag_of(stage, attempt, wave, beside).to_delayed(), retries=retries)
                waiting.update({future.key: (future, task) for future, task in zip(futures, wave, strict=True)})
                completed.update(futures)
                submitted += len(wave)
            batch = completed.next_batch()
            _require_connected(client)
            # Fetched together: one by one, the round trips would limit a large cluster.
            results = client.gather({future.key: future for future in batch}, errors="skip")
            for future in batch:
                _, descriptor = waiting[future.key]
                match results[future.key]:
                    case WeglError() as error:
                        raise error
                    case OtherVersions() as other:
                        ours = own_versions(packages)
                        check_versions(client.scheduler.address, ours, ours, {other.worker: other.versions})
                    case Outcome() as outcome:
                        yield descriptor, outcome
                    case _:
                        failures.append((descriptor, _failure(stage, future)))
                del waiting[future.key]
                future.release()
    except OSError as error:
        raise lost_connection(stage) from error
    finally:
        completed.clear()
        if waiting and client.status == "running":
            client.cancel([future for future, _ in waiting.values()])
    if failures:
        shown = "; ".join(f"{descriptor}: {_explain(error)}" for descriptor, error in failures[:5])
        more = f"; and {len(failures) - 5} more" if len(failures) > 5 else ""
        raise StageError(
            f"{stage}: {len(failures)} of {len(descriptors)} parts failed: {shown}{more}. What was finished stays valid; "
            "run the same job again to make the rest"
        ) from failures[0][1]


def _wave(descriptors: Sequence[Descriptor], start: int) -> Sequence[Descriptor]:
    """Take the descriptors of the next bag: one at least."""
    sizes = (len(pickle.dumps(descriptor)) for descriptor in descriptors[start : start + WAVE])
    n_fitting = sum(1 for total in accumulate(sizes) if total <= WAVE_BYTES)
    return descriptors[start : start + max(1, n_fitting)]


def _bag_of(stage: str, attempt: Callable[..., object], wave: Sequence[Descriptor], beside: Future | None) -> Bag:
    """Make a bag of what comes of every descriptor, with a partition and a task each.

    Mapped over `dask.bag.from_sequence` a partition has two tasks: the second hands on what the first returned, as soon as
    its worker has time for it, and twice as many tasks are twice the scheduler's work.
    """
    # This name is of this call alone, so that no result of an earlier one, whose files may be gone, is taken for it.
    name = f"{stage}-{secrets.token_hex(8)}"
    # Dask computes where the input is. Its keyword `workers` would not do: when all workers die, a task that has it is
    # not given to those that come for them, even with `allow_other_workers`.
    inputs = () if beside is None or beside.status != "finished" else (beside,)
    graph = {(name, i): (partial(attempt, descriptor), *inputs) for i, descriptor in enumerate(wave)}
    return Bag(graph, name, len(wave))


def _attempt(
    function: Callable[[Descriptor], int],
    versions: str,
    packages: tuple[str, ...],
    descriptor: Descriptor,
    *inputs: object,
) -> Outcome | OtherVersions | WeglError:
    """Apply `function` to a descriptor, where the versions are those; the inputs only say where."""
    del inputs
    worker = get_worker()
    if versions != versions_digest(packages):
        return OtherVersions(worker.address, own_versions(packages))
    started = time.perf_counter()
    try:
        result = function(descriptor)
    except WeglError as error:
        if isinstance(error, StorageError) or isinstance(error.__cause__, OSError):
            raise
        # Raised, it would be tried again.
        return error
    finally:
        give_back_freed(worker)
    return Outcome(result, worker.address, round(time.perf_counter() - started, 3))


def _require_connected(client: Client) -> None:
    """Raise ConnectionError if there is no scheduler any more."""
    if client.status != "running":
        raise ConnectionError(f"the client is {client.status}")


def _failure(stage: str, future: Future) -> BaseException:
    """Find out why there is no result; ConnectionError if the scheduler no longer knows of the task."""
    if future.cancelled():
        raise _cancellation(stage, future)
    error: BaseException = future.exception()
    if isinstance(error, WeglError):
        raise error
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] == __name__.partition(".")[0]:
        raise WeglError(
            f"a worker has joined on which wegl-dask is not installed: install wegl-dask {__version__} where workers run, as "
            "it was installed here, or set cluster.upload to a wheel of it"
        ) from error
    return error


def _cancellation(stage: str, future: Future) -> Exception:
    """Tell workers that are gone for good from a scheduler that is; it is not asked, since it may be gone."""
    try:
        future.result()
    except CancelledError as error:
        if getattr(error, "reason", None) == NO_WORKERS:
            return WeglError(
                f"{stage}: the workers that tried it died, and no other could be started, for want of memory or of processes "
                f"perhaps: {MORE_MEMORY}. What was finished stays valid; run the same job again"
            )
    return ConnectionError("the scheduler has dropped the task")


def _explain(error: BaseException) -> str:
    if isinstance(error, KilledWorker):
        return (
            f"the workers that tried it died, for want of memory perhaps: {MORE_MEMORY}, or lower "
            "source.nodes_per_shard, source.max_nodes or reference.max_nodes"
        )
    return f"{type(error).__name__}: {error}"
