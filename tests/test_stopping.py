"""Signals that stop a command."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from distributed.utils import LoopRunner, sync

from wegl_dask import stopping
from wegl_dask.stopping import IMPORT_SYSTEM, Stopped, signals_held, stopped_by_signals


def test_a_request_that_a_signal_cuts_off_leaves_no_word_behind(caplog, wait_until):
    """The loop has not come to it when the signal comes, and comes to it while the cluster is closed."""
    runner = LoopRunner()
    runner.start()
    released, has_run = threading.Event(), threading.Event()

    async def request():
        await asyncio.sleep(60)

    def is_asked():
        frames = traceback.walk_stack(sys._current_frames()[threading.main_thread().ident])
        names = [frame.f_code.co_name for frame, _ in frames]
        return "wait" in names[: names.index("sync")] if "sync" in names else False

    def send_the_signal():
        wait_until(is_asked, "the request")
        os.kill(os.getpid(), signal.SIGTERM)
        released.wait(60)

    def ask():
        try:
            runner.loop.add_callback(send_the_signal)
            sync(runner.loop, request)
        finally:
            runner.loop.add_callback(has_run.set)
            released.set()
            assert has_run.wait(60)

    try:
        with pytest.raises(Stopped) as stopped, stopped_by_signals():
            ask()
    finally:
        runner.stop()
    assert stopped.value.exit_code == 143
    assert [record for record in caplog.records if record.name == "tornado.application"] == []


def test_what_there_is_when_a_block_was_stopped_is_the_blocks_to_say():
    with pytest.raises(Stopped, match=r"stopped by SIGTERM\. What was finished stays valid"), stopped_by_signals():
        signal.raise_signal(signal.SIGTERM)
    with pytest.raises(Stopped, match=r"stopped by SIGTERM\. Nothing was kept"), stopped_by_signals("Nothing was kept"):
        signal.raise_signal(signal.SIGTERM)


def test_signals_have_their_handlers_and_logs_their_levels_back(caplog):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)]
    with pytest.raises(Stopped), stopped_by_signals():
        signal.raise_signal(signal.SIGTERM)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGALRM)] == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    logging.getLogger("tornado.application").error("heard")
    assert [record.message for record in caplog.records] == ["heard"]


class Finalized:
    """Something whose end is a weak reference's business."""


def test_a_signal_that_python_drops_comes_again(wait_until, monkeypatch):
    """Exceptions of the callbacks of weak references are printed and dropped."""
    printed, hook = [], sys.unraisablehook
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    called = []

    def callback(_):
        os.kill(os.getpid(), signal.SIGTERM)
        # The handler runs between two steps of this function.
        called.extend(range(1000))
        called.append("not reached")

    def wait_for_ever():
        thing = Finalized()
        reference = weakref.ref(thing, callback)
        del thing
        assert reference() is None
        wait_until(lambda: False, "the signal", seconds=60)

    with pytest.raises(Stopped, match="stopped by SIGTERM"), stopped_by_signals():
        wait_for_ever()
    assert "not reached" not in called
    assert printed == []
    assert sys.unraisablehook == printed.append != hook


def test_what_else_python_drops_is_told_as_before(monkeypatch):
    printed = []
    monkeypatch.setattr(sys, "unraisablehook", printed.append)

    def fail(_):
        raise ZeroDivisionError

    with stopped_by_signals():
        thing = Finalized()
        reference = weakref.ref(thing, fail)
        del thing
        assert reference() is None
    assert [type(each.exc_value) for each in printed] == [ZeroDivisionError]


def test_a_terminal_that_is_closed_stops_the_command_unless_it_is_to_go_on_without_one():
    with pytest.raises(Stopped, match="stopped by SIGHUP") as stopped, stopped_by_signals():
        signal.raise_signal(signal.SIGHUP)
    assert stopped.value.exit_code == 129
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_by_signals():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_a_library_keeps_to_itself_comes_again(wait_until, monkeypatch):
    monkeypatch.setattr(stopping, "LOST_SECONDS", 0.01)

    def catch_all():
        with suppress(BaseException):
            signal.raise_signal(signal.SIGTERM)

    def go_on():
        catch_all()
        wait_until(lambda: False, "the signal", seconds=60)

    with pytest.raises(Stopped, match="stopped by SIGTERM"), stopped_by_signals():
        go_on()
    monkeypatch.setattr(stopping, "LOST_SECONDS", 60)
    with pytest.raises(Stopped, match="stopped by SIGTERM"), stopped_by_signals():
        catch_all()


@contextmanager
def cleaning_up(function):
    try:
        yield
    finally:
        function()


def test_cleaning_up_is_not_interrupted_by_what_comes_again(monkeypatch, wait_until):
    monkeypatch.setattr(stopping, "LOST_SECONDS", 0.01)
    again, looked, cleaned = stopping._leads_to_stopped, [], []
    monkeypatch.setattr(stopping, "_leads_to_stopped", lambda error: looked.append(again(error)) or looked[-1])

    def clean_up():
        wait_until(lambda: looked.count(True) >= 3, "the signal, again and again", seconds=60)
        signal.raise_signal(signal.SIGINT)
        cleaned.append(True)

    with pytest.raises(Stopped, match="stopped by SIGTERM"), stopped_by_signals(), cleaning_up(clean_up):
        signal.raise_signal(signal.SIGTERM)
    assert cleaned == [True]


def test_a_signal_while_python_looks_for_a_module_waits_until_it_has_let_go_of_its_lock(wait_until):
    class Finder:
        """Asked for every module that is imported."""

        frame = None

        def find_spec(self, *_):
            self.frame = sys._getframe(1)

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        with pytest.raises(ModuleNotFoundError):
            import no_such_module_is_there  # noqa: F401
    finally:
        sys.meta_path.remove(finder)
    assert finder.frame.f_code.co_filename == IMPORT_SYSTEM
    passed = []

    def tell():
        signal.getsignal(signal.SIGTERM)(signal.SIGTERM, finder.frame)
        passed.append(True)
        wait_until(lambda: False, "the signal", seconds=60)

    with pytest.raises(Stopped), stopped_by_signals():
        tell()
    assert passed == [True]


def test_signals_that_a_thread_of_a_library_takes_are_held_too():
    """Those of OpenBLAS block no signal, and Python answers in the main thread what any thread took."""
    held, taken = threading.Event(), threading.Event()

    def take():
        held.wait(60)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        taken.set()

    thread = threading.Thread(target=take)
    thread.start()
    passed = []

    def hold():
        with signals_held():
            held.set()
            assert taken.wait(60)
            passed.extend(range(1000))
        passed.append("not reached")

    with pytest.raises(Stopped, match="stopped by SIGTERM"), stopped_by_signals():
        hold()
    thread.join()
    assert passed == list(range(1000))


KILLED = """
import multiprocessing, os, signal
from wegl_dask.stopping import start_resource_tracker

start_resource_tracker()
semaphore = multiprocessing.get_context("spawn").Semaphore()
print(semaphore._semlock.name, os.environ.get("PYTHONWARNINGS"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere semaphores are no files")
def test_what_a_killed_command_leaves_is_removed_without_a_word():
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    # What removes it has the pipes too: it has ended when they are closed.
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    name, warnings_of_the_command = done.stdout.split()
    assert (done.returncode, done.stderr, warnings_of_the_command) == (-signal.SIGKILL, "", "None")
    assert not Path(f"/dev/shm/sem.{name.lstrip('/')}").exists()
