"""Tables of ours beside the paper's, as Markdown."""

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from wegl_dask.reproduce.paper import PaperCell
from wegl_dask.reproduce.tud import METHODS, N_FOLDS, Cell, Plan

SHORT = "short"
"""Mark of a cell more than one of the paper's standard deviations below the paper."""


def tud_table(cells: Sequence[Cell], plan: Plan, versions: dict[str, str]) -> str:
    """Write tables 2 and 3, with what was computed and how."""
    names = list(dict.fromkeys(cell.data_set for cell in cells))
    lines = ["# Accuracy on data sets of the TU collection", ""]
    lines += [
        f"{N_FOLDS}-fold cross-validation, in per cent: mean ± standard deviation over the folds.",
        "",
        (
            '- **ours**: the paper\'s way, "best configuration": of all numbers of layers and candidates the best mean over the '
            "folds. It is chosen by the labels that it is measured on, and so optimistic, as the paper's own number is."
        ),
    ]
    if plan.nested:
        lines.append(
            "- **nested**: layers and candidate are chosen for each fold within the other nine: the honest number."
        )
    lines += [
        f"- *{SHORT}*: more than one of the paper's standard deviations below it.",
        (
            f"- Layers {min(plan.layers)} to {max(plan.layers)}. GBDT is scikit-learn's histogram gradient boosting, without "
            "min_samples_split. The embedding has seen all graphs, without their labels."
        ),
        (
            f"- Seed {plan.seed}; {', '.join(f'{name} {version}' for name, version in versions.items())}; "
            f"{datetime.now(UTC):%Y-%m-%d}."
        ),
        "",
    ]
    for name in names:
        lines += [f"## {name}", "", *_header(plan)]
        for cell in (cell for cell in cells if cell.data_set == name):
            settings = ", ".join(f"{key} = {value}" for key, value in cell.chosen.items())
            nested = [_number(cell.nested)] if plan.nested and cell.nested is not None else []
            row = [METHODS[cell.model], cell.pooling, _paper(cell.paper), _number(cell.best), *nested]
            lines.append(f"| {' | '.join([*row, SHORT if cell.is_short else '', settings])} |")
        lines.append("")
    return "\n".join(lines)


def _header(plan: Plan) -> list[str]:
    titles = [
        "classifier",
        "node embedding",
        "paper",
        "ours",
        *(["nested"] if plan.nested else []),
        "",
        "best configuration",
    ]
    return [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]


def _paper(cell: PaperCell | None) -> str:
    if cell is None:
        return ""
    return f"{cell.mean:.1f}" if cell.std is None else f"{cell.mean:.1f} ± {cell.std:.1f}"


def _number(values: npt.NDArray[np.float64]) -> str:
    return f"{values.mean():.1f} ± {values.std():.1f}"
