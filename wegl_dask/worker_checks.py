"""What the workers of an existing cluster run: the versions of the packages that matter, and their threads."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping

from distributed.utils import asciitable

from wegl_dask.errors import WeglError
from wegl_dask.version import __version__

logger = logging.getLogger(__name__)

MATCHED_PACKAGES = ("dask", "distributed", "numpy", "scipy", "POT", "scikit-learn", "pyarrow")
"""Packages whose versions change the results, or what client and workers understand of each other."""

NOT_INSTALLED = "not installed"


def check_versions(address: str, client: Mapping[str, str], workers: Mapping[str, Mapping[str, str]]) -> None:
    """Compare the versions of the packages that matter on the client and on all workers.

    Parameters
    ----------
    address : str
        The scheduler's address, for the message.
    client : mapping of str to str
        Package to version, see `version_reporter`.
    workers : mapping of str to mapping
        Worker address to its packages and versions.

    Raises
    ------
    WeglError
        If any differs; the message is a table of all that do.
    """
    rows = []
    for package, expected in client.items():
        found = Counter(versions[package] for versions in workers.values())
        if set(found) != {expected}:
            seen = ", ".join(f"{version} ({count} of {len(workers)})" for version, count in sorted(found.items()))
            rows.append((package, expected, seen))
    if not rows:
        return
    lacking = any(versions["wegl-dask"] == NOT_INSTALLED for versions in workers.values())
    advice = (
        f"run  pip install 'wegl-dask=={__version__}'  where the workers run"
        if lacking
        else "install the same versions on both sides"
    )
    raise WeglError(
        f"the workers at {address} do not run what this client runs; {advice}:\n"
        + asciitable(["package", "client", "workers"], rows)
    )


def version_reporter() -> Callable[[], dict[str, str]]:
    """Make the function that reports the versions where it runs.

    It is made in a function so that it travels whole: a worker need not have this package to run it.
    """
    packages, not_installed = MATCHED_PACKAGES, NOT_INSTALLED

    def report() -> dict[str, str]:
        import importlib.metadata  # noqa: PLC0415
        import importlib.util  # noqa: PLC0415
        import sys  # noqa: PLC0415

        versions = {"Python": f"{sys.version_info.major}.{sys.version_info.minor}", "wegl-dask": not_installed}
        if importlib.util.find_spec("wegl_dask") is not None:
            ours = importlib.import_module("wegl_dask.version")
            versions["wegl-dask"] = f"{ours.__version__}, numerics {ours.NUMERICS_VERSION}"
        for package in packages:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                versions[package] = not_installed
        return versions

    return report


def blas_threads() -> int:
    """Largest number of threads that a numerical library uses in the worker this runs on."""
    from scipy.linalg import blas  # noqa: F401, PLC0415  loads SciPy's own BLAS
    from threadpoolctl import threadpool_info  # type: ignore[import-untyped]  # noqa: PLC0415

    return max((int(pool["num_threads"]) for pool in threadpool_info()), default=1)


def warn_of_threads(threads: Mapping[str, int]) -> None:
    """Log which workers let numerical libraries use several threads; the worker's address to `blas_threads`."""
    greedy = {worker: count for worker, count in threads.items() if count > 1}
    if greedy:
        worker, count = next(iter(greedy.items()))
        logger.warning(
            "%d of %d workers let numerical libraries use several threads (%s: %d), which slows the job down and may change "
            "the last bits of results: set OMP_NUM_THREADS, OPENBLAS_NUM_THREADS and MKL_NUM_THREADS to 1 in the workers' "
            "environment",
            len(greedy),
            len(threads),
            worker,
            count,
        )
