"""The reference point set, computed from a sample of the node embeddings.

Paper, section "Calculation of the Reference Distribution".
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist

from wegl_dask.errors import WeglError
from wegl_dask.transport import canonical_reference

if TYPE_CHECKING:
    import dask.array as da

FloatMatrix = npt.NDArray[np.float64]
FloatVector = npt.NDArray[np.float64]
ReferenceKind = Literal["kmeans", "normal", "barycenter", "sample"]

BLOCK_ROWS = 16_384
"""Node embeddings in one mini-batch of k-means, where N is not so large that more are needed."""

START_ROWS = 20_000
"""Node embeddings that the first centres of k-means are found on, likewise."""

HELD_ENTRIES = 4_000_000
"""Float64 entries of a mini-batch, or of what the first centres are found on, where N is not so large: 32 MB."""

BARYCENTER_ITERATIONS = 50


class TooFewPointsError(WeglError):
    """There are fewer distinct node embeddings than the reference is to have points."""

    @classmethod
    def of(cls, found: int, needed: int) -> "TooFewPointsError":
        """Name both numbers."""
        return cls(
            f"the graphs have {found} distinct node embeddings, and the reference is to have {needed} distinct points; "
            f"set reference.points to {found} at most, or choose node features that tell more nodes apart"
        )


def kmeans_reference(points: "da.Array", n_points: int, *, epochs: int, step: float, seed: int) -> FloatMatrix:
    """Cluster node embeddings by mini-batch k-means, over a dask array in blocks.

    The first centres are those of k-means, started by k-means++, on a random sample of the rows; then every epoch takes
    all rows once, block by block in random order, through
    ``dask_ml.wrappers.Incremental(sklearn.cluster.MiniBatchKMeans)``.

    Parameters
    ----------
    points : dask.array.Array
        float64, (n, d), chunked along the rows.
    n_points : int
        Number N of centres.
    epochs : int
        Passes over `points`.
    step : float
        Grid that the centres are rounded to.
    seed : int

    Returns
    -------
    float64, (N, d)
        Distinct centres in lexicographic order.

    Raises
    ------
    TooFewPointsError
        If fewer than N rows of `points` are distinct.
    """
    # scikit-learn and dask-ml take seconds to import, and this is the only step that needs them.
    from dask_ml.wrappers import Incremental  # noqa: PLC0415
    from sklearn.cluster import KMeans, MiniBatchKMeans  # noqa: PLC0415

    n_rows, dimension = points.shape
    most_rows = max(1, HELD_ENTRIES // dimension)
    n_start = min(n_rows, max(min(START_ROWS, most_rows), 20 * n_points))
    start = points[np.sort(np.random.default_rng(seed).choice(n_rows, size=n_start, replace=False))].compute()
    if len(_distinct_rows(start, n_points, step)) < n_points:
        start = np.empty((0, dimension))
        for block in points.blocks:
            start = canonical_reference(np.concatenate([start, block.compute()]), step)
        if len(start) < n_points:
            raise TooFewPointsError.of(len(start), n_points)
    first = KMeans(n_points, init="k-means++", n_init=4, max_iter=30, random_state=seed).fit(start)
    clusterer = MiniBatchKMeans(
        n_points, init=first.cluster_centers_, n_init=1, reassignment_ratio=0.0, random_state=seed
    )
    # Equal blocks: a remainder with fewer rows than centres would be refused.
    n_blocks = max(1, n_rows // max(min(BLOCK_ROWS, most_rows), 8 * n_points))
    boundaries = np.arange(n_blocks + 1) * n_rows // n_blocks
    blocks = points.rechunk((tuple(np.diff(boundaries).tolist()), dimension))
    incremental = Incremental(clusterer, random_state=seed, shuffle_blocks=True)
    for _ in range(epochs):
        incremental.partial_fit(blocks)
    return _with_distinct_centres(incremental.estimator_.cluster_centers_, start, step)


def normal_reference(mean: FloatVector, variance: FloatVector, n_points: int, *, step: float, seed: int) -> FloatMatrix:
    """Draw from the normal distribution with a given mean and variance along each axis, (d,) each.

    Returns
    -------
    float64, (n_points, d)
        In lexicographic order.

    Raises
    ------
    TooFewPointsError
        If there is so little variance that draws are alike.
    """
    rng = np.random.default_rng(seed)
    draws = mean + np.sqrt(variance) * rng.standard_normal((n_points, len(mean)))
    return _require_distinct(canonical_reference(draws, step), n_points)


def sample_reference(points: FloatMatrix, n_points: int, *, step: float, seed: int) -> FloatMatrix:
    """Draw `n_points` distinct node embeddings out of `points`, (n, d), a row as likely as it is frequent.

    Raises
    ------
    TooFewPointsError
        If there are not so many.
    """
    order = np.random.default_rng(seed).permutation(len(points))
    # The rows are taken in random order until enough of them are distinct.
    taken = n_points
    while len(chosen := canonical_reference(points[order[:taken]], step)) < n_points:
        if taken >= len(points):
            raise TooFewPointsError.of(len(chosen), n_points)
        taken += max(1, n_points - len(chosen))
    return chosen


def barycenter_reference(graphs: Sequence[FloatMatrix], n_points: int, *, step: float, seed: int) -> FloatMatrix:
    """Compute the free-support Wasserstein barycenter of some graphs' points with POT.

    Every graph counts alike, and so does every one of its points and of the barycenter's.

    Parameters
    ----------
    graphs : sequence of float64 (n_i, d)
    n_points : int
    step : float
    seed : int
        Of the nodes that the iteration starts from.

    Raises
    ------
    TooFewPointsError
        If there are fewer distinct points than `n_points`, or points of the barycenter fall together.
    """
    from ot.lp import free_support_barycenter  # noqa: PLC0415  POT imports every backend it finds

    start = sample_reference(np.concatenate(graphs), n_points, step=step, seed=seed)
    weights = [np.full(len(points), 1.0 / len(points)) for points in graphs]
    points = free_support_barycenter(list(graphs), weights, start, numItermax=BARYCENTER_ITERATIONS)
    return _require_distinct(canonical_reference(points, step), n_points)


def _distinct_rows(points: FloatMatrix, n_wanted: int, step: float) -> FloatMatrix:
    """Distinct rows of the first ones of `points`: `n_wanted` of them at least, or all there are."""
    taken = n_wanted
    while len(chosen := canonical_reference(points[:taken], step)) < n_wanted and taken < len(points):
        taken *= 2
    return chosen


def _with_distinct_centres(centres: FloatMatrix, points: FloatMatrix, step: float) -> FloatMatrix:
    """Round and sort centres; one that falls together with another is moved to the point farthest from all centres."""
    result = canonical_reference(centres, step)
    while len(result) < len(centres):
        farthest = points[np.argmax(cdist(points, result, "sqeuclidean").min(axis=1))]
        result = canonical_reference(np.vstack([result, farthest]), step)
    return result


def _require_distinct(points: FloatMatrix, n_points: int) -> FloatMatrix:
    if len(points) < n_points:
        raise TooFewPointsError.of(len(points), n_points)
    return points
