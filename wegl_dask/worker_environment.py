"""The environment of a worker process and of the command that starts it, and Dask's settings in it."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

PRELOADED = (
    *("wegl_dask.fit_tasks", "wegl_dask.without_pandas"),
    # A client does without, which saves it a fifth of a second, so nothing imports them before they are used.
    *("scipy.linalg.blas", "scipy.sparse", "scipy.spatial.distance"),
)
"""What a worker imports before it is ready."""

KEPT_BYTES = 128 * 2**20
"""Freed memory that a worker's C library keeps at the end of its heap."""

MAPPED_BYTES = 32 * 2**20
"""Larger blocks have pages of their own, which go back to the system when they are freed."""

PROFILE = "distributed.worker.profile.enabled"

DASK_SETTINGS: dict[str, Any] = {
    # Else a worker near its memory limit gets no more tasks until it has given up results that it holds. Ours hold none:
    # with what they have imported they could wait for ever.
    "distributed.worker.memory.pause": False,
    # Another thread of a worker, to look at it, takes Python's lock from the solver: a hundred times a second for Dask's
    # profile, fifty times for the health of its event loop. Both together take some per cent of a run.
    PROFILE: False,
    "distributed.admin.tick.interval": "500ms",
}
"""For workers, and the scheduler of a local cluster; with a dashboard, which shows it, there is a profile all the same."""

LOCAL_SETTINGS: dict[str, Any] = {
    # Workers and scheduler of a local cluster live as long as their client, however long nothing is asked of them.
    "distributed.worker.lifetime.duration": None,
    "distributed.worker.lifetime.stagger": "0 seconds",
    "distributed.worker.lifetime.restart": False,
    "distributed.worker.daemon": True,
    "distributed.scheduler.idle-timeout": None,
    # While workers that died are started anew.
    "distributed.scheduler.no-workers-timeout": None,
    # They listen on this machine alone.
    "distributed.scheduler.contact-address": None,
    "distributed.comm.require-encryption": False,
}
"""For a local cluster, whatever the user's configuration of Dask has for others."""


def as_variable(setting: str) -> str:
    """Spell a setting of Dask as an environment variable.

    Examples
    --------
    >>> as_variable("distributed.worker.memory.pause")
    'DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE'
    >>> as_variable("distributed.scheduler.idle-timeout")
    'DASK_DISTRIBUTED__SCHEDULER__IDLE_TIMEOUT'
    """
    return f"DASK_{setting.upper().replace('.', '__').replace('-', '_')}"


WITHOUT_BACKENDS = {f"POT_BACKEND_DISABLE_{backend}": "1" for backend in ("PYTORCH", "JAX", "CUPY", "TENSORFLOW")}
"""Keeps POT from importing every array library that is installed, which takes 1.5 s for torch alone."""

QUIET = {as_variable("logging.distributed"): "critical"}
"""Keeps workers from writing what they log to the terminal, with a traceback for each failed attempt."""

WORKER_ENVIRONMENT = {
    # The transport solver is bound to one core, and sums in another order give other last bits.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    **WITHOUT_BACKENDS,
    # Dask has workers hand every freed block back to the system at once; then arrays of more than 128 kB are mapped and
    # zeroed anew each time, which doubles the time of the stages.
    # One arena, since that of a thread gives its heaps back at once whatever these say.
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_BYTES),
    "MALLOC_MMAP_THRESHOLD_": str(MAPPED_BYTES),
    **{as_variable(setting): str(value) for setting, value in DASK_SETTINGS.items()},
}
"""What must stand in a worker's environment before NumPy, POT and Dask are imported."""


def prepare_command(*, debug: bool) -> None:
    """Set what a command and its workers are to find in their environment, where nothing else is set.

    It has to stand there before any of them imports Dask and POT, and so before the process starts that workers are forks
    of.

    Parameters
    ----------
    debug : bool
        Show what workers log.
    """
    for name, value in {**WITHOUT_BACKENDS, **({} if debug else QUIET)}.items():
        os.environ.setdefault(name, value)


@contextmanager
def variables_put_back(names: Iterable[str]) -> Iterator[None]:
    """Put some environment variables back, in the end of a block, to what they were before it."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
