"""What is kept of figure 3: every measurement so far, and the table and plot of them."""

from collections.abc import Sequence

from wegl_dask.folders import Folder
from wegl_dask.records import json_bytes
from wegl_dask.reproduce.figures import BLUE, GREEN, GRID, RED, new_figure, png
from wegl_dask.reproduce.kept import as_kept, read_kept
from wegl_dask.reproduce.provenance import provenance_line
from wegl_dask.reproduce.runtime import DATA_SETS, LONGEST, METHODS, PART, Measured
from wegl_dask.reproduce.runtime_methods import (
    GIN_BATCH,
    GIN_EPOCHS,
    GIN_LAYERS,
    GIN_WIDTH,
    KERNEL_LAYERS,
    Timing,
)

RESULTS, TABLE, PLOT = "runtime.json", "runtime.md", "runtime.png"
_GRAPHS = ("n_graphs", "mean_nodes", "mean_edges")
_COLOURS = {"wegl": BLUE, "wwl": RED, "gin": GREEN}
_NOTES = {
    "wegl": "- WEGL: the settings of the shipped job files, exact plans, and a forest of 100 trees.",
    "wwl": (
        f"- WWL: the kernel between all pairs of graphs by the package wwl, {KERNEL_LAYERS} iterations, exact plans; "
        f"where it is extrapolated, from the pairs of {PART} graphs drawn at random. Without labels of nodes, their degrees "
        "are the labels, as categories: the package's scheme for numbers fails with current versions of NumPy. The fit "
        "of a support vector machine to the kernel is left out. Inference: the kernel with all training graphs, a share of "
        "the time for all pairs."
    ),
    "gin": (
        f"- GIN: torch_geometric, {GIN_LAYERS} layers of width {GIN_WIDTH}, {GIN_EPOCHS} epochs, batches of "
        f"{GIN_BATCH}; where it is extrapolated, from one epoch."
    ),
}


def add_measured(folder: Folder, found: Measured) -> None:
    """Add what was measured on a data set to what a folder holds, and write table and plot.

    Parameters
    ----------
    folder : Folder
        ``runtime.json``, ``runtime.md`` and ``runtime.png`` are written to it.
    found : Measured
        Takes the place of earlier timings of the same methods on the same graphs, and of all on other graphs.

    Raises
    ------
    WeglError
        If ``runtime.json`` holds something else.
    """
    results = read_kept(folder, RESULTS).get("data_sets", {})
    values = as_kept({**vars(found), "timings": {name: vars(timing) for name, timing in found.timings.items()}})
    earlier = results.get(found.data_set)
    if earlier is None or any(values[key] != earlier[key] for key in _GRAPHS):
        earlier = {"timings": {}, "how": {}}
    timings = {**earlier["timings"], **values["timings"]}
    results[found.data_set] = {**values, "timings": timings, "how": {**earlier["how"], **values["how"]}}
    results = {name: results[name] for name in DATA_SETS if name in results}
    folder.write(RESULTS, json_bytes({"data_sets": results}, indent=1))
    rows = []
    for each in results.values():
        of_methods = {name: Timing(**each["timings"][name]) for name in METHODS if name in each["timings"]}
        graphs = {key: each[key] for key in _GRAPHS}
        rows.append(Measured(data_set=each["data_set"], **graphs, timings=of_methods, how=each["how"]))
    folder.write(TABLE, runtime_table(rows).encode())
    folder.write(PLOT, runtime_plot(rows))


def runtime_table(rows: Sequence[Measured]) -> str:
    """Write the seconds of every method on every data set, and how they were measured.

    Parameters
    ----------
    rows : sequence of Measured
    """
    titles = ["data set", "graphs", "mean nodes", "mean edges"]
    titles += [f"{title}, {what}" for what in ("training", "inference") for title in METHODS.values()]
    lines = [
        "# Seconds of training and inference",
        "",
        (
            "Figure 3 of the paper, which has no numbers. On one core of this machine, as everything here. Training: from "
            "the graphs of nine tenths of a data set to a model. Inference: milliseconds a graph."
        ),
        "",
        f"| {' | '.join(titles)} |",
        f"|{'---|' * len(titles)}",
    ]
    for row in rows:
        cells = [row.data_set, str(row.n_graphs), f"{row.mean_nodes:.1f}", f"{row.mean_edges:.1f}"]
        for part, factor in (("training", 1), ("inference", 1000)):
            for method in METHODS:
                seconds = None if method not in row.timings else factor * getattr(row.timings[method], part)
                mark = "" if seconds is None or _is_measured(row, method, part) else "*"
                cells.append("" if seconds is None else f"{_rounded(seconds)}{mark}")
        lines.append(f"| {' | '.join(cells)} |")
    missing = [name for name in DATA_SETS if name not in {row.data_set for row in rows}]
    if missing:
        lines += ["", f"Not measured: {', '.join(missing)}."]
    return "\n".join(
        [
            *lines,
            "",
            f"*: extrapolated, since it would have taken more than {LONGEST:g} seconds.",
            "",
            *(_NOTES[method] for method in METHODS if any(method in row.timings for row in rows)),
            "",
            f"{provenance_line([how for row in rows for how in row.how.values()])}.",
            "",
        ]
    )


def runtime_plot(rows: Sequence[Measured]) -> bytes:
    """Draw training and inference against the number of graphs, mean nodes and mean edges, as a PNG.

    What is extrapolated has an open marker.
    """
    figure = new_figure(10, 6)
    sizes = {
        "n_graphs": "number of graphs",
        "mean_nodes": "mean nodes of a graph",
        "mean_edges": "mean edges of a graph",
    }
    parts = {"training": "training, s", "inference": "inference, s a graph"}
    for line, (part, y_label) in zip(figure.subplots(2, 3), parts.items(), strict=True):
        for axes, (size, x_label) in zip(line, sizes.items(), strict=True):
            for method, title in METHODS.items():
                own = sorted((row for row in rows if method in row.timings), key=lambda row: getattr(row, size))
                x = [getattr(row, size) for row in own]
                y = [getattr(row.timings[method], part) for row in own]
                colour = _COLOURS[method]
                axes.plot(x, y, "-", c=colour, lw=1, label=title)
                filled = [colour if _is_measured(row, method, part) else "white" for row in own]
                axes.scatter(x, y, c=filled, edgecolors=colour, s=24, zorder=3)
            axes.set(yscale="log", xlabel=x_label, ylabel=y_label)
            axes.grid(visible=True, color=GRID)
    line[-1].legend(fontsize=8)
    figure.suptitle("Open markers: extrapolated from a part", fontsize=9)
    return png(figure)


def _is_measured(row: Measured, method: str, part: str) -> bool:
    """Whether the seconds are measured and not extrapolated: the kernel's inference is a part of its training."""
    return row.timings[method].measured == 1 or (part, method) == ("inference", "gin")


def _rounded(value: float) -> str:
    return f"{float(f'{value:.3g}'):,g}" if value < 1000 else f"{value:,.0f}"
