"""Progress of a stage with a known number of parts: a bar on a terminal, a line now and then in a log."""

import contextlib
import io
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self, TextIO

LOG_SECONDS = 10.0
"""Time between two lines in a log, at least."""

REDRAW_SECONDS = 0.1
"""Time between two drawings of the bar, at least."""

TICK_SECONDS = 1.0
"""Time between two drawings of the bar while no part is finished."""

BAR_WIDTH = 24


class Progress:
    """Show how far a stage is, from the parts that are finished.

    On a terminal it is one line that is drawn over; elsewhere it is a line at most every 10 seconds, and one at the
    end. Before the first part is finished it says how long that has been. Control characters are only written to a terminal.

    Parameters
    ----------
    stage : str
        Name of the stage.
    total : int
        Number of parts of the whole stage.
    unit : str, default "parts"
        What is counted.
    done : int, default 0
        Parts that were there before, from an earlier run; they count as done and are left out of the speed.
    announced : bool, default False
        Write a line to a log when the stage begins, since its first part may take many minutes.
    brief : bool, default False
        Show nothing of a stage that is over within 10 seconds, as where there are hundreds of them.
    stream : text file, optional
        Where to write; standard error by default.
    clock : callable, optional
        Returns seconds that never go back; `time.monotonic` by default.

    Examples
    --------
    >>> ticks = iter([0.0, 2.0, 4.0, 4.0])
    >>> with Progress("embed", 2, stream=sys.stdout, clock=lambda: next(ticks)) as progress:
    ...     progress.update(rows=300)
    ...     progress.update(rows=100)
    embed: 2 of 2 parts, 400 graphs, 100 graphs/s, 4.0 s
    """

    def __init__(
        self,
        stage: str,
        total: int,
        *,
        unit: str = "parts",
        done: int = 0,
        announced: bool = False,
        brief: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stage = stage
        self._total = total
        self._unit = unit
        self._already = done
        self._announced = announced
        self._parts = 0
        self._rows = 0
        self._under_way = 0.0
        self._first = 0.0
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._on_terminal = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._start = self._last = clock()
        self._shown_from = self._start + LOG_SECONDS if brief else self._start
        self._is_over = threading.Event()
        self._ticker = threading.Thread(target=self._keep_showing, name="wegl-dask progress", daemon=True)

    def __enter__(self) -> Self:
        self._ticker.start()
        if self._start < self._shown_from:
            return self
        if self._on_terminal:
            self._draw(0.0)
        elif self._announced and self._already < self._total:
            self._write(f"{self._stage}: {self._count()[0]}\n")
        return self

    def update(self, parts: int = 1, rows: int = 0, *, under_way: float = 0.0) -> None:
        """Count finished parts and the graphs in them, and show it if it is time to.

        Parameters
        ----------
        parts, rows : int
            How many have been finished since the last call.
        under_way : float
            Parts that workers work on at the moment. The time left is reckoned from the first part that was finished
            on, since workers may have had to start, and is not said before each has finished two.
        """
        now = self._clock()
        self._first = self._first if self._parts else now - self._start
        self._parts += parts
        self._rows += rows
        self._under_way = under_way
        self._show(now, REDRAW_SECONDS if self._on_terminal else LOG_SECONDS)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Say how far the stage came, also when it failed; what follows starts on a line of its own."""
        self._is_over.set()
        # Lest it draws what it has begun to after the last line.
        self._ticker.join()
        now = self._clock()
        if now < self._shown_from:
            return
        seconds = now - self._start
        line = f"{self._stage}: {', '.join([*self._count(), *self._speed(seconds), format_seconds(seconds)])}"
        self._write(f"\r\x1b[K{line}\n" if self._on_terminal else f"{line}\n")

    def _keep_showing(self) -> None:
        """Show the stage while no part is finished, lest it is taken for dead; in a log, less and less often."""
        pause = TICK_SECONDS if self._on_terminal else LOG_SECONDS
        while not self._is_over.wait(pause):
            self._show(self._clock(), pause)
            pause = pause if self._on_terminal else 2 * pause

    def _show(self, now: float, pause: float) -> None:
        """Show the stage if the last time is `pause` seconds ago."""
        if now < self._shown_from or now - self._last < pause:
            return
        self._last = now
        if self._on_terminal:
            self._draw(now - self._start)
        elif self._already + self._parts < self._total:
            # The line at the end says it when this was the last part.
            self._write(f"{self._stage}: {', '.join(self._state(now - self._start))}\n")

    def _state(self, seconds: float) -> list[str]:
        if not self._parts and seconds >= TICK_SECONDS:
            return [*self._count(), f"{format_seconds(seconds)} so far"]
        return [*self._count(), *self._speed(seconds), *self._time_left(seconds)]

    def _count(self) -> list[str]:
        count = f"{self._already + self._parts} of {self._total} {self._unit}"
        return [count, counted(self._rows, "graph")] if self._rows else [count]

    def _speed(self, seconds: float) -> list[str]:
        if not self._rows or seconds <= 0:
            return []
        return [format_speed(self._rows / seconds)]

    def _time_left(self, seconds: float) -> list[str]:
        remaining = self._total - self._already - self._parts
        if not self._parts or not remaining:
            return []
        parts = float(self._parts)
        if self._under_way:
            if parts < 2 * self._under_way or seconds <= self._first:
                return []
            # When the first part was finished, the others that were begun with it were nearly so.
            seconds, parts = seconds - self._first, parts - self._under_way
        return [f"{format_seconds(seconds / parts * remaining)} left"]

    def _draw(self, seconds: float) -> None:
        state = ", ".join(self._state(seconds))
        # A line that reaches the last column would wrap, and could not be drawn over.
        columns = shutil.get_terminal_size().columns - 1
        width = min(BAR_WIDTH, columns - len(f"{self._stage} [] {state}"))
        fraction = (self._already + self._parts) / self._total if self._total else 1.0
        filled = round(width * min(fraction, 1.0))
        line = f"{self._stage} [{'#' * filled}{'-' * (width - filled)}] {state}" if width > 0 else state
        self._write(f"\r\x1b[K{line[:columns]}")

    def _write(self, text: str) -> None:
        # Work of hours does not end because its log is full, or nobody reads it any more.
        with contextlib.suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


def unshown(stage: str, total: int, *, unit: str = "parts") -> Progress:
    """Make a progress display that nobody sees, for functions that are called from programs."""
    return Progress(stage, total, unit=unit, stream=io.StringIO())


def note(line: str) -> None:
    """Write a line to standard error; that it cannot be written there is no error."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def format_speed(graphs_per_second: float) -> str:
    """Render how many graphs there are a second.

    Examples
    --------
    >>> format_speed(2370.4), format_speed(0.3636)
    ('2,370 graphs/s', '0.36 graphs/s')
    """
    return f"{graphs_per_second:{',.0f' if graphs_per_second >= 10 else '.2g'}} graphs/s"


def counted(number: int, noun: str) -> str:
    """Render a number of things.

    Examples
    --------
    >>> counted(1, "pair"), counted(1200, "pair")
    ('1 pair', '1,200 pairs')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], shown: int = 3, separator: str = ", ") -> str:
    """Name the first few, and say how many there are besides.

    Examples
    --------
    >>> listed(["a", "b"]), listed(["a", "b", "c"], 1)
    ('a, b', 'a and 2 more')
    """
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return separator.join(names[:shown]) + more


def one_line(text: str) -> str:
    """Put a text that comes from elsewhere, such as the name of a column, on one line."""
    return " ".join(text.splitlines())


def shortened(text: str, most: int) -> str:
    """Cut a text to `most` characters, the last of which say so.

    Examples
    --------
    >>> shortened("hexane", 6), shortened("hexanol", 6)
    ('hexane', 'hex...')
    """
    return text if len(text) <= most else f"{text[: most - 3]}..."


def format_seconds(seconds: float) -> str:
    """Render a time in its two largest units, rounded.

    Examples
    --------
    >>> format_seconds(0.31), format_seconds(75), format_seconds(3 * 3600 + 20)
    ('0.3 s', '1 min 15 s', '3 h 0 min')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def format_bytes(n_bytes: float) -> str:
    """Render a size in decimal units, to three figures.

    Examples
    --------
    >>> format_bytes(512), format_bytes(1_536_000), format_bytes(999_999)
    ('512 B', '1.54 MB', '1 MB')
    """
    size, units = float(n_bytes), ["B", "kB", "MB", "GB", "TB", "PB"]
    unit = 0
    while unit < len(units) - 1 and float(f"{size:.3g}") >= 1000:
        size /= 1000
        unit += 1
    return f"{float(f'{size:.3g}'):g} {units[unit]}"
