"""The models of tables 2 and 3: those of `wegl_dask.training`, and cheaper ones where the whole grid would take days."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.neural_network import MLPClassifier

from wegl_dask.training.dense import Perceptron
from wegl_dask.training.learner import Arrays, Candidate, Fold, Labels, Learner, grid
from wegl_dask.training.models import make_learner
from wegl_dask.training.names import ModelName
from wegl_dask.training.problem import FloatMatrix, Problem
from wegl_dask.training.svm import SupportVectorMachine, gram_matrix
from wegl_dask.training.trees import DEPTHS, LEAF_SIZES, N_TREES, SPLIT_SIZES, smallest_split

GRID_VERSION = 3
"""Increased when the groups of candidates of a model of table 3 change, or the order that they are measured in."""

SVM_ITERATIONS = 100_000
"""Steps after which the solver of an SVM ends, converged or not: a large penalty can need many more."""

BOOSTED_WHOLE: Mapping[str, Sequence[str]] = {
    "MUTAG": ("concat", "average", "final"),
    "PTC_MR": ("concat", "average", "final"),
    "ENZYMES": ("average", "final"),
    "IMDB-BINARY": ("average",),
}
"""Data sets and poolings of which gradient boosting looks at all columns: those that this takes minutes of, and not hours."""

VARIANCE_KEPT = 0.999
"""Share of the variance of the vectors in the principal components that the perceptron sees."""


def constants(model: ModelName, data_set: str, pooling: str) -> dict[str, Any]:
    """Say what the scores of a cell follow from, beyond vectors, labels and candidates."""
    match model:
        case "svm-linear" | "svm-rbf":
            return {"svm_iterations": SVM_ITERATIONS}
        case "gradient-boosting":
            return {"max_features": _columns(data_set, pooling)}
        case "mlp":
            return {"variance_kept": VARIANCE_KEPT}
        case _:
            return {}


def table_learner(model: ModelName, problem: Problem, data_set: str, pooling: str) -> Learner:
    """Make the model of a cell of table 3; the labels are classes."""
    learner = make_learner(model, problem, metric="accuracy", time_budget=0.0)
    kind, n_classes = learner.kind, learner.n_classes
    match model:
        case "svm-linear":
            return SupportVectorMachine(kind, n_classes, "linear", SVM_ITERATIONS)
        case "svm-rbf":
            return SupportVectorMachine(kind, n_classes, "rbf", SVM_ITERATIONS)
        case "gradient-boosting":
            return ExactBoosting(kind, n_classes, _columns(data_set, pooling))
        case "mlp":
            return ComponentPerceptron(kind, n_classes)
        case _:
            return learner


def _columns(data_set: str, pooling: str) -> Literal["sqrt"] | None:
    """Find how many columns gradient boosting looks at for a split; None for all."""
    return None if pooling in BOOSTED_WHOLE.get(data_set, ()) else "sqrt"


@dataclass(frozen=True)
class ExactBoosting(Learner):
    """Exact gradient boosting, on the columns themselves and not on histograms of them.

    Attributes
    ----------
    max_features : "sqrt" or None
        Whether every split looks at a random square root of the columns, as in a forest, or at all, as in the paper.

    Notes
    -----
    With all columns the grid takes ten to a thousand times as long. Predictions after each stage give every number of
    trees from one fit, and a `min_samples_split` below twice the leaf is no constraint, nor is any that all graphs of a
    fold meet where only the root is split: 17 fits for 135 candidates.
    """

    max_features: Literal["sqrt"] | None

    def groups(self) -> list[list[Candidate]]:
        """List the candidates, the deepest first; those together that differ in the number of trees, or in nothing."""
        groups: dict[tuple[int, int, int], list[Candidate]] = {}
        for depth in sorted(DEPTHS, reverse=True):
            candidates = grid(
                min_samples_leaf=LEAF_SIZES, max_depth=[depth], min_samples_split=SPLIT_SIZES, n_estimators=N_TREES
            )
            for candidate in candidates:
                split = smallest_split(candidate) if depth > 1 else 2
                groups.setdefault((depth, candidate["min_samples_leaf"], split), []).append(candidate)
        return list(groups.values())

    def make(self, candidate: Candidate, seed: int) -> Any:
        """Make the classifier of a candidate."""
        return GradientBoostingClassifier(**candidate, max_features=self.max_features, random_state=seed)

    def _search(self, shared: Arrays, y: Labels, fold: Fold, group: Sequence[Candidate], seed: int) -> FloatMatrix:
        (X,) = shared
        sizes = [candidate["n_estimators"] for candidate in group]
        estimator = self.fit({**group[0], "n_estimators": max(sizes)}, X[fold.train], y[fold.train], seed)
        staged = enumerate(estimator.staged_predict_proba(X[fold.evaluate]), 1)
        by_size = {n_trees: self._in_columns(scores, estimator.classes_) for n_trees, scores in staged}
        return np.stack([by_size[size] for size in sizes])


class ComponentPerceptron(Perceptron):
    """Multi-layer perceptrons on the principal components of the vectors, all on one scale.

    Notes
    -----
    A rotation is undone by the first layer, so that only the components left out are lost. They are those of all graphs,
    without their labels, as the embedding is. On one scale, and not each on its own, small components stay small.
    """

    def make(self, candidate: Candidate, seed: int) -> Any:
        """Make the classifier of a candidate."""
        return MLPClassifier(**candidate, random_state=seed)

    def shared(self, X: npt.NDArray[np.float32]) -> Arrays:
        """Compute the components that keep `VARIANCE_KEPT` of the variance; the largest has variance 1."""
        return (leading_components(X, VARIANCE_KEPT).astype(np.float32),)


def leading_components(X: npt.NDArray[np.float32], share: float) -> FloatMatrix:
    """Rotate vectors to their principal components, as many as keep a share of the variance.

    Parameters
    ----------
    X : float32, (n, width)
    share : float
        Between 0 and 1.

    Returns
    -------
    float64, (n, n_components)
        Divided by one number, so that the first has variance 1; all zero where the vectors are all alike.
    """
    gram = gram_matrix(X)
    gram -= gram.mean(axis=0)
    gram -= gram.mean(axis=1)[:, None]
    squares, vectors = np.linalg.eigh(gram)
    squares, vectors = np.maximum(squares[::-1], 0), vectors[:, ::-1]
    if not squares[0] > 0:
        return np.zeros((len(X), 1))
    kept = int(np.searchsorted(np.cumsum(squares) / squares.sum(), share)) + 1
    components: FloatMatrix = vectors[:, :kept] * np.sqrt(len(X) * squares[:kept] / squares[0])
    return components
