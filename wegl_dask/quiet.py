"""Dask's parts start and end without noise."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


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
