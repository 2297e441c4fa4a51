"""Dask's performance report of a run, in its folder."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import distributed

from wegl_dask.claims import PERFORMANCE_REPORT_NAME
from wegl_dask.errors import MissingDependencyError
from wegl_dask.folders import Folder
from wegl_dask.scratch import scratch_folder


def require_bokeh() -> None:
    """Raise MissingDependencyError if what draws the report is not installed."""
    if importlib.util.find_spec("bokeh") is None:
        raise MissingDependencyError.for_extra("bokeh", "cluster")


@contextmanager
def performance_report(folder: Folder) -> Iterator[None]:
    """Write what Dask recorded during the block to a run folder, as a page to be opened in a browser.

    Raises
    ------
    MissingDependencyError
        If bokeh is not installed; before the block.
    """
    require_bokeh()
    with scratch_folder() as scratch:
        page = Path(scratch, PERFORMANCE_REPORT_NAME)
        with distributed.performance_report(filename=str(page)):
            yield
        folder.write(PERFORMANCE_REPORT_NAME, page.read_bytes())
