"""Random folds for cross-validation."""

import numpy as np

from wegl_dask.graphs import IntArray
from wegl_dask.training.problem import Problem


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
