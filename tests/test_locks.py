import errno
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest

from wegl_dask import locks
from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.locks import ASKED_FOR, is_held, locked, refuse_held
from wegl_dask.storage import RunFolder

HOLDER = """
import json, sys
from wegl_dask import locks
from wegl_dask.storage import RunFolder
locks.SETTLING = 0.01
with RunFolder(sys.argv[1], json.loads(sys.argv[2])).lock():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(locks, "SETTLING", 0.01)


@pytest.fixture(params=["local", "s3"])
def shared_folder(request, tmp_path):
    """A folder that another process can see."""
    if request.param == "local":
        return RunFolder(str(tmp_path / "out"))
    return RunFolder(f"s3://runs/lock-{tmp_path.name}", request.getfixturevalue("s3_options"))


@pytest.fixture
def holder(shared_folder):
    """Another process that holds the lock."""
    command = [sys.executable, "-c", HOLDER, shared_folder.url, json.dumps(shared_folder.storage_options)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"locked\n"
        yield process
        process.kill()


def test_the_lock_is_gone_afterwards(run_folder):
    with run_folder.lock() as lock:
        lock.ensure_held()
        assert ".lock" in run_folder.listing()
    assert ".lock" not in run_folder.listing()
    with run_folder.lock():
        pass
    with pytest.raises(ZeroDivisionError), run_folder.lock():
        raise ZeroDivisionError
    assert ".lock" not in run_folder.listing()


def test_a_second_run_in_the_same_process_is_refused(run_folder):
    with run_folder.lock() as lock:
        with pytest.raises(WeglError, match="another run is writing in"), run_folder.lock():
            pass
        lock.ensure_held()


def test_a_second_run_is_told_who_holds_the_lock(shared_folder, holder):
    with pytest.raises(WeglError) as caught, shared_folder.lock():
        pass
    assert f"process {holder.pid} on {socket.gethostname()}, since 2" in str(caught.value)
    assert shared_folder.location() in str(caught.value)
    with pytest.raises(WeglError, match=re.escape(str(caught.value))):
        refuse_held(shared_folder)


def test_who_asks_whether_a_folder_is_locked_does_not_stop_a_run(tmp_path):
    folder = Folder(str(tmp_path))
    assert not is_held(folder)
    folder.write(".lock", b"left by a run that was killed")
    assert not is_held(folder)
    asking = (tmp_path / ".lock").open()
    fcntl.flock(asking, fcntl.LOCK_SH)
    threading.Timer(ASKED_FOR / 5, asking.close).start()
    with locked(folder):
        assert is_held(folder)
    assert not is_held(folder)


@pytest.mark.parametrize("stop", [KeyboardInterrupt, WeglError])
def test_a_run_that_is_stopped_while_it_takes_a_lock_that_is_renewed_leaves_none(stop, tmp_path, monkeypatch):
    folder = Folder(str(tmp_path))
    read, looks = Folder.read_if_there, []

    def stopping(self, name):
        looks.append(name)
        if len(looks) == 2:
            # By now it is written.
            assert read(self, name)
            raise stop
        return read(self, name)

    monkeypatch.setattr(Folder, "read_if_there", stopping)
    with pytest.raises(stop):
        locks._RenewedLock(folder)
    assert folder.listing() == {}


def test_the_lock_of_a_killed_run_is_no_dead_end(shared_folder, holder, monkeypatch):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert ".lock" in shared_folder.listing()
    if not shared_folder.is_local:
        with (
            pytest.raises(WeglError, match=r"if it died, its lock counts for nothing 60 s after that"),
            shared_folder.lock(),
        ):
            pass
        later = Folder.modified

        def sixty_seconds_later(folder, name):
            moment = later(folder, name)
            return moment + timedelta(seconds=61) if moment and "clock" in name else moment

        monkeypatch.setattr(Folder, "modified", sixty_seconds_later)
    refuse_held(shared_folder)
    with shared_folder.lock():
        assert str(os.getpid()) in shared_folder.read(".lock").decode()
    assert ".lock" not in shared_folder.listing()


def test_a_lock_that_another_run_took_meanwhile_is_reported_and_left_alone(monkeypatch):
    monkeypatch.setattr(locks, "RENEWED_EVERY", 0.01)
    folder = RunFolder("memory://locks/taken")
    with folder.lock() as lock:
        other = json.dumps({"pid": 7, "host": "elsewhere", "since": "2026"}).encode()
        folder.write(".lock", other)
        lock._thread.join(10)
        with pytest.raises(WeglError, match="process 7 on elsewhere"):
            lock.ensure_held()
    assert folder.read(".lock") == other


def test_a_lock_is_renewed(monkeypatch):
    monkeypatch.setattr(locks, "RENEWED_EVERY", 0.01)
    folder = RunFolder("memory://locks/renewed")
    with folder.lock() as lock:
        taken = folder.modified(".lock")
        deadline = datetime.now(UTC) + timedelta(seconds=10)
        while folder.modified(".lock") == taken:
            assert datetime.now(UTC) < deadline
        lock.ensure_held()


class Ahead(datetime):
    """A clock that is 90 seconds ahead of the store's."""

    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) + timedelta(seconds=90)


