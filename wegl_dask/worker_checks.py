"""What scheduler and workers of a cluster run: the versions of the packages that matter, and their threads."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache

from distributed.utils import asciitable

from wegl_dask.errors import WeglError
from wegl_dask.version import __version__

logger = logging.getLogger(__name__)

Versions = Mapping[str, str]
"""Package to version."""

MATCHED_PACKAGES = ("dask", "distributed", "dask-ml", "numpy", "scipy", "POT", "scikit-learn", "pyarrow")
"""Packages whose versions change the results, or what client and workers understand of each other: of any job."""

UNDERSTOOD_PACKAGES = frozenset({"Python", "wegl-dask", "dask", "distributed"})
"""What must be equal on the scheduler, which computes nothing; of the others that any job needs it needs any version."""

NOT_INSTALLED = "not installed"


class VersionsError(WeglError):
    """Client, scheduler and workers have different versions of what matters."""

    def __init__(self, message: str, table: str) -> None:
        super().__init__(message)
        self.table = table


def check_versions(address: str, client: Versions, scheduler: Versions, workers: Mapping[str, Versions]) -> None:
    """Compare the versions of the packages that matter on the client, the scheduler and all workers.

    Parameters
    ----------
    address : str
        The scheduler's address, for the message.
    client, scheduler : mapping of str to str
        Package to version, see `version_reporter`.
    workers : mapping of str to mapping
        Worker address to its packages and versions.

    Raises
    ------
    VersionsError
        If any differs; with a table of all that do.
    """
    rows = []
    for package, expected in client.items():
        found = Counter(versions[package] for versions in workers.values())
        between = scheduler[package]
        understood = between == expected or (
            package not in UNDERSTOOD_PACKAGES and (between != NOT_INSTALLED or package not in MATCHED_PACKAGES)
        )
        if set(found) - {expected} or not understood:
            seen = ", ".join(f"{version} ({count} of {len(workers)})" for version, count in sorted(found.items()))
            rows.append((package, expected, between, seen))
    if not rows:
        return
    lacking = NOT_INSTALLED in {versions.get("wegl-dask") for versions in (scheduler, *workers.values())}
    advice = (
        f"install wegl-dask {__version__} where they run, as it was installed here, or set cluster.upload to a wheel of it"
        if lacking
        else "install the same versions everywhere"
    )
    raise VersionsError(
        f"the scheduler at {address} and its workers do not run what this client runs; {advice}",
        asciitable(["package", "client", "scheduler", "workers"], rows),
    )


def version_reporter(packages: tuple[str, ...] = MATCHED_PACKAGES) -> Callable[[], dict[str, str]]:
    """Make the function that reports the versions where it runs, of Python, this package and `packages`.

    It is made in a function so that it travels whole: a worker need not have this package to run it.
    """
    not_installed = NOT_INSTALLED

    def report() -> dict[str, str]:
        import importlib.metadata  # noqa: PLC0415
        import sys  # noqa: PLC0415

        versions = {"Python": f"{sys.version_info.major}.{sys.version_info.minor}", "wegl-dask": not_installed}
        try:
            importlib.import_module("wegl_dask")
            ours = importlib.import_module("wegl_dask.version")
        except ModuleNotFoundError:
            pass
        else:
            versions["wegl-dask"] = f"{ours.__version__}, numerics {ours.NUMERICS_VERSION}"
        for package in packages:
            try:
                if package == "rdkit":
                    # Its own word: not every build of it leaves a note of what is installed.
                    versions[package] = importlib.import_module("rdkit.rdBase").rdkitVersion
                else:
                    versions[package] = importlib.metadata.version(package)
            except (importlib.metadata.PackageNotFoundError, ImportError):
                versions[package] = not_installed
        return versions

    return report


@cache
def own_versions(packages: tuple[str, ...] = ()) -> dict[str, str]:
    """Versions in this process of the packages that matter to any job, and of `packages`; looked up once."""
    return version_reporter((*MATCHED_PACKAGES, *packages))()


@cache
def versions_digest(packages: tuple[str, ...] = ()) -> str:
    """Hash of `own_versions`, for tasks to carry: a worker that joins late is compared as well."""
    return hashlib.sha256(json.dumps(own_versions(packages), sort_keys=True).encode()).hexdigest()[:16]


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
