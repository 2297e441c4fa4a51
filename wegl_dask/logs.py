"""The log of a command as JSON lines: one object an event, for machines.

Every object has ``time`` (UTC, ISO 8601), ``level``, ``event`` and ``message``, and what belongs to the event:

========================== =======================================================================
event                      further keys
========================== =======================================================================
stage_started              ``stage``, ``parts``
part                       ``stage``, ``shards``, ``worker``, ``graphs``, ``seconds``
stage_finished             ``stage``, ``parts``, ``graphs``, ``seconds``
stage_stopped              likewise, for a stage that was not brought to its end
dashboard                  ``address``, where there is one
message                    none: whatever the package or a library has to say
finished                   ``summary``: numbers of rows, rejects, parts, seconds by stage
failed                     ``exit_code``
========================== =======================================================================
"""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TextIO

LOG_JSON = "wegl_dask.log_json"
"""Key of a command's context that says whether the log is for machines."""

log = logging.getLogger("wegl_dask.events")
# The lines for people say the same in their own way.
log.setLevel(logging.CRITICAL + 1)


def log_event(event: str, message: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event; `fields` are JSON values. Where nobody asked for JSON it goes nowhere, see `json_lines`."""
    log.log(level, message, extra={"event": event, "fields": fields})


def set_levels(*, debug: bool) -> None:
    """Choose what this process logs: all that the package says, and of libraries what is worth a warning, Dask's less.

    Parameters
    ----------
    debug : bool
        Have libraries say more: what is worth knowing, and all that Dask says.
    """
    logging.getLogger("wegl_dask").setLevel(logging.INFO)
    logging.getLogger().setLevel(logging.INFO if debug else logging.WARNING)
    if not debug:
        for noisy in ("dask", "bokeh", "asyncio", "tornado"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        # A scheduler in this process calls it an error that a worker is gone with what it held, and has it made again.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        # That a worker is restarted for want of memory is worth knowing.
        logging.getLogger("distributed.nanny.memory").setLevel(logging.WARNING)


class JsonFormatter(logging.Formatter):
    """Renders a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Render `record`, which need not be one of `log_event`."""
        values = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "message"),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return json.dumps(values, ensure_ascii=False, default=str)


@contextmanager
def json_lines(stream: TextIO) -> Iterator[None]:
    """Write all that is logged during a ``with`` block to `stream`, as JSON lines, and nowhere else.

    What libraries say is logged from the level on that is set, see `set_levels`.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root, own = logging.getLogger(), _loggers_by_themselves()
    handlers, events_level = [logger.handlers[:] for logger in (root, *own)], log.level
    for logger in own:
        logger.handlers[:], logger.propagate = [], True
    root.handlers[:] = [handler]
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, before in zip((root, *own), handlers, strict=True):
            logger.handlers[:] = before
        for logger in own:
            logger.propagate = False
        log.setLevel(events_level)


def _loggers_by_themselves() -> list[logging.Logger]:
    """List the loggers that write with handlers of their own, and not with the root's: Dask, as it is imported, makes some."""
    # A copy, since other threads make loggers too.
    loggers = list(logging.getLogger().manager.loggerDict.values())
    return [each for each in loggers if isinstance(each, logging.Logger) and each.handlers and not each.propagate]


class LoggedProgress:
    """Takes the place of `wegl_dask.progress.Progress` where the log is for machines.

    Parameters
    ----------
    stage : str
    total : int
        Number of parts of the stage.
    """

    def __init__(self, stage: str, total: int) -> None:
        self._stage = stage
        self._total = total
        self._parts = 0
        self._graphs = 0
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        log_event("stage_started", f"{self._stage}: {self._total} parts to do", stage=self._stage, parts=self._total)
        return self

    def update(self, parts: int = 1, rows: int = 0, *, under_way: float = 0.0) -> None:
        """Count finished parts and the graphs in them; no time is foretold here."""
        del under_way
        self._parts += parts
        self._graphs += rows

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Log how far the stage came."""
        log_event(
            "stage_finished" if kind is None else "stage_stopped",
            f"{self._stage}: {self._parts} of {self._total} parts",
            stage=self._stage,
            parts=self._parts,
            graphs=self._graphs,
            seconds=round(time.monotonic() - self._started, 3),
        )
