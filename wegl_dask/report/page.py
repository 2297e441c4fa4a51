"""The page of a report: text, tables and plots in one file that is read without a network."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources as package_files
from typing import Any

from bokeh.embed import components
from bokeh.resources import Resources
from jinja2 import Environment, StrictUndefined

from wegl_dask.progress import counted, format_bytes, format_seconds
from wegl_dask.report import figures as draw
from wegl_dask.report.content import ReportContent
from wegl_dask.report.trained import TrainedModel
from wegl_dask.training.results import metric_rows, notes_of, task_rows


@dataclass(frozen=True)
class _Figure:
    """A plot on the page; `plot` is a Bokeh figure, and later the element that holds it."""

    title: str
    caption: str
    plot: Any
    is_wide: bool = False


def render(content: ReportContent) -> str:
    """Write the page of a run as HTML."""
    spec = content.spec
    figures, training_figures = _figures(content), _training_figures(content.trained)
    script, elements = components([figure.plot for figure in (*figures, *training_figures)])
    drawn = [
        _Figure(figure.title, figure.caption, element, figure.is_wide)
        for figure, element in zip((*figures, *training_figures), elements, strict=True)
    ]
    template = package_files.files("wegl_dask.report").joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        name=spec.name,
        source=spec.source.kind,
        location=content.location,
        facts=_facts(content),
        sentences=_sentences(content),
        job_toml=content.job_toml,
        versions="\n".join(f"{package} {version}" for package, version in content.manifest["versions"].items()),
        rows=_rows(content),
        figures=drawn[: len(figures)],
        models=[_model(model) for model in content.trained],
        training_figures=drawn[len(figures) :],
        # Of Bokeh's scripts the plots need one; the others, for tables and formulas, are larger than it.
        resources=Resources(mode="inline", components=["bokeh"]).render(),
        script=script,
    )


def _facts(content: ReportContent) -> list[tuple[str, str]]:
    # Of the workers: the time that passed is not known of what a run did before it was stopped.
    seconds = sum(stage["part_seconds"] for stage in content.manifest["stages"].values())
    return [
        ("graphs embedded", f"{content.n_rows:,}"),
        ("rows rejected", f"{sum(content.reasons.values()):,}"),
        ("reference points N", f"{content.n_points:,}"),
        ("coordinates d", f"{content.dimension:,}"),
        ("vector", f"{content.n_points * content.dimension:,}"),
        ("size", format_bytes(content.n_bytes)),
        ("work", format_seconds(seconds)),
    ]


def _sentences(content: ReportContent) -> list[str]:
    spec = content.spec
    solved = ", ".join(f"{count:,} {name}" for name, count in content.solved.items())
    names = content.labels.class_names or content.labels.task_names
    several = f": {', '.join(draw.short_names(names[:10]))}{', ...' if len(names) > 10 else ''}" if names else ""
    kinds = {"none": "none", "class": "classes", "target": "one number a graph", "tasks": "several tasks"}
    virtual = ", with virtual nodes" if spec.nodes.virtual_node else ""
    return [
        f"Labels: {kinds[content.labels.kind]}{several}.",
        f"Diffusion: {spec.diffusion.layers} layers, pooling {spec.diffusion.pooling}{virtual}.",
        f"Reference: {spec.reference.kind}. Seed: {spec.seed}.",
        f"Transport plans: {solved}.",
        *_approximation(content),
    ]


def _approximation(content: ReportContent) -> list[str]:
    left_out = (
        f" {counted(content.n_large_pairs, 'pair')} of large graphs were left out." if content.n_large_pairs else ""
    )
    if content.approximation is None:
        return [f"Distances were not compared with 2-Wasserstein distances.{left_out}"] if left_out else []
    found = content.approximation.summary()
    n_pairs = counted(int(found["pairs"] - found["equal_pairs"]), "pair")
    if not content.approximation.apart.any():
        return [
            "Distances: no pair of graphs that differ was found to compare them with 2-Wasserstein distances."
            + left_out
        ]
    text = (
        f"Distances of vectors, on {n_pairs} of a sample of graphs: off the exact 2-Wasserstein distance by "
        f"{found['mean_relative_error']:.1%} on average, below it for {found['fraction_below']:.0%}; the certified bound is "
        f"{found['bound_mean_ratio']:.2f} times as large on average, and broken by {counted(int(found['bound_broken']), 'pair')}."
    )
    return [text + left_out]


def _rows(content: ReportContent) -> list[tuple[str, str]]:
    reasons = [(f"rejected: {reason}", f"{count:,}") for reason, count in content.reasons.items()]
    total = content.n_rows + sum(content.reasons.values())
    return [("all", f"{total:,}"), ("embedded", f"{content.n_rows:,}"), *reasons]


def _figures(content: ReportContent) -> list[_Figure]:
    figures = []
    if content.graph_map is not None:
        labels = content.labels
        outside = draw.n_outside(content.graph_map)
        more = f" Further out, and shown by the tools above the map: {counted(outside, 'graph')}." if outside else ""
        by = {"none": "", "tasks": f", coloured by {labels.task_names[0]}" if labels.task_names else ""}
        how = by.get(labels.kind, ", coloured by label")
        figures.append(
            _Figure(
                "Map of the embeddings",
                f"{_sample(len(content.graph_map.places), content.n_rows, 'graphs')} in the plane of their first two "
                f"principal components{how}. Point at one for its id.{more}",
                draw.graph_map(content.graph_map, labels),
                is_wide=True,
            )
        )
    if len(content.num_nodes):
        sampled = _sample(len(content.num_nodes), content.n_rows, "graphs")
        figures += [
            _Figure("Sizes", f"Nodes of {sampled}.", draw.histogram(content.num_nodes, "nodes")),
            _Figure(
                "Transport costs",
                f"Of {sampled}: the squared 2-Wasserstein distance to the reference where the plan is exact.",
                draw.histogram(content.transport_cost, "transport cost"),
            ),
        ]
    if content.variance is not None:
        share = content.variance.shares.sum()
        figures.append(
            _Figure(
                "Variance explained",
                f"The {content.dimension} principal components kept explain {share:.1%} of the node embeddings' variance.",
                draw.explained_variance(content.variance),
            )
        )
    if content.points is not None:
        figures.append(
            _Figure(
                "Points and reference",
                f"Node embeddings of {content.points.n_graphs:,} graphs, and the {content.n_points} reference points, in the "
                "plane of the first two principal components.",
                draw.points_and_reference(content.points),
            )
        )
    stages = content.manifest["stages"]
    caption = "Of the run that finished; stages that an earlier run had done show the work of that one."
    figures.append(_Figure("Seconds a stage", caption, draw.stage_seconds(stages)))
    return figures


def _training_figures(trained: list[TrainedModel]) -> list[_Figure]:
    figures = []
    curves = draw.roc_curves(trained)
    if curves is not None:
        figures.append(
            _Figure(
                "ROC curves",
                "Of the part test, or the mean of the folds' curves; of several labels, the mean of theirs.",
                curves,
            )
        )
    for model in trained:
        name, metrics = model.title, model.metrics
        on = 'the part "test", first seed' if metrics["protocol"] == "split" else "all folds, each by its own choice"
        if metrics["class_names"]:
            figures.append(_Figure(f"{name}: confusion", f"Of {on}.", draw.confusion(model)))
        elif metrics["kind"] == "regression" and not metrics["task_names"]:
            plot = draw.predicted_targets(model)
            figures += [] if plot is None else [_Figure(f"{name}: predictions", f"Of {on}.", plot)]
    return figures


def _model(model: TrainedModel) -> Mapping[str, Any]:
    metrics = model.metrics
    rows, tasks = metric_rows(metrics), task_rows(metrics)
    return {
        "title": f"{metrics['model']}, {metrics['protocol']}",
        # A row for each metric: there are more of them than results, and a telephone is narrow.
        "tables": [[*zip(*rows, strict=True)], *([[rows[0], *tasks]] if tasks else [])],
        "notes": notes_of(metrics),
        "is_current": model.is_current,
    }


def _sample(shown: int, total: int, what: str) -> str:
    return f"{total:,} {what}" if shown == total else f"{shown:,} of {total:,} {what}"
