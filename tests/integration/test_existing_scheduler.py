"""A job on a scheduler and workers that somebody else has started: TLS, without this package, in networks that fail."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from wegl_dask import __version__
from wegl_dask.cluster import open_client
from wegl_dask.spec import ClusterTable

ROOT = Path(__file__).parents[2]
CERTIFICATES = ROOT / "deploy" / "make-certificates"

# Found by Python wherever it starts; it lets the package be imported from a wheel on the path alone.
WITHOUT_THE_PACKAGE = """
import importlib.machinery
import sys


class FromWheels:
    def find_spec(self, name, path=None, target=None):
        if name != "wegl_dask":
            return None
        wheels = [entry for entry in sys.path if entry.endswith(".whl")]
        spec = importlib.machinery.PathFinder.find_spec(name, wheels)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec


sys.meta_path.insert(0, FromWheels())
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Keys of [cluster] for certificates of an authority, or of another one that nobody trusts."""
    folder = tmp_path_factory.mktemp("certificates")
    for authority in ("ours", "theirs"):
        subprocess.run([CERTIFICATES, folder / authority], check=True)

    def keys(authority="ours"):
        files = {"tls_ca_file": "ours/ca.crt", "tls_cert": f"{authority}/tls.crt", "tls_key": f"{authority}/tls.key"}
        return {key: str(folder / name) for key, name in files.items()}

    return keys


@pytest.fixture(scope="module")
def dask_process(tmp_path_factory):
    """Start a scheduler or a worker as anybody would, in a folder of its own; nothing of it outlives the tests."""
    folder = tmp_path_factory.mktemp("processes")
    hidden = folder / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(textwrap.dedent(WITHOUT_THE_PACKAGE))
    started = []

    def start(kind, *arguments, tls, prefix=(), path=hidden, environment=None):
        files = [f"--{name.replace('_', '-')}={value}" for name, value in tls.items()]
        log = folder / f"{kind}-{len(started)}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                [*prefix, sys.executable, "-m", f"distributed.cli.dask_{kind}", *map(str, arguments), *files],
                env={**os.environ, "PYTHONPATH": str(path), **(environment or {})},
                cwd=folder,
                stderr=file,
                stdout=file,
            )
        started.append(process)
        return SimpleNamespace(process=process, log=log)

    yield start
    for process in started:
        process.terminate()
    for process in started:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def foreign_cluster(dask_process, certificates, tmp_path_factory, wait_until):
    """Address of a scheduler with one worker, on the loopback, by TLS, both without this package."""
    address_file = tmp_path_factory.mktemp("scheduler") / "scheduler.json"
    dask_process(
        "scheduler",
        *("--host", "tls://127.0.0.1", "--port", 0, "--no-dashboard", "--scheduler-file", address_file),
        tls=certificates(),
    )
    wait_until(lambda: address_file.exists() and address_file.stat().st_size > 0, "the scheduler")
    address = json.loads(address_file.read_text())["address"]
    dask_process("worker", address, "--nthreads", 1, "--no-nanny", "--no-dashboard", tls=certificates())
    return address


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel of the package, as far as Python imports from it."""
    path = tmp_path_factory.mktemp("wheel") / "wegl_dask-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted((ROOT / "wegl_dask").rglob("*.py")):
            archive.write(file, file.relative_to(ROOT))
    return path


def settings(tls, **more):
    keys = {f"cluster.{key}": value for key, value in {**tls, **more}.items()}
    return [argument for key, value in keys.items() for argument in ("--set", f"{key}={json.dumps(str(value))}")]


def test_a_job_runs_by_tls_on_workers_that_are_given_the_package(
    foreign_cluster, certificates, wheel, command, job_file, molecules_job, run, same_bytes, tmp_path
):
    # For k-means new workers import some seconds' worth.
    reference = {"kind": "sample"}
    job = job_file(molecules_job(reference=reference))
    here = settings(certificates())

    done = command("run", job, "--scheduler", foreign_cluster, *here, shared=False)
    assert done.code == 1
    message, *table = done.err.splitlines()
    assert f"install wegl-dask {__version__} where they run" in message
    assert message.endswith("or set cluster.upload to a wheel of it")
    assert [cell.strip() for cell in table[1].split("|")] == ["", "package", "client", "scheduler", "workers", ""]
    assert not (tmp_path / "out" / "data").exists()

    wrong = settings(certificates("theirs"))
    done = command("run", job, "--scheduler", foreign_cluster, *wrong, shared=False)
    assert done.code == 1
    assert done.err.startswith(
        f"wegl-dask: cannot reach the scheduler at {foreign_cluster}: it hangs up on our certificate"
    )
    assert len(done.err.splitlines()) == 1

    upload = settings(certificates(), upload=wheel)
    done = command("run", job, "--scheduler", foreign_cluster, *upload, shared=False)
    assert done.code == 0, done.err
    run(molecules_job("here", reference=reference))
    assert same_bytes(tmp_path / "out", tmp_path / "here")

    def heavy_modules():
        import sys

        return [name for name in ("ot", "torch", "jax", "cupy", "tensorflow") if name in sys.modules]

    other = shutil.copy(wheel, tmp_path / wheel.name)
    with zipfile.ZipFile(other, "a") as archive:
        archive.writestr("wegl_dask/more.py", "")
    done = command("run", job, "--scheduler", foreign_cluster, *settings(certificates(), upload=other), shared=False)
    assert done.code == 1
    assert "comes too late: another wheel was uploaded to the scheduler or its workers" in done.err

    # Nobody has told this worker that POT should leave array libraries alone.
    with open_client(ClusterTable(kind="scheduler", address=foreign_cluster, **certificates())) as client:
        assert list(client.run(heavy_modules).values()) == [[]]


