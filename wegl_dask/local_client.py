"""Workers that are processes on this machine, for as long as their client."""

import asyncio
import importlib.util
import multiprocessing
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import dask.config
import distributed.utils
from dask.system import CPU_COUNT
from dask.utils import parse_bytes
from distributed import Client, LocalCluster
from distributed.system import MEMORY_LIMIT
from distributed.utils import clean_dashboard_address

from wegl_dask import fork_server
from wegl_dask.errors import JobFileError, MissingDependencyError, WeglError
from wegl_dask.lost_workers import WATCH_SECONDS, give_up, watched
from wegl_dask.progress import format_bytes
from wegl_dask.quiet import innermost, silenced
from wegl_dask.scratch import scratch_folder
from wegl_dask.spec import ClusterTable
from wegl_dask.stopping import signals_held, start_resource_tracker
from wegl_dask.worker_environment import (
    DASK_SETTINGS,
    LOCAL_SETTINGS,
    PRELOADED,
    PROFILE,
    WORKER_ENVIRONMENT,
    as_variable,
    variables_put_back,
)

SMALLEST_MEMORY = 500_000_000
"""Memory of a worker, in bytes, below which it would be stopped by what it imports before it has read a graph."""

UNSTARTED = {
    "Status.init": "their processes ended as they began",
    "Status.starting": "their processes did not come to be ready",
}
"""What Dask says of a process that did not start, no more than the state that it was in, and what that means."""

START_SECONDS = 60
RESTART_SECONDS = 60
"""Without a worker, after which none is expected any more in the place of those that died."""

CLOSE_SECONDS = 10

_PRELOADING = ("scheduler", "nanny", "worker", "client")

ANY_PORT = "127.0.0.1:0"


