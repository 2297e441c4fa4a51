"""Jobs of a real Slurm: its controller and one node, as processes of this test on the loopback."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wegl_dask.cluster import open_client
from wegl_dask.errors import WeglError
from wegl_dask.slurm_client import DEATH_SECONDS
from wegl_dask.spec import ClusterTable

pytestmark = pytest.mark.clusters

ROOT = Path(__file__).parents[2]
SBATCH = ROOT / "deploy" / "slurm" / "wegl.sbatch"
DAEMONS = ("munged", "slurmctld", "slurmd")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

# The node claims more cores than the machine may have: what runs here is no load.
CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
MpiDefault=none
ReturnToService=2
KillWait=2
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 CPUs=8 RealMemory=32000
PartitionName=debug Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory, wait_until):
    """Start Slurm with one node; its commands find it by the environment."""
    missing = [name for name in DAEMONS if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not found: run  apt-get install slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = {"controller_port": one.getsockname()[1], "node_port": two.getsockname()[1]}
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key, configuration = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    configuration.write_text(CONFIGURATION.format(folder=folder, user=user, **ports))

    # Munge takes no folder on whose way others than root can write, which those of tests may be.
    munge = [
        f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("socket", "pid-file", "log-file", "seed-file")
    ]
    commands = (
        ["munged", "--foreground", "--force", f"--key-file={key}", *munge],
        ["slurmctld", "-D", "-f", configuration],
        ["slurmd", "-D", "-f", configuration, "-N", "localhost"],
    )
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("SLURM_CONF", str(configuration))
        patch.setenv("PATH", PATH)
        patch.setenv("PYTHONPATH", str(ROOT))
        for command in commands:
            log = stack.enter_context((folder / f"{command[0]}.out").open("w"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            if command[0] == "munged":
                wait_until((folder / "munge.socket").exists, "munged")
        wait_until(lambda: answer("sinfo", "--noheader", "--format=%T") == "idle", "a node of Slurm", interval=0.5)
        yield
        ask("scancel", "--me")
        wait_until(lambda: answer("squeue", "--me", "--noheader") == "", "the end of all jobs", interval=0.5)


def ask(*command):
    """Run one of Slurm's commands: what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


