"""What labels and folds tell before anything is fitted: where there is nothing to learn from, or to measure by."""

from collections.abc import Iterable

import numpy as np

from wegl_dask.errors import WeglError
from wegl_dask.graphs import IntArray
from wegl_dask.training.metrics import Metric
from wegl_dask.training.problem import Problem


def require_labels(problem: Problem, parts: Iterable[IntArray], where: str) -> None:
    """Refuse training parts in which no label of some task is known.

    Parameters
    ----------
    problem : Problem
    parts : iterable of int, (n_train,)
        Rows of each.
    where : str
        What they are called in the message.

    Raises
    ------
    WeglError
    """
    for rows in parts:
        unknown = np.flatnonzero(np.isnan(problem.Y[rows]).all(axis=0))
        if len(unknown):
            task = f"of task {problem.task_names[unknown[0]]!r} " if problem.task_names else ""
            raise WeglError(f"no label {task}is known in {where}: leave the task out of the run, or give more labels")


def require_classes(problem: Problem, rows: IntArray, where: str) -> None:
    """Refuse a training part in which the known labels are of one class, in every task; targets may be alike.

    Raises
    ------
    WeglError
    """
    labels = [column[~np.isnan(column)] for column in problem.Y[rows].T]
    if problem.kind != "regression" and all(len(np.unique(known)) < 2 for known in labels):
        raise WeglError(f"all labels in {where} are of one class, so there is nothing to learn: use --protocol cv")


def require_metric(
    problem: Problem, metric: Metric, parts: Iterable[IntArray], where: str, *, remedy: str, without_labels: str
) -> None:
    """Refuse parts on which a metric has no value, whatever the scores.

    Parameters
    ----------
    problem : Problem
    metric : Metric
    parts : iterable of int, (n,)
        Rows of each.
    where, remedy, without_labels : str
        What they are called in the message, and what to do: of labels that are all alike, and of none.

    Raises
    ------
    WeglError
    """
    for rows in parts:
        Y = problem.Y[rows]
        if np.isnan(Y).all():
            raise WeglError(f"no label is known in {where}, so nothing can be measured there: {without_labels}")
        if np.isnan(metric(Y, np.zeros((len(rows), problem.n_outputs)), 0.0)):
            raise WeglError(f"{metric.title} is not defined on {where}, where the labels are all alike: {remedy}")


def require_measurable(problem: Problem, metric: Metric) -> None:
    """Refuse a split of which "valid" or "test" gives the metric no value; see `require_metric`."""
    remedy = "use --protocol cv"
    for part in ("valid", "test"):
        require_metric(
            problem,
            metric,
            [problem.part(part)],
            f'the part "{part}"',
            remedy=f"choose another train.metric, or {remedy}",
            without_labels=f"give some, or {remedy}",
        )
