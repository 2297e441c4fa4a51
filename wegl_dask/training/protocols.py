"""How models are compared and measured: on the split that the data come with, and by cross-validation.

In both, candidates of a grid are compared on graphs that they were not fitted to, and the one with the best mean is
chosen; of equals, the first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wegl_dask.errors import JobFileError
from wegl_dask.graphs import IntArray
from wegl_dask.training.convergence import convergence_notes
from wegl_dask.training.crossvalidation import INNER_FOLDS, best_candidate, cross_validate
from wegl_dask.training.fits import Fit, Search, fit, search
from wegl_dask.training.foreseen import require_classes, require_labels, require_measurable
from wegl_dask.training.learner import Candidate, Fold, Learner
from wegl_dask.training.metrics import METRICS, Metric, all_by_task, mean_over_tasks
from wegl_dask.training.names import ProtocolName
from wegl_dask.training.problem import SPLITS, FloatMatrix, Problem, ProblemKind
from wegl_dask.training.spreading import Workers

BEST = "best configuration"
"""The paper's number: the best mean over the folds, by the labels it is measured on. It is optimistic."""

NESTED = "nested"
"""The number to expect of new graphs: each fold is scored by the candidate that was chosen without it."""

Values = dict[str, list[float]]
"""Of each metric its value for every seed or fold."""

_Measured = Mapping[str, Sequence[FloatMatrix]]
"""Of whatever is measured every metric for every task, (n_metrics, n_tasks), for every seed or fold."""


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
        What was measured (a part of the split, or `BEST` or `NESTED`) to metric to its value for every seed or fold; of
        several tasks, the mean over those in which it is defined.
    results_by_task : dict of str to such a dict
        Of each of several tasks, by its name, the same; empty where there is one label.
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
    results: dict[str, Values]
    results_by_task: dict[str, dict[str, Values]]
    repeats: str
    rows: IntArray
    part: list[Any]
    scores: FloatMatrix
    estimators: list[Any]
    notes: tuple[str, ...]


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
        If no label of a task is known in the part "train", or the metric is not defined on another part.
    """
    train, valid, test = _split_rows(problem)
    require_labels(problem, [train], 'the part "train"')
    require_classes(problem, train, 'the part "train"')
    require_measurable(problem, metric)
    seeds = list(seeds) if learner.is_seeded else [seeds[0]]
    groups = learner.groups()
    candidates = [candidate for group in groups for candidate in group]
    means, chosen = np.empty(0), candidates[0]
    if len(candidates) > 1:
        folds = {"valid": Fold(train, valid)}
        searches = [Search(learner, "valid", group, seeds[0], (metric.name,)) for group in groups]
        found = workers.map("search", search, searches, (folds, problem.Y, *learner.shared(problem.X)))
        means = np.array([mean_over_tasks(values[0]) for each in found for values in each.values])
        chosen = candidates[best_candidate(means, metric)]
    others = np.concatenate([valid, test])
    folds = {"others": Fold(train, others, held=valid)}
    fits = [Fit(learner, "others", chosen, seed, keep=seed == seeds[0]) for seed in seeds]
    fitted = workers.map("fit", fit, fits, (folds, problem.Y, problem.X))
    measured = {
        name: [
            all_by_task(problem.kind, problem.Y[others[part]], scores[part], learner.threshold) for scores, _ in fitted
        ]
        for name, part in (("valid", slice(0, len(valid))), ("test", slice(len(valid), None)))
    }
    notes = [f'chosen by {metric.title} on "valid" with seed {seeds[0]} of {len(candidates)} candidates']
    if len(candidates) == 1:
        notes = []
    notes += learner.notes_on_choice([y[~np.isnan(y)] for y in problem.Y[valid].T])
    if not learner.is_seeded:
        notes.append("the model has nothing random: one fit stands for all seeds")
    in_parts = np.concatenate([problem.part(name) for name in SPLITS])
    if n_left := len(np.setdiff1d(problem.labelled, in_parts)):
        notes.append(f"graphs with labels in none of the parts {', '.join(SPLITS)}, which were left out: {n_left:,}")
    notes += learner.notes
    return Outcome(
        candidates=candidates,
        candidate_scores=means,
        chosen=chosen,
        results=_results(problem.kind, measured),
        results_by_task=_results_by_task(problem, measured),
        repeats="seed",
        rows=others,
        part=["valid"] * len(valid) + ["test"] * len(test),
        scores=fitted[0][0],
        estimators=fitted[0][1],
        notes=(*notes, *convergence_notes(fitted[0][1])),
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
        If there are fewer than two graphs with labels a fold.
    WeglError
        If no label of a task is known in a training part, or the metric is not defined on a fold.

    Notes
    -----
    Where the embedding has seen all graphs, without their labels, both numbers are transductive in that sense.
    """
    searched = len(learner.groups()) > 1 or len(learner.groups()[0]) > 1
    inner_folds = INNER_FOLDS if searched else 0
    found = cross_validate(problem, learner, metric, workers, n_folds=n_folds, seed=seed, inner_folds=inner_folds)
    candidates = found.candidates
    means = found.outer.mean(axis=0)
    best = best_candidate(means, metric)
    measured = {
        name: [of_fold[choice] for of_fold, choice in zip(found.measured, choices, strict=True)]
        for name, choices in ((BEST, [best] * n_folds), (NESTED, found.own))
    }
    notes = [
        f"{BEST}: best mean {metric.title} over the folds of {len(candidates)} candidates (the paper's way), so optimistic",
        f"{NESTED}: chosen for each fold within the others, in {found.n_inner_folds} folds",
    ]
    if not searched:
        del measured[BEST]
        notes = []
    notes += learner.notes
    chosen, rows = candidates[best], problem.labelled
    final = {"all": Fold(rows, rows[:0])}
    fitted = workers.map("fit", fit, [Fit(learner, "all", chosen, seed, keep=True)], (final, problem.Y, problem.X))
    return Outcome(
        candidates=candidates,
        candidate_scores=means,
        chosen=chosen,
        results=_results(problem.kind, measured),
        results_by_task=_results_by_task(problem, measured),
        repeats="fold",
        rows=np.concatenate(found.rows),
        part=[i for i, rows in enumerate(found.rows) for _ in rows],
        scores=np.concatenate(found.scores),
        estimators=fitted[0][1],
        notes=(*notes, *convergence_notes(fitted[0][1])),
    )


