"""The fits of a protocol as tasks for workers.

A task names its fold: the rows of all folds are sent to a worker once, with the labels and the vectors, and not with
every task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wegl_dask.graphs import IntArray
from wegl_dask.training.learner import Arrays, Candidate, Fold, Held, Labels, Learner
from wegl_dask.training.problem import FloatMatrix

FITS_VERSION = 1
"""Changes whenever the scores of a task do: those that a stopped training has left are taken by the same version alone."""

Folds = Mapping[Any, Fold]
"""The folds of a protocol, by what its tasks call them."""


@dataclass(frozen=True)
class Search:
    """Candidates that share a fit, to be fitted to some rows and to score others: those of the fold that is named."""

    learner: Learner
    fold: Any
    group: Sequence[Candidate]
    seed: int

    def scores_of(self, result: FloatMatrix) -> FloatMatrix:
        """Take a result for the scores that it is."""
        return result

    def result_of(self, scores: FloatMatrix) -> FloatMatrix:
        """Take scores for the result that they are."""
        return scores


@dataclass(frozen=True)
class Fit:
    """A candidate to be fitted to some rows and to score others: those of the fold that is named."""

    learner: Learner
    fold: Any
    candidate: Candidate
    seed: int
    keep: bool = False

    def scores_of(self, result: tuple[FloatMatrix, list[Any]]) -> FloatMatrix | None:
        """Take the scores out of a result; None where estimators are to be kept."""
        return None if self.keep else result[0]

    def result_of(self, scores: FloatMatrix) -> tuple[FloatMatrix, list[Any]]:
        """Put a result without estimators together."""
        return scores, []


def _known(rows: IntArray, y: Labels) -> IntArray:
    """Leave out the graphs whose label is unknown."""
    return rows[~np.isnan(y[rows])]


def search(task: Search, folds: Folds, Y: FloatMatrix, *shared: Any) -> FloatMatrix:
    """Score rows by every candidate of a group: float64, (n_candidates, n_evaluate, n_outputs)."""
    arrays: Arrays = shared
    fold = folds[task.fold]
    of_tasks = [
        task.learner.search(arrays, y, Fold(_known(fold.train, y), fold.evaluate), task.group, task.seed) for y in Y.T
    ]
    return np.concatenate(of_tasks, axis=2)


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
