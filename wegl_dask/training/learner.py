"""What all models have in common: a grid of candidates, and fits that several candidates may share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.dummy import DummyClassifier

from wegl_dask.graphs import IntArray
from wegl_dask.training.problem import FloatMatrix, ProblemKind
from wegl_dask.training.targets import Standard, StandardisedRegressor

Candidate = Mapping[str, Any]
Labels = npt.NDArray[np.float64]
Arrays = tuple[npt.NDArray[Any], ...]
Held = tuple[npt.NDArray[np.float32], Labels]


@dataclass(frozen=True)
class Fold:
    """Rows that a model is fitted to, rows that it scores, and rows that it may choose by, if it searches on its own."""

    train: IntArray
    evaluate: IntArray
    held: IntArray | None = None


@dataclass(frozen=True)
class Learner(ABC):
    """A kind of model for one task. Targets are standardised before any model sees them.

    Attributes
    ----------
    kind : {"binary", "multiclass", "regression"}
    n_classes : int
        0 for targets.
    """

    kind: ProblemKind
    n_classes: int

    threshold: ClassVar[float] = 0.5
    """Score above which class 1 is predicted, where there are two."""

    score_of_none: ClassVar[float] = 0.0
    """Score of a class that is not in the training part: no probability."""

    is_seeded: ClassVar[bool] = True
    """Whether a seed makes a difference."""

    packages: ClassVar[tuple[str, ...]] = ("numpy", "scipy", "scikit-learn")
    """Whose versions scores follow from."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What belongs to the numbers, beyond the candidates."""
        return ()

    def notes_on_choice(self, held: Sequence[Labels]) -> tuple[str, ...]:  # noqa: ARG002  most choose nothing
        """Say what a fit has chosen by on its own, from the labels of "valid" that are known in each task."""
        return ()

    @property
    def n_outputs(self) -> int:
        """Columns of scores: one a class if there are more than two, else 1."""
        return self.n_classes if self.kind == "multiclass" else 1

    @abstractmethod
    def groups(self) -> list[list[Candidate]]:
        """List the candidates of the grid, those together that share a fit."""

    @abstractmethod
    def make(self, candidate: Candidate, seed: int) -> Any:
        """Make the scikit-learn estimator of a candidate, to be fitted to vectors and labels, or standardised targets."""

    def shared(self, X: npt.NDArray[np.float32]) -> Arrays:
        """Compute what all fits start from; it is sent to every process once."""
        return (np.ascontiguousarray(X, dtype=np.float32),)

    def require_fittable(self, y: Labels) -> None:  # noqa: B027  most can be fitted to any labels
        """Refuse known labels of a training part that the model cannot be fitted to.

        Raises
        ------
        WeglError
        """

    def search(self, shared: Arrays, y: Labels, fold: Fold, group: Sequence[Candidate], seed: int) -> FloatMatrix:
        """Fit the candidates of a group to some rows and score others.

        Parameters
        ----------
        shared : tuple of arrays
            See `shared`.
        y : float64, (n_graphs,)
            Known for the rows of `fold.train`.
        fold : Fold
        group : sequence of candidates
            One of `groups`.
        seed : int

        Returns
        -------
        float64, (n_candidates, n_evaluate, n_outputs)
            What fitting every candidate by itself would give.
        """
        if self._is_constant(y[fold.train]):
            constant = self._in_columns(np.ones((1, 1)), y[fold.train][:1])
            return np.broadcast_to(constant, (len(group), len(fold.evaluate), self.n_outputs)).copy()
        if self.n_classes:
            return self._search(shared, y, fold, group, seed)
        standard = Standard.of(y[fold.train])
        return standard.undo(self._search(shared, standard.apply(y), fold, group, seed))

    def fit(
        self, candidate: Candidate, X: npt.NDArray[np.float32], y: Labels, seed: int, *, held: Held | None = None
    ) -> Any:
        """Fit one candidate.

        Parameters
        ----------
        candidate : mapping
        X : float32, (n_train, width)
        y : float64, (n_train,)
        seed : int
        held : (float32, (n_held, width)) and (float64, (n_held,)), optional
            Graphs of the part "valid", for models that choose their parameters themselves.

        Returns
        -------
        estimator
            Fitted; `scores` scores with it.
        """
        if not self.n_classes:
            standard = Standard.of(y)
            held = None if held is None else (held[0], standard.apply(held[1]))
            regressor = self._fit(candidate, X, standard.apply(y), seed, held)
            return StandardisedRegressor(regressor, standard.mean, standard.scale)
        if self._is_constant(y):
            return DummyClassifier().fit(X, y.astype(np.int64))
        return self._fit(candidate, X, y.astype(np.int64), seed, held)

    def scores(self, estimator: Any, X: npt.NDArray[np.floating]) -> FloatMatrix:
        """Score vectors with what `fit` returned: float64, (n, n_outputs)."""
        if not self.n_classes:
            return np.asarray(estimator.predict(X), dtype=np.float64).reshape(-1, 1)
        return self._in_columns(self._class_scores(estimator, X), estimator.classes_)

    def _fit(
        self,
        candidate: Candidate,
        X: npt.NDArray[np.float32],
        y: npt.NDArray[Any],
        seed: int,
        held: Held | None,  # noqa: ARG002  most models have no use for it
    ) -> Any:
        return self.make(candidate, seed).fit(X, y)

    def _search(self, shared: Arrays, y: Labels, fold: Fold, group: Sequence[Candidate], seed: int) -> FloatMatrix:
        (X,) = shared
        return np.stack(
            [
                self.scores(self._fitted(candidate, X[fold.train], y[fold.train], seed), X[fold.evaluate])
                for candidate in group
            ]
        )

    def _fitted(self, candidate: Candidate, X: npt.NDArray[np.float32], y: Labels, seed: int) -> Any:
        """Fit a candidate to labels of several classes, or to targets that are standardised already."""
        return self._fit(candidate, X, y.astype(np.int64) if self.n_classes else y, seed, None)

    def _class_scores(self, estimator: Any, X: npt.NDArray[np.floating]) -> FloatMatrix:
        """Score vectors for each class that the estimator knows; for two, class 1 alone may be scored."""
        scores: FloatMatrix = estimator.predict_proba(X)
        return scores

    def _in_columns(self, scores: FloatMatrix, classes: npt.NDArray[Any]) -> FloatMatrix:
        """Put the scores of the classes that were in the training part into the columns of all classes."""
        columns = np.full((len(scores), self.n_classes), self.score_of_none)
        columns[:, np.asarray(classes, dtype=np.int64)] = scores
        return columns if self.kind == "multiclass" else columns[:, 1:]

    def _is_constant(self, y: npt.NDArray[Any]) -> bool:
        return bool(self.n_classes) and len(np.unique(y)) == 1


def grid(**values: Sequence[Any]) -> list[Candidate]:
    """List the combinations of values, the first name varying slowest.

    Examples
    --------
    >>> grid(C=[1, 10], gamma=["scale"])
    [{'C': 1, 'gamma': 'scale'}, {'C': 10, 'gamma': 'scale'}]
    """
    return [dict(zip(values, combination, strict=True)) for combination in product(*values.values())]
