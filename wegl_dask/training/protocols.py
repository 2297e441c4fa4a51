"""How models are compared and measured: on the split that the data come with, and by cross-validation.

In both, candidates of a grid are compared on graphs that they were not fitted to, and the one with the best mean is
chosen; of equals, the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wegl_dask.errors import JobFileError, WeglError
from wegl_dask.graphs import IntArray
from wegl_dask.training.folds import assign_folds
from wegl_dask.training.learner import Arrays, Candidate, Fold, Held, Labels, Learner
from wegl_dask.training.metrics import Metric, all_metrics
from wegl_dask.training.names import ProtocolName
from wegl_dask.training.problem import SPLITS, FloatMatrix, Problem
from wegl_dask.training.spreading import Workers

INNER_FOLDS = 5
"""Folds that a training part of the cross-validation is cut into, to choose a candidate within it."""

BEST = "best configuration"
"""The paper's number: the best mean over the folds, by the labels it is measured on. It is optimistic."""

NESTED = "nested"
"""The number to expect of new graphs: each fold is scored by the candidate that was chosen without it."""


@dataclass(frozen=True)
class Outcome:
    """What a protocol has found.

    Attributes
    ----------
    candidates : list of mappings
        The grid.
    candidate_scores : float64, (n_candidates,)
        Mean metric that each was chosen by; empty where there was one candidate alone.
    chosen : mapping
        The best candidate.
    results : dict of str to dict of str to list of float
        What was measured (a part of the split, or `BEST` or `NESTED`) to metric to its value for every seed or fold.
    repeats : {"seed", "fold"}
        What the values are for.
    rows : int, (n_rows,)
        Graphs that were scored,
    part : object, (n_rows,)
        the part of the split (str) or the fold (int) that each is in,
    scores : float64, (n_rows, n_outputs)
        and its scores: of the first seed, or of the fold's own choice.
    estimators : list
        Fitted for `chosen`, one a task: to the training part by the first seed, or to all graphs.
    notes : tuple of str
        What a reader of the numbers must know.
    """

    candidates: list[Candidate]
    candidate_scores: FloatMatrix
    chosen: Candidate
    results: dict[str, dict[str, list[float]]]
    repeats: str
    rows: IntArray
    part: list[Any]
    scores: FloatMatrix
    estimators: list[Any]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Search:
    """Candidates that share a fit, to be fitted to some rows and to score others."""

    learner: Learner
    fold: Fold
    group: Sequence[Candidate]
    seed: int


@dataclass(frozen=True)
class _Fit:
    """A candidate to be fitted to some rows and to score others."""

    learner: Learner
    fold: Fold
    candidate: Candidate
    seed: int
    held: IntArray | None = None
    keep: bool = False


def evaluate_split(
    problem: Problem, learner: Learner, metric: Metric, workers: Workers, *, seeds: Sequence[int]
) -> Outcome:
    """Choose a candidate on the part "valid", and measure it on the part "test".

    Candidates are fitted to "train" with the first seed and compared on "valid". The best is fitted to "train" with
    every seed, and measured on both other parts.

    Parameters
    ----------
    problem : Problem
    learner : Learner
    metric : Metric
        What candidates are compared by.
    workers : Workers
    seeds : sequence of int
        The first alone is used where nothing is random.

    Raises
    ------
    JobFileError
        If the data have no such split.
    WeglError
        If the metric is not defined on a part.
    """
    train, valid, test = _split_rows(problem)
    seeds = list(seeds) if learner.is_seeded else [seeds[0]]
    groups = learner.groups()
    candidates = [candidate for group in groups for candidate in group]
    means, chosen = np.empty(0), candidates[0]
    if len(candidates) > 1:
        searches = [_Search(learner, Fold(train, valid), group, seeds[0]) for group in groups]
        found = workers.map("search", _search, searches, (problem.Y, *learner.shared(problem.X)))
        scores = np.concatenate(found)
        means = np.array([metric(problem.Y[valid], each, learner.threshold) for each in scores])
        chosen = candidates[_best(means, metric, 'the part "valid"')]
    others = np.concatenate([valid, test])
    fits = [_Fit(learner, Fold(train, others), chosen, seed, held=valid, keep=seed == seeds[0]) for seed in seeds]
    fitted = workers.map("fit", _fit, fits, (problem.Y, problem.X))
    results: dict[str, dict[str, list[float]]] = {}
    for name, part in (("valid", slice(0, len(valid))), ("test", slice(len(valid), None))):
        values = [
            all_metrics(problem.kind, problem.Y[others[part]], scores[part], learner.threshold) for scores, _ in fitted
        ]
        results[name] = {each: [value[each] for value in values] for each in values[0]}
        _require_defined(results[name][metric.name], metric, f'the part "{name}"')
    notes = [f'chosen by {metric.title} on "valid" with seed {seeds[0]} of {len(candidates)} candidates']
    if len(candidates) == 1:
        notes = []
    if not learner.is_seeded:
        notes.append("the model has nothing random: one fit stands for all seeds")
    return Outcome(
        candidates=candidates,
        candidate_scores=means,
        chosen=chosen,
        results=results,
        repeats="seed",
        rows=others,
        part=["valid"] * len(valid) + ["test"] * len(test),
        scores=fitted[0][0],
        estimators=fitted[0][1],
        notes=tuple(notes),
    )


