"""Workers that are forks of a process which has imported everything; each test has a process of its own that does so."""

import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from wegl_dask import fork_server
from wegl_dask.fork_server import ENVIRONMENT, start

ROOT = Path(__file__).parents[1]

SCRIPT = """
import json, os, sys
import wegl_dask
from wegl_dask import fork_server

def found(name):
    import psutil
    process = psutil.Process()
    parent = process.parent()
    return {
        "pid": process.pid,
        "parent": parent.pid,
        "grandparent": parent.ppid(),
        "environment": dict(os.environ),
        "package": sys.modules["wegl_dask"].__file__,
        "modules": sorted(sys.modules),
        "value": os.environ.get(name),
    }

if __name__ == "__main__":
    before = dict(os.environ)
    START
    after = dict(os.environ)
    from wegl_dask.cluster import open_client
    from wegl_dask.spec import ClusterTable
    with open_client(ClusterTable(workers=2, memory_limit="600MB")) as client:
        workers = list(client.run(found, "wanted").values())
        MORE
    own = {"pid": os.getpid(), "package": wegl_dask.__file__, "pandas": "pandas" in sys.modules}
    print(json.dumps({"workers": workers, "own": own, "changed": sorted(set(before.items()) ^ set(after.items()) | set(before.items()) ^ set(os.environ.items()))}))
"""


KILL = """import signal, time
        first, deadline = {worker["pid"] for worker in workers}, time.monotonic() + 60
        os.kill(workers[0]["parent"], signal.SIGKILL)
        while len(workers) < 2 or first & {worker["pid"] for worker in workers}:
            assert time.monotonic() < deadline, workers
            time.sleep(0.2)
            workers = list(client.run(found, "wanted", on_error="ignore").values())
"""


EARLY = """
import os, sys
from wegl_dask import fork_server

seen = {}
fork_server.start = lambda *_: seen.update(os.environ)
fork_server.start_for(sys.argv[1:])
from wegl_dask.cli import main
main.callback(debug=False)
print(len(seen) > 0, sorted({*os.environ.items()} - {*seen.items()}))
"""


@pytest.fixture
def run_script(tmp_path):
    """Start two workers in a process with a folder for temporary files of its own: what they see, and what is left there."""

    def run(*, start="fork_server.start()", more="", folder="t", cwd=None, **environment):
        script = tmp_path / "script.py"
        script.write_text(SCRIPT.replace("START", start).replace("MORE", more))
        # Paths of sockets have to be short.
        with tempfile.TemporaryDirectory(dir="/tmp") as short:
            temporary = Path(short, folder)
            temporary.mkdir()
            done = subprocess.run(
                [sys.executable, script],
                cwd=cwd or tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary), **environment},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            left = [*temporary.iterdir()]
        said = [line for line in done.stderr.splitlines() if not (more and "Restarting worker" in line)]
        assert (done.returncode, said, left) == (0, [], [])
        return json.loads(done.stdout)

    return run


def test_workers_are_forks_of_one_process_that_has_imported_all_and_nothing_is_left_of_it(run_script):
    result = run_script()
    first, second = result["workers"]
    assert first["parent"] == second["parent"] != result["own"]["pid"]
    assert first["grandparent"] == result["own"]["pid"]
    for worker in result["workers"]:
        assert worker["environment"].items() >= ENVIRONMENT.items()
        assert {"wegl_dask.fit_tasks", "scipy.sparse", "distributed.worker"} <= set(worker["modules"])
        assert worker["package"] == result["own"]["package"]
    # Dask has its fork servers import pandas, and looks first whether it can be imported.
    assert not result["own"]["pandas"]
    # Dask has a variable of its own.
    assert [name for name, _ in result["changed"] if not name.startswith("__DASK")] == []


def test_without_it_workers_are_started_one_by_one(run_script):
    result = run_script(start="")
    assert {worker["parent"] for worker in result["workers"]} == {result["own"]["pid"]}


def test_what_the_configuration_sets_for_the_start_of_workers_they_have(run_script):
    # Dask reads names of settings in small letters.
    result = run_script(DASK_DISTRIBUTED__NANNY__PRE_SPAWN_ENVIRON__WANTED="here")
    assert [worker["value"] for worker in result["workers"]] == ["here", "here"]


