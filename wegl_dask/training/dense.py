"""Models on standardised vectors: multi-layer perceptrons and ridge regression."""

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from wegl_dask.training.learner import Arrays, Candidate, Fold, Held, Labels, Learner, grid
from wegl_dask.training.problem import FloatMatrix

HIDDEN_LAYERS = ((128,), (256,), (128, 64), (256, 128))
EPOCHS = 200
"""Passes over the training part, scikit-learn's number, after which a fit ends as it is."""

INTERRUPTED = "Training interrupted by user"
"""How scikit-learn's warning begins."""

PENALTIES = tuple(10.0**exponent for exponent in range(-2, 6))


class Perceptron(Learner):
    """Multi-layer perceptrons (paper, appendix "Implementation Details")."""

    def groups(self) -> list[list[Candidate]]:
        """List the candidates, each by itself."""
        return [[candidate] for candidate in grid(hidden_layer_sizes=HIDDEN_LAYERS)]

    def make(self, candidate: Candidate, seed: int) -> Any:
        """Make the estimator of a candidate."""
        kind = MLPClassifier if self.n_classes else MLPRegressor
        return make_pipeline(StandardScaler(), kind(**candidate, max_iter=EPOCHS, random_state=seed))

    def _fit(
        self, candidate: Candidate, X: npt.NDArray[np.float32], y: npt.NDArray[Any], seed: int, held: Held | None
    ) -> Any:
        with warnings.catch_warnings():
            # The number of epochs is a part of what the candidate is.
            warnings.simplefilter("ignore", ConvergenceWarning)
            # scikit-learn takes Ctrl-C for the wish to end the fit here, and goes on with what it has.
            warnings.filterwarnings("error", INTERRUPTED, UserWarning)
            try:
                return super()._fit(candidate, X, y, seed, held)
            except UserWarning as warning:
                if isinstance(warning.__context__, KeyboardInterrupt):
                    raise warning.__context__ from None
                raise


class RidgeRegression(Learner):
    """Ridge regression, for targets alone."""

    is_seeded: ClassVar[bool] = False

    def groups(self) -> list[list[Candidate]]:
        """List the candidates, which share the products of the columns, or of the graphs if those are fewer."""
        return [grid(alpha=PENALTIES)]

    def make(self, candidate: Candidate, seed: int) -> Any:  # noqa: ARG002  nothing is random
        """Make the estimator of a candidate."""
        return make_pipeline(StandardScaler(), Ridge(**candidate))

    def _fit(
        self,
        candidate: Candidate,
        X: npt.NDArray[np.float32],
        y: npt.NDArray[Any],
        seed: int,
        held: Held | None,  # noqa: ARG002
    ) -> Any:
        # The smallest penalty is lost in single precision where columns hang together, as those of few graphs do.
        return self.make(candidate, seed).fit(X.astype(np.float64), y)

    def _search(self, shared: Arrays, y: Labels, fold: Fold, group: Sequence[Candidate], seed: int) -> FloatMatrix:
        (X,) = shared
        # scikit-learn takes a penalty for each of several targets: here they are one target, as often as there are penalties.
        penalties = {"alpha": np.array([candidate["alpha"] for candidate in group])}
        estimator = self._fit(penalties, X[fold.train], np.tile(y[fold.train, np.newaxis], len(group)), seed, None)
        predicted: FloatMatrix = estimator.predict(X[fold.evaluate]).reshape(-1, len(group))
        return predicted.T[:, :, np.newaxis]
