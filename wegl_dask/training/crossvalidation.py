"""Every candidate of a grid on every fold, and on folds within the training part of every fold."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from wegl_dask.errors import JobFileError
from wegl_dask.graphs import IntArray
from wegl_dask.training.fits import Search, search
from wegl_dask.training.folds import DealtFolds, deal_folds
from wegl_dask.training.foreseen import require_labels, require_metric
from wegl_dask.training.learner import Candidate, Learner
from wegl_dask.training.metrics import METRICS, Metric, mean_over_tasks
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
    rows : list of int, (n_evaluate,)
        The graphs of each fold.
    outer : float64, (n_folds, n_candidates)
        The metric of every candidate on every fold.
    inner : float64, (n_folds, n_candidates)
        Its mean over the folds within the training part of every fold; no columns where it was not asked for.
    n_inner_folds : int
        How many those are.
    own : list of int
        The candidate that each fold has chosen by these means; the first where they were not asked for.
    scores : list of float64, (n_evaluate, n_outputs)
        For each fold, the scores of its graphs by its own candidate; those of the others are not held.
    measured : float64, (n_folds, n_candidates, n_metrics, n_tasks)
        Every metric of every candidate on every fold.
    """

    candidates: list[Candidate]
    rows: list[IntArray]
    outer: FloatMatrix
    inner: FloatMatrix
    n_inner_folds: int
    own: list[int]
    scores: list[FloatMatrix]
    measured: FloatMatrix


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

    The folds within the training parts come first, so that of each fold the scores of one candidate alone need come back.

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
    _require_measurable(problem, learner, metric, dealt)
    folds, within = list(dealt)[:n_folds], list(dealt)[n_folds:]
    shared = (dealt, problem.Y, *learner.shared(problem.X))
    means, own = np.empty((n_folds, 0)), [0] * n_folds
    if within:
        searches = [Search(learner, name, group, seed, (metric.name,)) for name in within for group in groups]
        found = workers.map(f"{step}, inner folds", search, searches, shared)
        values = np.concatenate([each.values for each in found])[:, 0]
        table = np.array([mean_over_tasks(each) for each in values])
        means = table.reshape(n_folds, dealt.n_inner_folds, -1).mean(axis=1)
        own = [best_candidate(of_fold, metric) for of_fold in means]
    every_metric = METRICS[problem.kind]
    names = tuple(each.name for each in every_metric)
    starts = [0, *accumulate(map(len, groups))]
    searches = [
        Search(learner, name, group, seed, names, scored=choice - start if 0 <= choice - start < len(group) else None)
        for name, choice in zip(folds, own, strict=True)
        for group, start in zip(groups, starts, strict=False)
    ]
    found = workers.map(step, search, searches, shared)
    measured = np.concatenate([each.values for each in found])
    by = every_metric.index(metric)
    return CrossValidation(
        candidates=[candidate for group in groups for candidate in group],
        rows=[dealt[name].evaluate for name in folds],
        outer=np.array([mean_over_tasks(each[by]) for each in measured]).reshape(n_folds, -1),
        inner=means,
        n_inner_folds=dealt.n_inner_folds,
        own=own,
        scores=[each.scores for task, each in zip(searches, found, strict=True) if task.scored is not None],
        measured=measured.reshape(n_folds, -1, *measured.shape[1:]),
    )


def _require_measurable(problem: Problem, learner: Learner, metric: Metric, dealt: DealtFolds) -> None:
    """Refuse folds that cannot be learned from or measured on; they are made one by one, and none is held."""
    n_folds = len(dealt.inner)
    names = list(dealt)
    for some, what, remedy in (
        (names[:n_folds], "a fold", "fewer folds"),
        (names[n_folds:], "an inner fold", "give more labels"),
    ):
        require_labels(problem, (dealt[name].train for name in some), f"the training part of {what}")
        require_metric(
            problem,
            metric,
            (dealt[name].evaluate for name in some),
            what,
            remedy=f"choose another train.metric, or {remedy}",
            without_labels=remedy,
        )
    for fold in dealt.values():
        for column in problem.Y[fold.train].T:
            learner.require_fittable(column[~np.isnan(column)])


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
