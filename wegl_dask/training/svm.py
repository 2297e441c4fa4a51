"""Support vector machines: all candidates and all folds from one Gram matrix."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC, SVR

from wegl_dask.errors import WeglError
from wegl_dask.graphs import IntArray
from wegl_dask.training.learner import Arrays, Candidate, Fold, Held, Labels, Learner, grid
from wegl_dask.training.problem import FloatMatrix

PENALTIES = tuple(10.0**exponent for exponent in range(-2, 6))

GRAM_GRAPHS = 16_000
"""Graphs up to which the Gram matrix is held, 2 GB; beyond that every fit computes the kernel for itself."""

MAX_ITERATIONS = 2_000_000
"""Steps of the solver after which a fit ends as it is: large penalties on classes that overlap would take hours."""

_BLOCK_ENTRIES = 1 << 24


@dataclass(frozen=True)
class SupportVectorMachine(Learner):
    """Support vector machines on the vectors as they are, whose distances stand for Wasserstein distances.

    The width of the RBF kernel is scikit-learn's ``gamma="scale"``, of the training part.

    Attributes
    ----------
    kernel : {"linear", "rbf"}
    max_iterations : int
        Steps of the solver after which a fit ends as it is.
    """

    kernel: Literal["linear", "rbf"]
    max_iterations: int = MAX_ITERATIONS

    threshold: ClassVar[float] = 0.0
    # Below that of the class that is predicted, which is on the right side of its boundary.
    score_of_none: ClassVar[float] = -1.0
    is_seeded: ClassVar[bool] = False

    def groups(self) -> list[list[Candidate]]:
        """List the candidates in one group: they share their kernel matrix."""
        return [grid(C=PENALTIES)]

    def make(self, candidate: Candidate, seed: int) -> Any:  # noqa: ARG002  nothing is random
        """Make the estimator of a candidate."""
        return self._make(candidate, self.kernel)

    def shared(self, X: npt.NDArray[np.float32]) -> Arrays:
        """Compute the Gram matrix, the sum of every vector, and the width of the vectors; of many graphs, nothing."""
        if len(X) > GRAM_GRAPHS:
            self._require_short(np.einsum("ij,ij->i", X, X, dtype=np.float64))
            return super().shared(X)
        gram = gram_matrix(X)
        self._require_short(gram.diagonal())
        return gram, X.sum(axis=1, dtype=np.float64), np.array(X.shape[1])

    def _require_short(self, squares: FloatMatrix) -> None:
        """Refuse vectors whose products the solver, which holds them in single precision, could not hold."""
        if self.kernel == "linear" and squares.max() > np.finfo(np.float32).max:
            raise WeglError(
                f"a vector has length {np.sqrt(squares.max()):.2g}, and a linear SVM takes none above "
                f"{np.sqrt(np.finfo(np.float32).max):.2g}: set projection.standardize = true, or choose another model"
            )

    def _search(self, shared: Arrays, y: Labels, fold: Fold, group: Sequence[Candidate], seed: int) -> FloatMatrix:
        if len(shared) == 1:
            return super()._search(shared, y, fold, group, seed)
        of_train = self._kernel(shared, fold.train, fold.train)
        of_others = self._kernel(shared, fold.evaluate, fold.train)
        return np.stack(
            [
                self.scores(self._solved(self._make(candidate, "precomputed"), of_train, y[fold.train]), of_others)
                for candidate in group
            ]
        )

    def _kernel(self, shared: Arrays, rows: IntArray, train: IntArray) -> FloatMatrix:
        """Take the kernel matrix between some rows and the training part out of the Gram matrix."""
        gram, sums, width = shared
        block: FloatMatrix = gram[np.ix_(rows, train)]
        if self.kernel == "linear":
            return block
        squares = gram.diagonal()
        n_entries = len(train) * int(width)
        variance = squares[train].sum() / n_entries - (sums[train].sum() / n_entries) ** 2
        gamma = 1 / (int(width) * variance) if variance > 0 else 1.0
        distances = squares[rows, None] + squares[None, train] - 2 * block
        kernel: FloatMatrix = np.exp(-gamma * np.maximum(distances, 0))
        return kernel

    def _make(self, candidate: Candidate, kernel: str) -> Any:
        settings = {**candidate, "kernel": kernel, "max_iter": self.max_iterations}
        # Where several classes have as many votes, the class of the highest score, as it is measured.
        return SVC(**settings, break_ties=True) if self.n_classes else SVR(**settings)

    def _fit(
        self,
        candidate: Candidate,
        X: npt.NDArray[np.float32],
        y: npt.NDArray[Any],
        seed: int,
        held: Held | None,  # noqa: ARG002
    ) -> Any:
        return self._solved(self.make(candidate, seed), X, y)

    def _solved(self, estimator: Any, X: npt.NDArray[Any], y: npt.NDArray[Any]) -> Any:
        with warnings.catch_warnings():
            # The number of steps is a part of what the candidate is.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return estimator.fit(X, y.astype(np.int64) if self.n_classes else y)

    def _class_scores(self, estimator: Any, X: npt.NDArray[np.floating]) -> FloatMatrix:
        if len(estimator.classes_) == 1:
            return super()._class_scores(estimator, X)
        scores: FloatMatrix = estimator.decision_function(X)
        return np.column_stack([-scores, scores]) if scores.ndim == 1 else scores


def gram_matrix(X: npt.NDArray[np.float32]) -> FloatMatrix:
    """Compute the scalar products of all pairs of rows, in double precision, some columns at a time.

    Parameters
    ----------
    X : float32, (n, width)

    Returns
    -------
    float64, (n, n)
    """
    gram = np.zeros((len(X), len(X)))
    step = max(1, _BLOCK_ENTRIES // max(len(X), 1))
    for start in range(0, X.shape[1], step):
        block = X[:, start : start + step].astype(np.float64)
        gram += block @ block.T
    return gram
