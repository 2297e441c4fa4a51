"""How good scores are: the metrics of classes and targets, by the rules of the Open Graph Benchmark's evaluator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn import metrics as sklearn_metrics

from wegl_dask.errors import JobFileError
from wegl_dask.training.names import MetricName, ProtocolName
from wegl_dask.training.problem import FloatMatrix, ProblemKind

Column = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """A number for how well scores fit labels.

    Attributes
    ----------
    name : str
    title : str
        For tables.
    sign : {1, -1}
        1 where more is better.
    of_task : callable or None
        From the known labels of one task (class indices or targets), the scores, and the score above which class 1 is
        predicted, to the metric; NaN where it is not defined. None where the scores of all classes are compared.
    """

    name: MetricName
    title: str
    sign: int
    of_task: Callable[[Column, Column, float], float] | None

    def __call__(self, Y: FloatMatrix, scores: FloatMatrix, threshold: float) -> float:
        """Compute the metric, averaged over the tasks in which it is defined; unknown labels are left out.

        Parameters
        ----------
        Y : float64, (n_graphs, n_tasks)
            NaN where unknown.
        scores : float64, (n_graphs, n_outputs)
        threshold : float
            Score above which class 1 is predicted, where there are two.

        Returns
        -------
        float
            NaN where it is not defined in any task, such as the area under the ROC curve of one class alone.
        """
        return mean_over_tasks(self.by_task(Y, scores, threshold))

    def by_task(self, Y: FloatMatrix, scores: FloatMatrix, threshold: float) -> list[float]:
        """Compute the metric for every task, NaN where it is not defined; see `__call__`."""
        if self.of_task is None:
            known = ~np.isnan(Y[:, 0])
            hits = scores[known].argmax(axis=1) == Y[known, 0]
            return [float(hits.mean()) if known.any() else np.nan]
        values = []
        for y, score in zip(Y.T, scores.T, strict=True):
            known = ~np.isnan(y)
            values.append(self.of_task(y[known], score[known], threshold) if known.any() else np.nan)
        return values


def mean_over_tasks(values: Sequence[float] | Column) -> float:
    """Average the values of a metric over the tasks in which it is defined; NaN where it is in none."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else np.nan


def _has_both(y: Column) -> bool:
    return bool((y == 0).any() and (y == 1).any())


def _roc_auc(y: Column, score: Column, threshold: float) -> float:  # noqa: ARG001  the metrics are called alike
    return float(sklearn_metrics.roc_auc_score(y, score)) if _has_both(y) else np.nan


def _average_precision(y: Column, score: Column, threshold: float) -> float:  # noqa: ARG001
    return float(sklearn_metrics.average_precision_score(y, score)) if _has_both(y) else np.nan


def _accuracy(y: Column, score: Column, threshold: float) -> float:
    return float(((score > threshold) == y).mean())


def _rmse(y: Column, score: Column, threshold: float) -> float:  # noqa: ARG001
    errors = np.abs(y - score)
    largest = errors.max()
    if largest == 0 or not np.isfinite(largest):
        return float(largest)
    # The squares of small numbers are none.
    return float(largest * np.sqrt(((errors / largest) ** 2).mean()))


def _mae(y: Column, score: Column, threshold: float) -> float:  # noqa: ARG001
    return float(np.abs(y - score).mean())


def _r2(y: Column, score: Column, threshold: float) -> float:  # noqa: ARG001
    # The mean of equal targets is not always the target.
    if y.min() == y.max():
        return np.nan
    deviations = np.abs(y - y.mean())
    largest = deviations.max()
    return float(1 - (((y - score) / largest) ** 2).sum() / ((deviations / largest) ** 2).sum())


METRICS: Mapping[ProblemKind, tuple[Metric, ...]] = {
    "binary": (
        Metric("roc-auc", "ROC-AUC", 1, _roc_auc),
        Metric("average-precision", "average precision", 1, _average_precision),
        Metric("accuracy", "accuracy", 1, _accuracy),
    ),
    "multiclass": (Metric("accuracy", "accuracy", 1, None),),
    "regression": (
        Metric("rmse", "RMSE", -1, _rmse),
        Metric("mae", "MAE", -1, _mae),
        Metric("r2", "R2", 1, _r2),
    ),
}
"""The metrics of every kind of problem."""


def choose_metric(kind: ProblemKind, protocol: ProtocolName, name: MetricName | None) -> Metric:
    """Find the metric that chooses between candidates.

    By default it is the first of the kind's, but for two classes in cross-validation, where it is the accuracy as in the
    paper's tables 2 and 3.

    Raises
    ------
    JobFileError
        If problems of this kind have no such metric.
    """
    if name is None:
        name = "accuracy" if kind == "binary" and protocol == "cv" else METRICS[kind][0].name
    for metric in METRICS[kind]:
        if metric.name == name:
            return metric
    what = {"binary": "two classes", "multiclass": "more than two classes", "regression": "targets"}[kind]
    known = ", ".join(metric.name for metric in METRICS[kind])
    raise JobFileError(f"train.metric = {name!r} is no metric of {what}: choose one of {known}")


def all_metrics(kind: ProblemKind, Y: FloatMatrix, scores: FloatMatrix, threshold: float) -> dict[str, float]:
    """Compute every metric of a kind of problem; see `Metric`."""
    return {metric.name: metric(Y, scores, threshold) for metric in METRICS[kind]}


def all_by_task(kind: ProblemKind, Y: FloatMatrix, scores: FloatMatrix, threshold: float) -> FloatMatrix:
    """Compute every metric of a kind of problem for every task: float64, (n_metrics, n_tasks)."""
    return np.array([metric.by_task(Y, scores, threshold) for metric in METRICS[kind]])
