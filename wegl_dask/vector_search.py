"""Nearest vectors and close pairs of vectors: exact by matrix products, and by an approximate index.

Distances are first computed in float32 by a matrix product, with a bound on their error; every pair that could count is
computed again in float64 from the difference of the vectors. So the results are exact, equal vectors are at distance 0,
and most of the work is done at the speed of BLAS.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from wegl_dask.errors import MissingDependencyError
from wegl_dask.graphs import IntArray, offsets_from_counts
from wegl_dask.progress import Progress, unshown

FloatArray = npt.NDArray[np.floating]
FloatMatrix = npt.NDArray[np.float64]
Found = tuple[IntArray, FloatMatrix]
"""Numbers of vectors, and distances: (n_queries, k) each. Where there are fewer than k the rest is -1, and infinity."""

QUERY_ROWS = 1024
BLOCK_ROWS = 4096
"""Queries, and vectors, whose distances are in memory at a time: 16 MB."""

EXACT_ENTRIES = 4_000_000
"""Float64 entries of differences in memory at a time: 32 MB."""

PROBES = 32
"""Lists of the index that are searched for a query."""

TRAINING_ROWS_PER_LIST = 40


def scan(
    blocks: Iterable[tuple[int, FloatArray]], queries: FloatArray, k: int, *, own: IntArray | None = None
) -> Found:
    """Find the k nearest vectors of every query by looking at all of them.

    Parameters
    ----------
    blocks : iterable of (int, float (n, width))
        The vectors a block at a time, each with the number of its first vector.
    queries : float, (n_queries, width)
    k : int
    own : int64, (n_queries,), optional
        Numbers of the queries among the vectors: a vector is not its own neighbour.

    Returns
    -------
    Found
        Nearest first; vectors at equal distance in the order of their numbers.

    Examples
    --------
    >>> vectors = np.array([[0.0], [1.0], [5.0], [1.0]])
    >>> scan([(0, vectors[:2]), (2, vectors[2:])], vectors, 2, own=np.arange(4))
    (array([[1, 3],
           [3, 0],
           [1, 3],
           [1, 0]]), array([[1., 1.],
           [0., 1.],
           [4., 4.],
           [0., 1.]]))
    """
    rows = np.full((len(queries), k), -1, dtype=np.int64)
    squared = np.full((len(queries), k), np.inf)
    for first, whole_block in blocks:
        for start in range(0, len(whole_block), BLOCK_ROWS):
            block = whole_block[start : start + BLOCK_ROWS].astype(np.float32, copy=False)
            numbers = np.arange(first + start, first + start + len(block))
            for at in range(0, len(queries), QUERY_ROWS):
                chunk = slice(at, at + QUERY_ROWS)
                asked = queries[chunk].astype(np.float32, copy=False)
                query, vector = _promising(asked, block, squared[chunk, -1], k)
                if own is not None:
                    others = numbers[vector] != own[chunk][query]
                    query, vector = query[others], vector[others]
                exact = _squared_distances(asked, block, query, vector)
                _keep_nearest(rows[chunk], squared[chunk], query, numbers[vector], exact)
    return rows, np.sqrt(squared)


def close_pairs(vectors: FloatArray, threshold: float) -> Iterator[tuple[IntArray, IntArray, FloatMatrix]]:
    """Find all pairs of vectors that are no farther apart than a threshold.

    The vectors are sorted along the direction in which they vary most; only pairs whose places on that line are within
    the threshold are looked at. No array of all pairs is ever made.

    Parameters
    ----------
    vectors : float, (n, width)
    threshold : float

    Yields
    ------
    first, second : int64, (n_pairs,)
        Numbers of vectors, the first below the second.
    distance : float64, (n_pairs,)

    Examples
    --------
    >>> [tuple(array.tolist() for array in found) for found in close_pairs(np.array([[0.0], [3.0], [0.5]]), 1.0)]
    [([0], [2], [0.5])]
    """
    place = _places(vectors)
    order = np.argsort(place, kind="stable")
    place = place[order]
    # A power would be an error where the product is infinite.
    limit = threshold * threshold
    # The places are rounded, in proportion to the lengths of the vectors.
    reach = threshold * (1 + 1e-9) + 1e-12 * np.sqrt(vectors.shape[1]) * _largest_entry(vectors)
    for start in range(0, len(order), QUERY_ROWS):
        some = order[start : start + QUERY_ROWS]
        one = vectors[some].astype(np.float32, copy=False)
        end = int(np.searchsorted(place, place[start + len(some) - 1] + reach, side="right"))
        for at in range(start, end, BLOCK_ROWS):
            others = order[at : min(at + BLOCK_ROWS, end)]
            two = vectors[others].astype(np.float32, copy=False)
            squared, error = _approximate(one, two)
            i, j = np.nonzero(~(squared > (limit + error)[:, None]))
            later = at + j > start + i
            i, j = i[later], j[later]
            exact = _squared_distances(one, two, i, j)
            close = exact <= limit
            pairs = np.sort(np.stack([some[i[close]], others[j[close]]], axis=1), axis=1)
            if len(pairs):
                yield pairs[:, 0], pairs[:, 1], np.sqrt(exact[close])


def index_search(
    blocks: Callable[[], Iterable[tuple[int, FloatArray]]],
    sample: FloatArray,
    queries: FloatArray,
    k: int,
    *,
    n_lists: int,
    own: IntArray | None = None,
    progress: Callable[..., Progress] = unshown,
) -> Found:
    """Find about the k nearest vectors of every query by an inverted file of the library Faiss.

    The vectors are clustered into lists, and a query looks at the `PROBES` lists whose centres are nearest.

    Parameters
    ----------
    blocks : callable
        Gives the vectors, as for `scan`.
    sample : float, (n_sample, width)
        Vectors that the lists are made from, `TRAINING_ROWS_PER_LIST` a list or so.
    queries, k, own
        As for `scan`.
    n_lists : int
    progress : callable
        Makes the progress display of the queries.

    Raises
    ------
    MissingDependencyError
        If Faiss is not installed.
    """
    try:
        import faiss  # noqa: PLC0415  an extra
    except ImportError as error:
        raise MissingDependencyError.for_extra("faiss-cpu", "neighbours") from error

    index = _empty_index(faiss, sample, n_lists)
    for _, block in blocks():
        index.add(np.ascontiguousarray(block, dtype=np.float32))
    index.make_direct_map()
    rows = np.full((len(queries), k), -1, dtype=np.int64)
    distances = np.full((len(queries), k), np.inf)
    with progress("neighbours", len(queries), unit="graphs") as shown:
        for at in range(0, len(queries), QUERY_ROWS):
            chunk = slice(at, at + QUERY_ROWS)
            some = np.ascontiguousarray(queries[chunk], dtype=np.float32)
            # One more than is asked for, since a query among the vectors finds itself.
            _, found = index.search(some, k + 1)
            squared = _distances_to_found(index, some, found)
            if own is not None:
                squared[found == own[chunk][:, None]] = np.inf
                found[found == own[chunk][:, None]] = -1
            order = np.lexsort((found, squared), axis=-1)[:, :k]
            rows[chunk] = np.take_along_axis(found, order, axis=1)
            distances[chunk] = np.sqrt(np.take_along_axis(squared, order, axis=1))
            shown.update(len(some))
    return rows, distances


def _distances_to_found(index: Any, queries: FloatArray, found: IntArray) -> FloatMatrix:
    """Compute the squared distances of the queries to what was found, in float64; infinite where nothing was."""
    squared = np.full(found.shape, np.inf)
    query, rank = np.nonzero(found >= 0)
    step = max(1, EXACT_ENTRIES // queries.shape[1])
    for start in range(0, len(query), step):
        i, j = query[start : start + step], rank[start : start + step]
        vectors = index.reconstruct_batch(found[i, j])
        squared[i, j] = _squared_distances(queries, vectors, i, np.arange(len(i)))
    return squared


def _empty_index(faiss: Any, sample: FloatArray, n_lists: int) -> Any:
    width = sample.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(width), width, n_lists)
    # Faiss prints a warning below this number; the lists need not be of equal size.
    index.cp.min_points_per_centroid = 1
    index.train(np.ascontiguousarray(sample, dtype=np.float32))
    index.nprobe = PROBES
    return index


def _promising(queries: FloatArray, block: FloatArray, worst: FloatMatrix, k: int) -> tuple[IntArray, IntArray]:
    """Find the pairs of a query and a vector of a block that could be among the k nearest.

    `worst` is the k-th squared distance of each query so far.
    """
    squared, error = _approximate(queries, block)
    limit = worst + error
    if len(block) > k and not np.isfinite(worst).all():
        # In the first block, the k-th of the block is the limit, or the one after it: a query may have to leave itself out.
        limit = np.fmin(limit, np.partition(squared, k, axis=1)[:, k] + 2 * error)
    # What comes later, and can be no nearer, has a larger number.
    limit[worst == 0] = -np.inf
    query, vector = np.nonzero(~(squared > limit[:, None]))
    return query, vector


def _approximate(one: FloatArray, two: FloatArray) -> tuple[FloatArray, FloatMatrix]:
    """Squared distances by a matrix product in float32, (n_one, n_two), and a bound on their error for each row.

    NaN are those that float32 cannot hold.
    """
    norms_one, norms_two = _squared_norms(one), _squared_norms(two)
    with np.errstate(over="ignore", invalid="ignore"):
        squared = one @ two.T
        squared *= -2
        squared += norms_one.astype(np.float32)[:, None]
        squared += norms_two.astype(np.float32)
    squared[np.isinf(squared)] = np.nan
    # The error of a sum of n products is n roundings of the sum of their sizes; some more are of the sums above.
    rounding = (one.shape[1] + 8) * float(np.finfo(np.float32).eps) / 2
    error = rounding * (np.sqrt(norms_one) + np.sqrt(norms_two.max(initial=0.0))) ** 2
    # And a product that is smaller than the normal numbers may be lost.
    error += 2 * (one.shape[1] + 8) * float(np.finfo(np.float32).tiny)
    return squared, np.asarray(error, dtype=np.float64)


def _largest_entry(vectors: FloatArray) -> float:
    """Find the largest entry but for its sign, without an array of the size of all."""
    return max(float(vectors.max(initial=0.0)), -float(vectors.min(initial=0.0)))


def _squared_norms(vectors: FloatArray) -> FloatMatrix:
    return np.asarray(np.einsum("ik,ik->i", vectors, vectors, dtype=np.float64), dtype=np.float64)


def _squared_distances(one: FloatArray, two: FloatArray, i: IntArray, j: IntArray) -> FloatMatrix:
    """Squared distances of the pairs (i, j) in float64, from the differences."""
    result = np.empty(len(i))
    step = max(1, EXACT_ENTRIES // one.shape[1])
    for start in range(0, len(i), step):
        pairs = slice(start, start + step)
        difference = one[i[pairs]].astype(np.float64) - two[j[pairs]]
        np.einsum("ik,ik->i", difference, difference, out=result[pairs])
    return result


def _keep_nearest(rows: IntArray, squared: FloatMatrix, query: IntArray, new_rows: IntArray, new: FloatMatrix) -> None:
    """Merge new candidates into the nearest of each query so far, in place; ties go to the smaller number."""
    n_queries, k = rows.shape
    owner = np.concatenate([np.repeat(np.arange(n_queries), k), query])
    all_rows, all_squared = np.concatenate([rows.ravel(), new_rows]), np.concatenate([squared.ravel(), new])
    order = np.lexsort((all_rows, all_squared, owner))
    starts = offsets_from_counts(np.bincount(owner, minlength=n_queries))[:-1]
    best = order[starts[:, None] + np.arange(k)]
    rows[:], squared[:] = all_rows[best], all_squared[best]


def _places(vectors: FloatArray) -> FloatMatrix:
    """Place vectors on the line through the origin along which a sample of them varies most, (n,)."""
    rng = np.random.default_rng(0)
    sample = vectors[np.sort(rng.choice(len(vectors), min(len(vectors), 2048), replace=False))].astype(np.float64)
    sample -= sample.mean(axis=0)
    direction = np.asarray(rng.standard_normal(vectors.shape[1]))
    for _ in range(10):
        # Power iteration; any direction is right, and a better one leaves fewer pairs.
        direction = np.asarray(sample.T @ (sample @ direction))
        direction /= np.linalg.norm(direction) or 1.0
    steps = range(0, len(vectors), BLOCK_ROWS)
    return np.concatenate([vectors[at : at + BLOCK_ROWS].astype(np.float64) @ direction for at in steps])
