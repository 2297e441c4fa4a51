"""What operators rely on: JSON lines, exit codes, and that nothing is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from wegl_dask.cli import main
from wegl_dask.storage import RunFolder

ROOT = Path(__file__).parents[2]


def events(text):
    """Every line of a log as an object: one that is no JSON is an error."""
    return [json.loads(line) for line in text.splitlines()]


# --- JSON lines ---


def test_the_log_of_a_run_is_one_json_object_an_event_and_agrees_with_the_manifest(
    command, job_file, mutag_job, dask_client, tmp_path
):
    before = datetime.now(UTC)
    done = command("run", job_file(mutag_job(source={"max_nodes": 24})), "--log-json")
    assert done.code == 0, done.err
    log = events(done.err)
    assert all({"time", "level", "event", "message"} <= set(entry) for entry in log)
    assert all(before.timestamp() - 1 < datetime.fromisoformat(entry["time"]).timestamp() for entry in log)
    stages = [entry["stage"] for entry in log if entry["event"] == "stage_finished"]
    assert stages == ["scan", "ingest", "moments", "merge", "projection", "sample", "reference", "embed"]
    workers = set(dask_client.scheduler_info(n_workers=-1)["workers"])
    for stage in ("ingest", "moments", "sample", "embed"):
        parts = [entry for entry in log if entry["event"] == "part" and entry["stage"] == stage]
        assert sorted(shard for entry in parts for shard in entry["shards"]) == list(range(12))
        assert {entry["worker"] for entry in parts} <= workers
        assert all(entry["seconds"] >= 0 for entry in parts)
    manifest = RunFolder(str(tmp_path / "out")).read_manifest()
    for stage, found in manifest["stages"].items():
        parts = [entry for entry in log if entry["event"] == "part" and entry["stage"] == stage]
        assert found["parts"] == sum(len(entry["shards"]) for entry in parts) > 0
        # A task does little beside its parts, and looks at the clock a few times.
        seconds = sum(entry["seconds"] for entry in parts)
        assert 0.5 * seconds - 0.01 <= found["part_seconds"] <= seconds + 0.01
    assert list(manifest["stages"]) == [*(stage for stage in stages if stage != "merge"), "merge"]
    (embedded,) = (entry for entry in log if entry["event"] == "stage_finished" and entry["stage"] == "embed")
    last = log[-1]
    assert (last["event"], last["level"]) == ("finished", "info")
    assert last["summary"]["rows"] + last["summary"]["rejected"] == 188
    assert (embedded["parts"], embedded["graphs"]) == (12, last["summary"]["rows"])
    assert last["summary"]["reasons"] == {"the graph has … nodes; max_nodes allows …": last["summary"]["rejected"]}


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        (("--set", "diffusion.layer=3"), 2, "unknown key diffusion.layer"),
        (("--set", "source.name=NOSUCH", "--set", "source.download=false"), 1, "the data set NOSUCH is not there"),
        (("--set", "source.max_nodes=12", "--set", "source.max_rejected_fraction=0.1"), 3, "rows were rejected"),
    ],
)
def test_a_failure_is_the_last_event_and_has_the_exit_code(overrides, code, words, command, job_file, mutag_job):
    failed = command("run", job_file(mutag_job()), "--log-json", *overrides)
    assert failed.code == code
    last = events(failed.err)[-1]
    assert (last["event"], last["level"], last["exit_code"]) == ("failed", "error", code)
    assert words in last["message"]


def test_a_signal_is_an_event_after_that_of_the_stage_that_it_stopped(
    command, job_file, mutag_job, wait_until, tmp_path
):
    job = job_file(mutag_job(source={"nodes_per_shard": 30}))
    with command.start("run", job, "--log-json") as process:
        wait_until(lambda: [*(tmp_path / "out" / "records").glob("ingest-*")], "the first part")
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    stopped, last = events(err)[-2:]
    assert stopped["event"] == "stage_stopped"
    assert (last["event"], last["exit_code"]) == ("failed", 143)
    assert "run the same command again" in last["message"]


def test_an_ingest_logs_in_json_too(command, job_file, mutag_job):
    done = command("ingest", job_file(mutag_job()), "--log-json")
    assert done.code == 0, done.err
    assert [entry["stage"] for entry in events(done.err) if entry["event"] == "stage_finished"] == ["scan", "ingest"]


@pytest.mark.parametrize("name", ["run", "ingest"])
def test_a_task_that_fails_on_a_worker_of_this_machine_leaves_the_log_one_of_json_lines(
    name, command, job_file, mutag_job, tmp_path
):
    # With a number of workers on the command line, the process that workers are forks of would be started later.
    job = job_file(mutag_job(cluster={"workers": 1, "memory_limit": "1GB"}))
    assert command("ingest", job).code == 0
    part = tmp_path / "out" / "graphs" / "part-00001.parquet"
    part.unlink()
    (part / "in its place").mkdir(parents=True)
    failed = command(name, job, "--log-json", shared=False)
    assert failed.code == 1
    last = events(failed.err)[-1]
    assert (last["event"], last["exit_code"]) == ("failed", 1)
    assert f"{part}: there is a folder where a file should be" in last["message"]


# --- Exit codes ---


def test_the_exit_codes_are_documented():
    text = " ".join(main.help.split())
    found = dict(re.findall(r"(\d+) ([a-z][^,.]*)", text.partition("Exit codes: ")[2]))
    assert found == {
        "0": "done",
        "1": "failed",
        "2": "usage or job file",
        "3": "too many rows rejected",
        "129": "left without its terminal",
        "130": "stopped by Ctrl-C",
        "143": "terminated",
    }


# --- Leaks ---


@pytest.fixture
def temporary(tmp_path):
    """A folder for a command's temporary files, which has nothing but those in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def ending(how, process, out, wait_until):
    """Let a command come to its end in one of several ways: the processes that it had started."""
    parent = psutil.Process(process.pid)
    wait_until(lambda: [*(out / "records").glob("ingest-*")] or process.poll() is not None, "the first part")
    family = parent.children(recursive=True) if process.poll() is None else []
    if how == "terminated":
        process.terminate()
    elif how == "killed":
        process.kill()
    _, err = process.communicate(timeout=120)
    return family, err


