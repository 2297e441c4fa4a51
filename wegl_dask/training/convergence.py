"""Whether fitted models have converged, or ended at the most steps that they are given."""

from collections.abc import Sequence
from typing import Any

from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC, SVR

from wegl_dask.training.targets import StandardisedRegressor


def has_converged(estimator: Any) -> bool:
    """Whether an estimator that `Learner.fit` returned ended by itself."""
    if isinstance(estimator, StandardisedRegressor):
        return has_converged(estimator.regressor)
    match estimator:
        case Pipeline():
            return has_converged(estimator[-1])
        case SVC() | SVR():
            return bool(estimator.fit_status_ == 0)
        case MLPClassifier() | MLPRegressor():
            return bool(estimator.n_iter_ < estimator.max_iter)
    return True


def convergence_notes(estimators: Sequence[Any]) -> list[str]:
    """Say of fitted models, one a label, that some of them have not converged, if some have not."""
    early = [estimator for estimator in estimators if not has_converged(estimator)]
    if not early:
        return []
    which = (
        "the fitted model"
        if len(estimators) == 1
        else f"{len(early)} of the {len(estimators)} fitted models, one a label,"
    )
    return [f"{which} ended at the most steps there are, before converging"]
