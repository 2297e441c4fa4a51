"""Run one stage: a Dask bag of small descriptors, submitted in waves, results handed on as they complete."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import dask.bag
from distributed import Client, as_completed
from distributed.scheduler import KilledWorker

from wegl_dask.errors import WeglError

Descriptor = TypeVar("Descriptor")

WAVE = 1000
"""Descriptors in one bag. Two waves are under way at a time, so the scheduler's load does not grow with the data, and
the graph of a wave stays far under 1 MB."""


class StageError(WeglError):
    """Some shards of a stage failed, after all retries."""


def run_stage(
    client: Client,
    stage: str,
    function: Callable[[Descriptor], list[dict[str, Any]]],
    descriptors: Sequence[Descriptor],
    *,
    describe: Callable[[Descriptor], str] = str,
    retries: int,
) -> Iterator[dict[str, Any]]:
    """Apply `function` to every descriptor on the cluster.

    Parameters
    ----------
    client : distributed.Client
    stage : str
        Name of the stage, for messages.
    function : callable
        From a descriptor to a short list of small results. It runs on a worker, and may run more than once.
    descriptors : sequence
        A few hundred bytes each.
    describe : callable
        Names a descriptor in a message.
    retries : int
        Times a descriptor is tried again after an exception.

    Yields
    ------
    dict
        The results, in the order in which they complete.

    Raises
    ------
    WeglError
        The first error that a task raised on purpose, at once; or a `StageError` that lists what failed when everything
        else was done.
    """
    failures: list[str] = []
    completed = as_completed(with_results=False, raise_errors=False, loop=client.loop)
    position_of: dict[str, int] = {}
    submitted = 0
    try:
        while submitted < len(descriptors) or position_of:
            while submitted < len(descriptors) and len(position_of) <= WAVE:
                wave = descriptors[submitted : submitted + WAVE]
                bag = dask.bag.from_sequence(wave, npartitions=len(wave)).map(function)
                futures = client.compute(bag.to_delayed(), retries=retries)
                position_of.update({future.key: submitted + i for i, future in enumerate(futures)})
                completed.update(futures)
                submitted += len(wave)
            future = next(completed)
            descriptor = descriptors[position_of.pop(future.key)]
            if future.status == "finished":
                for results in future.result():
                    yield from results
            else:
                error = future.exception()
                if isinstance(error, WeglError):
                    raise error
                failures.append(f"{describe(descriptor)}: {_explain(error)}")
            future.release()
    finally:
        completed.clear()
    if failures:
        shown = "; ".join(failures[:5])
        more = f"; and {len(failures) - 5} more" if len(failures) > 5 else ""
        raise StageError(
            f"{stage}: {len(failures)} of {len(descriptors)} parts failed: {shown}{more}. What was finished stays valid; "
            "run the same job again to make the rest"
        )


def _explain(error: BaseException | None) -> str:
    if isinstance(error, KilledWorker):
        return (
            "the workers that tried it died, for want of memory perhaps: raise cluster.memory_limit, or lower "
            "source.nodes_per_shard or source.max_nodes"
        )
    return f"{type(error).__name__}: {error}"
