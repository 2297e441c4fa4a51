"""The plots of a report, as Bokeh figures that fit any width."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from bokeh.models import ColorBar, ColumnDataSource, FactorRange, HoverTool, LinearColorMapper, NumeralTickFormatter
from bokeh.palettes import Colorblind, Viridis256
from bokeh.plotting import figure
from sklearn.metrics import roc_curve

from wegl_dask.graphs import IntArray
from wegl_dask.report.content import FloatMatrix, GraphMap, Points, TrainedModel, Variance
from wegl_dask.sources.base import LabelSchema

Figure = Any

HEIGHT = 320
BINS = 60
FILL, ACCENT, QUIET = "#3b6fb6", "#d1495b", "#9aa4b2"
PALETTE = tuple(Colorblind[8])
N_PAIRS = 4_000
"""Pairs of a target and its prediction that are shown, at most."""

N_ROC_POINTS = 500
N_TOOLTIPS = 3


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


def graph_map(graphs: GraphMap, labels: LabelSchema) -> Figure:
    """Draw the graphs of a sample, coloured by their label, with their ids at hand."""
    x_title, y_title = (f"component {i} ({share:.0%} of the variance)" for i, share in enumerate(graphs.explained, 1))
    plot = _figure(x_title, y_title, height=460)
    names, numbers = _label_texts(graphs, labels)
    data = {
        "x": graphs.places[:, 0],
        "y": graphs.places[:, 1],
        "id": graphs.rows.column("graph_id").to_pylist(),
        "label": names,
        "nodes": graphs.rows.column("num_nodes").to_numpy(),
        "cost": graphs.rows.column("transport_cost").to_numpy(),
    }
    tips = [("graph", "@id"), ("label", "@label"), ("nodes", "@nodes{0,0}"), ("transport cost", "@cost{0.000}")]
    style = {"size": 6, "alpha": 0.7, "line_color": None}
    if numbers is not None and np.isfinite(numbers).any():
        low, high = np.nanquantile(numbers, [0.01, 0.99])
        mapper = LinearColorMapper(Viridis256, low=low, high=high if high > low else low + 1, nan_color=QUIET)
        source = ColumnDataSource({**data, "number": numbers})
        shown = [plot.scatter("x", "y", source=source, color={"field": "number", "transform": mapper}, **style)]
        # Below, because beside the plot it would take a third of a telephone's width.
        plot.add_layout(ColorBar(color_mapper=mapper, height=10, title="label"), "below")
    else:
        shown = []
        groups = _by_frequency(names)
        for place, group in enumerate([*groups[: len(PALETTE)], None]):
            members = [
                i
                for i, name in enumerate(names)
                if (name == group if group is not None else name in groups[len(PALETTE) :])
            ]
            if members:
                source = ColumnDataSource({key: [column[i] for i in members] for key, column in data.items()})
                colour = QUIET if group in (None, "unknown") else PALETTE[place]
                legend = {} if len(groups) == 1 else {"legend_label": group or "other classes"}
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
    """Draw the ROC curves of models that tell two classes apart; None where there are none."""
    plot = _figure("false positive rate", "true positive rate", height=380)
    plot.line([0, 1], [0, 1], color=QUIET, line_dash="dashed")
    shown = []
    for colour, model in zip(PALETTE, (each for each in models if each.metrics["kind"] == "binary"), strict=False):
        y, scores = measured(model)
        if y.shape[1] != 1 or len(np.unique(y)) < 2:
            continue
        false, true, _ = roc_curve(y[:, 0], scores[:, 0])
        keep = np.unique(np.linspace(0, len(false) - 1, N_ROC_POINTS).round().astype(int))
        name = model.metrics["model"]
        source = ColumnDataSource({"x": false[keep], "y": true[keep], "model": [name] * len(keep)})
        shown.append(plot.line("x", "y", source=source, color=colour, line_width=2, legend_label=name))
    if not shown:
        return None
    plot.legend.location = "bottom_right"
    _hover(plot, shown, [("model", "@model"), ("false positive", "@x{0.0 %}"), ("true positive", "@y{0.0 %}")])
    return plot


def confusion(model: TrainedModel) -> Figure:
    """Draw how many graphs of each class are taken for each; shaded by the share of the true class."""
    names = list(model.metrics["class_names"])
    y, scores = measured(model)
    if model.metrics["kind"] == "binary":
        predicted = (scores[:, 0] > model.metrics["threshold"]).astype(int)
    else:
        predicted = scores.argmax(axis=1)
    counts = np.zeros((len(names), len(names)), dtype=int)
    np.add.at(counts, (y[:, 0].astype(int), predicted), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    true, found = np.indices(counts.shape)
    source = ColumnDataSource(
        {
            "true": [names[i] for i in true.ravel()],
            "predicted": [names[i] for i in found.ravel()],
            "count": counts.ravel(),
            "share": shares.ravel(),
            "ink": ["white" if share > 0.5 else "#222222" for share in shares.ravel()],
        }
    )
    plot = _figure("predicted", "true", x_range=FactorRange(*names), y_range=FactorRange(*reversed(names)), height=300)
    mapper = LinearColorMapper(["#f2f5fa", "#c9d7ec", "#9db7dc", "#6d94c9", FILL], low=0, high=1)
    cells = plot.rect("predicted", "true", 0.98, 0.98, source=source, color={"field": "share", "transform": mapper})
    if len(names) <= 12:
        plot.text(
            "predicted", "true", text="count", source=source, text_color="ink", text_align="center",
            text_baseline="middle", text_font_size="12px",
        )  # fmt: skip
    tips = [
        ("true", "@true"),
        ("predicted", "@predicted"),
        ("graphs", "@count{0,0}"),
        ("share of the class", "@share{0 %}"),
    ]
    _hover(plot, [cells], tips)
    return plot


def predicted_targets(model: TrainedModel) -> Figure:
    """Draw predictions of a target against what it is."""
    y, scores = measured(model)
    place = (
        np.unique(np.linspace(0, len(y) - 1, N_PAIRS).round().astype(int)) if len(y) > N_PAIRS else np.arange(len(y))
    )
    ids = model.predictions.column("graph_id").to_pylist()
    known = np.flatnonzero(~np.isnan(_matrix(model.predictions.column("y"))).any(axis=1))
    source = ColumnDataSource({"y": y[place, 0], "score": scores[place, 0], "id": [ids[i] for i in known[place]]})
    plot = _figure("label", "prediction", height=380)
    ends = [float(y[:, 0].min()), float(y[:, 0].max())]
    plot.line(ends, ends, color=QUIET, line_dash="dashed")
    shown = plot.scatter("y", "score", source=source, size=5, color=FILL, alpha=0.5, line_color=None)
    _hover(plot, [shown], [("graph", "@id"), ("label", "@y{0.[000]}"), ("prediction", "@score{0.[000]}")])
    return plot


def measured(model: TrainedModel) -> tuple[FloatMatrix, FloatMatrix]:
    """Take the labels and scores that a model is measured by: of the part "test", or of all folds; known labels alone."""
    predictions = model.predictions
    y, scores = _matrix(predictions.column("y")), _matrix(predictions.column("score"))
    keep = ~np.isnan(y).all(axis=1)
    if "split" in predictions.column_names:
        keep &= np.array(predictions.column("split").to_pylist(), dtype=object) == "test"
    return y[keep], scores[keep]


def _matrix(column: Any) -> FloatMatrix:
    """Make a matrix of a column of numbers or of lists; null is NaN."""
    values = np.array(column.to_pylist(), dtype=np.float64)
    return values.reshape(len(column), -1)


def _label_texts(graphs: GraphMap, labels: LabelSchema) -> tuple[list[str], IntArray | FloatMatrix | None]:
    """Write labels as text, and as numbers where they are targets; of several tasks the first."""
    values = graphs.rows.column("label").to_pylist()
    match labels.kind:
        case "none":
            return ["none"] * len(values), None
        case "class":
            return ["unknown" if value is None else labels.class_names[value] for value in values], None
        case "tasks":
            values = [None if value is None else value[0] for value in values]
    numbers = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    texts = ["unknown" if np.isnan(value) else f"{value:g}" for value in numbers]
    return texts, None if len(np.unique(numbers[~np.isnan(numbers)])) <= 2 else numbers


def _by_frequency(names: Sequence[str]) -> list[str]:
    """List the names, frequent ones first, so that rare ones are drawn on top of them."""
    counts = {name: names.count(name) for name in dict.fromkeys(names)}
    return sorted(counts, key=lambda name: (name == "unknown", -counts[name], name))


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
