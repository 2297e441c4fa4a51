"""Many fits at a time: in processes of this machine, or on the workers of a Dask cluster."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import joblib
from dask.system import CPU_COUNT
from joblib.externals.loky.process_executor import TerminatedWorkerError
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from wegl_dask.cluster import open_client
from wegl_dask.errors import WeglError
from wegl_dask.progress import Progress
from wegl_dask.spec import ClusterTable
from wegl_dask.training.learner import Arrays

Task = TypeVar("Task")
Result = TypeVar("Result")


class Workers:
    """Where fits are done.

    Parameters
    ----------
    n_jobs : int
        Processes on this machine.
    on_dask : bool, default False
        Use the workers of the Dask client that is open instead.
    """

    def __init__(self, n_jobs: int, *, on_dask: bool = False) -> None:
        self._n_jobs = n_jobs
        self._on_dask = on_dask

    def map(self, step: str, function: Callable[..., Result], tasks: Sequence[Task], shared: Arrays) -> list[Result]:
        """Apply a function to each task and to the arrays that all of them need, which are sent once.

        Parameters
        ----------
        step : str
            What is done, for the progress display.
        function : callable
            Called as ``function(task, *shared)``.
        tasks : sequence
        shared : tuple of arrays

        Returns
        -------
        list
            What the function returned, in the order of the tasks.

        Raises
        ------
        WeglError
            If a process of this machine died.
        """
        calls = [joblib.delayed(_on_one_core)(function, task, *shared) for task in tasks]
        with Progress(step, len(tasks), unit="fits") as progress:
            if self._on_dask:
                with joblib.parallel_config("dask", scatter=list(shared)):
                    results: list[Result] = joblib.Parallel()(calls)
                progress.update(len(tasks))
                return results
            with joblib.parallel_config("loky", n_jobs=min(self._n_jobs, len(tasks))):
                results = []
                try:
                    for result in joblib.Parallel(return_as="generator")(calls):
                        results.append(result)
                        progress.update()
                except TerminatedWorkerError as error:
                    raise WeglError(
                        f"{step}: a process that fitted died, for want of memory perhaps: lower cluster.workers, and train "
                        "again"
                    ) from error
                return results


@contextmanager
def open_workers(table: ClusterTable) -> Iterator[Workers]:
    """Find the workers that a job's table ``[cluster]`` describes.

    ``kind = "local"`` stands for as many processes as it has workers, and needs no Dask; any other kind for the workers
    of that Dask cluster.
    """
    if table.kind == "local":
        yield Workers(table.workers or CPU_COUNT)
        return
    with open_client(table):
        yield Workers(1, on_dask=True)


def _on_one_core(function: Callable[..., Result], task: Task, *shared: Any) -> Result:
    """Call a function with the libraries below it on one core: the sums of several come out in another order."""
    with threadpool_limits(1):
        return function(task, *shared)
