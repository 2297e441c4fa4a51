"""Figures as PNG files, by matplotlib."""

import io
from typing import Any

from wegl_dask.errors import MissingDependencyError

BLUE, RED, GREY = "#3b6fb6", "#d1495b", "#9aa4b2"
GREEN = "#2a9d8f"
GRID = "#e3e7ee"


def require_plots() -> None:
    """Refuse to begin what ends in a figure, where none can be drawn.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    new_figure(1, 1)


def new_figure(width: float, height: float) -> Any:
    """Make an empty `matplotlib.figure.Figure`, of a size in inches.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  it is no requirement
    except ImportError as error:
        raise MissingDependencyError.for_extra("matplotlib", "plots") from error
    return Figure(figsize=(width, height), layout="constrained")


def png(figure: Any) -> bytes:
    """Draw a figure."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=90)
    return content.getvalue()
