"""pyarrow without pandas, which takes a quarter of a second to import in every process, and which no graph needs."""

import sys

import pyarrow as pa

from wegl_dask.imports import Refusal


def spare_pandas() -> None:
    """Let pyarrow take it that pandas is not installed, unless it has been imported before.

    pyarrow imports it as soon as it converts anything, in case that it is given a Series. What needs pandas, such as
    `pyarrow.Table.to_pandas`, still gets it.
    """
    if "pandas" in sys.modules:
        return
    refusal = Refusal("pandas")
    sys.meta_path.insert(0, refusal)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(refusal)


def dask_setup(worker: object) -> None:
    """Do so in a worker that preloads this module."""
    del worker
    spare_pandas()
