"""A Dask client from the job file's table ``[cluster]``: worker processes on this machine, or an existing scheduler."""

import asyncio
import fcntl
import importlib.util
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import dask.config
from dask.system import CPU_COUNT
from dask.utils import parse_bytes
from distributed import Client, LocalCluster, rpc
from distributed.security import Security
from distributed.system import MEMORY_LIMIT
from distributed.utils import LoopRunner, clean_dashboard_address
from distributed.versions import VersionMismatchWarning

from wegl_dask.errors import JobFileError, WeglError
from wegl_dask.progress import format_bytes
from wegl_dask.spec import ClusterTable
from wegl_dask.worker_checks import blas_threads, check_versions, version_reporter, warn_of_threads

WORKER_ENVIRONMENT = {
    # The transport solver is bound to one core, and sums in another order give other last bits.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    # POT imports every array library that is installed, which takes 1.5 s for torch alone.
    "POT_BACKEND_DISABLE_PYTORCH": "1",
    "POT_BACKEND_DISABLE_JAX": "1",
    "POT_BACKEND_DISABLE_CUPY": "1",
    "POT_BACKEND_DISABLE_TENSORFLOW": "1",
    # Dask has workers hand every freed block back to the system at once; then arrays of more than 128 kB are mapped and
    # zeroed anew each time, which doubles the time of the stages.
    # One arena, since that of a thread gives its heaps back at once whatever these say.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": "134217728",
    "MALLOC_MMAP_THRESHOLD_": "33554432",
}
"""What must stand in a worker's environment before NumPy and POT are imported."""

SMALLEST_MEMORY = 500_000_000
"""Memory of a worker, in bytes, below which it would be stopped by what it imports before it has read a graph."""

SCRATCH_PREFIX = "wegl-dask-"

START_SECONDS = 60
CONNECT_SECONDS = 30
ANSWER_SECONDS = 35
WORKERS_SECONDS = 60
CLOSE_SECONDS = 10


@contextmanager
def open_client(table: ClusterTable) -> Iterator[Client]:
    """Open a client on the cluster that the table describes, and close it again.

    A local cluster lives as long as the client. When the block ends, however it ends, its workers are killed with what
    they were doing; it leaves no process and no file behind. An existing scheduler is left running.

    Parameters
    ----------
    table : ClusterTable

    Yields
    ------
    distributed.Client

    Raises
    ------
    JobFileError
        If a key of the table cannot be used on this machine.
    WeglError
        If workers do not start, the scheduler cannot be reached, has no workers, or has workers with other versions
        of the packages that matter.

    Notes
    -----
    Workers of a local cluster import the script that is running, as everything does that Python's multiprocessing
    starts; a script must do its work under ``if __name__ == "__main__":``.
    """
    with _local_client(table) if table.kind == "local" else _scheduler_client(table) as client:
        yield client


def dashboard_link(table: ClusterTable, client: Client) -> str | None:
    """Address of the dashboard for a browser; None where there is none."""
    if table.kind == "local" and not _has_dashboard(table):
        return None
    link: str | None = client.dashboard_link
    return link


# --- Processes on this machine ---


