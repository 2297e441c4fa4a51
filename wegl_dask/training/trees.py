"""Random forests and gradient boosting: one fit of the longest candidate scores all shorter ones on the way."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)

from wegl_dask.training.learner import Arrays, Candidate, Fold, Held, Labels, Learner, grid
from wegl_dask.training.problem import FloatMatrix

LEAF_SIZES = (1, 2, 5)
SPLIT_SIZES = (2, 5, 10)
N_TREES = (25, 50, 100, 150, 200)
DEPTHS = (1, 3, 5)


def smallest_split(candidate: Candidate) -> int:
    """Count the samples of the smallest node that is split: both sides must have `min_samples_leaf`."""
    return int(max(candidate["min_samples_split"], 2 * candidate["min_samples_leaf"]))


class RandomForest(Learner):
    """Random forests (paper, appendix "Implementation Details"), with balanced classes, of which the paper says nothing.

    Every split looks at a random square root of the columns. For targets scikit-learn's default are all of them, which takes
    18 times as long on vectors of 320 and is no more accurate there.

    Notes
    -----
    Two shortcuts leave every score as it is. The trees of a forest are drawn one after another from its seed, so the
    first 25 of 200 are the forest of 25. And a node is split only if both sides can have `min_samples_leaf` samples, so a
    `min_samples_split` below twice that is no constraint. The 45 candidates of the grid take 7 fits.
    """

    def groups(self) -> list[list[Candidate]]:
        """List the candidates; those together that differ in the number of trees, or in nothing that has an effect."""
        groups: dict[tuple[int, int], list[Candidate]] = {}
        for candidate in grid(min_samples_leaf=LEAF_SIZES, min_samples_split=SPLIT_SIZES, n_estimators=N_TREES):
            groups.setdefault((candidate["min_samples_leaf"], smallest_split(candidate)), []).append(candidate)
        return list(groups.values())

    def make(self, candidate: Candidate, seed: int) -> Any:
        """Make the forest of a candidate."""
        if self.n_classes:
            return RandomForestClassifier(**candidate, class_weight="balanced", random_state=seed)
        return RandomForestRegressor(**candidate, max_features="sqrt", random_state=seed)

    def _fit(
        self,
        candidate: Candidate,
        X: npt.NDArray[np.float32],
        y: npt.NDArray[Any],
        seed: int,
        held: Held | None,
    ) -> Any:
        forest = super()._fit(candidate, X, y, seed, held)
        if "n_jobs" in candidate:
            # Several threads would add up what the trees predict in the order in which they are done.
            forest.n_jobs = 1
        return forest

    def _search(self, shared: Arrays, y: Labels, fold: Fold, group: Sequence[Candidate], seed: int) -> FloatMatrix:
        (X,) = shared
        sizes = [candidate["n_estimators"] for candidate in group]
        forest = self._fitted({**group[0], "n_estimators": max(sizes)}, X[fold.train], y[fold.train], seed)
        by_size = {}
        for n_trees, mean in enumerate(_running_means(forest, X[fold.evaluate], is_classifier=bool(self.n_classes)), 1):
            if n_trees in sizes:
                by_size[n_trees] = self._in_columns(mean, forest.classes_) if self.n_classes else mean
        return np.stack([by_size[size] for size in sizes])


class GradientBoosting(Learner):
    """Gradient boosting on histograms of at most 255 bins a column.

    Notes
    -----
    It stands for the exact gradient boosting of the paper, which takes far longer. It has no `min_samples_split`; the
    rest of the grid is the paper's, with as many leaves as the depth allows. Predictions after each stage give every
    number of trees from one fit: 9 fits for 45 candidates. It has nothing random: where the bins are those of a sample of
    the rows, it is always the same one.
    """

    is_seeded: ClassVar[bool] = False

    def groups(self) -> list[list[Candidate]]:
        """List the candidates; those together that differ in the number of trees."""
        return [
            grid(min_samples_leaf=[leaf], max_depth=[depth], max_iter=N_TREES)
            for leaf in LEAF_SIZES
            for depth in DEPTHS
        ]

    def make(self, candidate: Candidate, seed: int) -> Any:  # noqa: ARG002  nothing is random
        """Make the estimator of a candidate."""
        kind = HistGradientBoostingClassifier if self.n_classes else HistGradientBoostingRegressor
        # By default it would stop early on large data, and grow no more than 31 leaves.
        return kind(**candidate, early_stopping=False, max_leaf_nodes=None, random_state=0)

    def _search(self, shared: Arrays, y: Labels, fold: Fold, group: Sequence[Candidate], seed: int) -> FloatMatrix:
        (X,) = shared
        sizes = [candidate["max_iter"] for candidate in group]
        estimator = self._fitted({**group[0], "max_iter": max(sizes)}, X[fold.train], y[fold.train], seed)
        staged = estimator.staged_predict_proba if self.n_classes else estimator.staged_predict
        by_size = {}
        for n_trees, scores in enumerate(staged(X[fold.evaluate]), 1):
            if n_trees in sizes:
                by_size[n_trees] = (
                    self._in_columns(scores, estimator.classes_) if self.n_classes else scores.reshape(-1, 1)
                )
        return np.stack([by_size[size] for size in sizes])


def _running_means(forest: Any, X: npt.NDArray[np.float32], *, is_classifier: bool) -> Iterator[FloatMatrix]:
    """Predict with the first tree, the first two, ...; added up in the order in which the forest itself does."""
    total: Any = 0.0
    for n_trees, tree in enumerate(forest.estimators_, 1):
        predict = tree.predict_proba if is_classifier else tree.predict
        total = total + predict(X, check_input=False)
        yield (total / n_trees).reshape(len(X), -1)
