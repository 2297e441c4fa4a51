"""Signals that stop a command."""

import asyncio
import logging
import os
import signal
import threading
import time

import pytest
from distributed.utils import LoopRunner, sync

from wegl_dask.cli.stopping import Stopped, stopped_by_signals


@pytest.mark.parametrize("sent", [False, True])
def test_a_request_that_a_signal_cuts_off_leaves_no_word_behind(sent, caplog):
    """Whether it was on its way already, or the loop had not come to it yet."""
    runner = LoopRunner()
    runner.start()

    async def request():
        await asyncio.sleep(60)

    def ask():
        try:
            sync(runner.loop, request)
        finally:
            # As long as closing a cluster takes, or longer.
            time.sleep(0.6)

    try:
        if not sent:
            runner.loop.add_callback(time.sleep, 0.5)
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(Stopped) as stopped, stopped_by_signals():
            ask()
    finally:
        runner.stop()
    assert stopped.value.exit_code == 143
    assert caplog.records == []


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
