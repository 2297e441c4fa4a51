"""The table and the plot of exact against entropic plans."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wegl_dask.folders import Folder
from wegl_dask.records import json_bytes
from wegl_dask.reproduce.figures import BLUE, GRID, new_figure, png
from wegl_dask.reproduce.numbers import DEVIATION, mean_and_deviation
from wegl_dask.reproduce.provenance import provenance_line
from wegl_dask.reproduce.sinkhorn import LONGEST, N_DRAWS, SEED, SIZES, Growth, Molecules, crossing

RESULTS, TABLE, PLOT = "sinkhorn.json", "sinkhorn.md", "sinkhorn.png"
_COLOURS = ("#f4a261", "#e76f51", "#2a9d8f", "#264653")


def write_results(
    folder: Folder, molecules: Sequence[Molecules], growth: Sequence[Growth], how: Mapping[str, Any]
) -> None:
    """Write ``sinkhorn.json``, ``sinkhorn.md`` and ``sinkhorn.png`` of what was measured so far.

    Parameters
    ----------
    folder : Folder
    molecules : sequence of Molecules
    growth : sequence of Growth
    how : mapping
        When, with which versions and on which processor.
    """
    found = {"molecules": [_summary(each) for each in molecules], "growth": [vars(each) for each in growth], "how": how}
    folder.write(RESULTS, json_bytes(found, indent=1))
    said = f"Seed {SEED}; {provenance_line([how])}."
    folder.write(TABLE, "\n".join([*_molecule_lines(molecules), *_growth_lines(growth), said, ""]).encode())
    folder.write(PLOT, sinkhorn_plot(molecules, growth))


def _summary(found: Molecules) -> dict[str, Any]:
    """Render what the solvers did on each molecule; an error is None where the iteration did not converge."""
    return {
        "regularization": found.regularization,
        "time_ratio": found.ratio.tolist(),
        "relative_error": [value if np.isfinite(value) else None for value in found.error.tolist()],
    }


def sinkhorn_plot(molecules: Sequence[Molecules], growth: Sequence[Growth]) -> bytes:
    """Draw time against error on molecules, and seconds against the number of points, as a PNG."""
    figure = new_figure(9, 4)
    left, right = figure.subplots(1, 2)
    for found, colour in zip(molecules, _COLOURS, strict=False):
        left.plot(found.ratio, found.error, ".", ms=3, c=colour, label=f"{found.regularization:g}")
    # An axis without a finite value cannot be logarithmic.
    has_errors = any(np.isfinite(found.error).any() for found in molecules) or not molecules
    left.set(
        xscale="log",
        yscale="log" if has_errors else "linear",
        xlabel="seconds over those of LP",
        ylabel="relative error of $W_2$",
    )
    left.axvline(1, c=BLUE, lw=1)
    left.set_title("ogbg-molhiv")
    for each in growth:
        place = [each.regularization == other.regularization for other in molecules]
        colour = _COLOURS[place.index(True)] if True in place else BLUE
        label = "LP" if each.regularization is None else f"Sinkhorn, {each.regularization:g}"
        right.plot(each.sizes, each.seconds, "-", c=colour, label=label)
        filled = [colour if has_converged else "white" for has_converged in each.converged]
        right.scatter(each.sizes, each.seconds, c=filled, edgecolors=colour, s=20, zorder=3)
    right.set_title("open: ended before it had converged")
    right.set(xscale="log", yscale="log", xlabel="points on either side", ylabel="seconds")
    for axes in (left, right):
        axes.grid(visible=True, color=GRID)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    return png(figure)


def _molecule_lines(molecules: Sequence[Molecules]) -> list[str]:
    lines = [
        "# Linear programs and Sinkhorn's iteration",
        "",
        (
            "Paper, appendix: linear programming vs. entropy regularisation. Ours are the solvers of this package, both with "
            "their checks: the network simplex with a proof that the plan is optimal, and the iteration in the log domain "
            "until the marginals are off by 1e-8 at most. Regularisations are fractions of the largest cost of a problem."
        ),
        "",
    ]
    if not molecules:
        return lines
    lines += [
        f"## ogbg-molhiv, {len(molecules[0].ratio)} molecules",
        "",
        "| regularisation | seconds over those of LP | median | relative error of W_2 | largest | converged |",
        "|---|---|---|---|---|---|",
    ]
    for each in molecules:
        error = each.error[np.isfinite(each.error)]
        cells = [
            f"{each.regularization:g}",
            mean_and_deviation(each.ratio, ".1f"),
            f"{np.median(each.ratio):.1f}",
            mean_and_deviation(error, ".2%"),
            f"{error.max():.2%}" if len(error) else "",
            f"{len(error) / len(each.error):.1%}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [
        *lines,
        "",
        f"{DEVIATION[0].upper()}{DEVIATION[1:]} over the molecules; errors of those whose iteration converged.",
        "",
    ]


def _growth_lines(growth: Sequence[Growth]) -> list[str]:
    if not growth:
        return ["The growth with the number of points is not measured yet.", ""]
    sizes = sorted({size for each in growth for size in each.sizes})
    titles = ["solver", *(str(size) for size in sizes), "faster than LP from"]
    lines = [
        "## Seconds by the number of points",
        "",
        f"As many points as reference points, drawn from the node embeddings of ogbg-molhiv, none twice: medians of {N_DRAWS} draws.",
        "",
        f"| {' | '.join(titles)} |",
        f"|{'---|' * len(titles)}",
    ]
    for each in growth:
        cells = dict(zip(each.sizes, zip(each.seconds, each.converged, strict=True), strict=True))
        texts = [_seconds(*cells[size]) if size in cells else "-" for size in sizes]
        if each.regularization is None:
            lines.append(f"| LP | {' | '.join(texts)} | |")
            continue
        place = crossing(growth[0], each)
        faster = f"{float(f'{place:.2g}'):g} points" if place is not None else f"none measured, up to {each.sizes[-1]}"
        lines.append(f"| Sinkhorn, {each.regularization:g} | {' | '.join(texts)} | {faster} |")
    return [
        *lines,
        "",
        (
            f"-: not measured, since it was to take more than {LONGEST:g} seconds by the size before. *: the iteration "
            "ended before it had converged. The crossing is interpolated between the sizes."
        ),
        *_shortage(growth[0].n_points),
        "",
    ]


def _shortage(n_points: int) -> list[str]:
    """Say so where there are not enough points for all sizes."""
    if n_points >= 2 * SIZES[-1]:
        return []
    return ["", f"There are {n_points} distinct points, so that no more than {n_points // 2} are on either side."]


def _seconds(seconds: float, converged: bool) -> str:
    text = f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
    return text if converged else f"{text}*"