def score_split(
    problem: Problem, learner: Learner, candidate: Candidate, workers: Workers, *, seeds: Sequence[int], step: str
) -> list[FloatMatrix]:
    """Fit a candidate to "train" with every seed, and score the graphs of "valid", and those of "test" after them."""
    valid, test = problem.part("valid"), problem.part("test")
    folds = {"others": Fold(problem.part("train"), np.concatenate([valid, test]), held=valid)}
    fits = [Fit(learner, "others", candidate, seed) for seed in seeds]
    return [scores for scores, _ in workers.map(step, fit, fits, (folds, problem.Y, problem.X))]


def measure_split(problem: Problem, learner: Learner, metric: Metric, scores: FloatMatrix) -> list[float]:
    """Measure what `score_split` gives: on "valid", and on "test"."""
    valid, test = problem.part("valid"), problem.part("test")
    return [
        metric(problem.Y[rows], some, learner.threshold)
        for rows, some in ((valid, scores[: len(valid)]), (test, scores[len(valid) :]))
    ]


def default_protocol(problem: Problem) -> ProtocolName:
    """Find the protocol for the data: their split if they have one, else cross-validation."""
    return "cv" if problem.split is None else "split"


def _results(kind: ProblemKind, measured: _Measured) -> dict[str, Values]:
    return {
        name: {metric.name: [mean_over_tasks(each[i]) for each in repeats] for i, metric in enumerate(METRICS[kind])}
        for name, repeats in measured.items()
    }


def _results_by_task(problem: Problem, measured: _Measured) -> dict[str, dict[str, Values]]:
    found = {}
    for i, task in enumerate(problem.task_names):
        own = {name: [each[:, [i]] for each in repeats] for name, repeats in measured.items()}
        found[task] = _results(problem.kind, own)
    return found


def _split_rows(problem: Problem) -> tuple[IntArray, IntArray, IntArray]:
    if problem.split is None:
        raise JobFileError(
            'train.protocol = "split" needs data that come with a split, and these have none: choose --protocol cv'
        )
    parts = []
    for name in SPLITS:
        rows = problem.part(name)
        if name != "test":
            rows = np.intersect1d(rows, problem.labelled, assume_unique=True)
        if not len(rows):
            there = ", ".join(sorted({str(each) for each in problem.split if each is not None}))
            raise JobFileError(
                f'train.protocol = "split" needs labelled graphs in the parts {", ".join(SPLITS)}, and "{name}" has none '
                f"(there are {there}): choose --protocol cv, or correct the split"
            )
        parts.append(rows)
    return parts[0], parts[1], parts[2]
