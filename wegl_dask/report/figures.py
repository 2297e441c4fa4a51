"""The plots of a report, as Bokeh figures that fit any width."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from bokeh.models import (
    ColorBar,
    ColumnDataSource,
    FactorRange,
    FixedTicker,
    HoverTool,
    LinearColorMapper,
    NoOverlap,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.palettes import Colorblind, Viridis256
from bokeh.plotting import figure
from sklearn.metrics import roc_curve

from wegl_dask.report.content import GraphMap, Points, Variance, spread
from wegl_dask.report.trained import TrainedModel
from wegl_dask.sources.base import LabelSchema
from wegl_dask.training.problem import FloatMatrix

Figure = Any
_Curve = tuple[FloatMatrix, FloatMatrix]

HEIGHT = 320
BINS = 60
FILL, ACCENT, QUIET = "#3b6fb6", "#d1495b", "#9aa4b2"
CELLS = ["#f2f5fa", "#c9d7ec", "#9db7dc", "#6d94c9", FILL]
PALETTE = tuple(Colorblind[8])
N_PAIRS = 4_000
"""Pairs of a target and its prediction that are shown, at most."""

N_ROC_POINTS = 500
N_TOOLTIPS = 3

ID_CHARACTERS = 60
"""Characters of an id that are shown, at most."""

NAME_CHARACTERS = 30
"""Characters of a class that are shown, at most."""

TICK_CHARACTERS = 10
MAX_CELLS = 12
"""Classes whose graphs are written into the cells of a confusion matrix, at most; of more, so many have a tick."""

UNKNOWN, OTHERS = "unknown", "other classes"


def histogram(values: npt.NDArray[Any], title: str) -> Figure:
    """Draw how often values occur; on a logarithmic axis where they spread over more than two decades."""
    low, high = float(values.min()), float(values.max())
    is_wide = low > 0 and high > 100 * low
    if np.issubdtype(values.dtype, np.integer) and high - low < BINS:
        edges = np.arange(low, high + 2) - 0.5
    elif is_wide:
        edges = np.geomspace(low, high * (1 + 1e-9), BINS + 1)
    else:
        edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    counts, _ = np.histogram(values, edges)
    plot = _figure(title, "graphs", x_axis_type="log" if is_wide else "linear")
    source = ColumnDataSource({"count": counts, "left": edges[:-1], "right": edges[1:]})
    bars = plot.quad(
        top="count", bottom=0, left="left", right="right", source=source, fill_color=FILL, line_color="white"
    )
    plot.y_range.start = 0
    _hover(plot, [bars], [("from", "@left{0.[000]}"), ("to", "@right{0.[000]}"), ("graphs", "@count{0,0}")])
    return plot


def explained_variance(variance: Variance) -> Figure:
    """Draw the share of the variance that each component explains, and all up to it."""
    number = np.arange(1, len(variance.shares) + 1)
    source = ColumnDataSource({"component": number, "share": variance.shares, "sum": np.cumsum(variance.shares)})
    plot = _figure("principal component", "share of the variance")
    bars = plot.vbar("component", top="share", width=0.8, source=source, fill_color=FILL, line_color="white")
    plot.line("component", "sum", source=source, color=ACCENT, line_width=2, legend_label="all up to it")
    plot.y_range.start, plot.y_range.end = 0, 1.05
    plot.yaxis.formatter = NumeralTickFormatter(format="0 %")
    plot.legend.location = "right"
    _hover(plot, [bars], [("component", "@component"), ("share", "@share{0.0 %}"), ("up to it", "@sum{0.0 %}")])
    return plot


def points_and_reference(points: Points) -> Figure:
    """Draw a sample of the points of graphs, and the reference among them."""
    plot = _figure("component 1", "component 2")
    plot.scatter(*points.sample.T, size=4, color=QUIET, alpha=0.5, line_color=None, legend_label="points of graphs")
    source = ColumnDataSource({"x": points.reference[:, 0], "y": points.reference[:, 1]})
    shown = plot.scatter("x", "y", source=source, size=9, color=ACCENT, line_color="white", legend_label="reference")
    _hover(plot, [shown], [("reference point", "$index"), ("at", "(@x{0.00}, @y{0.00})")])
    return plot


def map_section(graphs: GraphMap) -> tuple[tuple[float, float], tuple[float, float]]:
    """Choose the section of the map that is shown at first: from where to where along either axis.

    A few graphs that lie far out would leave one dot of all others. So it is what the quantiles of 1 and 99 per cent enclose,
    and as much again on either side; or all, where that is less.
    """
    low, high = np.quantile(graphs.places, [0.01, 0.99], axis=0)
    least, most = graphs.places.min(axis=0), graphs.places.max(axis=0)
    # The dots at its edge are to be whole, and it is to have one if all lie in a line.
    edge = np.where(most > least, 0.03 * (most - least), 1.0)
    starts, ends = least - edge, most + edge
    starts = np.where(high > low, np.maximum(2 * low - high, starts), starts)
    ends = np.where(high > low, np.minimum(2 * high - low, ends), ends)
    (left, right), (bottom, top) = zip(starts.tolist(), ends.tolist(), strict=True)
    return (left, right), (bottom, top)


def n_outside(graphs: GraphMap) -> int:
    """Count the graphs that are not in `map_section`."""
    starts, ends = np.transpose(map_section(graphs))
    return int(((graphs.places < starts) | (graphs.places > ends)).any(axis=1).sum())


def graph_map(graphs: GraphMap, labels: LabelSchema) -> Figure:
    """Draw the graphs of a sample, coloured by their label, with their ids at hand."""
    x_title, y_title = (f"component {i} ({share:.0%} of the variance)" for i, share in enumerate(graphs.explained, 1))
    x_range, y_range = map_section(graphs)
    plot = _figure(x_title, y_title, height=460, x_range=x_range, y_range=y_range)
    names, numbers = _label_texts(graphs, labels)
    data = {
        "x": graphs.places[:, 0],
        "y": graphs.places[:, 1],
        "id": list(map(_cut, graphs.rows.column("graph_id").to_pylist())),
        "label": [UNKNOWN if name is None else name for name in names],
        "nodes": graphs.rows.column("num_nodes").to_numpy(),
        "cost": graphs.rows.column("transport_cost").to_numpy(),
    }
    tips = [("graph", "@id"), ("label", "@label"), ("nodes", "@nodes{0,0}"), ("transport cost", "@cost{0.000}")]
    style = {"size": 6, "alpha": 0.7, "line_color": None}
    if numbers is not None and np.isfinite(numbers).any():
        low, high = np.quantile(numbers[np.isfinite(numbers)], [0.01, 0.99])
        mapper = LinearColorMapper(Viridis256, low=low, high=high if high > low else low + 1, nan_color=QUIET)
        source = ColumnDataSource({**data, "number": numbers})
        shown = [plot.scatter("x", "y", source=source, color={"field": "number", "transform": mapper}, **style)]
        # Below, because beside the plot it would take a third of a telephone's width.
        plot.add_layout(ColorBar(color_mapper=mapper, height=10, title="label"), "below")
    else:
        shown = []
        # Frequent classes first, so that rare ones are drawn on top of them.
        counts = Counter(name for name in names if name is not None)
        colours = dict(zip(sorted(counts, key=lambda name: (-counts[name], name)), PALETTE, strict=False))
        group_of = [UNKNOWN if name is None else name if name in colours else OTHERS for name in names]
        groups = [group for group in (*colours, OTHERS, UNKNOWN) if group in group_of]
        for group in groups:
            members = [i for i, each in enumerate(group_of) if each == group]
            source = ColumnDataSource({key: [column[i] for i in members] for key, column in data.items()})
            legend = {} if len(groups) == 1 else {"legend_label": group}
            colour = colours.get(group, QUIET)
            shown.append(plot.scatter("x", "y", source=source, color=colour, **legend, **style))
        if len(groups) > 1:
            plot.legend.click_policy = "hide"
    _hover(plot, shown, tips)
    return plot


def stage_seconds(stages: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw how long each stage took by the clock, and the work of all workers in it."""
    names = list(stages)
    data = {
        "stage": names,
        "clock": [stages[name]["seconds"] or 0 for name in names],
        "work": [stages[name]["part_seconds"] for name in names],
    }
    plot = _figure("seconds", "", y_range=FactorRange(*reversed(names)))
    source = ColumnDataSource(data)
    bars = plot.hbar(
        y="stage", right="work", height=0.7, source=source, color=QUIET, legend_label="work of all workers"
    )
    plot.hbar(y="stage", right="clock", height=0.4, source=source, color=FILL, legend_label="by the clock")
    plot.x_range.start = 0
    # Inside it would lie on the bars.
    legend = plot.legend[0]
    plot.add_layout(legend, "above")
    legend.orientation, legend.border_line_color, legend.margin = "horizontal", None, 0
    tips = [("stage", "@stage"), ("by the clock", "@clock{0.0} s"), ("work", "@work{0.0} s")]
    _hover(plot, [bars], tips)
    return plot