def evaluate_cv(
    problem: Problem, learner: Learner, metric: Metric, workers: Workers, *, n_folds: int, seed: int
) -> Outcome:
    """Measure by cross-validation in two ways, of which one is honest.

    The paper's: every candidate is fitted to nine tenths and scores the last tenth, ten times; the best mean over the
    folds is reported. It was chosen by the labels that it is measured on, so it is optimistic. Nested: for each fold the
    candidate is chosen by a cross-validation within the other nine.

    Parameters
    ----------
    problem : Problem
    learner : Learner
    metric : Metric
        What candidates are compared by.
    workers : Workers
    n_folds : int
    seed : int
        Of the folds, and of every fit.

    Raises
    ------
    JobFileError
        If there are fewer graphs with labels than folds.
    WeglError
        If the metric is not defined on a fold.

    Notes
    -----
    The embedding itself has seen all graphs, without their labels: both numbers are transductive in that sense.
    """
    rows = problem.labelled
    if len(rows) < n_folds * 2:
        raise JobFileError(
            f"train.folds = {n_folds} folds need {2 * n_folds} graphs with labels; there are {len(rows)}"
        )
    groups = learner.groups()
    candidates = [candidate for group in groups for candidate in group]
    folds = _folds(problem, rows, n_folds, seed)
    inner = [_folds(problem, fold.train, INNER_FOLDS, seed) if len(candidates) > 1 else [] for fold in folds]
    every = [*folds, *(fold for within in inner for fold in within)]
    searches = [_Search(learner, fold, group, seed) for fold in every for group in groups]
    found = workers.map("cross-validation", _search, searches, (problem.Y, *learner.shared(problem.X)))
    scores = [np.concatenate(found[i : i + len(groups)]) for i in range(0, len(found), len(groups))]
    table = np.array(
        [
            [metric(problem.Y[fold.evaluate], each, learner.threshold) for each in of_fold]
            for fold, of_fold in zip(every, scores, strict=True)
        ]
    )
    outer = table[:n_folds]
    best = _best(outer.mean(axis=0), metric, "every fold")
    within = table[n_folds:].reshape(n_folds, -1, len(candidates))
    own = [_best(means, metric, "every inner fold") for means in within.mean(axis=1)] if within.size else [0] * n_folds
    results = {
        name: _of_folds(problem, learner, folds, [scores[i][choice] for i, choice in enumerate(choices)])
        for name, choices in ((BEST, [best] * n_folds), (NESTED, own))
    }
    notes = [
        f"{BEST}: best mean over the folds of {len(candidates)} candidates (the paper's way), so optimistic",
        f"{NESTED}: chosen for each fold within the others, in {INNER_FOLDS} folds",
        "the embedding has seen all graphs, without their labels (transductive)",
    ]
    if len(candidates) == 1:
        del results[BEST]
        notes = notes[2:]
    chosen = candidates[best]
    fitted = workers.map(
        "fit", _fit, [_Fit(learner, Fold(rows, rows[:0]), chosen, seed, keep=True)], (problem.Y, problem.X)
    )
    return Outcome(
        candidates=candidates,
        candidate_scores=outer.mean(axis=0),
        chosen=chosen,
        results=results,
        repeats="fold",
        rows=np.concatenate([fold.evaluate for fold in folds]),
        part=[i for i, fold in enumerate(folds) for _ in fold.evaluate],
        scores=np.concatenate([scores[i][choice] for i, choice in enumerate(own)]),
        estimators=fitted[0][1],
        notes=tuple(notes),
    )


