"""Memory that a worker has freed and still holds, given back to the system."""

import ctypes

import pyarrow as pa
from distributed import Worker

ROOM = 0.5
"""Part of its memory limit that a worker may hold between tasks, freed or not, for the next task to use again."""


def give_back_freed(worker: Worker) -> None:
    """Give freed memory back where a worker holds much of its limit.

    What is freed is kept at first, since taking it from the system anew doubles the time of the stages (see
    `wegl_dask.worker_environment`). But Dask reckons with all that a worker holds: near the limit it gives it no more
    tasks, and then ends it.
    """
    limit = worker.memory_manager.memory_limit
    if limit and worker.monitor.get_process_memory() > ROOM * limit:
        pa.default_memory_pool().release_unused()
        # The C library of GNU has it; others give memory back by themselves.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
