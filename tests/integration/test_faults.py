"""Workers that die, tasks that fail, a full disk, a lost scheduler, signals: what is reported, and what is left."""

import os
import re
import signal
import subprocess
import sys

import psutil
import pytest

from wegl_dask.bags import StageError
from wegl_dask.errors import SourceError, WeglError
from wegl_dask.run import Run
from wegl_dask.storage import RunFolder
from wegl_dask.verify import verify_run

REFERENCE = {"kind": "sample"}
"""For k-means workers import some seconds' worth, each of those anew that take the place of one that died."""


@pytest.fixture
def mutag_job(mutag_job):
    def job(out="out", **tables):
        return mutag_job(out, **({"reference": REFERENCE} | tables))

    return job


@pytest.fixture(scope="module")
def undisturbed(run, shared_data, tmp_path_factory):
    """A run on MUTAG that nothing happened to."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    source = {"kind": "tud", "root": str(shared_data / "TUDataset"), "name": "MUTAG", "nodes_per_shard": 300}
    run({"source": source, "reference": REFERENCE, "output": {"path": str(out)}})
    return out


@pytest.fixture
def attempts(tmp_path):
    """A folder in which replaced functions leave a file for each time they were called; see `count`."""
    folder = tmp_path / "attempts"
    folder.mkdir()
    return folder


# --- Workers that die ---


def test_a_worker_killed_in_the_middle_of_a_file_costs_nothing(
    run, mutag_job, undisturbed, replaced_on_workers, attempts, same_bytes, tmp_path
):
    seen = str(attempts)

    def make(write_hashed):
        import os
        import signal
        from pathlib import Path

        def kill_once(file, content):
            if "data/.tmp-part-00003" in file.name and not any(Path(seen).iterdir()):
                Path(seen, "killed").touch()
                file.write(b"the beginning")
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            return write_hashed(file, content)

        return kill_once

    replaced_on_workers("wegl_dask.folders", "_write_hashed", make)
    run(mutag_job())
    assert [path.name for path in attempts.iterdir()] == ["killed"]
    assert same_bytes(tmp_path / "out", undisturbed)
    assert [*(tmp_path / "out").rglob(".*")] == []


def test_a_part_that_kills_its_workers_is_reported_and_the_others_are_made(
    run, mutag_job, replaced_on_workers, contents, tmp_path
):
    def make(embed_shard):
        import os
        import signal

        def deadly(folder, task, **options):
            if task.index == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return embed_shard(folder, task, **options)

        return deadly

    replaced_on_workers("wegl_dask.tasks", "embed_shard", make)
    with pytest.raises(StageError, match=r"parts failed: .*shard 3: the workers that tried it died") as failed:
        run(mutag_job())
    # Dask blames a death on every task that the worker had been handed, so a neighbour may be given up with shard 3, and
    # may have been made all the same.
    given_up = {int(shard) for shard in re.findall(r"shard (\d+): ", str(failed.value))}
    assert len(given_up) <= 3
    made = {int(name[5:10]) for name in contents(tmp_path / "out")}
    assert {*range(12)} - given_up <= made <= {*range(12)} - {3}
    assert not (tmp_path / "out" / "_SUCCESS").exists()


@pytest.mark.slow
def test_a_worker_over_its_memory_limit_is_restarted_and_the_part_is_made(
    run, mutag_job, undisturbed, attempts, same_bytes, tmp_path
):
    from distributed import WorkerPlugin

    from wegl_dask.cluster import open_client
    from wegl_dask.spec import ClusterTable

    seen = str(attempts)

    class Greedy(WorkerPlugin):
        def setup(self, worker):
            del worker
            from pathlib import Path
            from time import sleep

            from wegl_dask import tasks

            embed_shard = tasks.embed_shard

            def greedy(folder, task, **options):
                if task.index == 3 and not any(Path(seen).iterdir()):
                    Path(seen, "asked").touch()
                    held = bytearray(os.urandom(1)) * 900_000_000
                    sleep(60)
                    del held
                return embed_shard(folder, task, **options)

            tasks.embed_shard = greedy

    table = ClusterTable(workers=1, memory_limit="700MB")
    with open_client(table) as client:
        client.register_plugin(Greedy(), name="greedy")
        run(mutag_job(), client=client)
    assert [path.name for path in attempts.iterdir()] == ["asked"]
    assert same_bytes(tmp_path / "out", undisturbed)


# --- Tasks that fail ---


def fail_in(attempts, kind, *, times, index=3):
    """Make a function that fails some times on one shard, with an error of a kind."""
    seen = str(attempts)

    def make(embed_shard):
        from pathlib import Path

        from wegl_dask.errors import WeglError

        def failing(folder, task, **options):
            if task.index == index:
                n_before = len([*Path(seen).iterdir()])
                Path(seen, str(n_before)).touch()
                if n_before < times:
                    if kind == "WeglError":
                        raise WeglError("the input is at fault")
                    raise {"OSError": OSError, "ZeroDivisionError": ZeroDivisionError}[kind]("by chance")
            return embed_shard(folder, task, **options)

        return failing

    return make


def test_a_task_that_fails_is_tried_again(
    run, mutag_job, undisturbed, replaced_on_workers, attempts, same_bytes, tmp_path
):
    replaced_on_workers("wegl_dask.tasks", "embed_shard", fail_in(attempts, "OSError", times=2))
    run(mutag_job(cluster={"retries": 2}))
    assert len([*attempts.iterdir()]) == 3
    assert same_bytes(tmp_path / "out", undisturbed)


def test_an_error_meant_for_the_user_is_not_tried_again(run, mutag_job, replaced_on_workers, attempts):
    replaced_on_workers("wegl_dask.tasks", "embed_shard", fail_in(attempts, "WeglError", times=9))
    with pytest.raises(WeglError, match=r"^the input is at fault$"):
        run(mutag_job(cluster={"retries": 2}))
    assert len([*attempts.iterdir()]) == 1


def test_an_unexpected_error_is_one_line_that_names_the_shard_and_a_traceback_for_debugging(
    command, run, job_file, mutag_job, undisturbed, replaced_on_workers, attempts, same_bytes, contents, tmp_path
):
    replaced_on_workers("wegl_dask.tasks", "embed_shard", fail_in(attempts, "ZeroDivisionError", times=4))
    job = job_file(mutag_job(cluster={"retries": 1}))
    failed = command("run", job)
    assert failed.code == 1
    assert "Traceback" not in failed.err
    assert failed.err.splitlines()[-1] == (
        "wegl-dask: embed: 1 of 12 parts failed: shard 3: ZeroDivisionError: by chance. What was finished stays valid; run "
        "the same job again to make the rest"
    )
    assert len([*attempts.iterdir()]) == 2
    assert len(contents(tmp_path / "out")) == 11
    debugged = command("--debug", "run", job)
    assert debugged.code == 1
    assert "Traceback" in debugged.err
    assert "ZeroDivisionError: by chance" in debugged.err
    run(mutag_job())
    assert same_bytes(tmp_path / "out", undisturbed)


def test_a_full_disk_is_one_line_and_leaves_no_beginnings(
    command, run, job_file, mutag_job, undisturbed, replaced_on_workers, attempts, same_bytes, tmp_path
):
    seen = str(attempts)

    def make(write_hashed):
        import errno
        from pathlib import Path

        def full(file, content):
            if "data/.tmp-part-00003" in file.name and len([*Path(seen).iterdir()]) < 3:
                Path(seen, str(len([*Path(seen).iterdir()]))).touch()
                file.write(b"the beginning")
                raise OSError(errno.ENOSPC, "No space left on device")
            return write_hashed(file, content)

        return full

    replaced_on_workers("wegl_dask.folders", "_write_hashed", make)
    job = job_file(mutag_job(cluster={"retries": 2}))
    failed = command("run", job)
    assert failed.code == 1
    line = failed.err.splitlines()[-1]
    assert "data/part-00003.parquet: the disk is full. Free some space" in line
    assert "Traceback" not in failed.err
    assert [*(tmp_path / "out").rglob(".*")] == []
    run(mutag_job())
    assert same_bytes(tmp_path / "out", undisturbed)


def test_a_graph_that_no_solver_can_do_is_rejected_with_the_reason(
    run, mutag_job, replaced_on_workers, table, tmp_path
):
    def make(embed_points):
        import dataclasses

        import numpy as np

        def failing(points, reference, **options):
            made = embed_points(points, reference, **options)
            large = dict.fromkeys(np.flatnonzero(np.diff(points.offsets) > 16).tolist(), "marginals off")
            return dataclasses.replace(made, failures=large)

        return failing

    replaced_on_workers("wegl_dask.transport", "embed_points", make)
    summary = run(mutag_job())
    data, rejected = table(tmp_path / "out"), table(tmp_path / "out", "rejected")
    assert data.num_rows + rejected.num_rows == 188
    assert (summary.rows, summary.rejected) == (data.num_rows, rejected.num_rows)
    assert set(rejected.column("reason").to_pylist()) == {"marginals off"}
    assert verify_run(RunFolder(str(tmp_path / "out"))) == []
    with pytest.raises(SourceError, match=r"row \d+ \(id \d+\): marginals off"):
        run(mutag_job("strict", source={"on_error": "fail"}))


# --- The folder and the scheduler ---


def test_a_second_run_on_the_same_folder_is_refused_while_the_first_goes_on(
    run, mutag_job, command, job_file, tmp_path
):
    folder = RunFolder(str(tmp_path / "out"))
    with folder.lock():
        refused = command("run", job_file(mutag_job()))
    assert refused.code == 1
    assert f"another run is writing in {tmp_path / 'out'} (process {os.getpid()} on " in refused.err
    run(mutag_job())


def test_a_part_written_anew_behind_the_runs_back_is_noticed(run, mutag_job, monkeypatch, tmp_path):
    """A task of a killed run, on a worker that lives on, may write its part when the next run has begun."""
    complete = Run.complete

    def complete_and_disturb(running, stage, function, descriptors):
        records = complete(running, stage, function, descriptors)
        if stage == "embed":
            with running.folder.recording("embed", 3, "of another job") as part:
                part.write("data", b"another job's", rows=1)
        return records

    monkeypatch.setattr(Run, "complete", complete_and_disturb)
    with pytest.raises(WeglError, match=r"part 3 of the stage embed was written anew .* run the job again"):
        run(mutag_job())
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    monkeypatch.undo()
    run(mutag_job())
    assert verify_run(RunFolder(str(tmp_path / "out"))) == []


SCHEDULER = """
import sys
from wegl_dask.cluster import open_client
from wegl_dask.spec import ClusterTable

