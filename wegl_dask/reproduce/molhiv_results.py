"""What is kept of table 1: every row that was computed so far, and the table and plot of them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wegl_dask.folders import Folder
from wegl_dask.records import json_bytes
from wegl_dask.reproduce.figures import BLUE, GREY, GRID, RED, new_figure, png
from wegl_dask.reproduce.kept import as_kept, begins_with, read_kept
from wegl_dask.reproduce.molhiv import (
    DATA_SET,
    FEW_TREES,
    LAYERS,
    METHODS,
    N_BEST,
    POOLINGS,
    SCREENING,
    SCREENING_SEEDS,
    WIDTHS,
    Row,
)
from wegl_dask.reproduce.numbers import DEVIATION, Values, deviation, mean_and_deviation
from wegl_dask.reproduce.paper import PaperCell, paper_cell
from wegl_dask.reproduce.provenance import of_same_numerics, provenance_line, together

RESULTS, TABLE, PLOT = "molhiv.json", "molhiv.md", "molhiv.png"
BELOW = "below"
"""Mark of a row whose mean on "test" is below the paper's."""

_COUNTS = {1: "one", 2: "two", 3: "three"}
_SERIES = ("valid", "test", "embedding_valid", "embedding_test")


def add_row(folder: Folder, row: Row) -> None:
    """Add a row to those that a folder holds, and write table and plot.

    An earlier row of its method is replaced. If it was measured with the same setting and candidate, the seeds that it has
    more than the new one stay.

    Parameters
    ----------
    folder : Folder
        ``molhiv.json``, ``molhiv.md`` and ``molhiv.png`` are written to it.
    row : Row

    Raises
    ------
    WeglError
        If ``molhiv.json`` holds something else.
    """
    results = read_kept(folder, RESULTS).get("rows", {})
    series = {name: np.round(getattr(row, name), 4).tolist() for name in _SERIES}
    values = as_kept({**vars(row), **series})
    results[row.method] = _merged(values, results[row.method]) if row.method in results else values
    results = {name: results[name] for name in METHODS if name in results}
    folder.write(RESULTS, json_bytes({"rows": results}, indent=1))
    rows = [Row(**{**values, **{name: np.array(values[name]) for name in _SERIES}}) for values in results.values()]
    folder.write(TABLE, molhiv_table(rows).encode())
    folder.write(PLOT, molhiv_plot(rows))


def _merged(values: dict[str, Any], kept: dict[str, Any]) -> dict[str, Any]:
    """Put a row in place of an earlier one, whose other seeds and screened settings stay if the rest is the same."""
    how, kept_how = values["how"], kept["how"]
    is_same = all(values[key] == kept[key] for key in ("setting", "candidate"))
    is_same = is_same and of_same_numerics(how, kept_how) and how["time_budget"] == kept_how["time_budget"]
    if not is_same or not all(_agree(values[name], kept[name]) for name in _SERIES):
        return values
    merged = dict(values)
    for names in (("valid", "test"), ("embedding_valid", "embedding_test", "together")):
        if len(kept[names[0]]) >= len(values[names[0]]):
            merged.update({name: kept[name] for name in names})
    if values["screened"].items() <= kept["screened"].items():
        merged["screened"] = kept["screened"]
    return values if merged == values else {**merged, "how": {**how, **together([how, kept_how])}}


def _agree(one: list[float], other: list[float]) -> bool:
    """Whether two series are the same on the seeds that both have."""
    return begins_with(one, other) or begins_with(other, one)


def molhiv_table(rows: Sequence[Row]) -> str:
    """Write table 1, with what was computed and how.

    Parameters
    ----------
    rows : sequence of Row
    """
    titles = ["method", "paper, valid", "ours, valid", "paper, test", "ours, test", ""]
    titles += [f"{part}, seeds of the embedding" for part in ("valid", "test")]
    lines = [
        "# ROC-AUC on ogbg-molhiv",
        "",
        f"In per cent: {DEVIATION} over the seeds.",
        "Scaffold split; chosen on valid alone. Forests weigh classes by how rare they are, of which the paper says nothing.",
        "",
        f"| {' | '.join(titles)} |",
        f"|{'---|' * len(titles)}",
    ]
    for row in rows:
        valid, test = _paper(row, "validation"), _paper(row, "test")
        cells = [METHODS[row.method].title, _paper_number(valid), _number(row.valid), _paper_number(test)]
        cells += [_number(row.test), BELOW if is_below(row) else "", _number(row.embedding_valid)]
        cells.append(_number(row.embedding_test))
        lines.append(f"| {' | '.join(cells)} |")
    missing = [METHODS[name].title for name in METHODS if name not in {row.method for row in rows}]
    if missing:
        lines += ["", f"Not computed yet: {', '.join(missing)}."]
    lines += ["", "What was chosen:", ""]
    for row in rows:
        chosen = [*row.setting.items(), *row.candidate.items()]
        text = f"- {METHODS[row.method].title}: {', '.join(f'{key} = {value}' for key, value in chosen)}"
        lines.append(f"{text}; {_seeds(row)}.")
        screened = ", ".join(f"{name} {area:.1f}" for name, area in row.screened.items())
        lines.append(f"  Screened, pooling-layers-width, on valid: {screened}.")
        if row.together:
            models = "searches" if row.how["time_budget"] else "forests"
            lines.append(
                f"  The mean of the scores of {len(row.embedding_test)} {models}, each on another seed's embedding: "
                f"valid {row.together['valid']:.1f}, test {row.together['test']:.1f}."
            )
    return "\n".join([*lines, "", *_notes(rows), ""])


