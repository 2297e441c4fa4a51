"""A search over models and their parameters by FLAML, in a given time."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wegl_dask.errors import MissingDependencyError, WeglError
from wegl_dask.training.learner import Candidate, Held, Labels, Learner
from wegl_dask.training.names import MetricName

PACKAGES = ("flaml", "lightgbm")
"""That do the search."""

_MODULES = ("flaml", "lightgbm", "pandas", "xgboost")
"""What a search imports: FLAML itself is there without the others."""

_FORESTS = "balanced_forest"

ESTIMATORS = (_FORESTS, "lgbm", "extra_tree")
"""Kinds of models that are tried, by FLAML's names for them but for the first: all can be saved without pickle."""

_FLAML_METRICS = {
    "roc-auc": "roc_auc",
    "average-precision": "ap",
    "accuracy": "accuracy",
    "rmse": "rmse",
    "mae": "mae",
    "r2": "r2",
}

_FOLDS = 5


@dataclass(frozen=True)
class AutoML(Learner):
    """FLAML's search, by the metric of the protocol.

    It chooses on the graphs that are held out if there are any that the metric can be measured on, else by
    cross-validation of its own. What it finds follows from the seed and from how fast the machine is, since the search
    ends with the time.

    Attributes
    ----------
    metric : str
    time_budget : float
        Seconds of a search.
    """

    metric: MetricName
    time_budget: float

    packages = (*Learner.packages, *PACKAGES)

    def __post_init__(self) -> None:
        for package in _MODULES:
            if importlib.util.find_spec(package) is None:
                raise MissingDependencyError.for_extra(package, "automl")

    @property
    def notes(self) -> tuple[str, ...]:
        """Say how long a search lasts, on which its finds depend."""
        return (f"searches of {self.time_budget:g} s (train.time_budget), each of which chooses for itself",)

    def notes_on_choice(self, held: Sequence[Labels]) -> tuple[str, ...]:
        """Say whether fits have chosen on "valid", where their numbers are optimistic then."""
        chosen = sum(self._is_measurable(y) for y in held)
        if chosen == len(held):
            return ('every fit has chosen on "valid", so that its numbers there are optimistic',)
        if not chosen:
            return ('no fit has chosen on "valid", where the labels are all alike or unknown, but within "train"',)
        optimistic = (
            f'fits of {chosen} of {len(held)} tasks have chosen on "valid", so that their numbers there are optimistic'
        )
        return (f'{optimistic}; those of the others, whose labels there are all alike or unknown, within "train"',)

    def require_fittable(self, y: Labels) -> None:
        """Refuse a training part without one of the classes, unless it has but one and nothing is searched."""
        if self.n_classes and 1 < len(np.unique(y)) < self.n_classes:
            raise WeglError(
                'train.model = "automl" needs graphs of every class in the training part: choose another model'
            )

    def groups(self) -> list[list[Candidate]]:
        """List the one candidate there is: the search."""
        return [[{}]]

    def make(self, candidate: Candidate, seed: int) -> Any:
        """Make a search that has not begun."""
        # Importing it takes seconds, and only this model needs it.
        from flaml import AutoML as Search  # noqa: PLC0415

        from wegl_dask.training.balanced_forest import BalancedForest  # noqa: PLC0415

        search = Search(
            **candidate,
            task="regression" if self.kind == "regression" else "classification",
            metric=_FLAML_METRICS[self.metric],
            time_budget=self.time_budget,
            estimator_list=list(ESTIMATORS),
            seed=seed,
            # FLAML's forests have a seed of their own, which is always the same.
            custom_hp={name: {"random_seed": {"domain": seed}} for name in (_FORESTS, "extra_tree")},
            n_jobs=1,
            verbose=0,
            retrain_full=False,
        )
        search.add_learner(_FORESTS, BalancedForest)
        return search

    def _fit(
        self, candidate: Candidate, X: npt.NDArray[np.float32], y: npt.NDArray[Any], seed: int, held: Held | None
    ) -> Any:
        self.require_fittable(y)
        search = self.make(candidate, seed)
        if held is None or not self._is_measurable(held[1]):
            if not self.n_classes and len(y) < _FOLDS:
                raise WeglError(
                    f'train.model = "automl" needs {_FOLDS} targets in the training part, and there are {len(y)}: choose '
                    "another model"
                )
            search.fit(X, y, eval_method="cv", n_splits=_FOLDS, retrain_full=True)
        else:
            search.fit(X, y, X_val=held[0], y_val=held[1], eval_method="holdout")
        if search.model is None:
            raise WeglError(
                f"no model was found in train.time_budget = {self.time_budget:g} seconds: give automl more time"
            )
        return search.model.estimator

    def _is_measurable(self, y: Labels) -> bool:
        """Whether there is more than one class among labels, or any target at all, and several for R2."""
        return len(np.unique(y)) > (1 if self.n_classes or self.metric == "r2" else 0)