if __name__ == "__main__":
    with open_client(ClusterTable(workers=1, memory_limit="1GB")) as client:
        print(client.scheduler.address, flush=True)
        sys.stdin.read()
"""


def test_a_scheduler_that_goes_away_ends_the_command_with_one_line(command, job_file, mutag_job, wait_until, tmp_path):
    script = tmp_path / "scheduler.py"
    script.write_text(SCHEDULER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen([sys.executable, str(script)], **pipes) as scheduler:
        address = scheduler.stdout.readline().strip()
        job = mutag_job(source={"nodes_per_shard": 30}, cluster={"kind": "scheduler", "address": address})
        with command.start("run", job_file(job), shared=False) as process:
            wait_until(lambda: [*(tmp_path / "out" / "records").glob("ingest-*")], "the first part")
            scheduler.kill()
            _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in err
    # The stage is that which it had come to.
    assert re.fullmatch(
        r"wegl-dask: \w+: the connection to the scheduler was lost\. What was finished stays valid; run the same job again "
        "when the scheduler is there",
        err.splitlines()[-1],
    )


@pytest.mark.slow
def test_a_scheduler_that_is_away_for_half_a_minute_delays_the_run_and_no_more(
    command, job_file, mutag_job, undisturbed, same_bytes, wait_until, tmp_path
):
    """It is stopped and goes on, as on a machine that swaps, or behind a network that is cut for a while."""
    script, out = tmp_path / "scheduler.py", tmp_path / "out"
    script.write_text(SCHEDULER)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with subprocess.Popen([sys.executable, str(script)], **pipes) as scheduler:
        address = scheduler.stdout.readline().strip()
        job = mutag_job(cluster={"kind": "scheduler", "address": address})
        with command.start("run", job_file(job), shared=False) as process:
            wait_until(lambda: [*(out / "records").glob("ingest-*")], "the first part")
            scheduler.send_signal(signal.SIGSTOP)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(30)
            scheduler.send_signal(signal.SIGCONT)
            _, err = process.communicate(timeout=60)
        scheduler.stdin.close()
    assert process.returncode == 0, err
    assert same_bytes(out, undisturbed)


# --- Signals ---


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_command_at_once_and_leaves_nothing_behind(
    number, code, command, run, job_file, mutag_job, undisturbed, wait_until, same_bytes, tmp_path
):
    out = tmp_path / "out"
    job = job_file(mutag_job(cluster={"workers": 1, "memory_limit": "1GB"}))
    with command.start("run", job, shared=False) as process:
        wait_until(lambda: [*(out / "records").glob("ingest-*")], "the first part")
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err.splitlines()[-1] == (
        f"wegl-dask: stopped by {number.name}. What was finished stays valid; run the same command again to go on from there"
    )
    assert "Traceback" not in err
    assert family
    assert psutil.wait_procs(family, timeout=60)[1] == []
    assert [*out.rglob(".*")] == []
    run(mutag_job())
    assert same_bytes(out, undisturbed)


def test_a_signal_while_the_workers_start_ends_the_command_too(command, job_file, mutag_job, wait_until):
    with command.start("run", job_file(mutag_job(cluster={"workers": 2})), shared=False) as process:
        parent = psutil.Process(process.pid)
        wait_until(lambda: parent.children(recursive=True), "the first worker")
        family = parent.children(recursive=True)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopped by SIGTERM" in err
    assert "Traceback" not in err
    assert psutil.wait_procs(family, timeout=60)[1] == []
