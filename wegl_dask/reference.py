"""The reference point set, computed from a sample of the node embeddings.

Paper, section "Calculation of the Reference Distribution".
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from wegl_dask.canonical import canonical_reference, round_to_grid, squared_distances
from wegl_dask.errors import SettingsError, WeglError
from wegl_dask.graphs import IntArray
from wegl_dask.imports import uncollected
from wegl_dask.projection import Moments

if TYPE_CHECKING:
    import dask.array as da

FloatMatrix = npt.NDArray[np.float64]
FloatVector = npt.NDArray[np.float64]
SinglesOrDoubles = npt.NDArray[np.float32] | npt.NDArray[np.float64]
ReferenceKind = Literal["kmeans", "normal", "barycenter", "sample", "origin"]

BLOCK_ROWS = 16_384
"""Node embeddings in one mini-batch of k-means, where N is not so large that more are needed."""

START_ROWS = 20_000
"""Node embeddings that the first centres of k-means are found on, likewise."""

HELD_ENTRIES = 4_000_000
"""Float64 entries of a mini-batch, or of what the first centres are found on, where N is not so large: 32 MB."""

BARYCENTER_ITERATIONS = 50

KMEANS_DTYPE = np.float32
"""Of the node embeddings that are clustered: half the bytes and half the time, and centres are means of many."""


class TooFewPointsError(WeglError):
    """There are fewer distinct node embeddings than the reference is to have points."""

    @classmethod
    def of(cls, found: int, needed: int) -> "TooFewPointsError":
        """Name both numbers."""
        return cls(
            f"there are {found} distinct node embeddings among those that the reference is computed from, and it is to have "
            f"{needed} distinct points; set reference.points to {found} at most, raise reference.max_nodes if there are more "
            "nodes, or choose node features that tell more nodes apart"
        )


def kmeans_reference(points: "da.Array", n_points: int, *, epochs: int, step: float, seed: int) -> FloatMatrix:
    """Cluster node embeddings by mini-batch k-means, over a dask array in blocks.

    The first centres are those of k-means, started by k-means++, on a random sample of the rows; then every epoch takes
    all rows once, block by block in random order, through
    ``dask_ml.wrappers.Incremental(sklearn.cluster.MiniBatchKMeans)``.

    Parameters
    ----------
    points : dask.array.Array
        float32 or float64, (n, d), chunked along the rows; best by `mini_batches`.
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
    from dask_ml.wrappers import Incremental  # noqa: PLC0415  takes seconds, and nothing else needs it

    n_rows, dimension = points.shape
    start = points[_start_rows(n_rows, dimension, n_points, seed)].compute()
    if len(_distinct_rows(start, n_points, step)) < n_points:
        blocks = (block.compute() for block in points.blocks)
        start = _all_distinct_rows(blocks, n_points, step)
    bounds = mini_batches(n_rows, dimension, n_points)
    batches = points.rechunk((tuple(np.diff(bounds).tolist()), dimension))
    frame = _Frame.of(start)
    batches = frame.enter(batches)
    with _one_thread():
        first = _clusterer(frame.enter(start), n_points, seed)
        incremental = Incremental(first, random_state=seed, shuffle_blocks=True)
        for _ in range(epochs):
            incremental.partial_fit(batches)
    return _with_distinct_centres(frame.leave(incremental.estimator_.cluster_centers_), start, step)


def import_clustering() -> None:
    """Import what `kmeans_reference` needs, which takes longer than many a stage."""
    with uncollected():
        import dask_ml.wrappers  # noqa: F401, PLC0415
        import sklearn.cluster  # noqa: F401, PLC0415


def sample_dtype(kind: ReferenceKind) -> type[np.floating[Any]]:
    """Type in which the sample of node embeddings for a reference of this kind is kept."""
    return KMEANS_DTYPE if kind == "kmeans" else np.float64


def as_sample(points: FloatMatrix, dtype: type[np.floating[Any]]) -> npt.NDArray[np.floating[Any]]:
    """Bring points into the type of a sample; SettingsError where one is too large for it."""
    largest = float(max(points.max(initial=0.0), -points.min(initial=0.0)))
    most = float(np.finfo(dtype).max)
    if largest > most:
        raise SettingsError(
            f"a node embedding has an entry of {largest:.1e}; {most:.1e} is the most that k-means, in single precision, can "
            "take: set projection.standardize = true, lower diffusion.layers, or scale the attributes"
        )
    return points.astype(dtype, copy=False)


