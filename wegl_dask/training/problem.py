"""What is to be learned: the embeddings of a run, and their labels in one form for all kinds of labels."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from wegl_dask.errors import WeglError
from wegl_dask.graphs import IntArray
from wegl_dask.reading import Embeddings

ProblemKind = Literal["binary", "multiclass", "regression"]
FloatMatrix = npt.NDArray[np.float64]

SPLITS = ("train", "valid", "test")
"""Names of the parts of a split, as the Open Graph Benchmark has them."""


MAX_TARGET = 1e100
"""Largest target, whatever its sign: sums of its squares are far from the largest number in double precision."""


@dataclass(frozen=True)
class Problem:
    """Vectors and labels.

    Attributes
    ----------
    kind : {"binary", "multiclass", "regression"}
        Of every task.
    X : float32, (n_graphs, width)
    Y : float64, (n_graphs, n_tasks)
        Class indices or targets; NaN where a label is unknown. One column, unless the labels are several tasks.
    class_names : tuple of str
        Of two or more classes; empty for targets and for several tasks.
    task_names : tuple of str
        Of several tasks; empty where there is one label.
    graph_id : object, (n_graphs,)
    split : object, (n_graphs,), or None
        ``"train"``, ``"valid"``, ``"test"`` or None; None altogether where the data have no split.
    """

    kind: ProblemKind
    X: npt.NDArray[np.float32]
    Y: FloatMatrix
    class_names: tuple[str, ...]
    task_names: tuple[str, ...]
    graph_id: npt.NDArray[np.object_]
    split: npt.NDArray[np.object_] | None

    @classmethod
    def of(cls, embeddings: Embeddings) -> "Problem":
        """Find out what the labels of a run are.

        Raises
        ------
        WeglError
            If there is nothing to learn: no labels, or one class alone; or a target is beyond `MAX_TARGET`.
        """
        labels = embeddings.labels
        if embeddings.y is None or not embeddings.rows.column("label").drop_null().length():
            raise WeglError(
                "no graph of the run has a label, so there is nothing to train on: name the labels in the job file "
                "(source.targets, or task), or fill them in where it names them, and run it again"
            )
        Y = np.asarray(embeddings.y, dtype=np.float64).reshape(len(embeddings.X), -1)
        kind: ProblemKind
        if labels.kind == "class":
            kind = "binary" if len(labels.class_names) == 2 else "multiclass"
        elif labels.kind == "tasks" and np.isin(Y[~np.isnan(Y)], (0, 1)).all():
            kind = "binary"
        else:
            kind = "regression"
        if kind != "regression" and len(np.unique(Y[~np.isnan(Y)])) < 2:
            raise WeglError("the labels that are known are all of one class: there is nothing to tell apart")
        if kind == "regression":
            _refuse_large_targets(Y, embeddings.graph_id)
        return cls(
            kind=kind,
            X=embeddings.X,
            Y=Y,
            class_names=labels.class_names,
            task_names=labels.task_names,
            graph_id=embeddings.graph_id,
            split=embeddings.split,
        )

    @property
    def n_outputs(self) -> int:
        """Columns of scores that a model gives: one a class if there are more than two, else one a task."""
        return len(self.class_names) if self.kind == "multiclass" else self.Y.shape[1]

    @property
    def labelled(self) -> IntArray:
        """Rows of the graphs with a label of any task."""
        return np.flatnonzero(~np.isnan(self.Y).all(axis=1))

    def part(self, name: str) -> IntArray:
        """Rows of the graphs in a part of the split."""
        if self.split is None:
            return np.empty(0, dtype=np.int64)
        return np.flatnonzero(self.split == name)


def _refuse_large_targets(Y: FloatMatrix, graph_id: npt.NDArray[np.object_]) -> None:
    large = np.argwhere(np.abs(Y) > MAX_TARGET)
    if len(large):
        row, task = large[0]
        raise WeglError(
            f"the target of graph {graph_id[row]} is {Y[row, task]:g}, and targets may be {MAX_TARGET:g} at most, since "
            "errors are squared: give them in another unit, and run the job again"
        )