def roc_curves(models: Sequence[TrainedModel]) -> Figure | None:
    """Draw the ROC curves of models that tell two classes apart, of several labels the mean; None where there are none."""
    plot = _figure("false positive rate", "true positive rate", height=380)
    plot.line([0, 1], [0, 1], color=QUIET, line_dash="dashed")
    shown = []
    for colour, model in zip(PALETTE, (each for each in models if each.metrics["kind"] == "binary"), strict=False):
        found = (_roc_curve(model, task) for task in range(model.Y.shape[1]))
        curves = [curve for curve in found if curve is not None]
        if not curves:
            continue
        false, true = curves[0] if len(curves) == 1 else _mean_curve(curves)
        keep = np.unique(np.linspace(0, len(false) - 1, N_ROC_POINTS).round().astype(int))
        source = ColumnDataSource({"x": false[keep], "y": true[keep], "model": [model.title] * len(keep)})
        shown.append(plot.line("x", "y", source=source, color=colour, line_width=2, legend_label=model.title))
    if not shown:
        return None
    plot.legend.location = "bottom_right"
    _hover(plot, shown, [("model", "@model"), ("false positive", "@x{0.0 %}"), ("true positive", "@y{0.0 %}")])
    return plot


def _roc_curve(model: TrainedModel, task: int) -> _Curve | None:
    """Compute false and true positive rates of a label; of folds, the mean of their curves, as each has a scale of its own.

    None where there are not both classes, in any fold.
    """
    rows = model.measured[~np.isnan(model.Y[model.measured, task])]
    y, scores, parts = model.Y[rows, task], model.scores[rows, task], model.part[rows]
    each = [slice(None)] if model.metrics["protocol"] == "split" else [parts == part for part in dict.fromkeys(parts)]
    both = [part for part in each if len(np.unique(y[part])) == 2]
    curves = [roc_curve(y[part], scores[part])[:2] for part in both]
    if not curves:
        return None
    return curves[0] if model.metrics["protocol"] == "split" else _mean_curve(curves)


