"""Workers that are jobs of Slurm, submitted by dask-jobqueue and replaced when they end, for as long as their client."""

import logging
import math
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask.config
from dask.utils import parse_bytes
from distributed import Client
from distributed.core import Status
from distributed.security import Security

from wegl_dask.errors import JobFileError, MissingDependencyError, WeglError
from wegl_dask.local_client import SMALLEST_MEMORY, check_dashboard, dashboard_options, has_dashboard
from wegl_dask.progress import format_bytes
from wegl_dask.quiet import silenced
from wegl_dask.scheduler_client import check_workers, close_client
from wegl_dask.spec import ClusterTable
from wegl_dask.stopping import signals_held
from wegl_dask.tls import security
from wegl_dask.worker_environment import PROFILE, WORKER_ENVIRONMENT, as_variable

JOB_NAME = "wegl-dask"

MEMORY_A_CORE = "2GB"

WORKERS_SHARE = 0.9
"""Part of a job's memory that its workers may fill; the rest is for the process that watches over them. Slurm kills a
whole job that takes more than it has, Dask restarts a worker."""

DEATH_SECONDS = 60
"""How long a job looks for its client before it ends."""

KEEP_SECONDS = 10
LONGEST_KEEP_SECONDS = 600
QUEUED_SECONDS = 60
SQUEUE_SECONDS = 60
CLOSE_SECONDS = 30

_WALLTIME = re.compile(
    r"(?:(?P<days>\d+)-(?P<hours>\d+)(?::(?P<minutes>\d+))?(?::(?P<seconds>\d+))?)"
    r"|(?:(?P<h>\d+):(?P<m>\d+):(?P<s>\d+))"
    r"|(?:(?P<only_minutes>\d+)(?::(?P<and_seconds>\d+))?)"
)

_log = logging.getLogger(__name__)


@contextmanager
def slurm_client(table: ClusterTable) -> Iterator[Client]:
    """Submit jobs, wait for the first worker and open a client; see `wegl_dask.cluster.open_client`.

    The scheduler runs in this process. When the block ends, however it ends, the jobs are cancelled.

    Raises
    ------
    JobFileError
        If a key of the table cannot be used.
    WeglError
        If Slurm is not there or does not take the jobs, or they end before a worker has connected.
    """
    arguments = cluster_arguments(table)
    check_dashboard(table)
    with ExitStack() as stack:
        certificates = stack.enter_context(_certificates(table, arguments["log_directory"]))
        settings = {"distributed.scheduler.allowed-failures": table.allowed_failures}
        with signals_held(), dask.config.set(settings):
            cluster = _start(certificates, arguments)
            stack.callback(_close, cluster)
            client = Client(cluster)
            stack.callback(close_client, client)
        cluster.scale(jobs=table.jobs)
        _wait_for_a_worker(client, cluster, arguments["log_directory"])
        check_workers(client, cluster.scheduler_address)
        stack.enter_context(_kept(cluster, table.jobs))
        yield client


def memory_of_a_worker(table: ClusterTable) -> int:
    """Memory limit of each worker, in bytes; JobFileError where the job's is no size or too small."""
    memory = int(WORKERS_SHARE * _memory_of_a_job(table) / table.cores)
    if memory < SMALLEST_MEMORY:
        raise JobFileError(
            f'cluster.memory = "{table.memory}" on cluster.cores = {table.cores} leaves {format_bytes(memory)} for a worker; '
            f"it needs {format_bytes(SMALLEST_MEMORY)}: raise the one or lower the other"
        )
    return memory