def test_a_lock_that_is_renewed_is_held_by_whatever_clock(monkeypatch):
    monkeypatch.setattr(locks, "RENEWED_EVERY", 0.1)
    folder = RunFolder("memory://locks/ahead")
    with folder.lock():
        monkeypatch.setattr(locks, "datetime", Ahead)
        before = folder.listing()
        assert is_held(folder)
        assert folder.listing() == before
    # That of a run that was killed, and one that ends while it is looked at.
    folder.write(".lock", b"killed")
    assert not is_held(folder)
    threading.Timer(0.05, folder.remove, [".lock"]).start()
    assert not is_held(folder)


def test_a_lock_that_has_long_been_dead_is_not_watched(monkeypatch):
    folder = RunFolder("memory://locks/old")
    folder.write(".lock", b"killed")
    monkeypatch.setattr(Folder, "modified", lambda *_: datetime.now(UTC) - timedelta(hours=1))
    monkeypatch.setattr(locks, "_is_renewed", lambda *_: pytest.fail("it was watched"))
    assert not is_held(folder)


def test_a_lock_that_cannot_be_renewed_is_reported(monkeypatch):
    folder = RunFolder("memory://locks/unreachable")
    with folder.lock() as lock:
        monkeypatch.setattr(locks, "DEAD_AFTER", -1.0)
        with pytest.raises(WeglError, match=r"could not be renewed for 0 s"):
            lock.ensure_held()


def test_of_two_runs_that_start_together_on_an_object_store_one_goes_on(monkeypatch):
    folder = RunFolder("memory://locks/together")
    write = Folder.write

    def write_and_be_overtaken(self, name, content):
        written = write(self, name, content)
        if name == ".lock":
            write(self, name, b'{"pid": 8, "host": "elsewhere", "since": "2026"}')
        return written

    monkeypatch.setattr(Folder, "write", write_and_be_overtaken)
    with pytest.raises(WeglError, match="process 8 on elsewhere"), folder.lock():
        pass


def test_a_store_without_dates_says_how_to_go_on(monkeypatch):
    folder = RunFolder("memory://locks/undated")
    folder.write(".lock", b"{}")
    monkeypatch.setattr(Folder, "modified", lambda *_: None)
    with (
        pytest.raises(WeglError, match=r"does not tell whether it is still renewed: .* remove the lock"),
        folder.lock(),
    ):
        pass


def test_a_file_system_without_flock_gets_the_other_lock(tmp_path, monkeypatch):
    def unsupported(*_args):
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(locks.fcntl, "flock", unsupported)
    folder = RunFolder(str(tmp_path))
    with folder.lock() as lock:
        lock.ensure_held()
        with pytest.raises(WeglError, match="another run is writing in"), folder.lock():
            pass
    assert folder.listing() == {}


def test_a_lock_removed_by_hand_is_reported(tmp_path):
    folder = RunFolder(str(tmp_path))
    with folder.lock() as lock:
        folder.remove(".lock")
        with pytest.raises(WeglError, match=r"\.lock was removed while the run was writing here"):
            lock.ensure_held()


def test_a_file_released_between_opening_and_locking_is_tried_again(tmp_path, monkeypatch):
    flock = locks.fcntl.flock
    calls = []

    def remove_first(descriptor, operation):
        if not calls:
            (tmp_path / ".lock").unlink()
        calls.append(operation)
        flock(descriptor, operation)

    monkeypatch.setattr(locks.fcntl, "flock", remove_first)
    folder = RunFolder(str(tmp_path))
    with folder.lock() as lock:
        lock.ensure_held()
        assert len(calls) == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(WeglError, match=r"cannot write in .*/file/out: Not a directory"),
        RunFolder(f"{tmp_path}/file/out").lock(),
    ):
        pass


@pytest.mark.parametrize("is_link", [False, True])
def test_what_is_in_the_place_of_a_folder_is_named(is_link, tmp_path):
    out = tmp_path / "out"
    if is_link:
        out.symlink_to(tmp_path / "nowhere")
    else:
        out.touch()
    expected = "out: there is a file, or a link that leads nowhere, in its place. Choose another folder"
    with pytest.raises(WeglError, match=expected), RunFolder(str(out)).lock():
        pass


def test_other_failures_of_the_lock_are_named(tmp_path, monkeypatch):
    def fail(*_args):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(locks.fcntl, "flock", fail)
    with pytest.raises(WeglError, match=r"cannot lock .*\.lock: Input/output error"), RunFolder(str(tmp_path)).lock():
        pass


def test_a_full_disk_is_named_and_the_lock_released(tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = RunFolder(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(locks.os, "pwrite", full)
        with pytest.raises(WeglError, match=r"cannot write .*\.lock: No space left on device"), folder.lock():
            pass
    with folder.lock():
        pass