def mini_batches(n_rows: int, dimension: int, n_points: int) -> IntArray:
    """Cut the rows for k-means into equal mini-batches: int64, their boundaries.

    A remainder with fewer rows than there are centres would be refused.
    """
    n_batches = max(1, n_rows // max(min(BLOCK_ROWS, _most_rows(dimension)), 8 * n_points))
    return np.arange(n_batches + 1) * n_rows // n_batches


def kmeans_reference_in_memory(
    points: SinglesOrDoubles, n_points: int, *, epochs: int, step: float, seed: int
) -> FloatMatrix:
    """Cluster node embeddings as `kmeans_reference` does, without Dask.

    The mini-batches are the same, and they are taken in the order in which dask-ml takes them. See there for
    parameters and errors; `points` are float32 or float64, (n, d).
    """
    from sklearn.utils import check_random_state  # noqa: PLC0415  takes a second

    n_rows, dimension = points.shape
    start = points[_start_rows(n_rows, dimension, n_points, seed)]
    if len(_distinct_rows(start, n_points, step)) < n_points:
        start = _all_distinct_rows([points], n_points, step)
    bounds = mini_batches(n_rows, dimension, n_points).tolist()
    order = list(range(len(bounds) - 1))
    check_random_state(seed).shuffle(order)
    frame = _Frame.of(start)
    with _one_thread():
        clusterer = _clusterer(frame.enter(start), n_points, seed)
        for _ in range(epochs):
            for batch in order:
                clusterer.partial_fit(frame.enter(points[bounds[batch] : bounds[batch + 1]]))
    return _with_distinct_centres(frame.leave(clusterer.cluster_centers_), start, step)


def reference_from_samples(
    kind: Literal["normal", "barycenter", "sample"],
    samples: Iterable[tuple[FloatMatrix, IntArray | None]],
    n_points: int,
    *,
    step: float,
    seed: int,
) -> FloatMatrix:
    """Compute a reference of one of the kinds that need no clustering.

    Parameters
    ----------
    kind : {"normal", "barycenter", "sample"}
    samples : iterable of (float64 (n, d), int (n_graphs,) or None)
        Points, some at a time; for a barycenter those of whole graphs, and how many each graph has.
    n_points, step, seed
        See `kmeans_reference`.

    Returns
    -------
    float64, (N, d)
        In lexicographic order.

    Raises
    ------
    TooFewPointsError
        See `normal_reference`, `sample_reference`, `barycenter_reference`.
    """
    if kind == "normal":
        parts = [Moments.of(points, scatter=False) for points, _ in samples]
        moments = reduce(Moments.merge, parts)
        return normal_reference(moments.mean, moments.variance, n_points, step=step, seed=seed)
    if kind == "barycenter":
        graphs = [
            graph
            for points, counts in samples
            if counts is not None
            for graph in np.split(points, np.cumsum(counts)[:-1])
        ]
        return barycenter_reference(graphs, n_points, step=step, seed=seed)
    return sample_reference(np.concatenate([points for points, _ in samples]), n_points, step=step, seed=seed)


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


def origin_reference(dimension: int) -> FloatMatrix:
    """Take the origin as the only point, (1, dimension).

    There is one plan to a single point, so that the embedding is the average of a graph's points, and the transport cost
    their mean squared length.

    Examples
    --------
    >>> origin_reference(3)
    array([[0., 0., 0.]])
    """
    return np.zeros((1, dimension))


def sample_reference(points: FloatMatrix, n_points: int, *, step: float, seed: int) -> FloatMatrix:
    """Draw `n_points` distinct node embeddings out of `points`, (n, d), a row as likely as it is frequent.

    Raises
    ------
    TooFewPointsError
        If there are not so many.
    """
    order = np.random.default_rng(seed).permutation(len(points))
    # Those that are the first of their kind in random order.
    taken = n_points
    while True:
        rows = round_to_grid(points[order[:taken]], step)
        first = np.unique(rows, axis=0, return_index=True)[1]
        if len(first) >= n_points:
            return canonical_reference(rows[np.sort(first)[:n_points]], step)
        if taken >= len(points):
            raise TooFewPointsError.of(len(first), n_points)
        taken *= 2


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
    # POT ends by displacements, and its solver by costs, that are small of themselves and not in the unit of the points.
    unit = _unit_of(start)
    points = free_support_barycenter(
        [points / unit for points in graphs], weights, start / unit, numItermax=BARYCENTER_ITERATIONS
    )
    return _require_distinct(canonical_reference(points * unit, step), n_points)


def _most_rows(dimension: int) -> int:
    return max(1, HELD_ENTRIES // dimension)


def _start_rows(n_rows: int, dimension: int, n_points: int, seed: int) -> IntArray:
    """Choose the rows that the first centres of k-means are found on, in ascending order."""
    n_start = min(n_rows, max(min(START_ROWS, _most_rows(dimension)), 20 * n_points))
    return np.sort(np.random.default_rng(seed).choice(n_rows, size=n_start, replace=False))


@dataclass(frozen=True)
class _Frame:
    """Where the coordinates of points count from, and in what unit, while they are clustered.

    K-means in single precision computes squared distances from squared lengths. Of these nothing is left where points are
    far longer than they are apart, and they are 0, or infinite, where lengths are about 1e-22, or 1e19.

    Attributes
    ----------
    origin : float, (d,), or None
        None for points that do not lie far from theirs, as those of a projection do not.
    unit : float
        A power of two, which changes no digit.
    """

    origin: SinglesOrDoubles | None
    unit: float

    @classmethod
    def of(cls, points: SinglesOrDoubles) -> "_Frame":
        """Find the frame of points that stand for all."""
        mean = points.mean(axis=0, dtype=np.float64)
        is_near = np.square(mean).sum() <= points.var(axis=0, dtype=np.float64).sum()
        return cls(None if is_near else mean.astype(points.dtype), _unit_of(points))

    def enter(self, points: Any) -> Any:
        """Bring points, an array of Dask or of NumPy, into the frame; their type stays."""
        return (points if self.origin is None else points - self.origin) / self.unit

    def leave(self, points: SinglesOrDoubles) -> FloatMatrix:
        """Bring points of the frame back."""
        outside: FloatMatrix = np.multiply(points, self.unit, dtype=np.float64)
        return outside if self.origin is None else np.add(outside, self.origin, dtype=np.float64)


def _unit_of(points: SinglesOrDoubles) -> float:
    """Find the power of two next to the largest extent of points along an axis, of those that single precision holds."""
    spread = float(np.subtract(points.max(axis=0), points.min(axis=0), dtype=np.float64).max())
    return float(2.0 ** np.minimum(np.round(np.log2(spread)), 127)) if spread else 1.0


def _one_thread() -> AbstractContextManager[object]:
    """Keep scikit-learn to one thread, as in a worker: the sums of several come out in another order."""
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # noqa: PLC0415

    limits: AbstractContextManager[object] = threadpool_limits(1)
    return limits


def _clusterer(start: SinglesOrDoubles, n_points: int, seed: int) -> Any:
    """Set up mini-batch k-means with the first centres."""
    from sklearn.cluster import KMeans  # noqa: PLC0415  takes seconds, and only k-means needs it

    first = KMeans(n_points, init="k-means++", n_init=_starts(n_points), max_iter=30, random_state=seed).fit(start)
    return mini_batch_kmeans(first.cluster_centers_, seed)


def _starts(n_points: int) -> int:
    """Say how often the search for first centres begins anew, of which the best are taken.

    A few centres lie better or worse by chance; of hundreds some always lie badly, and no beginning is much better than
    another.

    Examples
    --------
    >>> _starts(26), _starts(100), _starts(429)
    (4, 2, 1)
    """
    return max(1, min(4, 200 // n_points))


def mini_batch_kmeans(centres: SinglesOrDoubles, seed: int) -> Any:
    """Set up mini-batch k-means that goes on from some centres, (N, d): a `sklearn.cluster.MiniBatchKMeans`."""
    from sklearn.cluster import MiniBatchKMeans  # noqa: PLC0415  takes seconds, and only k-means needs it

    # Labels would be found anew after every mini-batch, for nothing: half of its time.
    return MiniBatchKMeans(
        len(centres),
        init=centres,
        n_init=1,
        reassignment_ratio=0.0,
        compute_labels=False,
        random_state=seed,
    )


def _all_distinct_rows(blocks: Iterable[SinglesOrDoubles], n_points: int, step: float) -> FloatMatrix:
    """Distinct rows of all blocks together, of which there have to be `n_points`."""
    distinct: FloatMatrix | None = None
    for block in blocks:
        distinct = canonical_reference(block if distinct is None else np.concatenate([distinct, block]), step)
    if distinct is None or len(distinct) < n_points:
        raise TooFewPointsError.of(0 if distinct is None else len(distinct), n_points)
    return distinct


def _distinct_rows(points: SinglesOrDoubles, n_wanted: int, step: float) -> FloatMatrix:
    """Distinct rows of the first ones of `points`: `n_wanted` of them at least, or all there are."""
    taken = n_wanted
    while len(chosen := canonical_reference(points[:taken], step)) < n_wanted and taken < len(points):
        taken *= 2
    return chosen


def _with_distinct_centres(centres: SinglesOrDoubles, points: SinglesOrDoubles, step: float) -> FloatMatrix:
    """Round and sort centres; one that falls together with another is moved to the point farthest from all centres.

    TooFewPointsError where there are fewer distinct points than centres.
    """
    result = canonical_reference(centres, step)
    if len(result) < len(centres):
        # As they would be centres: one that is such already has the distance 0, however coarse the grid.
        points = round_to_grid(np.asarray(points, dtype=np.float64), step)
    while len(result) < len(centres):
        distances = squared_distances(points, result).min(axis=1)
        if not distances.max() > 0:
            raise TooFewPointsError.of(len(result), len(centres))
        result = canonical_reference(np.vstack([result, points[np.argmax(distances)]]), step)
    return result


def _require_distinct(points: FloatMatrix, n_points: int) -> FloatMatrix:
    if len(points) < n_points:
        raise TooFewPointsError.of(len(points), n_points)
    return points
