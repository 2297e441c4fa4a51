"""Temporary folders of commands that end well, that end badly, and that are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wegl_dask.scratch import scratch_folder

ROOT = Path(__file__).parents[1]

HOLDER = """
import sys
from wegl_dask.scratch import scratch_folder

with scratch_folder(sys.argv[1], purpose=sys.argv[2]) as path:
    (open(path + "/content", "w")).write("x")
    print(path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Start a process that holds a scratch folder: the process and the folder."""
    started = []

    def start(purpose):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, tmp_path, purpose],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_folder_is_gone_after_the_block_also_when_that_fails(tmp_path):
    def fail():
        with scratch_folder(tmp_path, purpose="plan") as path:
            assert Path(path).parent == tmp_path
            assert Path(path).name.startswith("wegl-dask-plan-")
            Path(path, "content").write_text("x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("purpose", ["", "plan"])
def test_what_a_killed_command_left_is_removed_by_the_next_of_any_purpose(purpose, tmp_path, holder):
    killed, left = holder(purpose)
    running, kept = holder("plan")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert left.is_dir()
    with scratch_folder(tmp_path) as path:
        assert {*tmp_path.iterdir()} == {kept, Path(path)}
        assert (kept / "content").read_text() == "x"
    running.communicate("")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_somebody_elses_stays(tmp_path):
    """Others may have names that begin so, or are of as many letters, and a file that is called as a lock is."""
    theirs = ("wegl-dask-notes", "wegl-dask-results", "wegl-dask-analysis", "wegl-dask-plan-analysis")
    for name in theirs:
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").touch()
    for name in theirs[1:]:
        (tmp_path / name / "lock").write_text("mine")
    with scratch_folder(tmp_path):
        pass
    assert {each.name for each in tmp_path.iterdir()} == {*theirs}
    assert all((tmp_path / name / "thesis.txt").exists() for name in theirs)


def test_where_no_folder_can_be_made_the_system_says_why(tmp_path):
    with pytest.raises(FileNotFoundError), scratch_folder(tmp_path / "missing"):
        pass
