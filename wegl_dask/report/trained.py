"""The models that were trained on a run, as a report shows them: what was measured, and the predictions it was measured by."""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from wegl_dask.errors import WeglError
from wegl_dask.folders import resources_told_apart
from wegl_dask.invalid import first_problem
from wegl_dask.storage import RunFolder
from wegl_dask.training.metrics import METRICS, all_metrics
from wegl_dask.training.names import METRICS_FILE, PREDICTIONS_FILE, ModelName, ProtocolName, training_folder
from wegl_dask.training.problem import FloatMatrix, ProblemKind
from wegl_dask.training.protocols import NESTED
from wegl_dask.training.results import read_results, summarise

TOLERANCE = 1e-6
"""How far a metric that is computed anew may be from the one that was noted, as other versions may round otherwise."""


@dataclass(frozen=True)
class TrainedModel:
    """A model that was trained on the run.

    Attributes
    ----------
    metrics : mapping
        What metrics.json holds.
    graph_id : list of str
        The graphs that were scored.
    part : object, (n,)
        The part of the split (str), or the fold (int), that each is in.
    Y : float64, (n, n_tasks)
        Class indices or targets; NaN where unknown.
    scores : float64, (n, n_outputs)
    is_current : bool
        Whether it was trained on the embeddings that are there now.
    """

    metrics: Mapping[str, Any]
    graph_id: list[str]
    part: npt.NDArray[np.object_]
    Y: FloatMatrix
    scores: FloatMatrix
    is_current: bool

    @property
    def title(self) -> str:
        """Its name in figures, which says so where it was trained on other embeddings than are there now."""
        name: str = self.metrics["model"]
        return name if self.is_current else f"{name} (of earlier embeddings)"

    @property
    def measured(self) -> npt.NDArray[np.intp]:
        """The graphs that the model is measured by: of the part "test", or of all folds; those with a label."""
        is_measured = ~np.isnan(self.Y).all(axis=1)
        if self.metrics["protocol"] == "split":
            is_measured &= self.part == "test"
        return np.flatnonzero(is_measured)


def read_trained(folder: RunFolder, current: str) -> list[TrainedModel]:
    """Read the models that were trained on the run, whose embeddings have the fingerprint `current` now.

    Raises
    ------
    WeglError
        If a file of one is missing, damaged or of another training.
    """
    return [_read_one(folder, metrics, current) for metrics in read_results(folder)]


class _Summary(BaseModel):
    model_config = ConfigDict(strict=True)

    mean: FiniteFloat | None
    std: FiniteFloat | None
    values: list[FiniteFloat | None]


class _Metrics(BaseModel):
    """What a report takes of metrics.json."""

    model_config = ConfigDict(strict=True)

    model: ModelName
    protocol: ProtocolName
    kind: ProblemKind
    class_names: list[str]
    task_names: list[str]
    results: dict[str, dict[str, _Summary]]
    # Of one label there is none, and trainings of earlier versions have no such key.
    results_by_task: dict[str, dict[str, dict[str, _Summary]]] = Field(default_factory=dict)
    repeats: Literal["seed", "fold"]
    notes: list[str]
    threshold: FiniteFloat
    chosen: dict[str, Any]
    data: str

    @model_validator(mode="after")
    def _fit_together(self) -> "_Metrics":
        n_classes = len(self.class_names)
        needed = {"binary": n_classes == 2, "multiclass": n_classes > 2, "regression": n_classes == 0}[self.kind]
        if self.task_names:
            needed = self.kind != "multiclass" and n_classes == 0
        if not needed:
            raise ValueError(f"{n_classes} classes and {len(self.task_names)} tasks are none of kind {self.kind!r}")
        if list(self.results_by_task) != self.task_names:
            raise ValueError("the results by task are not those of its tasks")
        for results in (self.results, *self.results_by_task.values()):
            self._require_summaries(results)
        for task, results in self.results_by_task.items():
            if results.keys() != self.results.keys():
                raise ValueError(f"the results of task {task!r} are of other parts than those of all tasks")
        return self

    def _require_summaries(self, results: Mapping[str, Mapping[str, _Summary]]) -> None:
        measured = {"valid", "test"} if self.protocol == "split" else {NESTED}
        if not measured <= results.keys():
            raise ValueError(f"the results are not those of protocol {self.protocol!r}")
        for name, found in results.items():
            missing = [metric.name for metric in METRICS[self.kind] if metric.name not in found]
            if missing or not all(summary.values for summary in found.values()):
                raise ValueError(f"the result {name!r} has no values of {', '.join(missing) or 'a metric'}")
        for name, found in results.items():
            for metric, summary in found.items():
                again = summarise(_numbers(summary.values))
                noted = [_or_nan(summary.mean), _or_nan(summary.std)]
                if not np.allclose(
                    [_or_nan(again["mean"]), _or_nan(again["std"])], noted, rtol=TOLERANCE, equal_nan=True
                ):
                    raise ValueError(f"the mean and the deviation of {metric}, {name!r}, are not those of its values")
        if len({len(summary.values) for summary in results[min(measured)].values()}) > 1:
            raise ValueError(f"the metrics of {min(measured)!r} have different numbers of values")


