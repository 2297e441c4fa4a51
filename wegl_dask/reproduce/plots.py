"""Plots of ours beside the paper's."""

from collections.abc import Sequence

from wegl_dask.reproduce.figures import BLUE, GREY, GRID, RED, new_figure, png
from wegl_dask.reproduce.numbers import deviation
from wegl_dask.reproduce.tud import METHODS, Cell


def tud_plot(cells: Sequence[Cell]) -> bytes:
    """Draw every cell beside the paper's, a panel a data set, as a PNG.

    Raises
    ------
    MissingDependencyError
        If matplotlib is not installed.
    """
    names = list(dict.fromkeys(cell.data_set for cell in cells))
    figure = new_figure(8, 4 * len(names))
    for axes, name in zip(figure.subplots(len(names), squeeze=False)[:, 0], names, strict=True):
        own = [cell for cell in cells if cell.data_set == name]
        places = range(len(own))
        axes.errorbar(
            [place - 0.15 for place in places],
            [cell.paper.mean if cell.paper else float("nan") for cell in own],
            [(cell.paper.std or 0) if cell.paper else 0 for cell in own],
            fmt="o",
            color=GREY,
            label="paper",
        )
        axes.errorbar(
            [place + 0.05 for place in places],
            [cell.best.mean() for cell in own],
            [deviation(cell.best) for cell in own],
            fmt="o",
            color=BLUE,
            label="ours, best configuration",
        )
        held_out = [cell.held_out.mean() for cell in own]
        axes.plot([place + 0.2 for place in places], held_out, "D", color=RED, label="ours, held out")
        labels = [f"{METHODS[cell.model].removeprefix('WEGL + ')} {cell.pooling}" for cell in own]
        axes.set_xticks(list(places), labels, rotation=60, ha="right", fontsize=8)
        axes.set_ylabel("accuracy, %")
        axes.set_title(name)
        axes.grid(visible=True, axis="y", color=GRID)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8)
    return png(figure)
