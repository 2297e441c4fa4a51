"""One graph as separate arrays, and many of them as a batch: the middle of every conversion.

A feature of whole numbers is categorical, a feature of real numbers is an attribute; that is the rule for arrays from
any library. Whether the graphs can be embedded is not asked here but by `wegl_dask.graphs.find_invalid`.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from wegl_dask.errors import WeglError
from wegl_dask.graphs import FloatArray, GraphBatch, GraphSchema, IntArray, offsets_from_counts

Widths: TypeAlias = tuple[int, int, int, int]
"""Number of categories and of attributes of a node, then of an edge."""

_CATEGORY_LIMIT = 2**31


class UnusableGraphError(WeglError):
    """One graph cannot be converted; the message says why."""


@dataclass(frozen=True)
class PlainGraph:
    """One graph as separate arrays, unchecked.

    Attributes
    ----------
    n_nodes : int
    edge_index : int64, (2, n_edges)
        Sources in the first row, targets in the second.
    node_categories : int64, (n_nodes, number of categorical node features)
    node_attributes : float, (n_nodes, number of real-valued node features)
    edge_categories : int64, (n_edges, number of categorical edge features)
    edge_attributes : float, (n_edges, number of real-valued edge features)
    """

    n_nodes: int
    edge_index: IntArray
    node_categories: IntArray
    node_attributes: FloatArray
    edge_categories: IntArray
    edge_attributes: FloatArray

    @property
    def n_edges(self) -> int:
        """Number of listed edges."""
        return int(self.edge_index.shape[1])

    @property
    def widths(self) -> Widths:
        """Number of features of each kind."""
        return (
            self.node_categories.shape[1],
            self.node_attributes.shape[1],
            self.edge_categories.shape[1],
            self.edge_attributes.shape[1],
        )

    def with_widths(self, widths: Widths) -> "PlainGraph":
        """Return the graph if it has these features; without edges it may have any edge features.

        Raises
        ------
        UnusableGraphError
            If it has others.
        """
        if self.widths == widths:
            return self
        if self.n_edges == 0 and self.widths[:2] == widths[:2]:
            return replace(
                self,
                edge_categories=np.empty((0, widths[2]), dtype=np.int64),
                edge_attributes=np.empty((0, widths[3]), dtype=np.float32),
            )
        raise UnusableGraphError(
            f"the graph has {describe_widths(self.widths)}; the collection has {describe_widths(widths)}"
        )


def plain_graph(
    edge_index: npt.ArrayLike,
    node_features: Mapping[str, npt.ArrayLike],
    edge_features: Mapping[str, npt.ArrayLike],
    n_nodes: int | None = None,
) -> PlainGraph:
    """Build a graph from named arrays of features.

    Parameters
    ----------
    edge_index : int, (2, n_edges)
    node_features : mapping of str to array, (n_nodes, width) or (n_nodes,)
        Whole numbers and booleans are categories, real numbers are attributes. The names are used in messages.
    edge_features : mapping of str to array, (n_edges, width) or (n_edges,)
    n_nodes : int, optional
        Number of nodes; the length of the first of the node features by default.

    Raises
    ------
    UnusableGraphError
        If an array has the wrong shape or type, a category is 2**31 or more, or the number of nodes is not known or
        below 0.
    """
    ends = _as_array("edge_index", edge_index)
    if ends.ndim != 2 or len(ends) != 2:
        raise UnusableGraphError(f"edge_index has shape {ends.shape}; (2, number of edges) is needed")
    # An empty list of edges has the type that its library gives to nothing, often a real one.
    if ends.dtype.kind not in "iu" and ends.size:
        raise UnusableGraphError(f"edge_index is of type {ends.dtype}; whole numbers are needed")
    nodes = {name: _as_columns(name, values) for name, values in node_features.items()}
    edges = {name: _as_columns(name, values) for name, values in edge_features.items()}
    if n_nodes is None:
        if not nodes:
            raise UnusableGraphError("x is missing, and num_nodes does not say how many nodes the graph has")
        n_nodes = len(next(iter(nodes.values())))
    if n_nodes < 0:
        raise UnusableGraphError(f"the number of nodes is {n_nodes}")
    node_categories, node_attributes = _split_kinds(nodes, n_nodes, "nodes")
    edge_categories, edge_attributes = _split_kinds(edges, ends.shape[1], "edges")
    return PlainGraph(
        n_nodes, ends.astype(np.int64), node_categories, node_attributes, edge_categories, edge_attributes
    )


def join_graphs(graphs: Iterable[PlainGraph], schema: GraphSchema | None = None) -> GraphBatch:
    """Put graphs one after another.

    Parameters
    ----------
    graphs : iterable of PlainGraph
    schema : GraphSchema, optional
        Taken from the graphs by default: the features of the first one (of the first one with edges), vocabularies up
        to the largest category that occurs.

    Raises
    ------
    UnusableGraphError
        If a graph has other features than the schema; the message has its index.
    """
    graphs = list(graphs)
    if schema is None:
        schema = infer_schema(graphs)
    widths = schema_widths(schema)
    fitting = []
    for index, graph in enumerate(graphs):
        with naming_graph(index):
            fitting.append(graph.with_widths(widths))

    def joined(arrays: Iterable[npt.NDArray[Any]], width: int, dtype: type) -> npt.NDArray[Any]:
        # The empty array in front stands for width and type where there is no graph.
        return np.concatenate([np.empty((0, width), dtype=dtype), *arrays])

    edge_index = np.concatenate([np.empty((2, 0), dtype=np.int64), *(graph.edge_index for graph in fitting)], axis=1)
    return GraphBatch(
        schema=schema,
        node_offsets=offsets_from_counts(np.array([graph.n_nodes for graph in fitting], dtype=np.int64)),
        edge_offsets=offsets_from_counts(np.array([graph.n_edges for graph in fitting], dtype=np.int64)),
        edge_source=edge_index[0],
        edge_target=edge_index[1],
        node_categories=joined((graph.node_categories for graph in fitting), widths[0], np.int64),
        node_attributes=joined((graph.node_attributes for graph in fitting), widths[1], np.float32),
        edge_categories=joined((graph.edge_categories for graph in fitting), widths[2], np.int64),
        edge_attributes=joined((graph.edge_attributes for graph in fitting), widths[3], np.float32),
    )


def infer_schema(graphs: Sequence[PlainGraph]) -> GraphSchema:
    """Take the features of the first graph, and of the first one with edges, and vocabularies that cover all."""
    if not graphs:
        return GraphSchema()
    nodes = graphs[0].widths[:2]
    edges = next((graph for graph in graphs if graph.n_edges), graphs[0]).widths[2:]
    return GraphSchema(
        node_category_counts=covering_counts([g.node_categories for g in graphs if g.widths[:2] == nodes], nodes[0]),
        edge_category_counts=covering_counts([g.edge_categories for g in graphs if g.widths[2:] == edges], edges[0]),
        node_attribute_width=nodes[1],
        edge_attribute_width=edges[1],
    )


def covering_counts(categories: Sequence[IntArray], width: int) -> tuple[int, ...]:
    """Sizes of the smallest vocabularies, 0 .. size - 1, that hold all categories of (n, width) arrays."""
    stacked = np.concatenate([np.full((1, width), -1, dtype=np.int64), *categories])
    return tuple((stacked.max(axis=0) + 1).tolist())


def largest_counts(counts: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Sizes of the smallest vocabularies that hold those of all `counts`, one size a feature each."""
    return tuple(map(max, zip(*counts, strict=True)))


