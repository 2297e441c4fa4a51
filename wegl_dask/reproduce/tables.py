"""Tables of ours beside the paper's, as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wegl_dask.reproduce.learners import BOOSTED_WHOLE, SVM_ITERATIONS, VARIANCE_KEPT
from wegl_dask.reproduce.paper import PaperCell
from wegl_dask.reproduce.provenance import provenance_line
from wegl_dask.reproduce.tud import (
    DATA_SETS,
    INNER_FOLDS,
    LARGE_DATA_SETS,
    METHODS,
    N_FOLDS,
    POOLINGS,
    Cell,
    Plan,
    papers_number,
)
from wegl_dask.training.names import ModelName

SHORT = "short"
"""Mark of a cell more than one of the paper's standard deviations below the paper."""


LARGE_NOTE = (
    "Of this large data set a smaller grid is searched, on vectors from 60 principal components of the node embeddings, which "
    "are not standardised; the paper takes all columns, standardised."
)


def tud_table(cells: Sequence[Cell], how: Sequence[Mapping[str, Any]]) -> str:
    """Write tables 2 and 3, with what was computed and how.

    Parameters
    ----------
    cells : sequence of Cell
        Those of a data set together.
    how : sequence of mapping
        Of each cell: ``layers``, ``shortlisted``, ``seed``, ``date`` and ``versions``.
    """
    names = list(dict.fromkeys(cell.data_set for cell in cells))
    lines = ["# Accuracy on data sets of the TU collection", "", *_preface(how), "", *_summary(cells, names), ""]
    missing = [name for name in DATA_SETS if name not in names]
    if missing:
        lines += [f"Not computed yet: {', '.join(missing)}.", ""]
    for name in names:
        own = [cell for cell in cells if cell.data_set == name]
        own_how = [each for cell, each in zip(cells, how, strict=True) if cell.data_set == name]
        lines += [f"## {name}", "", _layers(own, own_how), "", *_cell_rows(own), ""]
        whole = Plan().of(name)
        n_cells = len(whole.models) * len(whole.poolings)
        if name in LARGE_DATA_SETS:
            lines += [LARGE_NOTE, ""]
        if len(own) < n_cells:
            lines += [f"{n_cells - len(own)} of {n_cells} cells are not computed yet.", ""]
    return "\n".join(lines)


def _preface(how: Sequence[Mapping[str, Any]]) -> list[str]:
    seeds = sorted({each["seed"] for each in how})
    return [
        f"{N_FOLDS}-fold cross-validation, in per cent: mean ± standard deviation over the folds, stratified by class.",
        "The embedding has seen all graphs, without their labels.",
        "",
        (
            "- **ours**: the paper's way. Of all configurations that were measured, the best mean over the folds. It is "
            "chosen by the labels that it is measured on, and so optimistic, as the paper's own number is."
        ),
        (
            "- **held out**: a less optimistic number from the same fits. Each fold is scored by the configuration that is "
            "best on the other nine; the fold's labels had a part in those fits, so it is not **nested**."
        ),
        (
            f"- **nested**: where it was computed. Each fold is scored by the configuration that is best in a {INNER_FOLDS}-"
            "fold cross-validation within the other nine, so that nothing of the fold, not even by way of the other "
            "fits, has a part in the choice between configurations that were measured."
        ),
        (
            f"- *{SHORT}*: more than one of the paper's standard deviations below it. *below*: the best of our cells, of as "
            "many as there are, has a lower mean than the best of the paper's."
        ),
        "",
        "The grids are the paper's, with these differences:",
        "",
        (
            "- The first group of candidates of a model (forest: leaf 1, split 2, all numbers of trees; GBDT: leaf 1, "
            "depth 5, all numbers of trees; MLP: one layer of 128) is measured with every number of layers; the others "
            "with those that did best, how many is said at each data set. The SVMs are measured with all. Candidates that "
            "are left out could only have raised **ours**."
        ),
        (
            "- All numbers of trees come from the longest forest or boosting, and a split size below twice the leaf size "
            "is no constraint. Both change no score."
        ),
        (
            f"- GBDT: every split looks at a random square root of the columns, where all vectors together are more than "
            f"{BOOSTED_WHOLE:,} numbers. That can differ between the numbers of layers of a cell."
        ),
        (f"- MLP: on the principal components of the vectors with {100 * VARIANCE_KEPT:.1f} % of their variance."),
        (
            f"- SVM: the solver ends after {SVM_ITERATIONS:,} steps, whether it has converged or not, which can lower a cell or "
            "raise it."
        ),
        ("- Forests weigh classes by how rare they are, and folds are stratified; the paper says neither."),
        "",
        f"Seed {', '.join(str(seed) for seed in seeds)}; {provenance_line(how)}.",
    ]