# --- Machines with a network between them ---


class Network:
    """Machines with addresses of their own, as network namespaces on a bridge; they are gone with their processes."""

    def __init__(self):
        self._held = []
        self._hub = self._hold("unshare", "--user", "--map-root-user", "--net")
        self._ip(self._hub, "link add bridge type bridge")
        self._ip(self._hub, "link set bridge up")

    def machine(self, number):
        """Add a machine with the address 10.77.0.`number`: what to put before a command to run it there."""
        holder = self._hold(*self._inside(self._hub), "unshare", "--net")
        self._ip(self._hub, f"link add port{number} type veth peer name eth0 netns {holder}")
        self._ip(self._hub, f"link set port{number} master bridge up")
        self._ip(holder, f"address add 10.77.0.{number}/24 dev eth0")
        self._ip(holder, "link set eth0 up")
        self._ip(holder, "link set lo up")
        return self._inside(holder)

    def plug(self, number, state):
        """Plug the cable of a machine in, "up", or out, "down"."""
        self._ip(self._hub, f"link set port{number} {state}")

    def close(self):
        for process in self._held[::-1]:
            process.communicate()

    def _hold(self, *unshare):
        process = subprocess.Popen(
            [*unshare, "sh", "-c", "echo held; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._held.append(process)
        if process.stdout.readline() != "held\n":
            pytest.skip(f"this machine makes no network namespaces: {' '.join(unshare)} failed")
        return process.pid

    @staticmethod
    def _inside(holder):
        return ["nsenter", f"--target={holder}", "--user", "--net", "--preserve-credentials"]

    def _ip(self, holder, arguments):
        subprocess.run([*self._inside(holder), "ip", *arguments.split()], check=True)


@pytest.fixture
def network():
    network = Network()
    yield network
    network.close()


# How soon a worker that is silent is given up: 5 minutes by default.
SOON = {"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "20s"}


@pytest.mark.clusters
def test_a_job_outlives_a_worker_that_is_cut_off_for_a_while_and_one_that_is_for_good(
    network, dask_process, certificates, wait_until, command, job_file, molecules_job, run, same_bytes, tmp_path
):
    at_scheduler, at_client = network.machine(1), network.machine(2)
    address = "tls://10.77.0.1:8786"
    common = {"tls": certificates(), "path": ROOT, "environment": SOON}
    scheduler = dask_process("scheduler", "--host", "tls://10.77.0.1", "--no-dashboard", prefix=at_scheduler, **common)
    workers = {}
    for number in (11, 12, 13):
        options = ("--host", f"tls://10.77.0.{number}", "--nthreads", 1, "--no-nanny", "--no-dashboard")
        workers[number] = dask_process("worker", address, *options, prefix=network.machine(number), **common)
    wait_until(lambda: scheduler.log.read_text().count("Register worker addr") == 3, "three workers")

    job = job_file(molecules_job(source={"nodes_per_shard": 60}))
    arguments = ["run", job, "--scheduler", address, "--log-json", *settings(certificates())]
    with command.start(*arguments, shared=False, prefix=at_client) as process:
        events = map(json.loads, process.stderr)
        next(event for event in events if event.get("stage") == "moments" and event["event"] == "part")
        network.plug(12, "down")
        network.plug(13, "down")
        # The client waits for what the lost workers hold. What the third one does is seen in the folder.
        records = tmp_path / "out" / "records"
        before = len(list(records.iterdir()))
        wait_until(lambda: len(list(records.iterdir())) > before + 3, "parts of the third worker")
        network.plug(12, "up")
        last_stage = {event["worker"] for event in events if event.get("stage") == "embed" and event["event"] == "part"}
        assert process.wait() == 0
    assert {address.removeprefix("tls://10.77.0.").partition(":")[0] for address in last_stage} == {"11", "12"}
    run(molecules_job("here", source={"nodes_per_shard": 60}))
    assert same_bytes(tmp_path / "out", tmp_path / "here")

    # One that is away for too long ends, for whatever watches over it to start it again.
    network.plug(12, "down")
    removed = re.compile(r"Remove worker addr: tls://10\.77\.0\.12:")
    wait_until(lambda: removed.search(scheduler.log.read_text()), "the worker to be given up", seconds=120)
    network.plug(12, "up")
    wait_until(lambda: workers[12].process.poll() is not None, "the worker to end")
