"""Many fits at a time: in processes of this machine, or on the workers of a Dask cluster."""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, closing, contextmanager
from functools import cache, partial
from typing import Any, TypeVar

import joblib
from dask.system import CPU_COUNT
from distributed import Client, as_completed
from distributed.scheduler import KilledWorker
from joblib.externals.loky.backend import resource_tracker as loky_resource_tracker
from joblib.externals.loky.process_executor import TerminatedWorkerError
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from wegl_dask.cluster import open_client
from wegl_dask.errors import MORE_MEMORY, WeglError
from wegl_dask.progress import Progress
from wegl_dask.scheduler_client import require_packages
from wegl_dask.spec import ClusterTable
from wegl_dask.stopping import signals_held, start_resource_tracker, trackers_quiet
from wegl_dask.training.kept_scores import Keepable, KeptScores

PARENT_LOOKED_FOR_EVERY = 1.0
"""Seconds between two looks of a process whether the command that it fits for is still there."""

Task = TypeVar("Task", bound=Keepable)
Result = TypeVar("Result")


class Workers:
    """Where fits are done.

    Parameters
    ----------
    n_jobs : int
        Processes on this machine.
    on_dask : bool, default False
        Use the workers of a Dask cluster instead.
    connect : callable, optional
        Returns the client of that cluster, as soon as there is something to compute; the one that is open by default.
    kept : KeptScores, optional
        Where scores are found that were computed earlier, and kept as they are computed.
    """

    def __init__(
        self,
        n_jobs: int,
        *,
        on_dask: bool = False,
        connect: Callable[[], Client] = Client.current,
        kept: KeptScores | None = None,
    ) -> None:
        self._n_jobs = n_jobs
        self._on_dask = on_dask
        self._connect = connect
        self._kept = kept

    @contextmanager
    def keeping(self, kept: KeptScores) -> Iterator[None]:
        """Keep scores there, and find them there, during the block."""
        before, self._kept = self._kept, kept
        try:
            yield
        finally:
            self._kept = before

    def map(
        self, step: str, function: Callable[..., Result], tasks: Sequence[Task], shared: tuple[Any, ...]
    ) -> list[Result]:
        """Apply a function to each task and to what all of them need, which is sent to a worker once.

        Parameters
        ----------
        step : str
            What is done, for the progress display.
        function : callable
            Called as ``function(task, *shared)``.
        tasks : sequence
        shared : tuple
            Arrays, or what holds some.

        Returns
        -------
        list
            What the function returned, in the order of the tasks.

        Raises
        ------
        WeglError
            If a process or a worker died, or the scheduler.
        """
        results: dict[int, Result] = {} if self._kept is None else self._kept.find(step, tasks)
        waiting = {number: task for number, task in enumerate(tasks) if number not in results}
        client = self._connect() if self._on_dask and waiting else None
        spread = partial(_by_processes, self._n_jobs) if client is None else partial(_by_dask, client)
        arriving = spread(step, function, waiting, shared)
        at_once = self._n_jobs if client is None else sum(client.nthreads().values())
        with Progress(step, len(tasks), unit="fits", done=len(results), announced=True) as progress, closing(arriving):
            for number, result in arriving:
                results[number] = result
                if self._kept is not None:
                    self._kept.add(step, tasks[number], result)
                progress.update(under_way=at_once)
        return [results[number] for number in range(len(tasks))]


@contextmanager
def open_workers(
    table: ClusterTable, *, kept: KeptScores | None = None, packages: tuple[str, ...] = ()
) -> Iterator[Workers]:
    """Find the workers that a job's table ``[cluster]`` describes; see `Workers` for what is kept.

    ``kind = "local"`` stands for as many processes as it has workers, and needs no Dask; any other kind for the workers
    of that Dask cluster, which is opened by the first task: what is refused without one is refused before. Its workers are
    refused where they have not the same `packages` as this process.
    """
    if table.kind == "local":
        yield Workers(table.workers or CPU_COUNT, kept=kept)
        return
    with ExitStack() as stack:

        @cache
        def connect() -> Client:
            client = stack.enter_context(open_client(table))
            require_packages(client, packages)
            return client

        yield Workers(1, on_dask=True, connect=connect, kept=kept)


