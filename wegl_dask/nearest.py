"""The nearest graphs of a run, and its near duplicates, by distance of embeddings and by exact W_2.

The module is not called after its function `neighbours`, which the package offers under that name.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wegl_dask.errors import WeglError
from wegl_dask.geometry import bound_from_residuals, residual_and_error, wasserstein_distance
from wegl_dask.graphs import IntArray
from wegl_dask.progress import Progress, unshown
from wegl_dask.run_rows import RunRows
from wegl_dask.transport import LARGEST_ENTRY
from wegl_dask.vector_search import TRAINING_ROWS_PER_LIST, close_pairs, index_search, scan

FloatArray = npt.NDArray[np.floating]
FloatMatrix = npt.NDArray[np.float64]
Search = Literal["auto", "exhaustive", "index"]

EXHAUSTIVE_PAIRS = 4_000_000_000
"""Pairs of query and graph up to which every pair is looked at: some minutes, where an index takes minutes to build."""

OWN_COLUMNS = frozenset({"query", "query_id", "rank", "row", "distance", "bound", "wasserstein"})
"""Of the result of `neighbours`, but for ``graph_id``, which is the run's."""

PAIRS_AT_A_TIME = 20_000
"""Pairs whose exact W_2 is computed at a time: the points of their graphs are in memory."""


def neighbours(
    run: str | os.PathLike[str],
    graph_ids: str | Sequence[str] | None = None,
    k: int = 10,
    *,
    vectors: npt.NDArray[np.floating] | None = None,
    exact: bool = False,
    candidates: int = 100,
    columns: str | Sequence[str] = (),
    search: Search = "auto",
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[..., Progress] = unshown,
) -> pa.Table:
    """Find the nearest graphs of a run.

    Parameters
    ----------
    run : str or path-like
        A finished run: a path or any fsspec URL.
    graph_ids : str or sequence of str, optional
        Graphs of the run whose neighbours are asked for, as often as they are named. An id that repeats in the run stands
        for each of its graphs. All graphs, if neither ids nor vectors are given.
    k : int, default 10
        Number of neighbours; all other graphs, where there are no more. A graph is not its own neighbour.
    vectors : float, (n_queries, N * d), optional
        Embeddings to find the neighbours of, such as those of new graphs by the run's model.
    exact : bool, default False
        Compute the exact W_2 of the nearest `candidates` in the embedding, and keep the nearest k of them by that.
    candidates : int, default 100
        Used with `exact`; k, where that is more.
    columns : str or sequence of str, optional
        Columns of the run to add for each neighbour, such as ``"label"``.
    search : {"auto", "exhaustive", "index"}, default "auto"
        Look at every pair of query and graph; or at those that an approximate index, built for the purpose, holds for
        near (extra ``neighbours``). "auto" is "index" above 4e9 pairs, such as for all neighbours of 63,000 graphs.
    storage_options : mapping, optional
        Arguments for the file system.
    progress : callable
        Makes the progress display of a step from its name and number of graphs; nothing is shown by default.

    Returns
    -------
    pyarrow.Table
        A row a neighbour, nearest first: ``query`` (number of the query's row in the run, or of the vector), ``query_id``
        (not for vectors), ``rank`` from 1, ``row``, ``graph_id``, ``distance`` (|phi_i - phi_j|), ``bound`` (W_2 is no
        more; not for vectors), ``wasserstein`` (with `exact`), and the columns asked for. Equal distances come in the
        order of the rows.

    Raises
    ------
    WeglError
        If there is no such graph, column or run, or `exact` lacks what it needs.

    Examples
    --------
    >>> import wegl_dask
    >>> wegl_dask.neighbours("runs/quickstart", "1", k=2).select(["query_id", "rank", "graph_id"]).to_pylist()
    [{'query_id': '1', 'rank': 1, 'graph_id': '3071'}, {'query_id': '1', 'rank': 2, 'graph_id': '655'}]
    """
    if k < 1:
        raise WeglError(f"k = {k}; at least one neighbour must be asked for")
    if search not in get_args(Search):
        raise WeglError(f"search = {search!r}; it is one of {', '.join(get_args(Search))}")
    columns = [columns] if isinstance(columns, str) else list(columns)
    if clash := sorted(OWN_COLUMNS.intersection(columns)):
        raise WeglError(
            f"{', '.join(clash)}: a column of the result has that name itself; give the run's column another name in the "
            "source, or read it with read_embeddings by the number in `row`"
        )
    rows = RunRows.open(run, storage_options)
    rows.require_columns(columns)
    if vectors is not None:
        if exact or graph_ids is not None:
            raise WeglError("vectors are no graphs of the run: give them without ids, and without the exact W_2")
        queries, own = _checked(vectors, rows.form.width), None
    else:
        is_one = isinstance(graph_ids, str) or not isinstance(graph_ids, Iterable | None)
        ids: Any = [graph_ids] if is_one else graph_ids
        own = np.arange(rows.n_rows) if ids is None else rows.find(ids)
        queries = rows.take(own)
    wanted = min(max(k, candidates) if exact else k, rows.n_rows - (own is not None))
    spread = _Spread(rows)
    found = _search(rows, spread.blocks, _Queries(queries, own), wanted, search=search, progress=progress)
    if exact and own is not None:
        found = _ranked_exactly(rows, own, found, k)
    return _table(rows, spread, own, found, columns)


