"""Points in canonical form: rounded to a grid, equal ones merged, the rest in lexicographic order.

Notes
-----
The optimal plan between two sets of points need not be unique, and which one a solver finds depends on the order of the
points. Taken for canonical points it makes the embedding a function of the set of points alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from wegl_dask.graphs import IntArray, expand_ranges, offsets_from_counts

FloatMatrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class WeightedPoints:
    """The points of many graphs, each with the part of its graph's mass that it carries.

    Attributes
    ----------
    points : float64, (n_points, d)
    weights : float64, (n_points,)
        They add up to 1 in every graph.
    offsets : int64, (n_graphs + 1,)
        Graph i owns rows ``offsets[i]:offsets[i + 1]``.
    """

    points: FloatMatrix
    weights: FloatMatrix
    offsets: IntArray

    def slice(self, start: int, stop: int) -> "WeightedPoints":
        """Graphs ``start:stop``; the points are views."""
        rows = slice(int(self.offsets[start]), int(self.offsets[stop]))
        return WeightedPoints(
            self.points[rows], self.weights[rows], self.offsets[start : stop + 1] - self.offsets[start]
        )

    def take(self, graphs: IntArray) -> "WeightedPoints":
        """Copy the named graphs, in the order of `graphs`."""
        counts = np.diff(self.offsets)[graphs]
        rows = expand_ranges(self.offsets[graphs], counts)
        return WeightedPoints(self.points[rows], self.weights[rows], offsets_from_counts(counts))


def squared_distances(first: npt.NDArray[np.floating[Any]], second: FloatMatrix) -> FloatMatrix:
    """Squared Euclidean distances of all pairs, the costs of transport: float64, (n_first, n_second).

    They are evaluated pair by pair, never by the expansion into a matrix product, so that they do not depend on where in
    a batch a graph stands.
    """
    distances: FloatMatrix = scipy.spatial.distance.cdist(first, second, "sqeuclidean")
    return distances


def canonical_points(points: FloatMatrix, offsets: IntArray, step: float) -> WeightedPoints:
    """Round the points of every graph to a grid, merge equal ones, and sort them lexicographically.

    Parameters
    ----------
    points : float64, (n_points, d)
    offsets : int64, (n_graphs + 1,)
    step : float
        Grid spacing; a power of two makes the rounding exact.

    Examples
    --------
    >>> canonical_points(np.array([[2.0], [0.9], [2.1]]), np.array([0, 3]), step=1.0).points.ravel()
    array([1., 2.])
    """
    rounded = round_to_grid(points, step)
    order, starts_new = _lexicographic_order(rounded, offsets)
    first = np.flatnonzero(starts_new)
    multiplicity = np.diff(np.append(first, len(order)))
    graph = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[order[first]]
    return WeightedPoints(
        rounded[order[first]],
        multiplicity / np.diff(offsets)[graph],
        offsets_from_counts(np.bincount(graph, minlength=len(offsets) - 1)),
    )


def round_to_grid(points: FloatMatrix, step: float) -> FloatMatrix:
    """Round every coordinate to the nearest multiple of `step`; -0 becomes 0, and what is too large infinite."""
    with np.errstate(over="ignore"):
        return np.rint(points / step) * step + 0.0


def canonical_reference(points: npt.ArrayLike, step: float) -> FloatMatrix:
    """Round the reference to the grid of the points and sort it; equal points are merged: float64, (at most n, d)."""
    points = np.asarray(points, dtype=np.float64)
    return canonical_points(points, np.array([0, len(points)]), step).points


def _lexicographic_order(points: FloatMatrix, offsets: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Sort the rows within each graph; say for each sorted row whether it differs from the one before.

    Most rows are told apart by their first coordinate, and most of the others are equal altogether: so the full
    comparison is left to the rows that tie in the first coordinate.
    """
    n_points, dimension = points.shape
    graph = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    if not dimension or not n_points:
        return np.arange(n_points), np.append(True, np.diff(graph) != 0)[:n_points]
    order = np.lexsort((points[:, 0], graph))
    key = points[order, 0]
    same = np.zeros(n_points, dtype=bool)
    same[1:] = (key[1:] == key[:-1]) & (graph[1:] == graph[:-1])
    if same.any() and dimension > 1:
        tied = same.copy()
        tied[:-1] |= same[1:]
        rows = np.flatnonzero(tied)
        run = np.cumsum(~same)[rows]
        tied_points = points[order[rows]]
        varying = np.flatnonzero((tied_points[1:] != tied_points[:-1])[same[rows][1:]].any(axis=0))
        inner = np.lexsort((*tied_points[:, varying[::-1]].T, run))
        order[rows] = order[rows[inner]]
        same_rows = np.flatnonzero(same)
        same[same_rows] = (points[order[same_rows]] == points[order[same_rows - 1]]).all(axis=1)
    return order, ~same
