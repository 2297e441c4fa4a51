import asyncio
import itertools
import subprocess
import threading
from types import SimpleNamespace

import pytest
from dask.utils import parse_timedelta

from wegl_dask import slurm_client
from wegl_dask.cluster import open_client
from wegl_dask.errors import JobFileError, WeglError
from wegl_dask.slurm_client import cluster_arguments, memory_of_a_worker
from wegl_dask.spec import ClusterTable


@pytest.fixture
def table(tmp_path):
    def table(**keys):
        return ClusterTable(**{"kind": "slurm", "job_directory": str(tmp_path / "jobs"), **keys})

    return table


def script(arguments):
    """The batch script that dask-jobqueue makes, and the command of the workers in it."""
    from dask_jobqueue.slurm import SLURMJob

    job = SLURMJob(
        scheduler="tls://here:1", name="a", **{k: v for k, v in arguments.items() if k != "scheduler_options"}
    )
    lines = job.job_script().splitlines()
    return lines, lines[-1].split()


def test_keys_are_options_of_sbatch(table):
    lines, _ = script(
        cluster_arguments(
            table(
                queue="compute",
                account="chemistry",
                cores=4,
                memory="8GiB",
                walltime="02:00:00",
                job_extra=["--qos=long"],
                job_prologue=["module load python"],
            )
        )
    )
    for line in ("-p compute", "-A chemistry", "--cpus-per-task=4", "--mem=8192M", "-t 02:00:00", "--qos=long"):
        assert f"#SBATCH {line}" in lines
    assert lines.index("module load python") < lines.index("export OMP_NUM_THREADS=1")


def test_a_job_has_a_worker_of_one_thread_a_core_and_leaves_a_tenth_of_the_memory(table):
    _, command = script(cluster_arguments(table(cores=4, memory="8GiB")))
    options = dict(itertools.pairwise(command))
    assert options["--nthreads"] == "1"
    assert options["--nworkers"] == "4"
    assert options["--memory-limit"] == "1.80GiB"
    assert memory_of_a_worker(table(cores=4, memory="8GiB")) == int(0.9 * 2 * 2**30)


def test_the_port_of_a_worker_that_asks_for_no_certificate_is_for_its_machine_alone(table):
    _, command = script(cluster_arguments(table()))
    assert dict(itertools.pairwise(command))["--dashboard-address"] == "127.0.0.1:0"


@pytest.mark.parametrize(("address", "profile"), [(None, "False"), ("127.0.0.1:0", "True")])
def test_workers_are_profiled_where_there_is_a_dashboard_to_show_it(table, address, profile):
    pytest.importorskip("bokeh")
    lines, _ = script(cluster_arguments(table(dashboard_address=address)))
    assert f"export DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED={profile}" in lines


@pytest.mark.parametrize("walltime", ["1", "5", "30", "01:00:00", "1-00:00:00"])
def test_every_worker_ends_before_the_time_limit_of_its_job_and_has_had_half_of_it(table, walltime):
    limits = {"1": 60, "5": 300, "30": 1800, "01:00:00": 3600, "1-00:00:00": 86400}
    _, command = script(cluster_arguments(table(walltime=walltime)))
    options = dict(itertools.pairwise(command))
    lifetime, stagger = (parse_timedelta(options[name]) for name in ("--lifetime", "--lifetime-stagger"))
    # Dask draws the lifetime from lifetime - stagger to lifetime + stagger.
    assert lifetime + stagger <= limits[walltime] - 15
    assert lifetime - stagger >= limits[walltime] / 4


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"walltime": "soon"}, r'cluster\.walltime = "soon" is no time limit'),
        ({"walltime": "0"}, r'cluster\.walltime = "0" is no time limit of a minute or more'),
        ({"memory": "much"}, r'cluster\.memory = "much" is not a size'),
        ({"memory": "1GB", "cores": 4}, r'cluster\.memory = "1GB" on cluster\.cores = 4 leaves 225 MB for a worker'),
        ({"job_directory": "with space"}, r'cluster\.job_directory = ".*with space" has a space in it'),
        (
            {"job_directory": "/dev/null/jobs"},
            r'cluster\.job_directory = "/dev/null/jobs" cannot be made: Not a directory',
        ),
    ],
)
def test_keys_that_cannot_be_used_are_named(table, keys, message):
    with pytest.raises(JobFileError, match=message):
        cluster_arguments(table(**keys))


def test_a_machine_without_slurm_is_told_so(table, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WeglError, match=r"needs Slurm's sbatch, which is not on the PATH"), open_client(table()):
        pass


def test_jobs_are_found_in_the_queue_with_their_state(monkeypatch):
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **_: subprocess.CompletedProcess(command, 0, "12|PENDING (Resources)\n 7|RUNNING (None)\n", ""),
    )
    assert slurm_client._queued_jobs() == {"12": "PENDING (Resources)", "7": "RUNNING (None)"}


def test_a_controller_that_does_not_answer_is_no_empty_queue(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm_client._queued_jobs() is None


def test_jobs_that_were_submitted_while_slurm_was_asked_are_not_taken_for_ended():
    def job(number):
        return SimpleNamespace(job_id=number, refusal=None, status=None)

    scaled = []

    def scale(*, jobs):
        scaled.append(jobs)

    cluster = SimpleNamespace(workers={"0": job("11"), "1": job("12"), "2": job("13")}, scale=scale)
    # 13 came after 11 and 12, of which 11 has ended.
    assert asyncio.run(slurm_client._replace_ended(cluster, {"11", "12"}, {"12": "RUNNING"}, 3)) == 1
    assert [each.job_id for each in cluster.workers.values()] == ["12", "13"]
    assert scaled == [3]
    assert asyncio.run(slurm_client._replace_ended(cluster, {"12", "13"}, None, 3)) == 0
    assert len(cluster.workers) == 2


def test_after_an_answer_that_failed_jobs_that_end_are_still_replaced(monkeypatch):
    monkeypatch.setattr(slurm_client, "KEEP_SECONDS", 0.001)
    monkeypatch.setattr(slurm_client, "_queued_jobs", dict)
    answers = itertools.chain([TimeoutError("late"), RuntimeError("closing")], itertools.repeat(0))
    asked = threading.Semaphore(0)

    def sync(*_):
        asked.release()
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cluster = SimpleNamespace(workers={}, sync=sync, scheduler_info={"workers": {}})
    with slurm_client._kept(cluster, 2):
        assert all(asked.acquire(timeout=5) for _ in range(4))
