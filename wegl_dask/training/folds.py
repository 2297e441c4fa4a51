"""Random folds for cross-validation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from wegl_dask.graphs import IntArray
from wegl_dask.training.learner import Fold
from wegl_dask.training.problem import Problem

FoldName = tuple[int, int | None]
"""The number of a fold, and that of one within its training part."""


@dataclass(frozen=True)
class DealtFolds(Mapping[FoldName, Fold]):
    """The folds of a cross-validation, and those within the training part of each: four bytes a row and fold.

    The outer folds come first; then the inner ones of the first, of the second, and so on.

    Attributes
    ----------
    rows : int, (n,)
    outer : int32, (n,)
        The fold that each row is in.
    inner : int32, (n_folds, n)
        The fold that each row is in within the training part of each fold; -1 where it is not in that part.
    n_inner_folds : int
    """

    rows: IntArray
    outer: IntArray
    inner: IntArray
    n_inner_folds: int

    def __getitem__(self, name: FoldName) -> Fold:
        fold, within = name
        if within is None:
            return Fold(self.rows[self.outer != fold], self.rows[self.outer == fold])
        of_row = self.inner[fold]
        return Fold(self.rows[(of_row >= 0) & (of_row != within)], self.rows[of_row == within])

    def __iter__(self) -> Iterator[FoldName]:
        n_folds = len(self.inner)
        yield from ((fold, None) for fold in range(n_folds))
        yield from ((fold, within) for fold in range(n_folds) for within in range(self.n_inner_folds))

    def __len__(self) -> int:
        return len(self.inner) * (1 + self.n_inner_folds)


def deal_folds(problem: Problem, rows: IntArray, n_folds: int, seed: int, *, inner_folds: int) -> DealtFolds:
    """Draw folds of some rows by `assign_folds`, and folds within the training part of each.

    Parameters
    ----------
    problem, rows, n_folds, seed
        See `assign_folds`.
    inner_folds : int
        One a row of a training part, where there are fewer of those; 0 for none.
    """
    outer = assign_folds(problem, rows, n_folds, seed).astype(np.int32)
    inner_folds = min(inner_folds, len(rows) - int(np.bincount(outer).max()))
    inner = np.full((n_folds, len(rows)), -1, dtype=np.int32)
    for fold in range(n_folds if inner_folds else 0):
        train = outer != fold
        inner[fold, train] = assign_folds(problem, rows[train], inner_folds, seed)
    return DealtFolds(rows, outer, inner, inner_folds)


def assign_folds(problem: Problem, rows: IntArray, n_folds: int, seed: int) -> IntArray:
    """Draw a fold for each of some rows.

    Folds are of equal size, up to one graph; where the labels are classes, each has its share of every class, up to one
    graph. Targets and labels of several tasks are drawn as they come.

    Parameters
    ----------
    problem : Problem
    rows : int, (n,)
        With known labels.
    n_folds : int
    seed : int

    Returns
    -------
    int64, (n,)
        0 .. n_folds - 1.
    """
    order = np.random.default_rng(seed).permutation(len(rows))
    if problem.class_names:
        # Sorted by class and dealt in turn, which goes on from one class to the next.
        order = order[np.argsort(problem.Y[rows[order], 0], kind="stable")]
    folds = np.empty(len(rows), dtype=np.int64)
    folds[order] = np.arange(len(rows)) % n_folds
    return folds
