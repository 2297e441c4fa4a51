"""Dask's parts start and end without noise, and without being interrupted halfway."""

import logging
import multiprocessing.resource_tracker
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_held() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM to the end of the block, and keep them from what starts in the block.

    A terminal and a batch system send them to the workers as well, which would die with a traceback and be started
    anew; they are stopped from here. The threads that start workers later inherit it.
    """
    # A process that tidies up behind the others: the thread that starts it would have the signals again.
    multiprocessing.resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def silenced() -> Iterator[None]:
    """Keep to themselves what Dask's parts log when they lose sight of each other, as they do in a shutdown."""
    # Each of these has a level of its own.
    names = ("distributed", "distributed.client", "asyncio", "tornado", "tornado.application")
    loggers = [logging.getLogger(name) for name in names]
    levels = [log.level for log in loggers]
    for log in loggers:
        log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for log, level in zip(loggers, levels, strict=True):
            log.setLevel(level)


def innermost(error: BaseException) -> str:
    """Text of the error that the others were raised from."""
    text = "no answer"
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause) or text
        cause = cause.__cause__
    return text