def molhiv_plot(rows: Sequence[Row]) -> bytes:
    """Draw every row beside the paper's, as a PNG."""
    figure = new_figure(8, 4)
    for axes, part, title in zip(figure.subplots(1, 2), ("valid", "test"), ("validation", "test"), strict=True):
        places = np.arange(len(rows))
        cells = [_paper(row, title) for row in rows]
        means = [cell.mean if cell else np.nan for cell in cells]
        axes.errorbar(
            places - 0.15,
            means,
            [(cell.std or 0) if cell else 0 for cell in cells],
            fmt="o",
            c=GREY,
            label="paper",
        )
        for shift, prefix, colour, label in (
            (0.0, "", BLUE, "ours, seeds of the classifier"),
            (0.15, "embedding_", RED, "ours, seeds of the embedding"),
        ):
            values = [getattr(row, prefix + part) for row in rows]
            means, deviations = ([function(each) for each in values] for function in (_mean, deviation))
            axes.errorbar(places + shift, means, deviations, fmt="o", c=colour, label=label)
        labels = [METHODS[row.method].title.replace(" + ", "\n+ ") for row in rows]
        axes.set_xticks(places, labels, fontsize=8)
        axes.set_title(f"ogbg-molhiv, {part}")
        axes.set_ylabel("ROC-AUC, %")
        axes.grid(visible=True, axis="y", color=GRID)
    axes.legend(fontsize=8)
    return png(figure)


def is_below(row: Row) -> bool:
    """Whether the mean on "test" is below the paper's."""
    paper = _paper(row, "test")
    return paper is not None and _mean(row.test) < paper.mean


def _notes(rows: Sequence[Row]) -> list[str]:
    screened = ", ".join(f"{key} = {value}" for key, value in SCREENING.items())
    budgets = sorted({row.how["time_budget"] for row in rows if row.how["time_budget"]})
    lines = [
        "How the choice was narrowed:",
        "",
        (
            f"- A setting of the embedding is screened by {len(SCREENING_SEEDS)} forests ({screened}), whose scores are "
            f"averaged. {' '.join(_narrowing(rows))}"
        ),
        (
            f"- With the best setting: sizes of leaves and splits by forests of {FEW_TREES} trees, then the number of trees. "
            "All numbers of trees come from the longest forest, and a split size below twice the leaf size is no "
            "constraint; both change no score."
        ),
        "- Statistics and reference are taken from train alone; 20 principal components; reference by k-means.",
        (
            "- Settings and candidate were chosen on valid with the embedding of seed 0, so **ours, valid** may be "
            "optimistic; with the other seeds of the embedding, in the last columns, they were not."
        ),
        "- GAP: average pooling of the same points, in place of the transport.",
        f"- *{BELOW}*: the mean on test is below the paper's.",
    ]
    if budgets:
        lines.append(
            "- AutoML: FLAML in place of Auto-sklearn 2.0, among forests with balanced classes, gradient boosting "
            "by LightGBM, and extremely randomized trees; on the setting that the forests chose; "
            f"{', '.join(f'{budget:g}' for budget in budgets)} seconds a search, each of which chooses on valid, so that all of its numbers there may be optimistic."
        )
    return [*lines, "", f"{provenance_line([row.how for row in rows])}."]


def _narrowing(rows: Sequence[Row]) -> list[str]:
    """Say in which steps the setting of each row was chosen, once for rows that have it alike."""
    titles: dict[str, list[str]] = {}
    for row in rows:
        titles.setdefault(_steps(list(row.screened)), []).append(METHODS[row.method].title)
    if len(titles) == 1:
        return list(titles)
    return [f"{', '.join(of)}: {text}" for text, of in titles.items()]


def _steps(screened: Sequence[str]) -> str:
    """Say in which steps settings were compared, by their names in the order in which they were screened."""
    settings = [name.rsplit("-", 2) for name in screened]
    (pooling, layers, width), n_settings = settings[0], len(LAYERS) * len(POOLINGS) * len(WIDTHS)
    if len(settings) == 1:
        return f"Of the {n_settings} settings of the paper's grid {screened[0]} alone was looked at."
    n_layers = sum(each[0] == pooling and each[2] == width for each in settings)
    steps = []
    if n_layers > 1:
        steps.append(f"the number of layers, with {pooling} pooling and width {width}")
    if any(each[0] != pooling for each in settings if each[2] == width):
        numbers = (
            f"{layers} layers" if n_layers == 1 else f"the {_COUNTS[min(N_BEST, n_layers)]} best numbers of layers"
        )
        steps.append(f"the pooling, with {numbers} and width {width}")
    if any(each[2] != width for each in settings):
        steps.append("the width, with the best of these" if steps else "the width")
    steps = [
        f"{'First ' if i == 0 and len(steps) > 1 else 'then ' if i else 'Only '}{step}" for i, step in enumerate(steps)
    ]
    return f"{'; '.join(steps)}. So {len(settings)} of the {n_settings} settings of the paper's grid were compared."


def _seeds(row: Row) -> str:
    text = f"{len(row.test)} {'seed' if len(row.test) == 1 else 'seeds'} of the classifier"
    return f"{text}, {len(row.embedding_test)} of the embedding" if len(row.embedding_test) else text


def _paper(row: Row, part: str) -> PaperCell | None:
    return paper_cell(1, METHODS[row.method].title, DATA_SET, metric=f"{part} ROC-AUC %")


def _paper_number(cell: PaperCell | None) -> str:
    return "" if cell is None else f"{cell.mean:.1f} ± {cell.std:.1f}"


def _number(values: Values) -> str:
    return f"{mean_and_deviation(values)}{' (one seed)' if len(values) == 1 else ''}"


def _mean(values: Values) -> float:
    return float(values.mean()) if len(values) else np.nan
