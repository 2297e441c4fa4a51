"""Writing the report of a run into its folder."""

import importlib.util

from wegl_dask.claims import REPORT_NAME
from wegl_dask.errors import MissingDependencyError
from wegl_dask.storage import RunFolder


def write_report(folder: RunFolder) -> str:
    """Write report.html into the folder of a finished run, and return its location.

    Raises
    ------
    MissingDependencyError
        If bokeh is not installed.
    WeglError
        If the run has not finished, or something in it is missing or damaged.
    """
    if importlib.util.find_spec("bokeh") is None:
        raise MissingDependencyError.for_extra("bokeh", "report")
    from wegl_dask.report.content import read_content  # noqa: PLC0415
    from wegl_dask.report.page import render  # noqa: PLC0415  bokeh is no requirement

    folder.write(REPORT_NAME, render(read_content(folder)).encode())
    return folder.location(REPORT_NAME)
