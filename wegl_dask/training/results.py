"""What is kept of a training: metrics, the score of every graph, the fitted model; and the table of it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wegl_dask.checksums import fingerprint
from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.progress import one_line
from wegl_dask.records import json_bytes
from wegl_dask.storage import RunFolder
from wegl_dask.training.metrics import METRICS, Metric
from wegl_dask.training.names import (
    METRICS_FILE,
    MODEL_FILE,
    MODEL_NAMES,
    PREDICTIONS_FILE,
    ModelName,
    ProtocolName,
    training_folder,
)
from wegl_dask.training.problem import Problem
from wegl_dask.training.protocols import NESTED, Outcome, Values
from wegl_dask.training.saved import encode_estimators
from wegl_dask.version import __version__

ONE_LABEL = "label"
"""Name of the task where there is one label."""

MOST_TASKS = 20
"""Tasks whose results are shown one by one in a terminal."""

_SOME = ", or over those of them in which the metric is defined:"
"""Where it is not in all; the lines that follow say which numbers are meant."""


@dataclass(frozen=True)
class Trained:
    """A model that was trained and measured.

    Attributes
    ----------
    model, protocol : str
    metric : Metric
        That candidates were compared by.
    problem : Problem
    outcome : Outcome
    seed : int
        The first.
    threshold : float
        Score above which class 1 is predicted.
    data : str
        What `data_fingerprint` found before the training.
    versions : mapping of str to str
        Of the packages that scores follow from.
    seconds : float
    fits_found : int
        Fits of a training that was stopped, which are not in `seconds`.
    """

    model: ModelName
    protocol: ProtocolName
    metric: Metric
    problem: Problem
    outcome: Outcome
    seed: int
    threshold: float
    data: str
    versions: Mapping[str, str]
    seconds: float
    fits_found: int

    def to_json(self) -> dict[str, Any]:
        """Render what is kept in metrics.json."""
        outcome = self.outcome
        scored = [] if len(outcome.candidates) == 1 else outcome.candidate_scores.tolist()
        return {
            "model": self.model,
            "protocol": self.protocol,
            "metric": self.metric.name,
            "kind": self.problem.kind,
            "class_names": list(self.problem.class_names),
            "task_names": list(self.problem.task_names),
            "results": _summaries(outcome.results),
            "results_by_task": {task: _summaries(found) for task, found in outcome.results_by_task.items()},
            "repeats": outcome.repeats,
            "notes": list(outcome.notes),
            "threshold": self.threshold,
            "chosen": dict(outcome.chosen),
            "candidates": [
                {"parameters": dict(candidate), "score": score}
                for candidate, score in zip(outcome.candidates, scored, strict=False)
            ],
            "estimator": " ".join(repr(outcome.estimators[0]).split()),
            "seed": self.seed,
            "graphs": len(self.problem.X),
            "graphs_labelled": len(self.problem.labelled),
            "width": self.problem.X.shape[1],
            "seconds": round(self.seconds, 3),
            "fits_found": self.fits_found,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"wegl-dask": __version__, **self.versions, "skops": version("skops")},
            "data": self.data,
        }

    def predictions(self) -> pa.Table:
        """Make the table of predictions: ``graph_id``, ``split`` or ``fold``, ``y``, ``score``; a row a scored graph."""
        problem, outcome = self.problem, self.outcome
        Y = problem.Y[outcome.rows]
        if problem.task_names:
            y = _lists(Y)
        elif problem.kind == "regression":
            y = pa.array(Y[:, 0], pa.float64(), from_pandas=True)
        else:
            y = pa.array(Y[:, 0], pa.float64(), from_pandas=True).cast(pa.int64())
        several = bool(problem.task_names) or problem.kind == "multiclass"
        score = _lists(outcome.scores) if several else pa.array(outcome.scores[:, 0], pa.float64())
        return pa.table(
            {
                "graph_id": pa.array(problem.graph_id[outcome.rows], pa.string()),
                "split" if outcome.repeats == "seed" else "fold": pa.array(outcome.part),
                "y": y,
                "score": score,
            }
        )

    def write(self, run: RunFolder) -> dict[str, Any]:
        """Write the three files to the run folder, metrics.json last, in place of those there; return what that holds."""
        folder = training_folder(self.model)
        table = self.predictions()
        names = self.problem.task_names or (ONE_LABEL,)
        estimators = dict(zip(names, self.outcome.estimators, strict=True))
        metrics = self.to_json()
        run.write_together(
            {
                f"{folder}/{PREDICTIONS_FILE}": lambda file: pq.write_table(table, file, compression="zstd"),
                f"{folder}/{MODEL_FILE}": encode_estimators(estimators),
                f"{folder}/{METRICS_FILE}": json_bytes(metrics, indent=1),
            }
        )
        return metrics


def _summaries(results: Mapping[str, Values]) -> dict[str, dict[str, Any]]:
    return {
        name: {metric: summarise(values) for metric, values in metrics.items()} for name, metrics in results.items()
    }


def summarise(values: Sequence[float]) -> dict[str, Any]:
    """Put the values of a metric together: mean, standard deviation (of a sample; null for one value) and all of them.

    A value that is not defined is null, and left out of the mean.
    """
    defined = np.array([value for value in values if not np.isnan(value)])
    # The squares of small numbers are none, and those of a power of two times them have the same digits.
    _, power = np.frexp(np.abs(defined).max(initial=0.0))
    return {
        "mean": float(np.mean(defined)) if len(defined) else None,
        "std": float(np.ldexp(np.std(np.ldexp(defined, -power), ddof=1), power)) if len(defined) > 1 else None,
        "values": [None if np.isnan(value) else float(value) for value in values],
    }


def data_fingerprint(run: RunFolder) -> str:
    """Hash the embeddings of a run: the SHA-256 of its parts, in order.

    Raises
    ------
    WeglError
        If no part has a record, or one is not what its record says.
    """
    records = [
        replace(record, files=tuple(file for file in record.files if file.folder == "data"))
        for record in run.records("embed")
    ]
    parts = [file for record in records for file in record.files]
    if not parts:
        raise WeglError(f"{run.location()} has no whole record of its embeddings: run the job again")
    intact = run.parts_are_intact(records)
    altered = [file.path for record, good in zip(records, intact, strict=True) if not good for file in record.files]
    if altered:
        more = f", and {len(altered) - 1} more parts are not" if len(altered) > 1 else ""
        raise WeglError(
            f"{run.location(altered[0])} is not what its record says{more}: run the job again, which makes it anew"
        )
    return fingerprint(*(file.sha256 for file in parts))


def read_results(run: Folder) -> list[dict[str, Any]]:
    """Read metrics.json of every model that was trained on a run, in the order of the models' names.

    Raises
    ------
    WeglError
        If one is damaged, or of another model.
    """
    found = []
    for model in MODEL_NAMES:
        name = f"{training_folder(model)}/{METRICS_FILE}"
        content = run.read_if_there(name)
        if content is None:
            continue
        try:
            metrics = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise WeglError(f"{run.location(name)} is damaged: {error}. Train the model again") from error
        if not isinstance(metrics, dict) or metrics.get("model") != model:
            raise WeglError(
                f"{run.location(name)} is damaged: it does not hold the results of {model!r}. Train the model again"
            )
        found.append(metrics)
    return found


def results_table(metrics: Mapping[str, Any]) -> list[str]:
    """Lay the results of a training out as lines of text, from what metrics.json holds."""
    rows, notes = metric_rows(metrics), notes_of(metrics)
    n_tasks = len(metrics["task_names"])
    if n_tasks <= MOST_TASKS:
        rows += task_rows(metrics)
    else:
        notes.append(f"of each of the {n_tasks} tasks: results_by_task in {METRICS_FILE}")
    return [*_aligned(rows), *notes]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *cells in rows:
        right = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join([name.ljust(widths[0]), *right]).rstrip()


def metric_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """Make the cells of the table of results: a heading, and a row for whatever was measured."""
    heading = ["", *(metric.title for metric in METRICS[metrics["kind"]])]
    return [heading, *([name, *_cells(metrics, found)] for name, found in metrics["results"].items())]


def task_rows(metrics: Mapping[str, Any]) -> list[list[str]]:
    """Make the cells of a row for each of several tasks: what it is worth on the part "test", or nested."""
    measured = _measured(metrics)
    return [
        [_task_row(measured, task), *_cells(metrics, found[measured])]
        for task, found in metrics["results_by_task"].items()
    ]


def _measured(metrics: Mapping[str, Any]) -> str:
    return "test" if metrics["protocol"] == "split" else NESTED


def _task_row(measured: str, task: str) -> str:
    return f"{measured}, {one_line(task)}"


def notes_of(metrics: Mapping[str, Any]) -> list[str]:
    """Say in a line each what the numbers are."""
    n_values = max(len(found["values"]) for part in metrics["results"].values() for found in part.values())
    n_tasks = len(metrics["task_names"])
    lines = []
    if n_values > 1:
        fewer = _fewer_repeats(metrics)
        lines.append(f"mean and standard deviation over {n_values} {metrics['repeats']}s{_SOME if fewer else ''}")
        lines += fewer
    if metrics["chosen"]:
        lines.append("chosen: " + ", ".join(f"{key} = {value}" for key, value in metrics["chosen"].items()))
    if n_tasks > 1:
        fewer = _fewer_tasks(metrics)
        lines.append(f"every number without the name of a task is a mean over {n_tasks} tasks{_SOME if fewer else ''}")
        lines += fewer
    if len(metrics["class_names"]) == 2:
        lines.append(f"scores and average precision are of the class {metrics['class_names'][1]!r}, the second by name")
    return [*lines, *metrics["notes"]]


def _fewer_repeats(metrics: Mapping[str, Any]) -> list[str]:
    """Say of which numbers some seeds or folds have none, and how many have one; of none at all there is a dash."""
    measured, rows = _measured(metrics), dict(metrics["results"])
    if len(metrics["task_names"]) <= MOST_TASKS:
        rows |= {_task_row(measured, task): found[measured] for task, found in metrics["results_by_task"].items()}
    lines = []
    for name, found in rows.items():
        fewer = {}
        for metric, summary in found.items():
            n_defined, n_values = _n_defined(summary["values"]), len(summary["values"])
            if 0 < n_defined < n_values:
                fewer[metric] = f"{n_defined} of {n_values} {metrics['repeats']}s"
        lines += _by_count(metrics, name, fewer)
    return lines


def _fewer_tasks(metrics: Mapping[str, Any]) -> list[str]:
    """Say which means leave out tasks, and over how many they are: the least to the most of any seed or fold."""
    n_tasks = len(metrics["task_names"])
    lines = []
    for name in metrics["results"]:
        fewer: dict[str, str] = {}
        for metric in (metric.name for metric in METRICS[metrics["kind"]]):
            of_tasks = [own[name][metric]["values"] for own in metrics["results_by_task"].values()]
            counts = [_n_defined(values) for values in zip(*of_tasks, strict=False)]
            least, most = min(filter(None, counts), default=n_tasks), max(counts, default=0)
            if least < n_tasks:
                fewer[metric] = f"{least if least == most else f'{least} to {most}'} of {n_tasks} tasks"
        lines += _by_count(metrics, name, fewer)
    return lines


def _n_defined(values: Sequence[float | None]) -> int:
    return sum(value is not None for value in values)


def _by_count(metrics: Mapping[str, Any], name: str, counts: Mapping[str, str]) -> list[str]:
    """Make a line for each count that occurs, with the metrics of the row `name` that have it."""
    lines: dict[str, list[str]] = {}
    for metric in METRICS[metrics["kind"]]:
        if metric.name in counts:
            lines.setdefault(counts[metric.name], []).append(metric.title)
    return [f"{' and '.join(titles)} of {name}: over {count}" for count, titles in lines.items()]


def _cells(metrics: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    return [_cell(found[metric.name]) for metric in METRICS[metrics["kind"]]]


def _cell(summary: Mapping[str, Any]) -> str:
    if summary["mean"] is None:
        return "-"
    spread = "" if summary["std"] is None else f" ± {summary['std']:#.4g}"
    return f"{summary['mean']:#.4g}{spread}"


def _lists(values: Any) -> pa.Array:
    """Make a column of lists; NaN becomes null."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1), pa.float64(), from_pandas=True)
    offsets = np.arange(len(values) + 1) * values.shape[1]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), flat)
