"""Signals that stop a command."""

import asyncio
import logging
import os
import signal
import sys
import threading
import traceback
import weakref

import pytest
from distributed.utils import LoopRunner, sync

from wegl_dask.cli.stopping import Stopped, stopped_by_signals


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
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped), stopped_by_signals():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
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
