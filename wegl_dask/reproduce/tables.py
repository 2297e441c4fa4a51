"""Tables of ours beside the paper's, as Markdown."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wegl_dask.reproduce.numbers import DEVIATION, Values, mean_and_deviation
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
from wegl_dask.training.crossvalidation import first_best
from wegl_dask.training.names import ModelName

SHORT = "short"
"""Mark of a cell more than one of the paper's standard deviations below the paper."""


LARGE_MARK = "†"
"""Mark of a data set whose node embeddings are not brought to the points of the transport as in the paper."""

LARGE_NOTE = (
    "Not the paper's points: 60 principal components of the node embeddings, not standardised, and not all columns, "
    "standardised. That was chosen by accuracies over folds of the same data, so the numbers are not those of the paper's method."
)


def tud_table(cells: Sequence[Cell]) -> str:
    """Write tables 2 and 3, with what was computed and how.

    Parameters
    ----------
    cells : sequence of Cell
        Those of a data set together.
    """
    names = list(dict.fromkeys(cell.data_set for cell in cells))
    lines = [
        "# Accuracy on data sets of the TU collection",
        "",
        *_preface(cells),
        "",
        *_summary(cells, names),
        "",
    ]
    has_seeds = len({cell.how["seed"] for cell in cells}) > 1
    missing = [name for name in DATA_SETS if name not in names]
    if missing:
        lines += [f"Not computed yet: {', '.join(missing)}.", ""]
    for name in names:
        own = [cell for cell in cells if cell.data_set == name]
        lines += [f"## {name}", "", _layers(own, has_seeds=has_seeds), "", *_cell_rows(own), ""]
        whole = Plan().of(name)
        n_cells = len(whole.models) * len(whole.poolings)
        if name in LARGE_DATA_SETS:
            lines += [f"{LARGE_MARK} {LARGE_NOTE}", ""]
        if len(own) < n_cells:
            lines += [f"{n_cells - len(own)} of {n_cells} cells are not computed yet.", ""]
    return "\n".join(lines)


def _preface(cells: Sequence[Cell]) -> list[str]:
    how = [cell.how for cell in cells]
    seeds = sorted({each["seed"] for each in how})
    return [
        f"{N_FOLDS}-fold cross-validation, in per cent: {DEVIATION} over the folds, stratified by class.",
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
        (
            "- **held out, over cells**: the best cell is chosen too. Each fold is scored, held out, by the cell that is best, "
            "held out, on the other nine."
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
        *_constants(cells),
        ("- Forests weigh classes by how rare they are, and folds are stratified; the paper says neither."),
        *(
            [f"- {LARGE_MARK} a smaller grid. {LARGE_NOTE}"]
            if {cell.data_set for cell in cells} & set(LARGE_DATA_SETS)
            else []
        ),
        "",
        f"Seed {', '.join(str(seed) for seed in seeds)}; {provenance_line(how)}.",
    ]


def _constants(cells: Sequence[Cell]) -> list[str]:
    """Say what the learners of the cells have for constants, in which they differ from the paper's."""
    lines = []
    columns = _with_constant(cells, "max_features")
    if "sqrt" in columns:
        whole: dict[str, list[str]] = {}
        for cell in columns.get(None, []):
            whole.setdefault(cell.data_set, []).append(cell.pooling)
        which = "; ".join(f"{name}, {_listed(poolings)}" for name, poolings in whole.items())
        lines.append(
            "- GBDT: every split looks at a random square root of the columns, as in a forest"
            f"{f'; at all of them with {which}' if whole else ''}."
        )
    lines += [
        f"- MLP: on the principal components of the vectors with {100 * kept:.1f} % of their variance."
        for kept in sorted(_with_constant(cells, "variance_kept"))
    ]
    lines += [
        f"- SVM: the solver ends after {steps:,} steps, whether it has converged or not, which can lower a cell or raise it."
        for steps in sorted(_with_constant(cells, "svm_iterations"))
    ]
    return lines


def _with_constant(cells: Sequence[Cell], name: str) -> dict[Any, list[Cell]]:
    """Group the cells whose learners have a constant, by its value."""
    found: dict[Any, list[Cell]] = {}
    for cell in cells:
        if name in cell.how["constants"]:
            found.setdefault(cell.how["constants"][name], []).append(cell)
    return found


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def _layers(cells: Sequence[Cell], *, has_seeds: bool) -> str:
    """Say what the cells of a data set were measured with, once for those that have it alike."""
    alike: dict[str, list[str]] = {}
    for cell in cells:
        layers = sorted(cell.how["layers"])
        # An SVM has one group of candidates.
        shortlisted = len(layers) if cell.model.startswith("svm") else min(cell.how["shortlisted"], len(layers))
        if shortlisted == len(layers):
            grid = ", with the whole grid"
        elif shortlisted:
            grid = f"; the whole grid with the best {shortlisted} of them"
        else:
            grid = "; the first group of candidates alone"
        seed = f", seed {cell.how['seed']}" if has_seeds else ""
        text = f"layers {', '.join(map(str, layers))}{grid}{seed}."
        alike.setdefault(text, []).append(_title(cell.model, cell.pooling))
    if len(alike) == 1:
        return next(iter(alike)).capitalize()
    return "\n".join(f"- {'; '.join(titles)}: {text}" for text, titles in alike.items())


def _summary(cells: Sequence[Cell], names: Sequence[str]) -> list[str]:
    lines = _header(["data set", "paper's best", "our best", "held out, over cells", "", "cells", "short"])
    for name in names:
        own = [cell for cell in cells if cell.data_set == name]
        best = max(own, key=lambda cell: float(cell.best.mean()))
        paper, model, pooling = _papers_best(name)
        row = [
            f"{name} {LARGE_MARK}" if name in LARGE_DATA_SETS else name,
            f"{_paper(paper)} ({_title(model, pooling)})",
            f"{mean_and_deviation(best.best)} ({_title(best.model, best.pooling)})",
            mean_and_deviation(held_out_over(own)),
            "" if best.best.mean() >= paper.mean else "below",
            str(len(own)),
            str(sum(cell.is_short for cell in own)),
        ]
        lines.append(f"| {' | '.join(row)} |")
    return lines


def held_out_over(cells: Sequence[Cell]) -> Values:
    """Score each fold by the cell that is best on the other folds, all of them held out.

    Parameters
    ----------
    cells : sequence of Cell
        Of one data set.

    Returns
    -------
    float64, (n_folds,)
    """
    held_out = np.stack([cell.held_out for cell in cells])
    best = first_best(held_out.sum(axis=1, keepdims=True) - held_out, axis=0)
    scores: Values = held_out[best, np.arange(held_out.shape[1])]
    return scores


def _cell_rows(cells: Sequence[Cell]) -> list[str]:
    has_nested = any(cell.nested is not None for cell in cells)
    nested = ["nested"] if has_nested else []
    lines = _header(["classifier", "node embedding", "paper", "ours", "held out", *nested, "", "best configuration"])
    for cell in cells:
        settings = ", ".join(f"{key} = {value}" for key, value in cell.chosen.items())
        numbers = [_paper(cell.paper), mean_and_deviation(cell.best), mean_and_deviation(cell.held_out)]
        if has_nested:
            numbers.append("" if cell.nested is None else mean_and_deviation(cell.nested))
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
