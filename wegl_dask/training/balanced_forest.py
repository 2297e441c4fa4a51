"""Random forests with balanced classes, as a kind of model that FLAML searches."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flaml import tune
from flaml.automl.model import RandomForestEstimator

N_TREES = 500
"""Trees of every forest: more lower the variance and nothing else, so their number is not chosen by few graphs."""

LEAF_SIZES = (1, 20)
FIRST_LEAF_SIZE = 2


class BalancedForest(RandomForestEstimator):  # type: ignore[misc]  # FLAML has no types
    """Forests of which the smallest leaf, the share of columns a split looks at and the criterion are searched.

    FLAML's own forests have no weights, and begin with four trees of four leaves.
    """

    @classmethod
    def search_space(cls, data_size: tuple[int, int], task: Any, **_: Any) -> dict[str, Any]:
        """Describe what is searched, in FLAML's terms; the first forest is about what the grid of forests has."""
        root = 1 / np.sqrt(data_size[1])
        space: dict[str, Any] = {
            "min_samples_leaf": {"domain": tune.lograndint(*LEAF_SIZES), "init_value": FIRST_LEAF_SIZE},
            "max_features": {
                "domain": tune.loguniform(root / 2, 1.0),
                "init_value": root if task.is_classification() else 1.0,
            },
        }
        if task.is_classification():
            space["criterion"] = {"domain": tune.choice(["gini", "entropy"]), "init_value": "gini"}
        return space

    @classmethod
    def size(cls, config: Mapping[str, Any]) -> float:
        """Estimate no bytes: FLAML asks before it knows the number of graphs, and measures what the first trees take."""
        del config
        return 0.0

    def config2params(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Turn what was drawn into parameters of scikit-learn's forest."""
        params: dict[str, Any] = super().config2params({"n_estimators": N_TREES, **config})
        if self._task.is_classification():
            params["class_weight"] = "balanced"
        return params
