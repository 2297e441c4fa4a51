"""Targets of mean 0 and standard deviation 1, as every regressor is fitted to them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin

Targets = npt.NDArray[np.float64]


class StandardisedRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A regressor that was fitted to standardised targets, and predicts targets as they are.

    Parameters
    ----------
    regressor : estimator
        Fitted.
    mean, scale : float
        Of the targets.

    Notes
    -----
    Many regressors compute in the precision of the vectors, float32, and others take differences of squares: targets far
    from zero would lose their digits. Here they keep them, since mean and scale are in double precision.
    """

    def __init__(self, regressor: Any, mean: float, scale: float) -> None:
        self.regressor = regressor
        self.mean = mean
        self.scale = scale

    def predict(self, X: npt.NDArray[Any]) -> Targets:
        """Predict targets: float64, (n,)."""
        return Standard(self.mean, self.scale).undo(self.regressor.predict(X)).reshape(-1)


@dataclass(frozen=True)
class Standard:
    """Mean and standard deviation of targets; the latter is 1 where they are all alike."""

    mean: float
    scale: float

    @classmethod
    def of(cls, y: Targets) -> "Standard":
        """Measure targets."""
        spread = float(np.ptp(y))
        if not spread:
            return cls(float(y[0]), 1.0)
        # Squares of very small targets would vanish.
        return cls(float(y.mean()), float((y / spread).std()) * spread)

    def apply(self, y: Targets) -> Targets:
        """Standardise targets."""
        return (y - self.mean) / self.scale

    def undo(self, scores: npt.NDArray[Any]) -> Targets:
        """Turn predictions of standardised targets into predictions of targets."""
        return np.asarray(scores, dtype=np.float64) * self.scale + self.mean