@contextmanager
def _local_client(table: ClusterTable) -> Iterator[Client]:
    _refuse_to_start_from_a_worker()
    n_workers = table.workers or CPU_COUNT
    memory = memory_of_a_worker(table.memory_limit, n_workers)
    if _has_dashboard(table):
        _check_dashboard_address(str(table.dashboard_address))
    with ExitStack() as stack:
        stack.enter_context(_worker_environment())
        scratch = stack.enter_context(_scratch_folder(table.local_directory))
        settings = {
            "temporary-directory": scratch,
            "distributed.scheduler.allowed-failures": table.allowed_failures,
            **{f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
        }
        with _signals_held(), dask.config.set(settings):
            cluster = _start_cluster(table, n_workers, memory)
            client = Client(cluster)
            stack.callback(_close_local, client, cluster)
        yield client


def _start_cluster(table: ClusterTable, n_workers: int, memory: int) -> LocalCluster:
    # Without a dashboard a port is opened all the same, for metrics; any free one will do.
    dashboard = {"dashboard": _has_dashboard(table), "dashboard_address": table.dashboard_address or "127.0.0.1:0"}
    try:
        with _silenced():
            return LocalCluster(
                n_workers=n_workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                memory_limit=memory,
                scheduler_kwargs=dashboard,
                death_timeout=START_SECONDS,
            )
    except (OSError, RuntimeError) as error:
        raise WeglError(
            f"{n_workers} local workers could not be started: {_innermost(error)}. Check cluster.workers "
            'and the memory that is free; a script must do its work under  if __name__ == "__main__":'
        ) from error


def _close_local(client: Client, cluster: LocalCluster) -> None:
    # An impatient second Ctrl-C must not leave processes behind; closing takes less than a second.
    with _signals_held(), _silenced():
        cluster.sync(_kill_workers, cluster)
        client.close(timeout=CLOSE_SECONDS)
        cluster.close(timeout=CLOSE_SECONDS)


async def _kill_workers(cluster: LocalCluster) -> None:
    # A worker that is asked to stop waits up to four seconds for its task, and writes warnings about it. Whatever
    # matters is on storage by now, or it does not matter any more.
    nannies = list(cluster.workers.values())
    for nanny in nannies:
        if nanny.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(nanny.pid, signal.SIGKILL)
    await asyncio.gather(*(nanny.close() for nanny in nannies))


def _refuse_to_start_from_a_worker() -> None:
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise WeglError(
            "a worker has imported the script that started it, and would start workers of its own: put what the script "
            'does under  if __name__ == "__main__":'
        )


def _has_dashboard(table: ClusterTable) -> bool:
    return table.dashboard_address is not None and importlib.util.find_spec("bokeh") is not None


def _check_dashboard_address(address: str) -> None:
    """Refuse an address that is not this machine's; for a port that is taken Dask finds another, with a warning."""
    try:
        for place in clean_dashboard_address(address):
            socket.create_server((place["address"], 0)).close()
    except (OSError, ValueError) as error:
        raise JobFileError(
            f'cluster.dashboard_address = "{address}" cannot be listened on: {error}; write for example "127.0.0.1:8787"'
        ) from error


def memory_of_a_worker(limit: str | None, n_workers: int) -> int:
    """Memory limit of each of `n_workers` local workers, in bytes; JobFileError where it is no size or too small."""
    if limit is None:
        share = int(0.9 * MEMORY_LIMIT / n_workers)
        if share < SMALLEST_MEMORY:
            raise JobFileError(
                f"{n_workers} workers would have {format_bytes(share)} of memory each, of {format_bytes(MEMORY_LIMIT)}; "
                f"a worker needs {format_bytes(SMALLEST_MEMORY)}: lower cluster.workers"
            )
        return share
    try:
        memory = int(parse_bytes(limit))
    except ValueError as error:
        raise JobFileError(
            f'cluster.memory_limit = "{limit}" is not a size; write for example "800MB" or "2GiB"'
        ) from error
    if memory < SMALLEST_MEMORY:
        raise JobFileError(
            f'cluster.memory_limit = "{limit}" is {format_bytes(memory)}; a worker needs {format_bytes(SMALLEST_MEMORY)}'
        )
    return memory


@contextmanager
def _worker_environment() -> Iterator[None]:
    """Set the workers' environment, and put this process's own back in the end.

    Dask passes a worker's variables through the environment of the process that spawns it, lets a value found there go
    before its own, and leaves them behind.
    """
    names = {*WORKER_ENVIRONMENT, *dask.config.get("distributed.nanny.pre-spawn-environ"), "PYTHONHASHSEED"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(WORKER_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _scratch_folder(parent: str | None) -> Iterator[str]:
    """Make a folder for what workers spill; Dask removes its own files, but not the folder they were in."""
    place = Path(parent or tempfile.gettempdir())
    try:
        folder = tempfile.TemporaryDirectory(prefix=SCRATCH_PREFIX, dir=place, ignore_cleanup_errors=True)
    except OSError as error:
        raise JobFileError(
            f"cannot make a folder for spilling in {place}: {error.strerror}; set "
            "cluster.local_directory to a folder that can be written to"
        ) from error
    with folder as path, (Path(path) / "new-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Under its name it is locked from the start: who finds it unlocked there knows that the owner is dead.
        Path(lock.name).rename(Path(path) / "lock")
        _sweep_scratch_folders(place)
        yield path


def _sweep_scratch_folders(place: Path) -> None:
    """Remove the folders of clusters whose process was killed before it could."""
    for folder in place.glob(f"{SCRATCH_PREFIX}*"):
        with suppress(OSError), (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM to the end of the block, and keep them from what starts in the block.

    A terminal and a batch system send them to the workers as well, which would die with a traceback and be started
    anew; they are stopped from here. The threads that start workers later inherit it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep to themselves what Dask's parts log when they lose sight of each other, as they do in a shutdown."""
    # Each of these has a level of its own.
    names = ("distributed", "distributed.client", "asyncio", "tornado", "tornado.application")
    loggers = [logging.getLogger(name) for name in names]
    levels = [log.level for log in loggers]
    for log in loggers:
        log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for log, level in zip(loggers, levels, strict=True):
            log.setLevel(level)


# --- An existing scheduler ---


@contextmanager
def _scheduler_client(table: ClusterTable) -> Iterator[Client]:
    address = str(table.address)
    _check_scheduler(address)
    with warnings.catch_warnings():
        # Compared below, with the packages that matter here.
        warnings.simplefilter("ignore", VersionMismatchWarning)
        client = Client(address, timeout=CONNECT_SECONDS)
    try:
        try:
            client.wait_for_workers(1, timeout=WORKERS_SECONDS)
        except TimeoutError as error:
            raise WeglError(
                f"the scheduler at {address} has had no workers for {WORKERS_SECONDS} s: start workers that connect to it"
            ) from error
        report = version_reporter()
        check_versions(address, report(), client.run(report))
        warn_of_threads(client.run(blas_threads))
        yield client
    finally:
        # A scheduler that does not answer any more must not keep the job from ending.
        with _signals_held(), _silenced(), suppress(TimeoutError):
            client.close(timeout=CLOSE_SECONDS)


def _check_scheduler(address: str) -> None:
    """Ask whatever listens at the address what it is.

    `Client` would wait without end for something that accepts connections and says nothing, and a client that failed to
    connect complains when it is collected.
    """
    try:
        kind = LoopRunner().run_sync(_ask_for_kind, address)
    # What is no scheduler may answer anything: bytes that are no message, or a message of an absurd length.
    except (OSError, ValueError, TypeError, MemoryError) as error:
        raise WeglError(
            f"cannot reach the scheduler at {address}: {_innermost(error)}. cluster.address is what the scheduler prints "
            "when it starts, such as tcp://host:8786; tls:// needs Dask's distributed.comm.tls settings"
        ) from error
    if kind != "Scheduler":
        raise WeglError(f"at {address} is no scheduler but a {kind}: set cluster.address to the scheduler's address")


async def _ask_for_kind(address: str) -> str:
    connection = Security().get_connection_args("client")
    # The outer limit is for what accepts the connection and says nothing.
    async with (
        asyncio.timeout(ANSWER_SECONDS),
        rpc(address, timeout=CONNECT_SECONDS, connection_args=connection) as peer,
    ):
        return str((await peer.identity())["type"])


def _innermost(error: BaseException) -> str:
    """Text of the error that the others were raised from."""
    text = "no answer"
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause) or text
        cause = cause.__cause__
    return text
