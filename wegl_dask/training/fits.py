"""The fits of a protocol as tasks for workers.

A task names its fold: the rows of all folds are sent to a worker once, with the labels and the vectors, and not with
every task. Nor do the scores of every candidate come back: they are measured where they are computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from wegl_dask.graphs import IntArray
from wegl_dask.training.learner import Arrays, Candidate, Fold, Held, Labels, Learner
from wegl_dask.training.metrics import METRICS
from wegl_dask.training.names import MetricName
from wegl_dask.training.problem import FloatMatrix

FITS_VERSION = 1
"""Changes whenever the scores of a task do: those that a stopped training has left are taken by the same version alone."""

Folds = Mapping[Any, Fold]
"""The folds of a protocol, by what its tasks call them."""


class Measured(NamedTuple):
    """How the candidates of a group do on a fold.

    Attributes
    ----------
    values : float64, (n_candidates, n_metrics, n_tasks)
        NaN where a metric is not defined.
    scores : float64, (n_evaluate, n_outputs)
        Of the one candidate whose scores are wanted; of none, no rows.
    """

    values: FloatMatrix
    scores: FloatMatrix


@dataclass(frozen=True)
class Search:
    """Candidates that share a fit, to be fitted to some rows and measured on others: those of the fold that is named.

    Attributes
    ----------
    learner : Learner
    fold : object
        Its name.
    group : sequence of candidates
    seed : int
    metrics : tuple of str
        What they are measured by.
    scored : int, optional
        The candidate, by its place in the group, whose scores are wanted too.
    """

    learner: Learner
    fold: Any
    group: Sequence[Candidate]
    seed: int
    metrics: tuple[MetricName, ...]
    scored: int | None = None

    def arrays_of(self, result: Measured) -> Sequence[FloatMatrix]:
        """Take a result for the arrays that it is."""
        return result

    def result_of(self, arrays: Sequence[FloatMatrix]) -> Measured:
        """Put a result together again."""
        return Measured(*arrays)


@dataclass(frozen=True)
class Fit:
    """A candidate to be fitted to some rows and to score others: those of the fold that is named."""

    learner: Learner
    fold: Any
    candidate: Candidate
    seed: int
    keep: bool = False

    def arrays_of(self, result: tuple[FloatMatrix, list[Any]]) -> Sequence[FloatMatrix] | None:
        """Take the scores out of a result; None where estimators are to be kept."""
        return None if self.keep else result[:1]

    def result_of(self, arrays: Sequence[FloatMatrix]) -> tuple[FloatMatrix, list[Any]]:
        """Put a result without estimators together."""
        return arrays[0], []


def _known(rows: IntArray, y: Labels) -> IntArray:
    """Leave out the graphs whose label is unknown."""
    return rows[~np.isnan(y[rows])]


def search(task: Search, folds: Folds, Y: FloatMatrix, *shared: Any) -> Measured:
    """Measure every candidate of a group on the rows of a fold, one task at a time."""
    arrays: Arrays = shared
    learner, fold = task.learner, folds[task.fold]
    metrics = [metric for metric in METRICS[learner.kind] if metric.name in task.metrics]
    values, columns = [], []
    for y in Y.T:
        scores = learner.search(arrays, y, Fold(_known(fold.train, y), fold.evaluate), task.group, task.seed)
        labels = y[fold.evaluate, np.newaxis]
        values.append([[metric(labels, each, learner.threshold) for metric in metrics] for each in scores])
        if task.scored is not None:
            # A copy, which does not hold the others.
            columns.append(scores[task.scored].copy())
    wanted = np.concatenate(columns, axis=1) if columns else np.empty((0, learner.n_outputs))
    return Measured(np.moveaxis(np.array(values), 0, 2), wanted)


def fit(task: Fit, folds: Folds, Y: FloatMatrix, X: Any) -> tuple[FloatMatrix, list[Any]]:
    """Fit a candidate and score rows: float64, (n_evaluate, n_outputs), and the estimators if they are to be kept."""
    columns, estimators = [], []
    fold = folds[task.fold]
    for y in Y.T:
        train = _known(fold.train, y)
        held: Held | None = None
        if fold.held is not None:
            known = _known(fold.held, y)
            held = (X[known], y[known])
        estimator = task.learner.fit(task.candidate, X[train], y[train], task.seed, held=held)
        if len(fold.evaluate):
            columns.append(task.learner.scores(estimator, X[fold.evaluate]))
        estimators.append(estimator)
    scores = np.concatenate(columns, axis=1) if columns else np.empty((0, task.learner.n_outputs))
    return scores, estimators if task.keep else []
