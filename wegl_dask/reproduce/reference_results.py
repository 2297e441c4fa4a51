"""The table and the plot of references of several kinds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from wegl_dask.folders import Folder
from wegl_dask.records import json_bytes
from wegl_dask.reproduce.figures import BLUE, GRID, new_figure, png
from wegl_dask.reproduce.kept import as_kept, begins_with, read_kept
from wegl_dask.reproduce.numbers import DEVIATION, mean_and_deviation
from wegl_dask.reproduce.provenance import of_same_numerics, provenance_line
from wegl_dask.reproduce.reference import FOREST, KINDS, LAYERS, POOLING, WIDTH, Areas, p_value

RESULTS, TABLE, PLOT = "reference.json", "reference.md", "reference.png"
_PARTS = ("valid", "test")
PAPER_SEEDS = 100


def write_results(folder: Folder, found: Mapping[str, Areas]) -> None:
    """Write what was measured, added to what a folder holds, and table and plot.

    An earlier row of the same kind is replaced, unless it has the same numbers and more seeds.

    Parameters
    ----------
    folder : Folder
        ``reference.json``, ``reference.md`` and ``reference.png`` are written to it.
    found : mapping of str to Areas

    Raises
    ------
    WeglError
        If ``reference.json`` holds something else.
    """
    rows = read_kept(folder, RESULTS).get("kinds", {})
    for kind, areas in found.items():
        series = {part: np.round(getattr(areas, part), 4).tolist() for part in _PARTS}
        values = as_kept({**series, "how": areas.how})
        rows[kind] = _merged(values, rows[kind]) if kind in rows else values
    rows = {kind: rows[kind] for kind in KINDS if kind in rows}
    folder.write(RESULTS, json_bytes({"kinds": rows}, indent=1))
    every = {
        kind: Areas(kind, np.array(values["valid"]), np.array(values["test"]), values["how"])
        for kind, values in rows.items()
    }
    folder.write(TABLE, reference_table(every).encode())
    folder.write(PLOT, reference_plot(every))


def _merged(values: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Put a row in place of an earlier one, unless that goes on from it with more seeds."""
    goes_on = all(
        len(kept[part]) > len(values[part]) and begins_with(kept[part], values[part]) for part in _PARTS
    ) and of_same_numerics(values["how"], kept["how"])
    return kept if goes_on else values


def reference_table(found: Mapping[str, Areas]) -> str:
    """Write the mean and the standard deviation with references of each kind, and the tests.

    Parameters
    ----------
    found : mapping of str to Areas
    """
    lines = [
        "# References of several kinds",
        "",
        (
            f"ROC-AUC on ogbg-molhiv, in per cent: {DEVIATION} over the seeds. Width {WIDTH}, {LAYERS} layers, "
            f"{POOLING} pooling, virtual nodes, 20 principal components, a forest of {FOREST['n_estimators']} trees with "
            "balanced classes, not tuned; the paper names width and layers, and not the rest. "
            "A seed draws the atom embedding, the reference and the forest."
        ),
        "",
        "| reference | seeds | valid | test | p, against k-means |",
        "|---|---|---|---|---|",
    ]
    first = found.get(KINDS[0])
    for kind, areas in found.items():
        p = None if first is None or kind == KINDS[0] else p_value(first.test, areas.test)
        numbers = [mean_and_deviation(values, ".2f") for values in (areas.valid, areas.test)]
        cells = [kind, str(len(areas.test)), *numbers, "" if p is None else f"{p:.2g}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(
        [
            *lines,
            "",
            "p: two-sided t-test of the difference on test, for pairs, on the seeds that both have.",
            "",
            (
                f"The paper compares k-means with a normal distribution, {PAPER_SEEDS} seeds, and finds the difference not "
                "significant at 0.05; it gives no means."
            ),
            "",
            f"{provenance_line([areas.how for areas in found.values()])}.",
            "",
        ]
    )


def reference_plot(found: Mapping[str, Areas]) -> bytes:
    """Draw a box for each kind, and every seed in it, as a PNG."""
    figure = new_figure(6, 4)
    axes = figure.subplots()
    axes.boxplot([areas.test for areas in found.values()], showfliers=False, medianprops={"color": BLUE})
    for place, areas in enumerate(found.values(), 1):
        spread = np.linspace(-0.1, 0.1, len(areas.test))
        axes.plot(place + spread, areas.test, ".", c=BLUE, alpha=0.6)
    axes.set_xticks(range(1, len(found) + 1), [f"{kind}\n{_seeds(areas)}" for kind, areas in found.items()])
    axes.set_ylabel("ROC-AUC on test, %")
    axes.grid(visible=True, axis="y", color=GRID)
    return png(figure)


def _seeds(areas: Areas) -> str:
    return f"{len(areas.test)} {'seed' if len(areas.test) == 1 else 'seeds'}"