def _by_processes(
    n_jobs: int, step: str, function: Callable[..., Result], tasks: Mapping[int, Task], shared: tuple[Any, ...]
) -> Generator[tuple[int, Result], None, None]:
    """Do so in processes of this machine, in the order in which the fits end; one at a time in this one."""
    n_jobs = min(n_jobs, len(tasks))
    if n_jobs < 2:
        for number, task in tasks.items():
            yield number, _aside(partial(_on_one_core, function, task, *shared))
        return
    calls = [joblib.delayed(_numbered)(number, function, task, *shared) for number, task in tasks.items()]
    of_loky = joblib.parallel_config("loky", n_jobs=n_jobs, initializer=_serve, initargs=(os.getpid(),))
    with of_loky, ExitStack() as after:
        try:
            with _children_without_interrupts():
                # In batches, results of short fits would wait for one another.
                arriving = joblib.Parallel(return_as="generator_unordered", batch_size=1)(calls)
                after.callback(_cut_off, arriving)
            # Delegated to, it would be closed with this generator, and warn.
            for each in arriving:  # noqa: UP028
                yield each
        except TerminatedWorkerError as error:
            raise WeglError(
                f"{step}: a process that fitted died, for want of memory perhaps: lower cluster.workers, and train again"
            ) from error


def _aside(fit: Callable[[], Result]) -> Result:
    """Call a function in a thread: the main one, which takes signals, would take none before a fit in C is over."""
    outcome: Future[Result] = Future()

    def call() -> None:
        try:
            outcome.set_result(fit())
        except BaseException as error:  # noqa: BLE001  it is raised where the function was called
            outcome.set_exception(error)

    # A daemon, which a command that was stopped does not wait for.
    threading.Thread(target=call, name="wegl-dask fit", daemon=True).start()
    return outcome.result()


def _by_dask(
    client: Client, step: str, function: Callable[..., Result], tasks: Mapping[int, Task], shared: tuple[Any, ...]
) -> Generator[tuple[int, Result], None, None]:
    """Do so on the workers of a Dask client, in the order in which the fits end."""
    arrays = client.scatter(list(shared), broadcast=True, hash=False) if shared else []
    futures = [client.submit(_on_one_core, function, task, *arrays, pure=False) for task in tasks.values()]
    numbers = {future.key: number for future, number in zip(futures, tasks, strict=True)}
    try:
        for future in as_completed(futures):
            yield numbers[future.key], future.result()
            # A worker keeps what nobody has let go of.
            future.release()
    except (KilledWorker, CancelledError) as error:
        raise WeglError(
            f"{step}: the workers that fitted died, for want of memory perhaps, or the scheduler: {MORE_MEMORY}, and train "
            "again"
        ) from error
    finally:
        client.cancel(futures)


def _cut_off(arriving: Generator[Any, None, None]) -> None:
    """End fits that are not finished, without the warning that they are not; of finished ones there is nothing to end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        arriving.close()


@contextmanager
def _children_without_interrupts() -> Iterator[None]:
    """Keep what a terminal sends to all processes of a command, Ctrl-C and its end, from those that start in the block.

    They inherit both blocked, from their first moment on; this process has them again after the block.
    """
    # Two processes that tidy up behind the others: to start them unblocks Ctrl-C.
    start_resource_tracker()
    with trackers_quiet():
        loky_resource_tracker.ensure_running()
    with signals_held(signal.SIGINT, signal.SIGHUP):
        yield


def _serve(parent: int) -> None:
    """Prepare a process: it leaves Ctrl-C and the end of a terminal to its parent, and ends when that is gone, however it ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), name="wegl-dask parent", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_LOOKED_FOR_EVERY)
    os._exit(1)


def _numbered(number: int, function: Callable[..., Result], task: Task, *shared: Any) -> tuple[int, Result]:
    """Call a function on one core, and say for which task."""
    return number, _on_one_core(function, task, *shared)


def _on_one_core(function: Callable[..., Result], task: Task, *shared: Any) -> Result:
    """Call a function with the libraries below it on one core: the sums of several come out in another order."""
    with threadpool_limits(1), warnings.catch_warnings():
        # There may be: the labels are known to be classes.
        warnings.filterwarnings("ignore", "The number of unique classes is greater than")
        return function(task, *shared)