def _checked(vectors: npt.NDArray[np.floating], width: int) -> FloatArray:
    """Refuse vectors that cannot be near anything in a run of vectors of this width."""
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise WeglError(f"vectors have the shape {vectors.shape}; (n, {width}) is needed for this run")
    if vectors.dtype.kind not in "fiu":
        raise WeglError(f"vectors are of type {vectors.dtype}; real numbers are needed")
    # As a double: in half precision the limit is infinity.
    if not (np.abs(vectors) <= np.float64(LARGEST_ENTRY)).all():
        raise WeglError("vectors have entries that are no finite numbers of single precision")
    return vectors if vectors.dtype.kind == "f" else vectors.astype(np.float64)


def similar(
    run: str | os.PathLike[str],
    threshold: float,
    *,
    exact: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[pa.Table]:
    """List the near duplicates of a run: all pairs of graphs whose embeddings are no farther apart than a threshold.

    The embeddings are held in memory, n_graphs * N * d numbers; an array of all pairs is not.

    Parameters
    ----------
    run : str or path-like
        A finished run: a path or any fsspec URL.
    threshold : float
        In the units of the points; 0 lists the graphs of equal embeddings.
    exact : bool, default False
        Compute the exact W_2 of every pair that is listed. It tells graphs of equal points, W_2 = 0, from those that
        merely have equal embeddings.
    storage_options : mapping, optional
        Arguments for the file system.

    Yields
    ------
    pyarrow.Table
        A row a pair: ``first_row``, ``second_row`` (numbers of rows, the first below the second), ``first_id``,
        ``second_id``, ``distance`` (|phi_i - phi_j|), ``bound`` (W_2 is no more), ``wasserstein`` (with `exact`).

    Raises
    ------
    WeglError
        If there is no such run, the threshold is negative, or `exact` is asked for and the run has not kept its graphs.

    Examples
    --------
    >>> import wegl_dask
    >>> found = [pairs.select(["first_id", "second_id"]) for pairs in wegl_dask.similar("runs/quickstart", 0.01)]
    >>> {"first_id": "1813", "second_id": "1814"} in [pair for pairs in found for pair in pairs.to_pylist()]
    True
    """
    if not threshold >= 0:
        raise WeglError(f"the threshold is {threshold}; distances are 0 or more")
    rows = RunRows.open(run, storage_options)
    spread = _Spread(rows)
    vectors = _gathered(rows, spread)
    ids = pa.concat_tables([table for _, table in rows.tables(("graph_id",))]).column(0)
    found = close_pairs(vectors, threshold)
    schema = _pairs_schema(exact=exact)
    for first, second, distance in _together(found, PAIRS_AT_A_TIME) if exact else found:
        pairs = {
            "first_row": first,
            "second_row": second,
            "first_id": ids.take(pa.array(first)),
            "second_id": ids.take(pa.array(second)),
            "distance": distance,
            "bound": spread.bound(first, second, distance),
        }
        if exact:
            pairs["wasserstein"] = _wasserstein(rows, first, second)
        yield pa.table(pairs, schema=schema)


def no_pairs(*, exact: bool) -> pa.Table:
    """Make the table of `similar` where there is no pair."""
    return _pairs_schema(exact=exact).empty_table()


def _pairs_schema(*, exact: bool) -> pa.Schema:
    columns = {
        **dict.fromkeys(("first_row", "second_row"), pa.int64()),
        **dict.fromkeys(("first_id", "second_id"), pa.string()),
        **dict.fromkeys(("distance", "bound"), pa.float64()),
    }
    return pa.schema({**columns, "wasserstein": pa.float64()} if exact else columns)


def _together(
    blocks: Iterator[tuple[IntArray, IntArray, FloatMatrix]], n_pairs: int
) -> Iterator[tuple[IntArray, IntArray, FloatMatrix]]:
    """Put pairs together until there are so many: the graphs of any few of them lie in nearly all parts."""
    held: list[tuple[IntArray, IntArray, FloatMatrix]] = []
    n_held = 0
    for block in blocks:
        held.append(block)
        n_held += len(block[0])
        if n_held >= n_pairs:
            yield _joined(held)
            held, n_held = [], 0
    if held:
        yield _joined(held)


def _joined(blocks: Sequence[tuple[IntArray, IntArray, FloatMatrix]]) -> tuple[IntArray, IntArray, FloatMatrix]:
    first, second, distance = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    return first, second, distance


class _Spread:
    """What the bound on W_2 needs of each row, noted down while the vectors are read."""

    def __init__(self, rows: RunRows) -> None:
        self._rows = rows
        self._residual = np.full(rows.n_rows, np.nan)
        self._stored_error = np.full(rows.n_rows, np.nan)

    def blocks(self) -> Iterator[tuple[int, FloatArray]]:
        """Read all vectors, a block at a time, with the number of the first."""
        for block in self._rows.blocks(("transport_cost",)):
            here = slice(block.start, block.start + len(block.vectors))
            self._residual[here], self._stored_error[here] = residual_and_error(
                block.vectors, block.rows.column(0).to_numpy()
            )
            yield block.start, block.vectors

    def bound(self, one: IntArray, two: IntArray, distance: FloatMatrix) -> FloatMatrix:
        """Bound W_2 of pairs of rows at a known distance."""
        reach = distance + self._stored_error[one] + self._stored_error[two]
        return bound_from_residuals(reach, self._residual[one], self._residual[two])


@dataclass(frozen=True)
class _Queries:
    """Vectors to find the neighbours of, and the rows of the run that they are, if they are."""

    vectors: FloatArray
    own: IntArray | None


@dataclass(frozen=True)
class _Found:
    """Rows and distances, (n_queries, k) each; -1 and infinity where there are fewer than k."""

    rows: IntArray
    distances: FloatMatrix
    wasserstein: FloatMatrix | None = None


def _search(
    rows: RunRows,
    blocks: Callable[[], Iterator[tuple[int, FloatArray]]],
    queries: _Queries,
    k: int,
    *,
    search: Search,
    progress: Callable[..., Progress],
) -> _Found:
    n_queries = len(queries.vectors)
    if not (k and n_queries):
        return _Found(np.empty((n_queries, 0), dtype=np.int64), np.empty((n_queries, 0)))

    def shown(step: str) -> Iterator[tuple[int, FloatArray]]:
        with progress(step, rows.n_rows, unit="graphs") as display:
            for start, block in blocks():
                yield start, block
                display.update(len(block))

    if search == "exhaustive" or (search == "auto" and n_queries * rows.n_rows <= EXHAUSTIVE_PAIRS):
        return _Found(*scan(shown("neighbours"), queries.vectors, k, own=queries.own))
    n_lists = min(rows.n_rows, int(4 * np.sqrt(rows.n_rows)))
    n_sample = min(rows.n_rows, n_lists * TRAINING_ROWS_PER_LIST)
    sample = rows.take(np.sort(np.random.default_rng(0).choice(rows.n_rows, n_sample, replace=False)))
    index = partial(shown, "index")
    return _Found(*index_search(index, sample, queries.vectors, k, n_lists=n_lists, own=queries.own, progress=progress))


def _gathered(rows: RunRows, spread: _Spread) -> FloatArray:
    """Read all vectors into one array."""
    vectors = np.empty((rows.n_rows, rows.form.width), dtype=rows.form.dtype)
    for start, block in spread.blocks():
        vectors[start : start + len(block)] = block
    return vectors


def _ranked_exactly(rows: RunRows, own: IntArray, found: _Found, k: int) -> _Found:
    """Keep those of the rows found that are nearest by W_2, k for each query."""
    if not found.rows.size:
        return _Found(found.rows, found.distances, found.distances)
    wasserstein = np.full(found.rows.shape, np.inf)
    query, rank = np.nonzero(found.rows >= 0)
    wasserstein[query, rank] = _wasserstein(rows, own[query], found.rows[query, rank])
    order = np.lexsort((found.rows, found.distances, wasserstein), axis=-1)[:, :k]
    return _Found(
        np.take_along_axis(found.rows, order, axis=1),
        np.take_along_axis(found.distances, order, axis=1),
        np.take_along_axis(wasserstein, order, axis=1),
    )


def _wasserstein(rows: RunRows, first: IntArray, second: IntArray) -> FloatMatrix:
    """Compute the exact W_2 of pairs of rows, (n_pairs,)."""
    needed, place = np.unique(np.concatenate([first, second]), return_inverse=True)
    points = rows.points(needed)
    graphs = [points.slice(i, i + 1) for i in range(len(needed))]
    pairs = ((graphs[i], graphs[j]) for i, j in place.reshape(2, -1).T.tolist())
    distances = (wasserstein_distance(one.points, one.weights, two.points, two.weights) for one, two in pairs)
    return np.fromiter(distances, dtype=np.float64, count=len(first))


def _table(rows: RunRows, spread: _Spread, own: IntArray | None, found: _Found, columns: Sequence[str]) -> pa.Table:
    query, rank = np.nonzero(found.rows >= 0)
    row, distance = found.rows[query, rank], found.distances[query, rank]
    values = rows.values(row, tuple(dict.fromkeys(("graph_id", *columns))))
    table: dict[str, Any] = {"query": query if own is None else own[query]}
    if own is not None:
        table["query_id"] = rows.values(own, ("graph_id",)).column(0).take(pa.array(query))
    table |= {"rank": rank + 1, "row": row, "graph_id": values.column("graph_id"), "distance": distance}
    if own is not None:
        table["bound"] = spread.bound(own[query], row, distance)
    if found.wasserstein is not None:
        table["wasserstein"] = found.wasserstein[query, rank]
    return pa.table(table | {name: values.column(name) for name in columns})