def _mean_curve(curves: Sequence[_Curve]) -> _Curve:
    """Take the mean of the true positive rates at the same false positive rates."""
    grid = np.linspace(0, 1, N_ROC_POINTS)
    # Where a curve rises at 0 its lower end is meant.
    return np.append(0.0, grid), np.append(0.0, np.mean([np.interp(grid, *curve) for curve in curves], axis=0))


def confusion(model: TrainedModel) -> Figure:
    """Draw how many graphs of each class are taken for each; shaded by the share of the true class."""
    names = short_names(model.metrics["class_names"])
    n, rows = len(names), model.measured
    y, scores = model.Y[rows, 0].astype(np.int64), model.scores[rows]
    is_binary = model.metrics["kind"] == "binary"
    predicted = scores[:, 0] > model.metrics["threshold"] if is_binary else scores.argmax(axis=1)
    # Of many classes most pairs do not occur, and only those that do are drawn.
    pairs, counts = np.unique(y * n + predicted, return_counts=True)
    if n <= MAX_CELLS:
        counts = np.bincount(y * n + predicted, minlength=n * n)
        pairs = np.arange(n * n)
    true, found = pairs // n, pairs % n
    shares = counts / np.maximum(np.bincount(true, weights=counts, minlength=n)[true], 1)
    source = ColumnDataSource(
        {
            "x": found,
            "y": true,
            "true": [names[i] for i in true],
            "predicted": [names[i] for i in found],
            "count": counts,
            "share": shares,
            "ink": ["white" if share > 0.5 else "#222222" for share in shares],
        }
    )
    # By number, because an axis of names cannot do with two that are alike.
    plot = _figure("predicted", "true", x_range=Range1d(-0.5, n - 0.5), y_range=Range1d(n - 0.5, -0.5), height=300)
    ticks = spread(n, MAX_CELLS).tolist()
    for axis in plot.axis:
        axis.ticker = FixedTicker(ticks=ticks)
        axis.major_label_overrides = {i: _cut(names[i], TICK_CHARACTERS) for i in ticks}
        axis.major_label_policy = NoOverlap()
    plot.grid.visible = False
    plot.background_fill_color = CELLS[0]
    mapper = LinearColorMapper(CELLS, low=0, high=1)
    cells = plot.rect("x", "y", 0.98, 0.98, source=source, color={"field": "share", "transform": mapper})
    if n <= MAX_CELLS:
        plot.text(
            "x", "y", text="count", source=source, text_color="ink", text_align="center", text_baseline="middle",
            text_font_size="12px",
        )  # fmt: skip
    tips = [
        ("true", "@true"),
        ("predicted", "@predicted"),
        ("graphs", "@count{0,0}"),
        ("share of the class", "@share{0 %}"),
    ]
    _hover(plot, [cells], tips)
    return plot


