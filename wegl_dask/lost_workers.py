"""Whether there are still workers for what a client waits for."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from distributed import Client, Future

NO_WORKERS = "no workers"
"""Reason for which Dask says that a future was cancelled, where `give_up` has done it."""

WATCH_SECONDS = 5
"""Between two looks whether there are workers."""


@contextmanager
def watched(client: Client, missing: Callable[[], Awaitable[None]], *, looks: int) -> Iterator[None]:
    """Call `missing` during the block when there are no workers any more for what the client waits for.

    Parameters
    ----------
    client : distributed.Client
    missing : callable
        Awaited in the loop that the client lives in, once each time that the workers are gone.
    looks : int
        Looks in turn, `WATCH_SECONDS` apart, that find none.
    """

    async def watch() -> None:
        found = 0
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            # A cluster that adapts to its load has none while nothing is asked of it.
            is_waiting = any(state.status == "pending" for state in client.futures.values())
            found = found + 1 if is_waiting and not await client.scheduler.ncores() else 0
            if found == looks:
                await missing()

    # A scheduler that is gone ends it with an error that the client's calls raise too.
    watching = asyncio.run_coroutine_threadsafe(watch(), client.loop.asyncio_loop)
    try:
        yield
    finally:
        watching.cancel()


async def give_up(client: Client) -> None:
    """Cancel what the client waits for, since no worker will do it, with `NO_WORKERS` for a reason."""
    waiting = [Future(key, client) for key, state in client.futures.items() if state.status == "pending"]
    await asyncio.to_thread(client.cancel, waiting, reason=NO_WORKERS)
