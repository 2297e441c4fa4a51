"""The environment of a worker process."""

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