def predicted_targets(model: TrainedModel) -> Figure | None:
    """Draw predictions of a target against what it is; None where no target is known."""
    rows = model.measured[spread(len(model.measured), N_PAIRS)]
    if not len(rows):
        return None
    y = model.Y[rows, 0]
    ids = [_cut(model.graph_id[row]) for row in rows]
    source = ColumnDataSource({"y": y, "score": model.scores[rows, 0], "id": ids})
    plot = _figure("label", "prediction", height=380)
    ends = [float(y.min()), float(y.max())]
    plot.line(ends, ends, color=QUIET, line_dash="dashed")
    shown = plot.scatter("y", "score", source=source, size=5, color=FILL, alpha=0.5, line_color=None)
    _hover(plot, [shown], [("graph", "@id"), ("label", "@y{0.[000]}"), ("prediction", "@score{0.[000]}")])
    return plot


def short_names(names: Sequence[str]) -> list[str]:
    """Write names so that each can be read and no two are alike: an empty one in quotes, a long one cut, one anew numbered.

    Examples
    --------
    >>> short_names(["a", "", "a"])
    ['a', '""', 'a (2)']
    """
    found: dict[str, None] = {}
    last: dict[str, int] = {}
    for name in names:
        cut = _cut(name, NAME_CHARACTERS)
        text = short = cut if name.strip() == name != "" else f'"{cut}"'
        while text in found:
            last[short] = last.get(short, 1) + 1
            text = f"{short} ({last[short]})"
        found[text] = None
    return list(found)


def _cut(text: str, size: int = ID_CHARACTERS) -> str:
    """Cut a text that would cover the plot."""
    return text if len(text) <= size else f"{text[: size - 3]}..."


def _label_texts(graphs: GraphMap, labels: LabelSchema) -> tuple[list[str | None], FloatMatrix | None]:
    """Write labels as text, None where unknown, and as numbers where they are targets; of several tasks the first."""
    values = graphs.rows.column("label").to_pylist()
    match labels.kind:
        case "none":
            return ["none"] * len(values), None
        case "class":
            # Before the others, so that a class does not take the name of theirs.
            names = short_names([UNKNOWN, OTHERS, *labels.class_names])[2:]
            return [None if value is None else names[value] for value in values], None
        case "tasks":
            values = [None if value is None else value[0] for value in values]
    numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    texts = [None if np.isnan(value) else f"{value:g}" for value in numbers]
    return texts, None if len(np.unique(numbers[~np.isnan(numbers)])) <= 2 else numbers


def _figure(x: str, y: str, height: int = HEIGHT, **settings: Any) -> Figure:
    plot = figure(
        height=height,
        sizing_mode="stretch_width",
        tools="pan,wheel_zoom,box_zoom,reset,save",
        toolbar_location="above",
        active_scroll=None,
        x_axis_label=x,
        y_axis_label=y,
        **settings,
    )
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.outline_line_color = None
    plot.background_fill_color = plot.border_fill_color = None
    plot.grid.grid_line_color = "#e3e7ee"
    plot.axis.axis_label_text_font_style = "normal"
    plot.axis.axis_line_color = plot.axis.major_tick_line_color = QUIET
    plot.axis.minor_tick_line_color = None
    return plot


def _hover(plot: Figure, renderers: Sequence[Any], tips: Sequence[tuple[str, str]]) -> None:
    # Where many graphs lie on one another a list of all would cover the page.
    plot.add_tools(HoverTool(renderers=list(renderers), tooltips=list(tips), limit=N_TOOLTIPS))
