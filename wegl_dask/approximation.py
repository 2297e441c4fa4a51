"""How well distances of embeddings stand for 2-Wasserstein distances, measured on pairs of graphs of a run.

Paper, appendix "Detailed Discussion on Linear Wasserstein Embedding", paragraph "Approximation Error of the Embedding".
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wegl_dask.canonical import WeightedPoints, squared_distances
from wegl_dask.errors import WeglError
from wegl_dask.geometry import (
    embedding_distance,
    generalized_geodesic_distance,
    residual,
    wasserstein_bound,
    wasserstein_distance,
)
from wegl_dask.graphs import IntArray
from wegl_dask.progress import Progress, unshown
from wegl_dask.run_rows import RunRows
from wegl_dask.transport import embed_points, exact_plan

FloatMatrix = npt.NDArray[np.float64]

TIE = 1e-6
"""Relative difference within which |phi_i - phi_j| and W_2 count as equal: what float32 leaves open."""


@dataclass(frozen=True)
class Approximation:
    """Distances of pairs of graphs, each computed in several ways. The units are those of the points.

    Attributes
    ----------
    pairs : int64, (n_pairs, 2)
        Numbers of the two rows, the first below the second.
    wasserstein : float64, (n_pairs,)
        W_2, exact.
    embedding : float64, (n_pairs,)
        |phi_i - phi_j| of the embeddings as they are stored.
    generalized : float64, (n_pairs,)
        The generalised geodesic distance, from exact plans: what the embedding would give without barycentric projection.
    bound : float64, (n_pairs,)
        The certified upper bound, see `wegl_dask.geometry.wasserstein_bound`.
    triangle_bound : float64, (n_pairs,)
        The plainer and wider one, |phi_i - phi_j| + r_i + r_j.
    n_graphs : int
        Graphs of the run.
    n_entropic : int
        Graphs of the run whose plan is entropic.

    Examples
    --------
    One pair at W_2 = 2, which is 1.5 in the embedding:

    >>> distances = (np.array([distance]) for distance in (2.0, 1.5, 2.1, 2.5, 3.0))
    >>> Approximation(np.array([[0, 1]]), *distances, n_graphs=2, n_entropic=0).summary()["mean_relative_error"]
    0.25
    """

    pairs: IntArray
    wasserstein: FloatMatrix
    embedding: FloatMatrix
    generalized: FloatMatrix
    bound: FloatMatrix
    triangle_bound: FloatMatrix
    n_graphs: int
    n_entropic: int

    @property
    def apart(self) -> npt.NDArray[np.bool_]:
        """The pairs of graphs that differ, (n_pairs,): those of equal points have W_2 = 0, and no relative error."""
        return self.wasserstein > 0

    def summary(self) -> dict[str, float]:
        """Summarise the pairs as numbers by name, all of them relative to W_2 but the counts."""
        apart = self.apart
        exact = self.wasserstein[apart]

        def ratio(distances: FloatMatrix) -> FloatMatrix:
            quotient: FloatMatrix = distances[apart] / exact
            return quotient

        error = np.abs(ratio(self.embedding) - 1)
        return {
            "graphs": self.n_graphs,
            "entropic_graphs": self.n_entropic,
            "pairs": len(self.pairs),
            "equal_pairs": int((~apart).sum()),
            "mean_wasserstein": _mean(exact),
            "mean_relative_error": _mean(error),
            "median_relative_error": float(np.median(error)) if len(error) else np.nan,
            "largest_relative_error": _largest(error),
            "mean_ratio": _mean(ratio(self.embedding)),
            "fraction_below": _mean((ratio(self.embedding) < 1 - TIE).astype(np.float64)),
            "generalized_mean_relative_error": _mean(np.abs(ratio(self.generalized) - 1)),
            "bound_mean_ratio": _mean(ratio(self.bound)),
            "bound_largest_ratio": _largest(ratio(self.bound)),
            "bound_broken": int((self.bound < self.wasserstein).sum()),
            "triangle_bound_mean_ratio": _mean(ratio(self.triangle_bound)),
        }


def measure_approximation(
    run: str | os.PathLike[str],
    n_pairs: int = 2000,
    *,
    seed: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[..., Progress] = unshown,
) -> Approximation:
    """Compare distances of embeddings with exact 2-Wasserstein distances on random pairs of a run's graphs.

    Parameters
    ----------
    run : str or path-like
        A finished run that has kept its graphs: a path or any fsspec URL.
    n_pairs : int, default 2000
        Distinct pairs of distinct graphs; all pairs, where there are no more.
    seed : int, default 0
        Of the choice of pairs.
    storage_options : mapping, optional
        Arguments for the file system.
    progress : callable
        Makes the progress display of each step from its name and number of parts; nothing is shown by default.

    Raises
    ------
    WeglError
        If the run has not finished, has fewer than two graphs or has not kept its graph shards, or no pair is asked for.

    Examples
    --------
    >>> import wegl_dask
    >>> wegl_dask.measure_approximation("runs/quickstart", 100).summary()["bound_broken"]
    0
    """
    if n_pairs < 1:
        raise WeglError(f"n_pairs = {n_pairs}; at least one pair must be asked for")
    rows = RunRows.open(run, storage_options)
    if rows.n_rows < 2:
        raise WeglError(f"{rows.run.location()} has {rows.n_rows} graphs; a pair is needed to measure a distance")
    return compare_pairs(rows, sample_pairs(rows.n_rows, n_pairs, seed), progress=progress)


def compare_pairs(rows: RunRows, pairs: IntArray, *, progress: Callable[..., Progress] = unshown) -> Approximation:
    """Compare distances of embeddings with exact 2-Wasserstein distances on the pairs of rows that are named.

    Parameters
    ----------
    rows : RunRows
        Of a run that has kept its graphs.
    pairs : int64, (n_pairs, 2)
        Numbers of rows.
    progress : callable
        Makes the progress display of a step.
    """
    chosen, place = np.unique(pairs, return_inverse=True)
    first, second = place.reshape(pairs.shape).T
    phi, points = rows.take(chosen), rows.points(chosen, progress=progress)
    cost = rows.values(chosen, ("transport_cost",)).column(0).to_numpy()
    lost = residual(phi, cost)
    found = np.empty((4, len(pairs)))
    with progress("distances", len(pairs), unit="pairs") as shown:
        for position, (i, j) in enumerate(zip(first, second, strict=True)):
            found[:, position] = (
                *_exact_distances(points.slice(i, i + 1), points.slice(j, j + 1), rows.model.reference),
                embedding_distance(phi[i], phi[j]),
                wasserstein_bound(phi[i], phi[j], cost[i], cost[j]),
            )
            shown.update()
    wasserstein, generalized, embedding, bound = found
    return Approximation(
        pairs=pairs,
        wasserstein=wasserstein,
        embedding=embedding,
        generalized=generalized,
        bound=bound,
        triangle_bound=embedding + lost[first] + lost[second],
        n_graphs=rows.n_rows,
        n_entropic=sum(_count_entropic(table.column(0)) for _, table in rows.tables(("solver",))),
    )


def _count_entropic(solvers: pa.ChunkedArray) -> int:
    # Without `min_count` a column of nulls, as in a file that was altered, has no sum.
    return int(pc.sum(pc.equal(solvers, "sinkhorn"), min_count=0).as_py())


def sample_pairs(n: int, n_pairs: int, seed: int) -> IntArray:
    """Draw distinct pairs of distinct numbers below n, each pair as likely as any other.

    Returns
    -------
    int64, (min(n_pairs, n (n - 1) / 2), 2)
        The smaller number first; the pairs in ascending order.

    Examples
    --------
    >>> sample_pairs(3, 100, seed=0).tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    n_all = n * (n - 1) // 2
    drawn = np.random.default_rng(seed).choice(n_all, size=min(n_pairs, n_all), replace=False, shuffle=False)
    # Pair number k is (i, j) with k = j (j - 1) / 2 + i; the square root may be one off where k is large.
    larger = ((1 + np.sqrt(1 + 8 * drawn.astype(np.float64))) / 2).astype(np.int64)
    larger -= larger * (larger - 1) // 2 > drawn
    larger += larger * (larger + 1) // 2 <= drawn
    pairs = np.stack([drawn - larger * (larger - 1) // 2, larger], axis=1)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def noise_response(
    points: WeightedPoints, reference: FloatMatrix, levels: FloatMatrix, *, seed: int = 0
) -> tuple[FloatMatrix, FloatMatrix]:
    """Measure how far graphs move when normal noise is added to their points.

    Paper, appendix "Detailed Discussion on Linear Wasserstein Embedding", paragraph "Regularity of the Embedding".

    Parameters
    ----------
    points : WeightedPoints
    reference : float64, (N, d)
    levels : float64, (n_levels,)
        Standard deviations of the noise along every axis. The draws are the same for every level, but for their size.
    seed : int, default 0

    Returns
    -------
    moved : float64, (n_levels, n_graphs)
        |phi(mu) - phi(mu + noise)|.
    noise : float64, (n_levels, n_graphs)
        W_2(mu, mu + noise).

    Examples
    --------
    >>> one_point = WeightedPoints(np.array([[1.0, 2.0]]), np.ones(1), np.array([0, 1]))
    >>> moved, noise = noise_response(one_point, np.array([[0.0, 0.0], [3.0, 1.0]]), np.array([0.5]))
    >>> bool(np.isclose(moved[0, 0], noise[0, 0]))
    True
    """
    n_graphs = len(points.offsets) - 1
    draws = np.random.default_rng(seed).standard_normal(points.points.shape)
    clean = embed_points(points, reference).phi
    moved, noise = np.empty((2, len(levels), n_graphs))
    for at, level in enumerate(levels):
        noisy = replace(points, points=points.points + level * draws)
        moved[at] = embedding_distance(clean, embed_points(noisy, reference).phi)
        noise[at] = [
            wasserstein_distance(one.points, one.weights, two.points, two.weights)
            for one, two in ((points.slice(i, i + 1), noisy.slice(i, i + 1)) for i in range(n_graphs))
        ]
    return moved, noise


def _exact_distances(one: WeightedPoints, two: WeightedPoints, reference: FloatMatrix) -> tuple[float, float]:
    """W_2 and the generalised geodesic distance of two graphs."""
    if np.array_equal(one.points, two.points) and np.array_equal(one.weights, two.weights):
        return 0.0, 0.0
    uniform = np.full(len(reference), 1.0 / len(reference))
    plan_one, plan_two = (
        exact_plan(uniform, graph.weights, squared_distances(reference, graph.points))[0] for graph in (one, two)
    )
    return (
        wasserstein_distance(one.points, one.weights, two.points, two.weights),
        generalized_geodesic_distance(plan_one, one.points, plan_two, two.points),
    )


def _mean(values: FloatMatrix) -> float:
    return float(values.mean()) if len(values) else np.nan


def _largest(values: FloatMatrix) -> float:
    return float(values.max()) if len(values) else np.nan
