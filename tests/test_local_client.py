import errno
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError

import dask.config
import psutil
import pytest
from distributed.scheduler import KilledWorker
from hypothesis import given, settings
from hypothesis import strategies as st

from wegl_dask import local_client, lost_workers
from wegl_dask.bags import run_stage
from wegl_dask.cluster import dashboard_link, open_client
from wegl_dask.errors import JobFileError, MissingDependencyError, WeglError
from wegl_dask.spec import ClusterTable

ROOT = Path(__file__).parents[1]

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}


def local(**keys):
    return ClusterTable(**({"workers": 1, "memory_limit": "600MB"} | keys))


@pytest.fixture(scope="module")
def two_workers():
    """A client of two workers; tests leave them as they are."""
    with open_client(local(workers=2)) as client:
        yield client


def test_a_local_cluster_is_processes_of_one_thread_on_the_loopback(two_workers):
    workers = two_workers.scheduler_info(n_workers=-1)["workers"]
    assert len(workers) == 2
    assert [worker["nthreads"] for worker in workers.values()] == [1, 1]
    assert all(address.startswith("tcp://127.0.0.1:") for address in [*workers, two_workers.scheduler.address])
    pids = set(two_workers.run(os.getpid).values())
    assert len(pids) == 2
    assert os.getpid() not in pids


