"""Ctrl-C and SIGTERM: the command stops, closes what it opened, and says how to go on."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from wegl_dask.errors import WeglError
from wegl_dask.quiet import silenced

if TYPE_CHECKING:
    from wegl_dask.storage import RunFolder

SIGNALS = (signal.SIGINT, signal.SIGTERM)

AGAIN_SECONDS = 0.02
"""After which a signal comes once more that was dropped."""

GOES_ON = "What was finished stays valid; run the same command again to go on from there"
RUN_AGAIN = "Run the same command again"


class Stopped(KeyboardInterrupt):
    """The command was told to stop by a signal.

    Parameters
    ----------
    number : int
        Of the signal.
    state : str
        What there is now, and what to do.

    Attributes
    ----------
    signal : signal.Signals
    exit_code : int
        128 and the signal's number, as shells report it: 130 for Ctrl-C, 143 for SIGTERM.
    """

    def __init__(self, number: int, state: str) -> None:
        self.signal = signal.Signals(number)
        self.exit_code = 128 + number
        super().__init__(f"stopped by {self.signal.name}. {state}")


@contextlib.contextmanager
def stopped_by_signals(state: str = GOES_ON) -> Iterator[None]:
    """Raise `Stopped` in the main thread when a signal comes; once, so that nothing interrupts the cleaning up.

    From then on nothing is said of the requests to a cluster that were cut off by it. Where Python was in code whose
    exceptions it drops, as those of destructors and of weak references, the signal comes once more.

    Parameters
    ----------
    state : str, default `GOES_ON`
        What there is when the block was stopped, and what to do.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    hook = sys.unraisablehook
    with contextlib.ExitStack() as after:

        def stop(number: int, frame: FrameType | None) -> Any:
            del frame
            for each in SIGNALS:
                signal.signal(each, signal.SIG_IGN)
            # A request that Dask had not sent yet has no future that it could cancel: it logs a NameError.
            after.enter_context(silenced())
            raise Stopped(number, state)

        def listen() -> None:
            for number in SIGNALS:
                signal.signal(number, stop)

        def come_again(dropped: Any) -> None:
            if not isinstance(dropped.exc_value, Stopped):
                hook(dropped)
                return
            listen()
            # Later, and from elsewhere: here it would be dropped again.
            threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), dropped.exc_value.signal)).start()

        listen()
        sys.unraisablehook = come_again
        try:
            yield
        finally:
            sys.unraisablehook = hook
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def swept(folder: "RunFolder") -> Iterator[None]:
    """Remove the beginnings of files from a run folder when the block, and workers in it, came to an untimely end."""
    try:
        yield
    except BaseException:
        # An object store shows no beginnings. A folder that is no run's is left alone; one that another run holds by now
        # was swept by that one.
        with contextlib.suppress(WeglError):
            if folder.is_local and folder.job_toml():
                with folder.lock():
                    folder.clean_temporary()
        raise
