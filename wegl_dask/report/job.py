"""Writing the report of a run into its folder."""

import importlib.util
from collections.abc import Callable

from wegl_dask.claims import REPORT_NAME
from wegl_dask.errors import MissingDependencyError
from wegl_dask.progress import Progress, unshown
from wegl_dask.storage import RunFolder


def write_report(folder: RunFolder, *, progress: Callable[..., Progress] = unshown) -> str:
    """Write report.html into the folder of a finished run, and return its location.

    Parameters
    ----------
    folder : RunFolder
    progress : callable
        Makes the progress display of the report's steps from their name and number; nothing is shown by default.

    Raises
    ------
    MissingDependencyError
        If bokeh is not installed.
    WeglError
        If the run has not finished, or something in it is missing or damaged.
    """
    if importlib.util.find_spec("bokeh") is None:
        raise MissingDependencyError.for_extra("bokeh", "report")
    from wegl_dask.report.content import READ_STEPS, read_content  # noqa: PLC0415
    from wegl_dask.report.page import render  # noqa: PLC0415  bokeh is no requirement

    with progress("report", READ_STEPS + 1, unit="steps") as shown:
        page = render(read_content(folder, read=shown.update))
        shown.update()
    folder.write(REPORT_NAME, page.encode())
    return folder.location(REPORT_NAME)