def default_protocol(problem: Problem) -> ProtocolName:
    """Find the protocol for the data: their split if they have one, else cross-validation."""
    return "cv" if problem.split is None else "split"


def _folds(problem: Problem, rows: IntArray, n_folds: int, seed: int) -> list[Fold]:
    of_row = assign_folds(problem, rows, n_folds, seed)
    return [Fold(rows[of_row != i], rows[of_row == i]) for i in range(n_folds)]


def _of_folds(
    problem: Problem, learner: Learner, folds: Sequence[Fold], scores: Sequence[FloatMatrix]
) -> dict[str, list[float]]:
    values = [
        all_metrics(problem.kind, problem.Y[fold.evaluate], of_fold, learner.threshold)
        for fold, of_fold in zip(folds, scores, strict=True)
    ]
    return {name: [value[name] for value in values] for name in values[0]}


def _split_rows(problem: Problem) -> tuple[IntArray, IntArray, IntArray]:
    if problem.split is None:
        raise JobFileError(
            'train.protocol = "split" needs data that come with a split, and these have none: choose --protocol cv'
        )
    labelled = set(problem.labelled.tolist())
    parts = []
    for name in SPLITS:
        rows = problem.part(name)
        if name != "test":
            rows = np.array([row for row in rows.tolist() if row in labelled], dtype=np.int64)
        if not len(rows):
            there = ", ".join(sorted({str(each) for each in problem.split if each is not None}))
            raise JobFileError(
                f'train.protocol = "split" needs labelled graphs in the parts {", ".join(SPLITS)}, and "{name}" has none '
                f"(there are {there}): choose --protocol cv, or correct the split"
            )
        parts.append(rows)
    return parts[0], parts[1], parts[2]


def _best(means: FloatMatrix, metric: Metric, where: str) -> int:
    if np.isnan(means).any():
        raise _undefined(metric, where)
    return int(np.argmax(metric.sign * means))


def _require_defined(values: Sequence[float], metric: Metric, where: str) -> None:
    if np.isnan(values).any():
        raise _undefined(metric, where)


def _undefined(metric: Metric, where: str) -> WeglError:
    return WeglError(
        f"{metric.title} is not defined on {where}: its labels are all alike or unknown. Choose another train.metric, or "
        "fewer folds"
    )


def _known(rows: IntArray, y: Labels, column: int) -> IntArray:
    """Leave out the graphs whose label is unknown."""
    known = rows[~np.isnan(y[rows])]
    if not len(known):
        raise WeglError(
            f"no label of task {column} is known in a training part: leave the task out, or train on more graphs"
        )
    return known


def _search(task: _Search, Y: FloatMatrix, *shared: Any) -> FloatMatrix:
    """Score rows by every candidate of a group: float64, (n_candidates, n_evaluate, n_outputs)."""
    arrays: Arrays = shared
    of_tasks = [
        task.learner.search(arrays, y, Fold(_known(task.fold.train, y, i), task.fold.evaluate), task.group, task.seed)
        for i, y in enumerate(Y.T)
    ]
    return np.concatenate(of_tasks, axis=2)


def _fit(task: _Fit, Y: FloatMatrix, X: Any) -> tuple[FloatMatrix, list[Any]]:
    """Fit a candidate and score rows: float64, (n_evaluate, n_outputs), and the estimators if they are to be kept."""
    columns, estimators = [], []
    for i, y in enumerate(Y.T):
        train = _known(task.fold.train, y, i)
        held: Held | None = None
        if task.held is not None:
            known = task.held[~np.isnan(y[task.held])]
            held = (X[known], y[known])
        estimator = task.learner.fit(task.candidate, X[train], y[train], task.seed, held=held)
        if len(task.fold.evaluate):
            columns.append(task.learner.scores(estimator, X[task.fold.evaluate]))
        estimators.append(estimator)
    scores = np.concatenate(columns, axis=1) if columns else np.empty((0, task.learner.n_outputs))
    return scores, estimators if task.keep else []