def schema_widths(schema: GraphSchema) -> Widths:
    """Tell how many features of each kind the graphs of a schema have."""
    return (
        len(schema.node_category_counts),
        schema.node_attribute_width,
        len(schema.edge_category_counts),
        schema.edge_attribute_width,
    )


def describe_widths(widths: Widths) -> str:
    """Say how many features of each kind there are."""
    return f"{widths[0]} categories and {widths[1]} attributes a node, {widths[2]} and {widths[3]} an edge"


def whole_number(name: str, value: Any) -> int:
    """Read a number of nodes; `UnusableGraphError` where it is no whole number."""
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnusableGraphError(f"{name} is {' '.join(repr(value).split())}; a whole number is needed") from error


def unmasked(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Read values as an array; `UnusableGraphError` where some are masked, of which NumPy would take what is below the mask."""
    if np.ma.is_masked(values):
        raise UnusableGraphError(f"{name} has masked values; every one is needed: fill them in, or leave the graph out")
    return np.asarray(values)


@contextmanager
def naming_graph(index: int) -> Iterator[None]:
    """Put the index of the graph in front of what is wrong with it."""
    try:
        yield
    except UnusableGraphError as error:
        raise UnusableGraphError(f"graph {index}: {error}") from error


def _split_kinds(features: Mapping[str, npt.NDArray[Any]], n_rows: int, what: str) -> tuple[IntArray, FloatArray]:
    """Put the columns of whole numbers and those of real numbers side by side, each kind for itself."""
    categories: list[npt.NDArray[Any]] = [np.empty((n_rows, 0), dtype=np.int64)]
    attributes: list[npt.NDArray[Any]] = [np.empty((n_rows, 0), dtype=np.float32)]
    for name, values in features.items():
        if len(values) != n_rows:
            raise UnusableGraphError(f"{name} has {len(values)} rows; the graph has {n_rows} {what}")
        if values.dtype.kind == "f":
            attributes.append(values)
            continue
        if values.size and values.max() >= _CATEGORY_LIMIT:
            raise UnusableGraphError(
                f"{name} has the category {values.max()}; categories are below {_CATEGORY_LIMIT}, "
                "and numbers that are none must be of a real type"
            )
        categories.append(values.astype(np.int64))
    return np.concatenate(categories, axis=1), np.concatenate(attributes, axis=1)


def _as_columns(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    array = _as_array(name, values)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise UnusableGraphError(f"{name} has shape {array.shape}; (number of rows, number of features) is needed")
    if array.dtype.kind not in "iubf":
        raise UnusableGraphError(f"{name} is of type {array.dtype}; whole or real numbers are needed")
    return array


def _as_array(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    try:
        return unmasked(name, values)
    except ValueError as error:
        raise UnusableGraphError(f"{name} is no array: {error}") from error