def _layers(cells: Sequence[Cell], how: Sequence[Mapping[str, Any]]) -> str:
    """Say what the cells of a data set were measured with, once for those that have it alike."""
    alike: dict[str, list[str]] = {}
    for cell, each in zip(cells, how, strict=True):
        layers = sorted(each["layers"])
        # An SVM has one group of candidates.
        shortlisted = len(layers) if cell.model.startswith("svm") else min(each["shortlisted"], len(layers))
        if shortlisted == len(layers):
            grid = ", with the whole grid"
        elif shortlisted:
            grid = f"; the whole grid with the best {shortlisted} of them"
        else:
            grid = "; the first group of candidates alone"
        alike.setdefault(f"layers {', '.join(map(str, layers))}{grid}.", []).append(_title(cell.model, cell.pooling))
    if len(alike) == 1:
        return next(iter(alike)).capitalize()
    return "\n".join(f"- {'; '.join(titles)}: {text}" for text, titles in alike.items())


def _summary(cells: Sequence[Cell], names: Sequence[str]) -> list[str]:
    lines = _header(["data set", "paper's best", "our best", "held out", "", "cells", "short"])
    for name in names:
        own = [cell for cell in cells if cell.data_set == name]
        best = max(own, key=lambda cell: float(cell.best.mean()))
        paper, model, pooling = _papers_best(name)
        row = [
            name,
            f"{_paper(paper)} ({_title(model, pooling)})",
            f"{_number(best.best)} ({_title(best.model, best.pooling)})",
            _number(best.held_out),
            "" if best.best.mean() >= paper.mean else "below",
            str(len(own)),
            str(sum(cell.is_short for cell in own)),
        ]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def _cell_rows(cells: Sequence[Cell]) -> list[str]:
    has_nested = any(cell.nested is not None for cell in cells)
    nested = ["nested"] if has_nested else []
    lines = _header(["classifier", "node embedding", "paper", "ours", "held out", *nested, "", "best configuration"])
    for cell in cells:
        settings = ", ".join(f"{key} = {value}" for key, value in cell.chosen.items())
        numbers = [_paper(cell.paper), _number(cell.best), _number(cell.held_out)]
        if has_nested:
            numbers.append("" if cell.nested is None else _number(cell.nested))
        row = [METHODS[cell.model], cell.pooling, *numbers, SHORT if cell.is_short else "", settings]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def _header(titles: Sequence[str]) -> list[str]:
    return [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]


def _papers_best(name: str) -> tuple[PaperCell, ModelName, str]:
    """Find the paper's best cell of a data set, and its model and pooling."""
    found = [(papers_number(name, pooling, model), model, pooling) for model in METHODS for pooling in POOLINGS]
    return max(
        ((cell, model, pooling) for cell, model, pooling in found if cell is not None), key=lambda each: each[0].mean
    )


def _title(model: ModelName, pooling: str) -> str:
    return f"{METHODS[model].removeprefix('WEGL + ')}, {pooling}"


def _paper(cell: PaperCell | None) -> str:
    if cell is None:
        return ""
    return f"{cell.mean:.1f}" if cell.std is None else f"{cell.mean:.1f} ± {cell.std:.1f}"


def _number(values: npt.NDArray[np.float64]) -> str:
    return f"{values[0]:.1f}" if len(values) == 1 else f"{values.mean():.1f} ± {values.std():.1f}"