@pytest.mark.parametrize(
    ("how", "code"), [("done", 0), ("failed", 1), ("terminated", 143), ("killed", -signal.SIGKILL)]
)
def test_nothing_is_left_of_a_command_however_it_ends(
    how, code, command, job_file, mutag_job, wait_until, temporary, tmp_path
):
    out = tmp_path / "out"
    cluster = {"workers": 2, "memory_limit": "1GB"}
    source = {"nodes_per_shard": 100} | ({"max_nodes": 12, "on_error": "fail"} if how == "failed" else {})
    # For k-means new workers import some seconds' worth.
    tables = {"source": source, "reference": {"kind": "sample"}}
    options = {"shared": False, "environment": {"TMPDIR": str(temporary), "DASK_TEMPORARY_DIRECTORY": str(temporary)}}
    with command.start("run", job_file(mutag_job(**tables, cluster=cluster)), **options) as process:
        family, err = ending(how, process, out, wait_until)
    assert process.returncode == code, err
    gone, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    assert how == "failed" or len(gone) >= 2
    if how == "killed":
        # Nobody was there to remove the folder for spilling, but nothing has been spilled into it.
        left = {path.relative_to(temporary): path.stat().st_size for path in temporary.rglob("*") if path.is_file()}
        assert not any(left.values()), left
        assert command("run", job_file(mutag_job(**tables))).code == 0
    else:
        assert [*temporary.iterdir()] == []
        assert not (out / ".lock").exists()
    assert [*out.rglob(".*")] == []


LEAKS = """
import gc, os, sys, threading, warnings
from itertools import pairwise
from wegl_dask.cluster import open_client
from wegl_dask.errors import WeglError
from wegl_dask.pipeline import run_job
from wegl_dask.progress import unshown
from wegl_dask.spec import JobSpec, ClusterTable

def open_files():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()

if __name__ == "__main__":
    root, out = sys.argv[1:]
    def job(number, **source):
        source = {"kind": "tud", "root": root, "name": "MUTAG", "nodes_per_shard": 300} | source
        return JobSpec.from_values({"source": source, "output": {"path": f"{out}/{number}"}})
    with open_client(ClusterTable(workers=1, memory_limit="1GB")) as client:
        counts, n_failed = [], 0
        worker_counts = []
        for number in range(6):
            run_job(job(number), client, progress=unshown)
            try:
                run_job(job(f"failed-{number}", max_nodes=12, on_error="fail"), client, progress=unshown)
            except WeglError:
                n_failed += 1
            counts.append(open_files())
            worker_counts += client.run(lambda: len(os.listdir("/proc/self/fd"))).values()
        print(counts, worker_counts, len(client.futures), client.run(lambda dask_worker: len(dask_worker.data)))
        # Dask keeps some connections for later, of which it may open another in any round; a leak makes more in every one.
        assert n_failed == 6
        for kind in (*zip(*counts), worker_counts):
            assert any(later <= earlier for earlier, later in pairwise(kind[1:])), kind
        assert not client.futures
"""


def test_jobs_one_after_another_leave_no_descriptors_threads_or_results(shared_data, tmp_path):
    script = tmp_path / "leaks.py"
    script.write_text(LEAKS)
    done = subprocess.run(
        [
            sys.executable,
            "-X",
            "dev",
            "-W",
            "error::ResourceWarning",
            str(script),
            str(shared_data / "TUDataset"),
            str(tmp_path),
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ResourceWarning" not in done.stderr