def answer(*command):
    """Ask, of a Slurm that is starting or busy; None where it does not answer."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def queue():
    """The numbers of the jobs that wait or run. One that is cancelled is listed until its last process is gone."""
    rows = ask("squeue", "--me", "--noheader", "--format=%i %T").splitlines()
    return [number for number, state in map(str.split, rows) if state != "COMPLETING"]


@pytest.fixture
def keys(tmp_path):
    """Keys of [cluster] for the Slurm of these tests."""

    def keys(**more):
        here = {"kind": "slurm", "memory": "1GB", "interface": "lo", "job_directory": str(tmp_path / "jobs")}
        return here | more

    return keys


# --- The client outside ---


@pytest.mark.usefixtures("slurm")
def test_a_run_goes_on_in_another_job_where_one_was_cancelled(
    keys, command, job_file, molecules_job, run, same_bytes, tmp_path
):
    job = job_file(molecules_job(source={"nodes_per_shard": 60}, cluster=keys(cores=2, memory="2GB")))
    with command.start("run", job, "--log-json", shared=False) as process:
        events = map(json.loads, process.stderr)
        next(event for event in events if event.get("stage") == "moments" and event["event"] == "part")
        [first] = queue()
        ask("scancel", first)
        rest = list(events)
        assert process.wait() == 0, rest
    assert f"job {first} of Slurm has ended, another follows" in {event["message"] for event in rest}
    assert queue() == []
    run(molecules_job("here", source={"nodes_per_shard": 60}))
    assert same_bytes(tmp_path / "out", tmp_path / "here")
    # Temporary certificates are gone with the client.
    assert {path.suffix for path in (tmp_path / "jobs").iterdir()} == {".out", ".err"}


@pytest.mark.usefixtures("slurm")
def test_connections_are_encrypted_and_a_worker_has_one_thread_and_a_share_of_the_memory(keys):
    with open_client(ClusterTable(**keys(cores=2, memory="2GB"))) as client:
        client.wait_for_workers(2, timeout=60)
        workers = client.scheduler_info(n_workers=-1)["workers"]
        assert all(address.startswith("tls://") for address in (client.scheduler.address, *workers))
        assert [worker["nthreads"] for worker in workers.values()] == [1, 1]
        # Nine tenths of a half, but for the digits that Dask writes.
        assert [worker["memory_limit"] for worker in workers.values()] == pytest.approx([9e8, 9e8], rel=1e-4)
        assert set(client.run(os.getenv, "OMP_NUM_THREADS").values()) == {"1"}


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"queue": "nope"}, r"Slurm does not take the job: .*invalid partition specified: nope"),
        ({"memory": "100TB"}, r"Slurm does not take the job: .*Requested node configuration is not available"),
        ({"job_extra": ["--nonsense"]}, r"Slurm does not take the job: .*unrecognized option '--nonsense'"),
        (
            {"job_prologue": ["echo module: not found >&2", "exit 1"]},
            r"have ended before a worker has connected: the last line of wegl-dask-\d+\.err is  module: not found\. What",
        ),
    ],
)
def test_jobs_that_slurm_does_not_take_or_that_cannot_run_are_one_message(keys, more, message):
    with pytest.raises(WeglError, match=message), open_client(ClusterTable(**keys(**more))):
        pass
    assert queue() == []


@pytest.mark.usefixtures("slurm")
def test_a_run_that_waits_for_its_jobs_says_for_what_and_takes_them_back_when_it_is_stopped(
    keys, command, job_file, molecules_job
):
    job = job_file(molecules_job(cluster=keys(job_extra=["--hold"])))
    with command.start("run", job, shared=False) as process:
        line = process.stderr.readline()
        assert re.match(r"waiting for Slurm: 1 of 1 jobs in the queue, job \d+ is PENDING \(JobHeldUser\)", line)
        process.terminate()
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 143
    assert errors.splitlines()[-1].startswith("wegl-dask: stopped by SIGTERM.")
    assert queue() == []


@pytest.mark.usefixtures("slurm")
def test_jobs_whose_client_was_killed_end_by_themselves(keys, command, job_file, molecules_job, wait_until):
    job = job_file(molecules_job(source={"nodes_per_shard": 60}, cluster=keys()))
    with command.start("run", job, "--log-json", shared=False) as process:
        next(line for line in process.stderr if json.loads(line)["event"] == "part")
        process.kill()
    killed = time.monotonic()
    wait_until(lambda: answer("squeue", "--me", "--noheader") == "", "the end of the job", interval=1)
    assert time.monotonic() - killed < 2 * DEATH_SECONDS


# --- The client inside of an allocation ---


@pytest.fixture
def batch(slurm, job_file, molecules_job, tmp_path, monkeypatch):
    """Put wegl.sbatch into the queue with a job of several shards: its number, and its log."""
    del slurm
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("INTERFACE", "lo")

    def batch():
        job = job_file(molecules_job(source={"nodes_per_shard": 60}))
        number = ask("sbatch", "--parsable", "--ntasks=2", "--mem-per-cpu=1G", SBATCH, job)
        return number, tmp_path / f"wegl-dask-{number}.log"

    return batch


@pytest.fixture
def is_whole(molecules_job, run, same_bytes, tmp_path):
    """Whether the job of `batch` has come to its end, and made what a run made that nothing had disturbed."""

    def is_whole():
        run(molecules_job("here", source={"nodes_per_shard": 60}))
        return (tmp_path / "out" / "_SUCCESS").exists() and same_bytes(tmp_path / "out", tmp_path / "here")

    return is_whole


def state(number):
    """The state of a job that waits or runs; nothing where it has ended, None where Slurm is busy."""
    return answer("squeue", "--me", "--noheader", "--format=%T", f"--jobs={number}")


def test_a_batch_job_whose_time_is_over_is_put_into_the_queue_again_and_goes_on(batch, is_whole, tmp_path, wait_until):
    number, log = batch()
    wait_until(lambda: list(tmp_path.glob("out/records/moments-*")), "the second stage")
    # What Slurm sends ahead of the time limit.
    ask("scancel", "--batch", "--signal=USR1", number)
    wait_until(lambda: state(number) == "PENDING", "the requeue", interval=0.5)
    assert "stopped by SIGTERM. What was finished stays valid" in log.read_text()
    assert f"job {number} goes into the queue again" in log.read_text()
    # Slurm waits two minutes before it starts a job again; for what it has revoked to be older, some seconds will do.
    ask("scontrol", "update", f"jobid={number}", "starttime=now+5")
    wait_until(lambda: answer("squeue", "--me", "--noheader") == "", "the end of the job", interval=0.5)
    assert is_whole(), log.read_text()
    assert list(tmp_path.glob(".wegl-dask-*")) == []


def test_a_batch_job_that_is_cancelled_stays_out_of_the_queue_and_the_next_goes_on(
    batch, is_whole, tmp_path, wait_until, written_at
):
    number, log = batch()
    wait_until(lambda: list(tmp_path.glob("out/records/moments-*")), "the second stage")
    ask("scancel", number)
    wait_until(lambda: answer("squeue", "--me", "--noheader") == "", "the end of the job", interval=0.5)
    assert "JobState=CANCELLED" in ask("scontrol", "show", "job", number)
    assert "goes into the queue again" not in log.read_text()
    assert not (tmp_path / "out" / "_SUCCESS").exists()
    graphs = {name: moment for name, moment in written_at(tmp_path / "out").items() if name.startswith("graphs")}
    assert graphs
    following, log = batch()
    assert following != number
    wait_until(lambda: answer("squeue", "--me", "--noheader") == "", "the end of the next job", interval=0.5)
    assert is_whole(), log.read_text()
    assert graphs.items() <= written_at(tmp_path / "out").items()
