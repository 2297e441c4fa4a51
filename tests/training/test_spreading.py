"""Processes that fit: they end with the command, and leave Ctrl-C to it."""

import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.utils.multiclass import check_classification_targets

from wegl_dask import scheduler_client
from wegl_dask.errors import WeglError
from wegl_dask.spec import ClusterTable
from wegl_dask.training import spreading
from wegl_dask.worker_checks import VersionsError

COMMAND = """
import sys, time
from pathlib import Path
from wegl_dask.stopping import Stopped, stopped_by_signals
from wegl_dask.training.spreading import Workers

def fit(path):
    Path(path).touch()
    time.sleep(600)

try:
    with stopped_by_signals():
        Workers(2).map("search", fit, sys.argv[1:], ())
except Stopped as stopped:
    print(stopped, file=sys.stderr)
"""


LEFT_BEHIND = """
from joblib.externals.loky.backend import resource_tracker
from wegl_dask.training.spreading import Workers

Workers(2).map("search", abs, [-1, -2], ())
resource_tracker.register("/loky-of-a-command-that-was-stopped", "semlock")
"""


IN_C = """
import hashlib, sys
from pathlib import Path
from wegl_dask.stopping import Stopped, stopped_by_signals
from wegl_dask.training.spreading import Workers

def fit(path):
    Path(path).touch()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)

try:
    with stopped_by_signals():
        Workers(1).map("search", fit, sys.argv[1:], ())
except Stopped as stopped:
    sys.exit(str(stopped))
"""


def running():
    """The processes that run: parent and command line by id."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (folder / "cmdline").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found[int(folder.name)] = int(parent), command
    return found


def fitting(pid):
    return [child for child, (parent, command) in running().items() if parent == pid and "LokyProcess" in command]


@pytest.fixture(params=["while they start", "while they fit"])
def command(request, tmp_path, wait_until):
    """A command whose two processes start or fit, in a process group of its own; and those two."""
    script = tmp_path / "command.py"
    script.write_text(COMMAND)
    marks = [tmp_path / "one", tmp_path / "two"]
    with subprocess.Popen(
        [sys.executable, str(script), *map(str, marks)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            wait_until(lambda: len(fitting(process.pid)) == 2, "two processes")
            if request.param == "while they fit":
                wait_until(lambda: all(mark.exists() for mark in marks), "their fits")
            yield process, fitting(process.pid)
        finally:
            process.kill()


def test_processes_end_when_the_command_is_killed(command, wait_until):
    process, own = command
    process.kill()
    wait_until(lambda: running().keys().isdisjoint(own), "their end", seconds=30)


def test_processes_leave_ctrl_c_to_the_command(command, wait_until):
    process, own = command
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    *progress, last = err.splitlines()
    assert all(line.startswith("search: ") for line in progress), err
    assert last.startswith("stopped by SIGINT")
    wait_until(lambda: running().keys().isdisjoint(own), "their end", seconds=30)


def test_nothing_is_said_of_what_is_tidied_up_behind_a_command():
    done = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert [line for line in done.stderr.splitlines() if not line.startswith("search: ")] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_fits_one_at_a_time_stops_within_a_fit_that_is_all_c(tmp_path, wait_until, number):
    mark = tmp_path / "begun"
    with subprocess.Popen(
        [sys.executable, "-c", IN_C, str(mark)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            wait_until(mark.exists, "the fit")
            process.send_signal(number)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert err.splitlines()[-1].startswith(f"stopped by {number.name}")
    assert process.returncode == 1


def test_a_fit_does_not_warn_of_many_classes_and_does_of_all_else():
    with pytest.warns(UserWarning, match="number of unique classes"):
        check_classification_targets(np.arange(30))
    # A warning is an error in these tests.
    spreading._on_one_core(check_classification_targets, np.arange(30))
    with pytest.warns(UserWarning, match="another"):
        spreading._on_one_core(lambda text: warnings.warn(text, stacklevel=1), "another")


def test_a_step_that_fails_between_two_fits_says_no_more_than_why():
    def full(*_):
        raise WeglError("the disk is full")

    workers = spreading.Workers(2, kept=SimpleNamespace(find=lambda *_: {}, add=full))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(WeglError, match="the disk is full"):
            workers.map("fit", time.sleep, [0.2] * 20, ())


def test_a_cluster_is_opened_by_the_first_fit(dask_client):
    table = ClusterTable(kind="scheduler", address=dask_client.scheduler.address)
    nowhere = table.model_copy(update={"address": "tcp://192.0.2.1:1"})
    with spreading.open_workers(nowhere) as workers:
        assert workers.map("search", abs, [], ()) == []
        with pytest.raises(WeglError, match=r"tcp://192\.0\.2\.1:1"):
            workers.map("search", abs, [1], ())
    with spreading.open_workers(table, packages=("numpy",)) as workers:
        assert workers.map("search", abs, [-1], ()) == [1]
        assert workers.map("search", abs, [-2], ()) == [2]


def test_a_dask_worker_without_what_a_model_needs_is_refused(dask_client, monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda package: f"{package} of this process")
    with pytest.raises(VersionsError, match="do not run what this client runs"):
        scheduler_client.require_packages(dask_client, ("flaml",))