def _read_one(folder: RunFolder, metrics: Mapping[str, Any], current: str) -> TrainedModel:
    try:
        _Metrics.model_validate(metrics)
    except ValidationError as error:
        where = folder.location(f"{training_folder(metrics['model'])}/{METRICS_FILE}")
        raise WeglError(f"{where} is damaged: {first_problem(error)}. Train the model again") from error
    name = f"{training_folder(metrics['model'])}/{PREDICTIONS_FILE}"
    content = folder.read_if_there(name)
    if content is None:
        raise WeglError(f"{folder.location(name)} is missing: train the model again")
    try:
        with resources_told_apart(folder.location(name)):
            table = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True).read()
    except (pa.ArrowException, OSError) as error:
        raise WeglError(f"{folder.location(name)} is damaged: {error}. Train the model again") from error
    try:
        return _of_predictions(metrics, table, is_current=metrics["data"] == current)
    except ValueError as error:
        raise WeglError(f"{folder.location(name)} is not of this training: {error}. Train the model again") from error


def _of_predictions(metrics: Mapping[str, Any], table: pa.Table, *, is_current: bool) -> TrainedModel:
    """Take the columns of predictions.parquet; ValueError where they are not what `metrics` tells of."""
    n_classes, n_tasks = len(metrics["class_names"]), len(metrics["task_names"])
    part, part_type = ("split", pa.string()) if metrics["protocol"] == "split" else ("fold", pa.int64())
    label_type = pa.int64() if n_classes else pa.float64()
    model = TrainedModel(
        metrics=metrics,
        graph_id=_column(table, "graph_id", pa.string()).to_pylist(),
        part=np.array(_column(table, part, part_type).to_pylist(), dtype=object),
        Y=_matrix(table, "y", label_type, n_tasks),
        scores=_matrix(table, "score", pa.float64(), n_tasks or (n_classes if n_classes > 2 else 0)),
        is_current=is_current,
    )
    known = model.Y[~np.isnan(model.Y)]
    if metrics["kind"] != "regression" and not np.isin(known, np.arange(n_classes or 2)).all():
        raise ValueError("the column y holds what is no class")
    if not np.isfinite(model.scores[~np.isnan(model.Y).all(axis=1)]).all():
        raise ValueError("the column score holds what is no finite number")
    for where, found, noted in _results(model):
        if not np.allclose(found, noted, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            raise ValueError(f"{METRICS_FILE} has other results for {where} than these predictions give")
    return model


def _results(model: TrainedModel) -> Iterator[tuple[str, list[float], list[float]]]:
    """Compute the metrics of predictions anew, in the order of the parts: what of, the metrics, and those noted."""
    metrics = model.metrics
    results = metrics["results"]
    parts: list[tuple[Any, str, int]] = [(name, name, 0) for name in ("valid", "test")]
    if metrics["protocol"] == "cv":
        n_folds = len(next(iter(results[NESTED].values()))["values"])
        parts = [(fold, NESTED, fold) for fold in range(n_folds)]
    for part, result, place in parts:
        rows = model.part == part
        Y, scores = model.Y[rows], model.scores[rows]
        where = f"{metrics['repeats']} {place}, {result!r}"
        yield where, *_again(metrics, Y, scores, results[result], place)
        for i, (task, of_task) in enumerate(metrics.get("results_by_task", {}).items()):
            yield f"{where}, {task!r}", *_again(metrics, Y[:, [i]], scores[:, [i]], of_task[result], place)


def _again(
    metrics: Mapping[str, Any], Y: FloatMatrix, scores: FloatMatrix, noted: Mapping[str, Any], place: int
) -> tuple[list[float], list[float]]:
    found = all_metrics(metrics["kind"], Y, scores, metrics["threshold"])
    return [*found.values()], _numbers([noted[name]["values"][place] for name in found])


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [_or_nan(value) for value in values]


def _or_nan(value: float | None) -> float:
    return np.nan if value is None else value


def _column(table: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray:
    if table.schema.names.count(name) != 1 or table.schema.field(name).type != kind:
        raise ValueError(f"it has no column {name} of {kind}")
    return table.column(name)


def _matrix(table: pa.Table, name: str, kind: pa.DataType, size: int) -> FloatMatrix:
    """Make a matrix of a column of numbers, or of lists of `size` numbers if that is not 0; null is NaN."""
    column = _column(table, name, pa.list_(kind) if size else kind)
    if size:
        if column.null_count or not pc.all(pc.equal(pc.list_value_length(column), size)).as_py():
            raise ValueError(f"the lists in the column {name} are not of {size} numbers")
        column = pc.list_flatten(column)
    values = np.array(column.to_pylist(), dtype=np.float64)
    return values.reshape(-1, size or 1)
