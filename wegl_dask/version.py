"""The version of the package, and the version of the numbers it computes."""

from importlib.metadata import PackageNotFoundError, version

NUMERICS_VERSION = 7
"""Changes whenever the same job and input give other embeddings; a run is not continued across it."""

try:
    __version__ = version("wegl-dask")
except PackageNotFoundError:
    # The package is used from a source tree that was never installed.
    __version__ = "unknown"
