"""Every candidate of a grid on every fold, and on folds within the training part of every fold."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wegl_dask.errors import JobFileError
from wegl_dask.graphs import IntArray
from wegl_dask.training.fits import Search, search
from wegl_dask.training.folds import deal_folds
from wegl_dask.training.foreseen import require_labels, require_metric
from wegl_dask.training.learner import Candidate, Fold, Learner
from wegl_dask.training.metrics import Metric
from wegl_dask.training.problem import FloatMatrix, Problem
from wegl_dask.training.spreading import Workers

INNER_FOLDS = 5
"""Folds that a training part of the cross-validation is cut into, to choose a candidate within it; one a graph if fewer."""

ROUNDING = 1e-12
"""Part of a metric's value within which others are the same."""


@dataclass(frozen=True)
class CrossValidation:
    """How the candidates of a grid do.

    Attributes
    ----------
    candidates : list of mappings
    folds : list of Fold
    scores : list of float64, (n_candidates, n_evaluate, n_outputs)
        For each fold, the scores of its graphs by every candidate.
    outer : float64, (n_folds, n_candidates)
        The metric of every candidate on every fold.
    inner : float64, (n_folds, n_candidates)
        Its mean over the folds within the training part of every fold; no columns where it was not asked for.
    n_inner_folds : int
        How many those are.
    """

    candidates: list[Candidate]
    folds: list[Fold]
    scores: list[FloatMatrix]
    outer: FloatMatrix
    inner: FloatMatrix
    n_inner_folds: int


def cross_validate(
    problem: Problem,
    learner: Learner,
    metric: Metric,
    workers: Workers,
    *,
    n_folds: int,
    seed: int,
    inner_folds: int = INNER_FOLDS,
    groups: Sequence[Sequence[Candidate]] | None = None,
    step: str = "cross-validation",
) -> CrossValidation:
    """Fit every candidate of a grid to the graphs outside each fold, and measure it on the fold.

    Parameters
    ----------
    problem : Problem
    learner : Learner
    metric : Metric
    workers : Workers
    n_folds : int
    seed : int
        Of the folds, and of every fit.
    inner_folds : int, default `INNER_FOLDS`
        Do the same within the training part of each fold, in so many folds, or in one a graph where there are fewer
        graphs; 0 for not at all.
    groups : sequence of sequences of candidates, optional
        Of those that the learner lists; all if not given.
    step : str
        Name for the progress display.

    Raises
    ------
    JobFileError
        If there are fewer than two graphs with labels a fold.
    WeglError
        If no label of a task is known in a training part, the model cannot be fitted to one, or the metric is not defined on
        a fold.
    """
    rows = problem.labelled
    if len(rows) < n_folds * 2:
        raise JobFileError(
            f"train.folds = {n_folds} folds need {2 * n_folds} graphs with labels; there are {len(rows)}"
        )
    groups = learner.groups() if groups is None else groups
    dealt = deal_folds(problem, rows, n_folds, seed, inner_folds=inner_folds)
    inner_folds = dealt.n_inner_folds
    every = list(dealt.values())
    folds, inner = every[:n_folds], every[n_folds:]
    for some, name, remedy in ((folds, "a fold", "fewer folds"), (inner, "an inner fold", "give more labels")):
        require_labels(problem, (fold.train for fold in some), f"the training part of {name}")
        require_metric(
            problem,
            metric,
            (fold.evaluate for fold in some),
            name,
            remedy=f"choose another train.metric, or {remedy}",
            without_labels=remedy,
        )
    for fold in every:
        for column in problem.Y[fold.train].T:
            learner.require_fittable(column[~np.isnan(column)])
    searches = [Search(learner, name, group, seed) for name in dealt for group in groups]
    found = workers.map(step, search, searches, (dealt, problem.Y, *learner.shared(problem.X)))
    scores = [np.concatenate(found[i : i + len(groups)]) for i in range(0, len(found), len(groups))]
    table = np.array(
        [
            [metric(problem.Y[fold.evaluate], each, learner.threshold) for each in of_fold]
            for fold, of_fold in zip(every, scores, strict=True)
        ]
    )
    means = table[n_folds:].reshape(n_folds, inner_folds, -1).mean(axis=1) if inner_folds else np.empty((n_folds, 0))
    return CrossValidation(
        candidates=[candidate for group in groups for candidate in group],
        folds=folds,
        scores=scores[:n_folds],
        outer=table[:n_folds],
        inner=means,
        n_inner_folds=inner_folds,
    )


def best_candidate(means: FloatMatrix, metric: Metric) -> int:
    """Find the candidate with the best mean; of equals the first."""
    return int(first_best(metric.sign * means))


def first_best(values: FloatMatrix, axis: int = -1) -> IntArray:
    """Find the place of the largest along an axis; of those that are as large but for rounding, the first.

    What is not a number is the smallest, and what others are makes no difference to the largest.

    Examples
    --------
    >>> values = np.array([0.1, 0.1 + 0.2, 0.3])
    >>> int(values.argmax()), int(first_best(values[::-1]))
    (1, 0)
    """
    known = np.where(np.isnan(values), -np.inf, values)
    largest = known.max(axis=axis, keepdims=True)
    rounding = ROUNDING * np.abs(np.where(np.isfinite(largest), largest, 0.0))
    places: IntArray = (known >= largest - rounding).argmax(axis=axis)
    return places