def test_a_folder_with_a_path_too_long_for_a_socket_does_without(run_script):
    result = run_script(folder="t" * 100)
    assert {worker["parent"] for worker in result["workers"]} == {result["own"]["pid"]}


def test_when_it_was_killed_workers_are_started_one_by_one_in_the_place_of_its_forks(run_script):
    result = run_script(more=KILL)
    assert {worker["parent"] for worker in result["workers"]} == {result["own"]["pid"]}


def test_modules_in_the_current_folder_are_not_taken_for_others(run_script, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("yaml", "tornado", "numpy", "wegl_dask"):
        (elsewhere / f"{name}.py").write_text(f"raise SystemExit('{name}')")
    result = run_script(cwd=elsewhere)
    assert result["workers"][0]["grandparent"] == result["own"]["pid"]
    assert {worker["package"] for worker in result["workers"]} == {result["own"]["package"]}


@pytest.mark.parametrize(
    ("table", "more", "started"),
    [
        ("", [], [()]),
        ("[cluster]\nworkers = 3", ["--overwrite", "--set", "seed=3"], [()]),
        ('[cluster]\nkind = "local"', [], [()]),
        ('[cluster]\nlocal_directory = "/x"', [], [("/x",)]),
        ('[cluster]\nkind = "slurm"', [], []),
        # The command knows what comes of these.
        ("", ["--set", 'cluster.kind="slurm"'], []),
        ("", ["--scheduler", "tls://host:8786"], []),
        ("", ["--scheduler=tls://host:8786"], []),
        ("cluster = 3", [], []),
        ("[cluster", [], []),
        ("[cluster]\nlocal_directory = 3", [], [()]),
        ('[cluster]\nlocal_directory = "/x\\u0000y"', [], [("/x\0y",)]),
    ],
)
def test_it_is_started_early_for_a_job_on_this_machine_alone(monkeypatch, tmp_path, table, more, started):
    calls = []
    monkeypatch.setattr(fork_server, "start", lambda *arguments: calls.append(arguments))
    job = tmp_path / "job.toml"
    job.write_text(table)
    fork_server.start_for(["run", str(job), *more])
    assert calls == started


def test_it_is_not_started_early_for_other_commands_or_what_is_no_file(monkeypatch, tmp_path):
    monkeypatch.setattr(fork_server, "start", lambda *_: pytest.fail("it was started"))
    job, pipe = tmp_path / "job.toml", tmp_path / "pipe"
    job.write_text("")
    os.mkfifo(pipe)
    for arguments in [[], ["run"], ["run", "--help"], ["run", str(tmp_path)], ["run", str(pipe)], ["check", str(job)]]:
        fork_server.start_for(arguments)


def test_all_that_the_command_sets_in_the_environment_is_there_when_it_is_started_early(tmp_path):
    (tmp_path / "job.toml").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", EARLY, "run", tmp_path / "job.toml"],
        env={name: value for name, value in os.environ.items() if not name.startswith(("DASK_", "POT_"))}
        | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "True []\n"


@pytest.mark.parametrize("level", ["critical", "error"])
def test_workers_log_nothing_of_a_task_that_fails_unless_the_user_has_set_so(run_script, tmp_path, level):
    (tmp_path / "job.toml").write_text("")
    set_by_user = {} if level == "critical" else {"DASK_LOGGING__DISTRIBUTED": level}
    more = "import logging; workers = [*client.run(lambda: logging.getLogger('distributed').level).values()]"
    result = run_script(start="fork_server.start_for(['run', 'job.toml'])", more=more, **set_by_user)
    assert result["workers"] == [getattr(logging, level.upper())] * 2


def test_it_ends_with_a_command_that_ends_before_it_is_ready(tmp_path):
    code = f"from wegl_dask import fork_server; fork_server.start_for(['run', {str(tmp_path / 'job.toml')!r}])"
    (tmp_path / "job.toml").write_text("")
    # It has the pipe to write to as well: it has ended when that is closed.
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=10,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_folder_that_is_no_path_is_left_to_the_command_to_refuse():
    start("/x\0y")
    assert not fork_server.is_started()


def test_what_cannot_be_imported_is_left_to_the_command_to_say(tmp_path):
    (tmp_path / "dask.yaml").write_text("a: [1\n b: {")
    code = "import time; from wegl_dask import fork_server; fork_server.start(); time.sleep(2)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DASK_CONFIG": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