@contextmanager
def local_client(table: ClusterTable) -> Iterator[Client]:
    """Start workers and open a client of them; see `wegl_dask.cluster.open_client`."""
    _refuse_to_start_from_a_worker()
    n_workers = table.workers or CPU_COUNT
    memory = memory_of_a_worker(table.memory_limit, n_workers)
    check_dashboard(table)
    with ExitStack() as stack:
        stack.enter_context(_worker_environment())
        scratch = stack.enter_context(_spill_folder(table.local_directory))
        settings = {
            "temporary-directory": scratch,
            "distributed.scheduler.allowed-failures": table.allowed_failures,
            # Workers get this process's configuration, which was read before their environment was set.
            **DASK_SETTINGS,
            **LOCAL_SETTINGS,
            PROFILE: has_dashboard(table),
            **_preloads(),
            **_starting(),
            **{f"distributed.nanny.pre-spawn-environ.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
        }
        # Dask would import pandas into this process, for its own way of starting a fork server.
        distributed.utils._forkserver_preload_set = True  # noqa: SLF001  there is no other way to tell it
        start_resource_tracker()
        with signals_held(), dask.config.set(settings):
            cluster = _start_cluster(table, n_workers, memory)
            client = Client(cluster)
            stack.callback(_close_local, client, cluster)
        stack.enter_context(watched(client, partial(give_up, client), looks=round(RESTART_SECONDS / WATCH_SECONDS)))
        yield client


def _preloads() -> dict[str, list[Any]]:
    """Put together what scheduler, workers and the processes that watch over them import as they start.

    That is what the user's configuration of Dask has for them, a text or a list, and for workers `PRELOADED`: all at the
    same time, else each would import it when it gets its first task.
    """
    found = {setting: _texts(setting) for setting in (f"distributed.{role}.preload" for role in _PRELOADING)}
    for setting, names in found.items():
        for name in names:
            if not (name.endswith(".py") or "://" in name or _is_module(name)):
                raise WeglError(
                    f"Dask's setting {setting} names the module {name!r}, which is not there: {_correct(setting)}"
                )
    own = found["distributed.worker.preload"]
    arguments = dask.config.get("distributed.worker.preload-argv")
    # They are those of all the user's modules, or a list for each.
    if not (isinstance(arguments, list) and arguments and all(isinstance(each, list) for each in arguments)):
        arguments = [_texts("distributed.worker.preload-argv")] * len(own)
    return {
        **found,
        "distributed.worker.preload": [*own, *PRELOADED],
        "distributed.worker.preload-argv": [*arguments, *([] for _ in PRELOADED)],
    }


def _texts(setting: str) -> list[str]:
    """Read a setting of Dask's configuration that is a text, a list of them, or none."""
    value = dask.config.get(setting)
    texts = [] if value in (None, "") else [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise WeglError(f"Dask's setting {setting} = {value!r} is no text and no list of them: {_correct(setting)}")
    return texts


def _correct(setting: str) -> str:
    return f"correct it in the environment variable {as_variable(setting)}, or in Dask's configuration files"


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        # Of what it is in.
        return False


def _start_cluster(table: ClusterTable, n_workers: int, memory: int) -> LocalCluster:
    try:
        with silenced(), _no_process_left():
            return LocalCluster(
                n_workers=n_workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                protocol="tcp://",
                memory_limit=memory,
                scheduler_kwargs=dashboard_options(table),
                death_timeout=START_SECONDS,
            )
    except (OSError, RuntimeError, AssertionError) as error:
        said = innermost(error)
        raise WeglError(
            f"{n_workers} local workers could not be started: {UNSTARTED.get(said, said)}. Check cluster.workers, the memory "
            "that is free, what `ulimit -a` says and what is set for Dask itself, in environment variables DASK_... and its "
            'configuration files; a script must do its work under  if __name__ == "__main__":'
        ) from error


@contextmanager
def _no_process_left() -> Iterator[None]:
    """Kill the processes that a block has started if it fails: Python would wait for their end before its own."""
    before = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
        raise


def _close_local(client: Client, cluster: LocalCluster) -> None:
    # An impatient second Ctrl-C must not leave processes behind; closing takes less than a second.
    with signals_held(), silenced():
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


def has_dashboard(table: ClusterTable) -> bool:
    """Whether a dashboard is wanted; MissingDependencyError if it is and cannot be had."""
    if table.dashboard_address is None:
        return False
    if importlib.util.find_spec("bokeh") is None:
        # What earlier versions wrote into every job file that was run: nobody asked for it.
        if table.dashboard_address == ANY_PORT:
            return False
        raise MissingDependencyError.for_extra("bokeh", "cluster")
    return True


def dashboard_options(table: ClusterTable) -> dict[str, Any]:
    """Options of the scheduler. Without a dashboard a port is opened all the same, for metrics: any free one will do."""
    return {"dashboard": has_dashboard(table), "dashboard_address": table.dashboard_address or ANY_PORT}


def check_dashboard(table: ClusterTable) -> None:
    """Refuse a dashboard at an address that is not this machine's; for a port that is taken Dask finds another.

    Raises
    ------
    JobFileError
        If it cannot be listened on.
    MissingDependencyError
        If bokeh is not installed.
    """
    if not has_dashboard(table):
        return
    address = str(table.dashboard_address)
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
    with variables_put_back({*fork_server.ENVIRONMENT, *_variables_to_start_with()}):
        os.environ.update(WORKER_ENVIRONMENT)
        yield


def _starting() -> dict[str, str]:
    """Choose how workers are started: as forks, if a server was started, unless the user's configuration sets more for it."""
    can_fork = fork_server.is_started() and _variables_to_start_with() <= fork_server.ENVIRONMENT.keys()
    return {"distributed.worker.multiprocessing-method": "forkserver" if can_fork else "spawn"}


def _variables_to_start_with() -> set[str]:
    return set(dask.config.get("distributed.nanny.pre-spawn-environ"))


@contextmanager
def _spill_folder(parent: str | None) -> Iterator[str]:
    """Make a folder for what workers spill; Dask removes its own files, but not the folder they were in."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch_folder(parent))
        except OSError as error:
            raise JobFileError(
                f"cannot make a folder for spilling in {parent or 'the system folder for temporary files'}: "
                f"{error.strerror or error}; set cluster.local_directory to a folder that can be written to"
            ) from error
        yield folder