def cluster_arguments(table: ClusterTable) -> dict[str, Any]:
    """Translate the table into arguments of `dask_jobqueue.SLURMCluster`, but for the certificates.

    A job is `cores` workers of one thread. They end before the time limit does, one after the other, so that Slurm need
    not kill them with what they are doing.
    """
    memory = memory_of_a_worker(table)
    walltime = _seconds(table.walltime)
    margin = min(max(120, walltime // 20), walltime // 2)
    environment = {**WORKER_ENVIRONMENT, as_variable(PROFILE): str(has_dashboard(table))}
    return {
        "queue": table.queue,
        "account": table.account,
        "cores": table.cores,
        "processes": table.cores,
        "memory": memory * table.cores,
        "job_mem": f"{math.ceil(_memory_of_a_job(table) / 2**20)}M",
        "walltime": table.walltime,
        "job_extra_directives": table.job_extra,
        "job_name": JOB_NAME,
        "job_script_prologue": [
            *table.job_prologue,
            *(f"export {name}={value}" for name, value in environment.items()),
        ],
        "log_directory": _job_directory(table),
        "local_directory": table.local_directory,
        "interface": table.interface,
        "death_timeout": DEATH_SECONDS,
        "worker_extra_args": [
            *("--lifetime", f"{walltime - margin}s"),
            *("--lifetime-stagger", f"{margin // 2}s"),
            # Its port answers without a certificate, and is there without a dashboard too: for the machine alone.
            *("--no-dashboard", "--dashboard-address", "127.0.0.1:0"),
        ],
        "scheduler_options": dashboard_options(table),
    }


def _memory_of_a_job(table: ClusterTable) -> int:
    if table.memory is None:
        return table.cores * int(parse_bytes(MEMORY_A_CORE))
    try:
        return int(parse_bytes(table.memory))
    except ValueError as error:
        raise JobFileError(
            f'cluster.memory = "{table.memory}" is not a size; write for example "16GB" or "60GiB"'
        ) from error


def _seconds(walltime: str) -> int:
    """Read a time limit as sbatch writes it.

    Examples
    --------
    >>> [_seconds(text) for text in ("90", "90:30", "01:30:00", "1-12", "1-12:30", "1-12:30:01")]
    [5400, 5430, 5400, 129600, 131400, 131401]
    """
    match = _WALLTIME.fullmatch(walltime)
    parts = {name: int(value) for name, value in match.groupdict(default="0").items()} if match else {}
    seconds = (
        86400 * parts.get("days", 0)
        + 3600 * (parts.get("hours", 0) + parts.get("h", 0))
        + 60 * (parts.get("minutes", 0) + parts.get("m", 0) + parts.get("only_minutes", 0))
        + (parts.get("seconds", 0) + parts.get("s", 0) + parts.get("and_seconds", 0))
    )
    if seconds < 60:
        raise JobFileError(
            f'cluster.walltime = "{walltime}" is no time limit of a minute or more; write for example "04:00:00" or '
            '"1-12:00:00" (a day and a half)'
        )
    return seconds


def _job_directory(table: ClusterTable) -> str:
    folder = Path(table.job_directory).expanduser().absolute()
    if re.search(r"\s", str(folder)):
        raise JobFileError(
            f'cluster.job_directory = "{folder}" has a space in it, which Slurm takes for its end: name another folder'
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise JobFileError(
            f'cluster.job_directory = "{folder}" cannot be made: {error.strerror}; name a folder that this machine and the '
            "nodes see"
        ) from error
    return str(folder)


# --- Starting and ending ---


def _start(certificates: Security | None, arguments: dict[str, Any]) -> Any:
    try:
        from dask_jobqueue import SLURMCluster  # noqa: PLC0415
        from dask_jobqueue.slurm import SLURMJob  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependencyError.for_extra("dask-jobqueue", "cluster") from error
    for program in ("sbatch", "squeue", "scancel"):
        if shutil.which(program) is None:
            raise WeglError(
                f'cluster.kind = "slurm" needs Slurm\'s {program}, which is not on the PATH: run this on a machine from which '
                "jobs are submitted"
            )

    class Job(SLURMJob):  # type: ignore[misc]  # dask-jobqueue is left out of the check
        """A job that remembers why Slurm has not taken it, where others would raise it into the event loop."""

        refusal: str | None = None

        async def start(self) -> None:
            try:
                await super().start()
            except (RuntimeError, ValueError, OSError) as error:
                self.refusal = str(error)
                # It counts as started, and is missed in the queue.
                self.status = Status.running

        async def close(self) -> None:
            await super().close()
            # A cluster insists on it when it ends.
            self.status = Status.closed

    with silenced():
        return SLURMCluster(
            job_cls=Job,
            security=certificates,
            silence_logs=False,
            **arguments,
        )


@contextmanager
def _certificates(table: ClusterTable, folder: str) -> Iterator[Security | None]:
    """Take the certificates of the table, or else make some for this client and its workers alone, in files of `folder`."""
    if table.insecure:
        yield None
        return
    if table.tls_ca_file is not None:
        yield security(table)
        return
    try:
        made = Security.temporary().get_tls_config_for_role("worker")
    except ImportError as error:
        raise MissingDependencyError.for_extra("cryptography", "cluster") from error
    # Nobody else may look into such a folder.
    with tempfile.TemporaryDirectory(prefix=".certificates-", dir=folder, ignore_cleanup_errors=True) as place:
        keys = {"tls_ca_file": "ca_file", "tls_cert": "cert", "tls_key": "key"}
        for name in keys.values():
            Path(place, name).write_text(made[name])
        yield security(table.model_copy(update={key: str(Path(place, name)) for key, name in keys.items()}))


def _close(cluster: Any) -> None:
    # An impatient second Ctrl-C must not leave jobs in the queue.
    with signals_held(), silenced():
        cluster.close(timeout=CLOSE_SECONDS)


def _wait_for_a_worker(client: Client, cluster: Any, log_directory: str) -> None:
    """Wait as long as Slurm lets the jobs wait; say now and then for what."""
    told, waited = 0, 0
    while True:
        try:
            client.wait_for_workers(1, timeout=1)
        except TimeoutError:
            waited += 1
        else:
            return
        jobs = {job.job_id: job for job in cluster.workers.values()}
        for job in jobs.values():
            if job.refusal is not None:
                raise WeglError(f"Slurm does not take the job: {_stderr(job.refusal)}. Check the keys of [cluster]")
        queued = _queued_jobs()
        if queued is None or not jobs or None in jobs:
            continue
        mine = {number: state for number, state in queued.items() if number in jobs}
        if not mine:
            raise WeglError(
                f"the jobs of Slurm have ended before a worker has connected: {_last_words(log_directory, jobs)}. What they "
                f"wrote is in {log_directory}"
            )
        if waited >= told:
            told = waited + QUEUED_SECONDS
            number, state = next(iter(mine.items()))
            _log.warning(
                "waiting for Slurm: %d of %d jobs in the queue, job %s is %s", len(mine), len(jobs), number, state
            )


@contextmanager
def _kept(cluster: Any, n_jobs: int) -> Iterator[None]:
    """Submit a job for each that ends, while the block runs."""
    stopped = threading.Event()

    def keep() -> None:
        pause = KEEP_SECONDS
        while not stopped.wait(pause):
            # Those that are submitted while Slurm is asked are not among its answers.
            known = {job.job_id for job in list(cluster.workers.values())}
            try:
                replaced = cluster.sync(_replace_ended, cluster, known, _queued_jobs(), n_jobs)
            except (OSError, RuntimeError) as error:
                _log.warning("jobs of Slurm that have ended are not replaced, which is tried again: %r", error)
                continue
            # Where nothing that is submitted lives, it is not submitted all the time.
            hopeless = replaced and not cluster.scheduler_info["workers"]
            pause = min(2 * pause, LONGEST_KEEP_SECONDS) if hopeless else KEEP_SECONDS

    keeper = threading.Thread(target=keep, name="wegl-dask-slurm", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        stopped.set()
        keeper.join()


async def _replace_ended(cluster: Any, known: set[str | None], queued: dict[str, str] | None, n_jobs: int) -> int:
    """Forget the jobs that Slurm has no more or has not taken, and submit as many: their number.

    `known` are the jobs that there were when Slurm was asked for those that are `queued`.
    """
    if queued is None:
        return 0
    ended = {name: job for name, job in cluster.workers.items() if job.job_id in known - queued.keys()}
    for name, job in ended.items():
        if job.refusal is None:
            _log.info("job %s of Slurm has ended, another follows", job.job_id)
        else:
            _log.warning("Slurm does not take a job, which is submitted again: %s", _stderr(job.refusal))
        job.status = Status.closed
        del cluster.workers[name]
    if ended:
        cluster.scale(jobs=n_jobs)
    return len(ended)


def _queued_jobs() -> dict[str, str] | None:
    """Ask Slurm for this user's jobs: state by number; None where it does not answer."""
    try:
        answer = subprocess.run(
            ["squeue", "--me", "--noheader", "--format=%i|%T (%r)"],  # noqa: S607  where it is differs
            capture_output=True,
            text=True,
            timeout=SQUEUE_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    rows = (line.partition("|") for line in answer.stdout.splitlines())
    return {number.strip(): state.strip() for number, _, state in rows}


def _stderr(refusal: str) -> str:
    """Cut what sbatch said out of dask-jobqueue's message."""
    said = [line.strip() for line in refusal.partition("stderr:\n")[2].splitlines() if line.strip()]
    return "; ".join(said) or " ".join(refusal.split())


def _last_words(log_directory: str, jobs: dict[str, Any]) -> str:
    for number in jobs:
        log = Path(log_directory, f"{JOB_NAME}-{number}.err")
        lines = log.read_text(errors="replace").split("\n") if log.is_file() else []
        said = [line.strip() for line in lines if line.strip()]
        if said:
            return f"the last line of {log.name} is  {said[-1]}"
    return "they wrote nothing"
