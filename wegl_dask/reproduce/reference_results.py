"""The table and the plot of references of several kinds."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from wegl_dask.folders import Folder
from wegl_dask.records import json_bytes
from wegl_dask.reproduce.figures import BLUE, GRID, new_figure, png
from wegl_dask.reproduce.provenance import provenance, provenance_line
from wegl_dask.reproduce.reference import FOREST, KINDS, LAYERS, POOLING, WIDTH, Areas, Values, p_value

RESULTS, TABLE, PLOT = "reference.json", "reference.md", "reference.png"
PAPER_SEEDS = 100


def write_results(folder: Folder, found: Mapping[str, Areas]) -> None:
    """Write ``reference.json``, ``reference.md`` and ``reference.png`` of what was measured so far."""
    how = provenance(["numpy", "scipy", "scikit-learn"])
    values = {
        kind: {"valid": np.round(areas.valid, 4).tolist(), "test": np.round(areas.test, 4).tolist()}
        for kind, areas in found.items()
    }
    folder.write(RESULTS, json_bytes({"kinds": values, "how": how}, indent=1))
    folder.write(TABLE, reference_table(found, how).encode())
    folder.write(PLOT, reference_plot(found))


def reference_table(found: Mapping[str, Areas], how: Mapping[str, Any]) -> str:
    """Write the mean and the standard deviation with references of each kind, and the tests."""
    lines = [
        "# References of several kinds",
        "",
        (
            f"ROC-AUC on ogbg-molhiv, in per cent: mean ± standard deviation over the seeds. Width {WIDTH}, {LAYERS} layers, "
            f"{POOLING} pooling, virtual nodes, 20 principal components, a forest of {FOREST['n_estimators']} trees with "
            "balanced classes, not tuned. A seed draws the atom embedding, the reference and the forest."
        ),
        "",
        "| reference | seeds | valid | test | p, against k-means |",
        "|---|---|---|---|---|",
    ]
    first = found.get(KINDS[0])
    for kind, areas in found.items():
        p = None if first is None or kind == KINDS[0] else p_value(first.test, areas.test)
        cells = [kind, str(len(areas.test)), _number(areas.valid), _number(areas.test), "" if p is None else f"{p:.2g}"]
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
            f"{provenance_line([how])}.",
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
    axes.set_xticks(range(1, len(found) + 1), [f"{kind}\n{len(areas.test)} seeds" for kind, areas in found.items()])
    axes.set_ylabel("ROC-AUC on test, %")
    axes.grid(visible=True, axis="y", color=GRID)
    return png(figure)


def _number(values: Values) -> str:
    return f"{values.mean():.2f} ± {values.std():.2f}"
