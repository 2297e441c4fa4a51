"""The table and the plot of exact against entropic plans."""

from collections.abc import Sequence

import numpy as np

from wegl_dask.folders import Folder
from wegl_dask.records import json_bytes
from wegl_dask.reproduce.figures import BLUE, GRID, new_figure, png
from wegl_dask.reproduce.provenance import provenance, provenance_line
from wegl_dask.reproduce.sinkhorn import LONGEST, SEED, Growth, Molecules, crossing

RESULTS, TABLE, PLOT = "sinkhorn.json", "sinkhorn.md", "sinkhorn.png"
_COLOURS = ("#f4a261", "#e76f51", "#2a9d8f", "#264653")


def write_results(folder: Folder, molecules: Sequence[Molecules], growth: Sequence[Growth]) -> None:
    """Write ``sinkhorn.json``, ``sinkhorn.md`` and ``sinkhorn.png`` of what was measured so far."""
    how = provenance(["numpy", "scipy", "POT"])
    values = {
        "molecules": [
            {
                "regularization": each.regularization,
                "graphs": len(each.ratio),
                "converged": int(np.isfinite(each.error).sum()),
                "time_ratio": [float(each.ratio.mean()), float(each.ratio.std())],
                "relative_error": [float(np.nanmean(each.error)), float(np.nanstd(each.error))],
            }
            for each in molecules
        ],
        "growth": [vars(each) for each in growth],
        "how": how,
    }
    folder.write(RESULTS, json_bytes(values, indent=1))
    lines = [*_molecule_lines(molecules), *_growth_lines(growth), f"Seed {SEED}; {provenance_line([how])}.", ""]
    folder.write(TABLE, "\n".join(lines).encode())
    folder.write(PLOT, sinkhorn_plot(molecules, growth))


def sinkhorn_plot(molecules: Sequence[Molecules], growth: Sequence[Growth]) -> bytes:
    """Draw time against error on molecules, and seconds against the number of points, as a PNG."""
    figure = new_figure(9, 4)
    left, right = figure.subplots(1, 2)
    for found, colour in zip(molecules, _COLOURS, strict=False):
        left.plot(found.ratio, found.error, ".", ms=3, c=colour, label=f"{found.regularization:g}")
    left.set(xscale="log", yscale="log", xlabel="seconds over those of LP", ylabel="relative error of $W_2$")
    left.axvline(1, c=BLUE, lw=1)
    left.set_title("ogbg-molhiv")
    for each in growth:
        place = [each.regularization == other.regularization for other in molecules]
        colour = _COLOURS[place.index(True)] if True in place else BLUE
        label = "LP" if each.regularization is None else f"Sinkhorn, {each.regularization:g}"
        right.plot(each.sizes, each.seconds, "o-", ms=4, c=colour, label=label)
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
        error = f"{np.nanmean(each.error):.2%} ± {np.nanstd(each.error):.2%} | {np.nanmax(each.error):.2%}"
        ratio = f"{each.ratio.mean():.1f} ± {each.ratio.std():.1f} | {np.median(each.ratio):.1f}"
        lines.append(f"| {each.regularization:g} | {ratio} | {error} | {np.isfinite(each.error).mean():.1%} |")
    return [*lines, "", "Mean ± standard deviation over the molecules.", ""]


def _growth_lines(growth: Sequence[Growth]) -> list[str]:
    if not growth:
        return ["The growth with the number of points is not measured yet.", ""]
    sizes = sorted({size for each in growth for size in each.sizes})
    titles = ["solver", *(str(size) for size in sizes), "faster than LP from"]
    lines = [
        "## Seconds by the number of points",
        "",
        "As many points as reference points, drawn from the node embeddings of ogbg-molhiv, none twice.",
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
        "",
    ]


def _seconds(seconds: float, converged: bool) -> str:
    text = f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
    return text if converged else f"{text}*"
