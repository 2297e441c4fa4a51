"""Ctrl-C, SIGTERM and the end of the terminal: the command stops, closes what it opened, and says how to go on."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from multiprocessing import resource_tracker
from types import FrameType

from wegl_dask.worker_environment import variables_put_back

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

AGAIN_SECONDS = 0.02
"""After which a signal comes once more that was put off, or that Python is known to have dropped."""

LOST_SECONDS = 1.0
"""After which it is looked whether the command is stopping, or code that it called has kept the exception to itself."""

IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
"""What Python calls the file of its import system."""

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
        128 and the signal's number, as shells report it: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.
    """

    def __init__(self, number: int, state: str) -> None:
        self.signal = signal.Signals(number)
        self.exit_code = 128 + number
        super().__init__(f"stopped by {self.signal.name}. {state}")


@contextmanager
def stopped_by_signals(state: str = GOES_ON) -> Iterator[None]:
    """Raise `Stopped` in the main thread when a signal comes; once, so that nothing interrupts the cleaning up.

    From then on nothing is said of the requests to a cluster that were cut off by it. A signal that is ignored, as SIGHUP
    is under nohup, stays so. One that comes while Python looks for a module is put off: it would leave the module's lock
    locked. Where the exception was dropped or kept by the code that it came up in, as it is in destructors, in callbacks
    of weak references and where a library catches everything, the signal comes once more, until the command is stopping;
    if the block ends before that, it is raised there.

    Parameters
    ----------
    state : str, default `GOES_ON`
        What there is when the block was stopped, and what to do.

    Raises
    ------
    Stopped
        When a signal comes.
    """
    before = {number: signal.getsignal(number) for number in (*SIGNALS, signal.SIGALRM)}
    hook = sys.unraisablehook
    with ExitStack() as after:
        listener = _Listener(state, after, hook)
        try:
            sys.unraisablehook = listener.dropped
            signal.signal(signal.SIGALRM, _again)
            for number in SIGNALS:
                if before[number] is not signal.SIG_IGN:
                    signal.signal(number, listener.told)
            # Logging takes longer to import than all that is needed to take a signal.
            from wegl_dask.quiet import silenced  # noqa: PLC0415

            listener.silenced = silenced
            yield
        finally:
            listener.has_ended = True
            if before[signal.SIGALRM] is not _again:
                signal.setitimer(signal.ITIMER_REAL, 0)
            sys.unraisablehook = hook
            for number, handler in before.items():
                signal.signal(number, handler)
        if listener.first is not None:
            raise Stopped(listener.first, state)


class _Listener:
    """What is done about signals in a block of `stopped_by_signals`."""

    def __init__(self, state: str, after: ExitStack, hook: Callable[["sys.UnraisableHookArgs"], object]) -> None:
        self.first: int | None = None
        self.has_ended = False
        self.silenced: Callable[[], AbstractContextManager[None]] = nullcontext
        self._state = state
        self._after = after
        self._hook = hook

    def told(self, number: int, frame: FrameType | None) -> None:
        """Take a signal: raise, or put it off."""
        is_stopping = _leads_to_stopped(sys.exception())
        self.first = number if self.first is None and not is_stopping else self.first
        if self.has_ended:
            return
        if is_stopping:
            # What is on its way now may still be kept by somebody.
            _come_again(number, LOST_SECONDS)
            return
        if frame is not None and frame.f_code.co_filename == IMPORT_SYSTEM:
            _come_again(number, AGAIN_SECONDS)
            return
        _come_again(number, LOST_SECONDS)
        # A request that Dask had not sent yet has no future that it could cancel: it logs a NameError.
        self._after.enter_context(self.silenced())
        raise Stopped(number, self._state)

    def dropped(self, what: "sys.UnraisableHookArgs") -> None:
        """Take an exception that Python cannot raise where it is."""
        if isinstance(what.exc_value, Stopped):
            _come_again(what.exc_value.signal, AGAIN_SECONDS)
        else:
            self._hook(what)


_last: list[int] = []
"""The signal that is to come again, at the end."""


def _come_again(number: int, seconds: float) -> None:
    """Let a signal come again; by the clock, since a thread could not be started while another handler starts one."""
    _last[:] = [number]
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _again(_: int, frame: FrameType | None) -> None:
    """Take the signal that is to come again, as it would be taken here."""
    for number in _last:
        handler = signal.getsignal(number)
        if callable(handler):
            handler(number, frame)


def _leads_to_stopped(error: BaseException | None) -> bool:
    """Whether an error that is being handled is `Stopped`, or came up in its handling."""
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error is not None


@contextmanager
def signals_held(*signals: signal.Signals) -> Iterator[None]:
    """Put off signals, all that stop a command if none is named, to the end of the block; keep them from what starts in it.

    A terminal and a batch system send them to the workers as well, which would die with a traceback and be started
    anew; they are stopped from here. The threads that start workers later inherit it. Where multiprocessing is to start
    processes, its resource tracker has to be there before: the thread that starts it has the signals again.
    """
    held = (*(signals or SIGNALS), signal.SIGALRM)
    waiting: list[int] = []
    # A signal that this thread blocks goes to another, as one of OpenBLAS, and what it takes Python hands to this one.
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in held} if is_main else {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, held)
        for number in handlers:
            signal.signal(number, lambda number, _: waiting.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for waited in waiting[:1]:
            signal.raise_signal(waited)


def start_resource_tracker() -> None:
    """Start multiprocessing's resource tracker, out of reach of the signals that stop a command.

    The thread that starts it has SIGINT and SIGTERM again, so it has to be there before these are held. Python has it
    ignore them, and not SIGHUP, of which it would die with those that it is to outlive.
    """
    with signals_held(signal.SIGHUP), trackers_quiet():
        resource_tracker.ensure_running()


@contextmanager
def trackers_quiet() -> Iterator[None]:
    """Let processes that start in the block, to tidy up behind others, do so without a word.

    What they remove behind a command that was stopped or killed would be no line of the command's log.
    """
    with variables_put_back(["PYTHONWARNINGS"]):
        os.environ["PYTHONWARNINGS"] = "ignore::UserWarning"
        yield