@pytest.mark.usefixtures("two_workers")
def test_nothing_listens_beyond_the_loopback():
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    listening = [c.laddr.ip for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert set(listening) == {"127.0.0.1"}


def beside_a_scheduler(value):
    """Hand on what a strategy has drawn, after another thread of this process drew, as one of Dask's scheduler does."""
    thread = threading.Thread(target=random.random)
    thread.start()
    thread.join()
    return value


@settings(max_examples=1, database=None)
@given(st.just(1).map(beside_a_scheduler))
def test_a_scheduler_in_the_process_of_the_tests_does_not_fail_those_of_hypothesis(value):
    assert value == 1


def test_workers_have_one_thread_for_numerical_libraries(two_workers):
    def threads_after_import():
        import numpy as np  # noqa: F401
        from scipy.linalg import blas  # noqa: F401
        from sklearn.utils._openmp_helpers import _openmp_effective_n_threads
        from threadpoolctl import threadpool_info

        pools = threadpool_info()
        return {pool["num_threads"] for pool in pools} | {_openmp_effective_n_threads()}, len(pools)

    for threads, n_pools in two_workers.run(threads_after_import).values():
        assert n_pools >= 2
        assert threads == {1}


def test_workers_do_not_import_array_libraries_with_pot(two_workers):
    def imported():
        import sys

        import ot  # noqa: F401

        return [name for name in ("torch", "jax", "cupy", "tensorflow") if name in sys.modules]

    assert list(two_workers.run(imported).values()) == [[], []]


def test_a_worker_without_a_task_has_imported_neither_pandas_nor_pot(two_workers):
    def imported():
        import subprocess
        import sys

        code = "import sys, distributed.worker; print([n for n in ('pandas', 'ot', 'sklearn', 'bokeh') if n in sys.modules])"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert set(two_workers.run(imported).values()) == {"[]\n"}


def test_the_environment_overrides_the_users_and_survives_a_restart_of_a_worker(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    before = dict(os.environ)

    def threads():
        import os

        return {name: value for name, value in os.environ.items() if name.endswith("_NUM_THREADS")}

    with open_client(local()) as client:
        assert list(client.run(threads).values()) == [ONE_THREAD]
        [pid] = client.run(os.getpid).values()
        os.kill(pid, signal.SIGKILL)
        new_pid = client.submit(os.getpid, pure=False).result(timeout=30)
        assert new_pid != pid
        assert list(client.run(threads).values()) == [ONE_THREAD]
    assert dict(os.environ) == before


def test_memory_is_divided_evenly_and_a_tenth_is_left(monkeypatch):
    monkeypatch.setattr(local_client, "MEMORY_LIMIT", 2_000_000_000)
    with open_client(local(workers=2, memory_limit=None)) as client:
        limits = [worker["memory_limit"] for worker in client.scheduler_info(n_workers=-1)["workers"].values()]
    assert limits == [900_000_000, 900_000_000]


def test_one_worker_a_usable_core_and_the_memory_of_the_table(monkeypatch):
    monkeypatch.setattr(local_client, "CPU_COUNT", 1)
    with open_client(local(workers=None, memory_limit="600MB")) as client:
        [worker] = client.scheduler_info(n_workers=-1)["workers"].values()
    assert worker["memory_limit"] == 600_000_000


@pytest.mark.parametrize("limit", ["much", "100MB", "0", "0.5"])
def test_a_memory_limit_that_cannot_be_used_is_refused(limit):
    with (
        pytest.raises(JobFileError, match=rf'cluster\.memory_limit = "{limit}"'),
        open_client(local(memory_limit=limit)),
    ):
        pass


def test_more_workers_than_memory_are_refused(monkeypatch):
    monkeypatch.setattr(local_client, "MEMORY_LIMIT", 2_000_000_000)
    with (
        pytest.raises(JobFileError, match=r"8 workers would have 225 MB of memory each, of 2 GB"),
        open_client(local(workers=8, memory_limit=None)),
    ):
        pass


def test_a_folder_for_spilling_that_is_not_there_is_named(tmp_path):
    missing = tmp_path / "missing"
    with (
        pytest.raises(JobFileError, match=f"{missing}.*No such file"),
        open_client(local(local_directory=str(missing))),
    ):
        pass


@pytest.mark.parametrize(
    ("address", "reason"),
    # An address of the block for documentation, which no machine has; and what is no address.
    [("192.0.2.1:8787", "assign requested address"), ("a:b:c", "cannot be listened on"), ("here:there", "there")],
)
def test_a_dashboard_address_that_cannot_be_listened_on_is_refused(address, reason):
    pytest.importorskip("bokeh")
    table = local(dashboard_address=address)
    with (
        pytest.raises(JobFileError, match=rf'cluster\.dashboard_address = "{address}" .*{reason}'),
        open_client(table),
    ):
        pass


def test_the_dashboard_answers_where_bokeh_is_installed():
    pytest.importorskip("bokeh")
    table = local(dashboard_address="127.0.0.1:0")
    with open_client(table) as client:
        link = dashboard_link(table, client)
        assert link.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(link, timeout=10) as answer:
            assert answer.status == 200
        (callbacks,) = client.run(periodic_callbacks).values()
        assert "profile" in callbacks


def periodic_callbacks(dask_worker):
    return {name: callback.callback_time for name, callback in dask_worker.periodic_callbacks.items()}


def test_a_client_starts_its_workers_before_it_imports_scipy_and_they_have_it():
    names = {name for name in local_client.PRELOADED if name.startswith("scipy.")}
    code = f"import sys, wegl_dask.pipeline, wegl_dask.local_client; print({names} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    with open_client(local()) as client:
        (there,) = client.run(lambda: sorted(names & sys.modules.keys())).values()
    assert there == sorted(names) != []


def test_nothing_takes_the_interpreter_from_the_solver_all_the_time(two_workers):
    for callbacks in two_workers.run(periodic_callbacks).values():
        assert "tick" in callbacks
        assert min(callbacks.values()) >= 100  # ms


def test_a_dashboard_without_bokeh_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with (
        pytest.raises(MissingDependencyError, match=r"bokeh is needed here .*wegl-dask\[cluster\]"),
        open_client(local(dashboard_address="127.0.0.1:8787")),
    ):
        pass
    # In job files of earlier versions, which had it by default.
    assert not local_client.has_dashboard(local(dashboard_address="127.0.0.1:0"))


def test_where_there_is_no_place_for_temporary_files_it_says_what_to_set(monkeypatch):
    def nowhere():
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with (
        pytest.raises(JobFileError, match=r"No usable temporary directory .*; set cluster\.local_directory"),
        open_client(local()),
    ):
        pass


def test_without_an_address_there_is_no_dashboard(two_workers):
    assert ClusterTable().dashboard_address is None
    assert dashboard_link(local(), two_workers) is None
    assert two_workers.scheduler_info()["services"].keys() == {"dashboard"}
    (port,) = two_workers.scheduler_info()["services"].values()
    with pytest.raises(HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=10)


def test_allowed_failures_bound_the_workers_that_one_task_may_take_along():
    with open_client(local(allowed_failures=0)) as client:
        error = client.submit(os._exit, 1).exception(timeout=30)
    assert isinstance(error, KilledWorker)
    assert error.allowed_failures == 0


# --- What is left behind ---


LEFTOVERS = """
import gc
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress

import dask.config
import psutil
from distributed import Event

from wegl_dask.cluster import open_client
from wegl_dask.spec import ClusterTable


def use(client):
    assert client.submit(sum, (1, 2)).result() == 3


def kill_workers(client):
    for pid in client.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)


def announce_and_sleep(_):
    Event("running").set()
    time.sleep(600)


def leave_tasks_running(client):
    client.leftover = client.map(announce_and_sleep, range(4))
    assert Event("running", client=client).wait(timeout=30)


def fail_with_tasks_running(client):
    leave_tasks_running(client)
    raise KeyError


def open_things():
    gc.collect()
    process = psutil.Process()
    return {
        "processes": len(process.children(recursive=True)),
        "descriptors": process.num_fds(),
        "threads": threading.active_count(),
        "files": os.listdir(tempfile.gettempdir()),
        "environment": dict(os.environ),
        "signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    }


if __name__ == "__main__":
    table = ClusterTable(workers=2, memory_limit="600MB")
    with open_client(table) as client:
        use(client)
    del client  # what Dask and multiprocessing start once in a process is there from now on
    before = open_things()
    for work in (use, kill_workers, leave_tasks_running, fail_with_tasks_running):
        with suppress(KeyError), open_client(table) as client:
            start = time.monotonic()
            work(client)
        del client
        assert time.monotonic() - start < 120, work
        start = time.monotonic()
        while open_things() != before and time.monotonic() - start < 60:
            time.sleep(0.1)  # threads of Dask end when they next look whether they should
        assert open_things() == before, (work, before, open_things())
    print("all gone")
"""


def test_a_local_cluster_leaves_nothing_behind(script, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    output, errors = script(LEFTOVERS).communicate(timeout=120)
    assert (output, errors) == ("all gone\n", "")


JOB = """
import os
import signal
import sys
import threading
import time

from distributed import Event
from wegl_dask.cluster import open_client
from wegl_dask.spec import ClusterTable


def announce_and_sleep(_):
    Event("running").set()
    time.sleep(60)


def main():
    table = ClusterTable(workers=2, memory_limit="600MB", local_directory=sys.argv[1])
    with open_client(table) as client:
        futures = client.map(announce_and_sleep, range(4))
        Event("running").wait()
        # When it waits for them, since Dask logs what is stopped as it begins to.
        threading.Timer(0.5, print, ["running"], {"flush": True}).start()
        client.gather(futures)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped")
    except RuntimeError as error:
        # Python's own `Condition.wait`, interrupted as it lets go of its lock, finds it not locked.
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        sys.exit("stopped")
"""


@pytest.fixture
def script(tmp_path):
    """Start a script in a process group of its own, as a terminal does; nothing of it outlives the test."""
    started = []

    def start(code, *arguments):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(code))
        process = subprocess.Popen(
            [sys.executable, path, *arguments],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def nothing_lives_in_group(group):
    """Wait for the processes of a group to end; those that are dead and not yet collected have ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        time.sleep(0.05)
        states = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(process.pid) == group:
                    states.append(process.status())
        if set(states) <= {psutil.STATUS_ZOMBIE}:
            return True
    return False


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGINT] * 3, [signal.SIGTERM], [signal.SIGHUP]])
def test_a_signal_to_all_processes_ends_workers_at_once_and_quietly(script, tmp_path, signals):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    process = script(JOB, str(scratch))
    assert process.stdout.readline() == "running\n"
    for each in signals:
        os.killpg(process.pid, each)
    _, errors = process.communicate(timeout=30)
    if len(signals) == 1:
        assert errors == "stopped\n"
        assert process.returncode == 1
    assert process.returncode != 0
    assert list(scratch.iterdir()) == []
    assert nothing_lives_in_group(process.pid)


BLOCKED = """
import os
from pathlib import Path
from wegl_dask.cluster import open_client
from wegl_dask.spec import ClusterTable

def mask():
    # Of the process as it was started: what its main thread had before any of its code ran.
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("SigBlk:")), 16)

if __name__ == "__main__":
    with open_client(ClusterTable(workers=2, memory_limit="600MB")) as client:
        print(*client.run(mask).values())
"""


def test_the_first_workers_of_a_process_never_have_the_signals(script):
    """As they start they would write a traceback each; what multiprocessing starts beside them gives signals back."""
    output, errors = script(BLOCKED).communicate(timeout=120)
    masks = [int(mask) for mask in output.split()]
    assert len(masks) == 2, errors
    assert all(mask >> (each - 1) & 1 for mask in masks for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))


def test_what_a_killed_job_left_is_removed_by_the_next_and_that_of_a_running_one_is_not(script, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    killed, running = script(JOB, str(scratch)), script(JOB, str(scratch))
    assert killed.stdout.readline() == running.stdout.readline() == "running\n"
    killed.kill()
    assert nothing_lives_in_group(killed.pid)
    both = set(scratch.iterdir())
    assert len(both) == 2
    with open_client(local(local_directory=str(scratch))):
        [left] = both & set(scratch.iterdir())
        assert (left / "dask-scratch-space").is_dir()
    assert list(scratch.iterdir()) == [left]
    os.killpg(running.pid, signal.SIGINT)
    running.communicate(timeout=30)
    assert list(scratch.iterdir()) == []


def kill_the_worker(task):
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def test_a_worker_that_died_and_cannot_be_started_again_ends_the_stage(monkeypatch):
    async def fail(*_):
        raise OSError("no more processes")

    monkeypatch.setattr(local_client, "RESTART_SECONDS", 1)
    monkeypatch.setattr(local_client, "WATCH_SECONDS", 0.1)
    monkeypatch.setattr(lost_workers, "WATCH_SECONDS", 0.1)
    with open_client(local()) as client, monkeypatch.context() as patch:
        patch.setattr("distributed.nanny.WorkerProcess.start", fail)
        with pytest.raises(WeglError, match=r"stage: the workers that tried it died, and no other could be started"):
            list(run_stage(client, "stage", kill_the_worker, [1, 2, 3], retries=0))


def test_workers_that_do_not_come_to_be_ready_are_a_line_and_are_gone(monkeypatch):
    """Where the system gives too little memory or too few files, Dask ends with an assertion, and leaves processes behind."""
    started = []

    def start(**_):
        started.append(multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,)))
        started[0].start()
        raise AssertionError("Status.starting")

    monkeypatch.setattr(local_client, "LocalCluster", start)
    with (
        pytest.raises(WeglError, match="could not be started: their processes did not come to be ready") as raised,
        open_client(local()),
    ):
        pass
    assert "what `ulimit -a` says" in str(raised.value)
    started[0].join(60)
    assert started[0].exitcode == -signal.SIGKILL


def test_a_script_without_a_main_guard_is_told_so(script):
    process = script(JOB.partition("if __name__")[0] + "main()\n", tempfile.gettempdir())
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    last = errors.splitlines()[-1]
    assert "2 local workers could not be started" in last
    assert 'if __name__ == "__main__":' in last
    assert nothing_lives_in_group(process.pid)


def resident():
    return psutil.Process().memory_info().rss


def test_a_worker_that_holds_most_of_its_memory_still_does_tasks(wait_until):
    def hold(n_bytes):
        import builtins

        builtins.held = bytearray(n_bytes)

    def reported():
        (worker,) = client.scheduler_info()["workers"].values()
        return worker["metrics"]["memory"]

    # Dask looks at the memory ten times a second, and tells of it every other second or so.
    with open_client(local(memory_limit="500MB")) as client:
        client.submit(hold, int(0.87 * 500e6) - client.submit(resident).result()).result()
        wait_until(lambda: reported() > 0.8 * 500e6, "the report of the worker's memory")
        assert client.submit(resident, pure=False).result(timeout=30) > 0.8 * 500e6


def test_a_worker_gives_freed_memory_back_between_the_parts_of_a_stage():
    def take_and_free(n_bytes):
        import numpy as np

        return len([np.ones(2**17) for _ in range(n_bytes // 2**20)])

    with open_client(local(memory_limit="500MB")) as client:
        before = client.submit(resident).result()
        ((_, outcome),) = run_stage(client, "held", take_and_free, [100 * 2**20], retries=0)
        assert outcome.result == 100
        assert client.submit(resident, pure=False).result() - before < 30e6


# --- The user's configuration of Dask ---


@pytest.mark.parametrize(
    "setting",
    [
        {"distributed.worker.lifetime.duration": "1s"},
        {"distributed.worker.lifetime.duration": "no time"},
        {"distributed.scheduler.idle-timeout": "1ms"},
        {"distributed.comm.require-encryption": True},
        {"distributed.worker.preload": "wave", "distributed.worker.preload-argv": "--high"},
        {"distributed.worker.preload": ["wave", "json"], "distributed.worker.preload-argv": [[], []]},
        {
            "distributed.worker.preload": None,
            "distributed.nanny.preload": None,
            "distributed.scheduler.preload": None,
            "distributed.client.preload": None,
        },
    ],
    ids=str,
)
def test_settings_for_other_clusters_do_not_break_a_local_one(setting):
    with dask.config.set(setting), open_client(local()) as client:
        assert client.submit(sum, (1, 2)).result(timeout=30) == 3
        assert list(client.run(lambda dask_worker: dask_worker.lifetime).values()) == [None]
        assert client.cluster.scheduler.idle_timeout is None
        if setting.get("distributed.worker.preload"):
            assert list(client.run(lambda: "wave" in sys.modules).values()) == [True]


@pytest.mark.parametrize("setting", ["distributed.worker.preload", "distributed.nanny.preload"])
def test_a_setting_of_dask_that_names_no_modules_is_refused_with_its_variable(setting):
    with (
        dask.config.set({setting: 3}),
        pytest.raises(WeglError, match=rf"Dask's setting {setting} = 3 is .* variable DASK_DISTRIBUTED__\w+__PRELOAD,"),
        open_client(local()),
    ):
        pass


@pytest.mark.parametrize("role", ["client", "nanny", "scheduler", "worker"])
@pytest.mark.parametrize("name", ["no_such_module", "no_such_module.inner"])
def test_a_module_that_dask_is_told_to_load_and_is_not_there_is_named_with_its_setting(role, name):
    setting = f"distributed.{role}.preload"
    with (
        dask.config.set({setting: ["json", name]}),
        pytest.raises(
            WeglError, match=rf"Dask's setting {setting} names the module '{name}', which is not there: correct"
        ),
        open_client(local()),
    ):
        pass
