"""Dask's parts start and end without noise, and without being interrupted halfway."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_held(*signals: signal.Signals) -> Iterator[None]:
    """Put off signals, Ctrl-C and SIGTERM if none is named, to the end of the block, and keep them from what starts in it.

    A terminal and a batch system send them to the workers as well, which would die with a traceback and be started
    anew; they are stopped from here. The threads that start workers later inherit it. Where multiprocessing is to start
    processes, its resource tracker has to be there before: the thread that starts it has the signals again.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals or {signal.SIGINT, signal.SIGTERM})
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
