"""pyarrow without pandas, which takes a quarter of a second to import in every process, and which no graph needs."""

import pyarrow as pa

from wegl_dask.imports import kept_away


def spare_pandas() -> None:
    """Let pyarrow take it that pandas is not installed, unless it has been imported before.

    pyarrow imports it as soon as it converts anything, in case that it is given a Series. What needs pandas, such as
    `pyarrow.Table.to_pandas`, still gets it.
    """
    with kept_away("pandas"):
        pa.array([])


def dask_setup(worker: object) -> None:
    """Do so in a worker that preloads this module."""
    del worker
    spare_pandas()
