"""Many graphs as one set of flat arrays, and the checks that decide whether a graph can be embedded."""

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

IntArray = npt.NDArray[np.integer]
FloatArray = npt.NDArray[np.floating]

VIRTUAL = -1
"""The category of a virtual node and of its edges: no category of any vocabulary."""

BLOCK_ENTRIES = 4_000_000
"""Float64 entries of the rows that a few graphs are turned into at a time, be it node rows, points or embeddings: 32 MB.

One graph alone may need more.
"""

Size = Annotated[int, Field(ge=0, le=2**31)]
"""Number of categories, or of attributes, as it is checked where a schema comes from a file."""


@dataclass(frozen=True)
class GraphSchema:
    """What all graphs of a collection have in common: which features they carry, and their vocabularies.

    Attributes
    ----------
    node_category_counts : tuple of int
        Size of the vocabulary of every categorical node feature; values are 0 .. count - 1.
    edge_category_counts : tuple of int
        Likewise for the edges.
    node_attribute_width, edge_attribute_width : int
        Number of real-valued features of a node and of an edge.

    Examples
    --------
    >>> GraphSchema(node_category_counts=(7,), edge_category_counts=(4,))  # atoms and bonds of MUTAG
    GraphSchema(node_category_counts=(7,), edge_category_counts=(4,), node_attribute_width=0, edge_attribute_width=0)
    """

    node_category_counts: tuple[Size, ...] = ()
    edge_category_counts: tuple[Size, ...] = ()
    node_attribute_width: Size = 0
    edge_attribute_width: Size = 0

    def __post_init__(self) -> None:
        # Those of NumPy are no numbers to JSON, which models and plans are written in.
        for name in ("node_category_counts", "edge_category_counts"):
            object.__setattr__(self, name, _whole_numbers(name, getattr(self, name)))
        for name in ("node_attribute_width", "edge_attribute_width"):
            object.__setattr__(self, name, _whole_number(name, getattr(self, name)))

    def __str__(self) -> str:
        names = {
            "node categories": self.node_category_counts,
            "edge categories": self.edge_category_counts,
            "node attributes": self.node_attribute_width,
            "edge attributes": self.edge_attribute_width,
        }
        found = [
            f"{list(value) if isinstance(value, tuple) else value} {name}" for name, value in names.items() if value
        ]
        return ", ".join(found) or "no features"


def _whole_numbers(name: str, values: Any) -> tuple[int, ...]:
    try:
        return tuple(_whole_number(name, value) for value in values)
    except TypeError as error:
        raise TypeError(
            f"{name} of a GraphSchema is {values!r}; a whole number a feature is needed, as (7,)"
        ) from error


def _whole_number(name: str, value: Any) -> int:
    try:
        return int(operator.index(value))
    except TypeError as error:
        raise TypeError(f"{name} of a GraphSchema is {value!r}; a whole number is needed") from error


@dataclass(frozen=True)
class UsedAttributes:
    """Whether an embedding uses the attributes of nodes and of edges: those that it does not use may be anything."""

    node: bool = True
    edge: bool = True


ALL_ATTRIBUTES = UsedAttributes()


@dataclass(frozen=True)
class GraphBatch:
    """Graphs stored one after another in flat arrays.

    Graph ``i`` owns nodes ``node_offsets[i]:node_offsets[i + 1]`` and edges ``edge_offsets[i]:edge_offsets[i + 1]``.
    Edge ends are numbered within their graph, from 0. An edge (s, t) makes s a neighbour of t; an undirected edge is
    listed in both directions. Arrays are not changed in place.

    A batch is a sequence of its graphs, each a batch of one graph, so that scikit-learn can split it.

    Attributes
    ----------
    schema : GraphSchema
    node_offsets, edge_offsets : int64, (n_graphs + 1,)
    edge_source, edge_target : int, (n_edges,)
        As read they may point anywhere; `find_invalid` reports those that point outside their graph.
    node_categories : int, (n_nodes, number of categorical node features)
    node_attributes : float, (n_nodes, node_attribute_width)
    edge_categories : int, (n_edges, number of categorical edge features)
    edge_attributes : float, (n_edges, edge_attribute_width)
    has_virtual_nodes : bool
        The last node of every graph is a virtual node, see `with_virtual_nodes`.

    Examples
    --------
    >>> batch = GraphBatch(
    ...     GraphSchema(node_category_counts=(3,)),
    ...     node_offsets=np.array([0, 2, 5]),  # a graph of two nodes, and one of three
    ...     edge_offsets=np.array([0, 1, 3]),
    ...     edge_source=np.array([0, 0, 1]),
    ...     edge_target=np.array([1, 1, 2]),
    ...     node_categories=np.array([[0], [1], [2], [0], [1]]),
    ...     node_attributes=np.zeros((5, 0)),
    ...     edge_categories=np.zeros((3, 0), dtype=np.int64),
    ...     edge_attributes=np.zeros((3, 0)),
    ... )
    >>> len(batch), batch[1].node_categories.ravel().tolist()
    (2, [2, 0, 1])
    """

    schema: GraphSchema
    node_offsets: IntArray
    edge_offsets: IntArray
    edge_source: IntArray
    edge_target: IntArray
    node_categories: IntArray
    node_attributes: FloatArray
    edge_categories: IntArray
    edge_attributes: FloatArray
    has_virtual_nodes: bool = False

    def __post_init__(self) -> None:
        n_nodes, n_edges = int(self.node_offsets[-1]), int(self.edge_offsets[-1])
        expected = {
            "edge_offsets": (self.n_graphs + 1,),
            "edge_source": (n_edges,),
            "edge_target": (n_edges,),
            "node_categories": (n_nodes, len(self.schema.node_category_counts)),
            "node_attributes": (n_nodes, self.schema.node_attribute_width),
            "edge_categories": (n_edges, len(self.schema.edge_category_counts)),
            "edge_attributes": (n_edges, self.schema.edge_attribute_width),
        }
        for name, shape in expected.items():
            found = getattr(self, name).shape
            if found != shape:
                raise ValueError(f"{name} has shape {found}; {shape} is needed for these offsets and this schema")

    def __len__(self) -> int:
        return self.n_graphs

    def __getitem__(self, index: int | slice) -> "GraphBatch":
        try:
            chosen = range(self.n_graphs)[index]
        except TypeError as error:
            raise TypeError(
                f"graphs are chosen by a number or a slice, not by a {type(index).__name__}: use .take(numbers) for several, or "
                ".take(np.flatnonzero(chosen)) where there is a boolean for each graph"
            ) from error
        if isinstance(chosen, range):
            return self.slice(chosen.start, chosen.stop) if chosen.step == 1 and chosen else self.take(chosen)
        return self.slice(chosen, chosen + 1)

    @property
    def n_graphs(self) -> int:
        """Number of graphs."""
        return len(self.node_offsets) - 1

    @property
    def n_nodes(self) -> int:
        """Number of nodes of all graphs together."""
        return int(self.node_offsets[-1])

    @property
    def n_edges(self) -> int:
        """Number of listed edges of all graphs together."""
        return int(self.edge_offsets[-1])

    @cached_property
    def node_counts(self) -> IntArray:
        """Nodes of each graph, (n_graphs,)."""
        return np.diff(self.node_offsets)

    @cached_property
    def edge_counts(self) -> IntArray:
        """Listed edges of each graph, (n_graphs,)."""
        return np.diff(self.edge_offsets)

    def node_graph(self) -> IntArray:
        """Index of the graph that each node belongs to, (n_nodes,)."""
        return np.repeat(np.arange(self.n_graphs), self.node_counts)

    def edge_graph(self) -> IntArray:
        """Index of the graph that each edge belongs to, (n_edges,)."""
        return np.repeat(np.arange(self.n_graphs), self.edge_counts)

    def global_edges(self) -> tuple[IntArray, IntArray]:
        """Edge ends numbered through the whole batch: source and target, each (n_edges,) int64."""
        first_node = np.repeat(self.node_offsets[:-1], self.edge_counts)
        return self.edge_source + first_node, self.edge_target + first_node

    def slice(self, start: int, stop: int) -> "GraphBatch":
        """Graphs ``start:stop`` as a batch of their own; the arrays are views."""
        nodes = slice(int(self.node_offsets[start]), int(self.node_offsets[stop]))
        edges = slice(int(self.edge_offsets[start]), int(self.edge_offsets[stop]))
        return replace(
            self,
            node_offsets=self.node_offsets[start : stop + 1] - self.node_offsets[start],
            edge_offsets=self.edge_offsets[start : stop + 1] - self.edge_offsets[start],
            edge_source=self.edge_source[edges],
            edge_target=self.edge_target[edges],
            node_categories=self.node_categories[nodes],
            node_attributes=self.node_attributes[nodes],
            edge_categories=self.edge_categories[edges],
            edge_attributes=self.edge_attributes[edges],
        )

    def take(self, graphs: Sequence[int] | IntArray) -> "GraphBatch":
        """Copy the graphs of these numbers, in this order, to a batch of their own."""
        if np.asarray(graphs).dtype == np.bool_:
            raise TypeError("graphs are taken by their numbers, not by booleans: use .take(np.flatnonzero(chosen))")
        graphs = np.asarray(graphs, dtype=np.int64)
        node_counts, edge_counts = self.node_counts[graphs], self.edge_counts[graphs]
        nodes = expand_ranges(self.node_offsets[graphs], node_counts)
        edges = expand_ranges(self.edge_offsets[graphs], edge_counts)
        return replace(
            self,
            node_offsets=offsets_from_counts(node_counts),
            edge_offsets=offsets_from_counts(edge_counts),
            edge_source=self.edge_source[edges],
            edge_target=self.edge_target[edges],
            node_categories=self.node_categories[nodes],
            node_attributes=self.node_attributes[nodes],
            edge_categories=self.edge_categories[edges],
            edge_attributes=self.edge_attributes[edges],
        )

    def blocks(self, max_nodes: int) -> Iterator["GraphBatch"]:
        """Cut the batch into consecutive pieces of at most `max_nodes` nodes; a larger graph is a piece of its own."""
        start = 0
        while start < self.n_graphs:
            limit = self.node_offsets[start] + max_nodes
            stop = max(start + 1, int(np.searchsorted(self.node_offsets, limit, side="right")) - 1)
            yield self.slice(start, stop)
            start = stop

    def with_virtual_nodes(self) -> "GraphBatch":
        """Add to every graph one node without features, joined both ways to every other node.

        The virtual node comes last in its graph. It and its edges have category `VIRTUAL` (-1), which stands for no
        category, and attributes 0; what the edges weigh, 1/|V| in every channel, is a matter of the diffusion
        (paper, appendix "Implementation Details").
        """
        if self.has_virtual_nodes:
            raise ValueError("the batch has virtual nodes already")
        counts = self.node_counts
        old_nodes = np.arange(self.n_nodes) + self.node_graph()
        hub_in_graph = np.repeat(counts, counts)
        spokes = np.arange(self.n_nodes) - np.repeat(self.node_offsets[:-1], counts)
        old_edges = np.arange(self.n_edges) + np.repeat(2 * self.node_offsets[:-1], self.edge_counts)
        inward = np.arange(self.n_nodes) + np.repeat(self.edge_offsets[1:] + self.node_offsets[:-1], counts)
        outward = inward + hub_in_graph
        n_nodes, n_edges = self.n_nodes + self.n_graphs, self.n_edges + 2 * self.n_nodes

        def spread(array: npt.NDArray[Any], length: int, kept: IntArray, fill: int) -> npt.NDArray[Any]:
            result = np.full((length, *array.shape[1:]), fill, dtype=_dtype_for(array, fill))
            result[kept] = array
            return result

        largest = int(counts.max(initial=0))
        source = spread(self.edge_source, n_edges, old_edges, largest)
        target = spread(self.edge_target, n_edges, old_edges, largest)
        source[inward], target[inward] = spokes, hub_in_graph
        source[outward], target[outward] = hub_in_graph, spokes
        return replace(
            self,
            node_offsets=self.node_offsets + np.arange(self.n_graphs + 1),
            edge_offsets=self.edge_offsets + 2 * self.node_offsets,
            edge_source=source,
            edge_target=target,
            node_categories=spread(self.node_categories, n_nodes, old_nodes, VIRTUAL),
            node_attributes=spread(self.node_attributes, n_nodes, old_nodes, 0),
            edge_categories=spread(self.edge_categories, n_edges, old_edges, VIRTUAL),
            edge_attributes=spread(self.edge_attributes, n_edges, old_edges, 0),
            has_virtual_nodes=True,
        )


@dataclass(frozen=True)
class EdgeRepairs:
    """What `canonical_edges` changed, in listed edges."""

    self_loops_dropped: int
    parallel_edges_merged: int
    reverse_edges_added: int


def concatenate(batches: Sequence[GraphBatch]) -> GraphBatch:
    """Put batches of the same schema one after another.

    Raises
    ------
    ValueError
        If there is no batch, or the schemas or the use of virtual nodes differ.
    """
    if not batches:
        raise ValueError("nothing to concatenate: at least one batch is needed")
    kinds = {(batch.schema, batch.has_virtual_nodes) for batch in batches}
    if len(kinds) > 1:
        raise ValueError(f"batches of {len(kinds)} different schemas cannot be one batch: {sorted(map(str, kinds))}")

    def joined(name: str) -> npt.NDArray[Any]:
        return np.concatenate([getattr(batch, name) for batch in batches])

    return replace(
        batches[0],
        node_offsets=offsets_from_counts(joined("node_counts")),
        edge_offsets=offsets_from_counts(joined("edge_counts")),
        edge_source=joined("edge_source"),
        edge_target=joined("edge_target"),
        node_categories=joined("node_categories"),
        node_attributes=joined("node_attributes"),
        edge_categories=joined("edge_categories"),
        edge_attributes=joined("edge_attributes"),
    )


def find_invalid(
    batch: GraphBatch, *, max_nodes: int | None = None, used: UsedAttributes = ALL_ATTRIBUTES
) -> dict[int, str]:
    """Find the graphs that cannot be embedded, and say why.

    Parameters
    ----------
    batch : GraphBatch
        Without virtual nodes.
    max_nodes : int, optional
        Largest number of nodes allowed; no limit by default.
    used : UsedAttributes
        The attributes that are checked, by default all.

    Returns
    -------
    dict of int to str
        Graph index, ascending, to the first reason found, in the order: no nodes, too many nodes, an edge to a node
        that is not there, a category outside the vocabulary, a feature that is not finite (as float32, in which graphs
        are stored and embedded), a negative edge feature.
    """
    reasons: dict[int, str] = {}
    for faults in (
        _size_faults(batch, max_nodes),
        _edge_end_faults(batch),
        _category_faults(batch),
        _attribute_faults(batch, used),
    ):
        for graph, reason in faults:
            reasons.setdefault(graph, reason)
    return dict(sorted(reasons.items()))


def in_single_precision(batch: GraphBatch) -> GraphBatch:
    """Round the attributes to float32, in which graphs are stored, so that none is embedded in any other form."""
    return replace(
        batch,
        node_attributes=single_precision(batch.node_attributes),
        edge_attributes=single_precision(batch.edge_attributes),
    )


def single_precision(values: FloatArray) -> FloatArray:
    """Round to float32; what is too large becomes infinite, which `find_invalid` finds where it is used."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32, copy=False)


def canonical_edges(batch: GraphBatch, *, directed: bool = False) -> tuple[GraphBatch, EdgeRepairs]:
    """Drop self-loops, merge parallel edges, and list every undirected edge in both directions.

    Of parallel edges (same source, same target) the first is kept. A reverse edge that is added has the features of
    the edge it reverses; one that is listed keeps its own. Edges come out sorted by source, then target.

    Parameters
    ----------
    batch : GraphBatch
        Valid (see `find_invalid`), without virtual nodes.
    directed : bool, default False
        Read the edge list as it stands: (s, t) makes s a neighbour of t and no more.

    Returns
    -------
    batch : GraphBatch
    repairs : EdgeRepairs
    """
    source, target = batch.global_edges()
    n_nodes = max(batch.n_nodes, 1)
    kept = np.flatnonzero(source != target)
    self_loops = batch.n_edges - len(kept)
    key = source[kept] * n_nodes + target[kept]
    key, first = np.unique(key, return_index=True)
    edges = kept[first]
    parallel = len(kept) - len(edges)
    added = 0
    if not directed:
        reverse_key = target[edges] * n_nodes + source[edges]
        # Most sources list both directions, which takes one sort to see, and several more to mend.
        if not np.array_equal(np.sort(reverse_key), key):
            missing = ~np.isin(reverse_key, key, assume_unique=True)
            added = int(missing.sum())
            key = np.concatenate([key, reverse_key[missing]])
            order = np.argsort(key, kind="stable")
            key = key[order]
            edges = np.concatenate([edges, edges[missing]])[order]
    graph = batch.edge_graph()[edges]
    first_node = batch.node_offsets[graph]
    result = replace(
        batch,
        edge_offsets=offsets_from_counts(np.bincount(graph, minlength=batch.n_graphs)),
        edge_source=key // n_nodes - first_node,
        edge_target=key % n_nodes - first_node,
        edge_categories=batch.edge_categories.take(edges, axis=0),
        edge_attributes=batch.edge_attributes.take(edges, axis=0),
    )
    return result, EdgeRepairs(self_loops, parallel, added)


def offsets_from_counts(counts: IntArray) -> IntArray:
    """Turn the sizes of consecutive pieces into their boundaries: int64, (len(counts) + 1,)."""
    offsets = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def expand_ranges(starts: IntArray, counts: IntArray) -> IntArray:
    """Concatenate ``arange(start, start + count)`` over all pairs."""
    offsets = offsets_from_counts(counts)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)


def _dtype_for(array: npt.NDArray[Any], value: int) -> np.dtype[Any]:
    """Find the type for the entries of an array and one value more: that of the array, if whole numbers of it go so far."""
    if array.dtype.kind == "f":
        return array.dtype
    holds = array.dtype.kind in "iu" and np.iinfo(array.dtype).min <= value <= np.iinfo(array.dtype).max
    return array.dtype if holds else np.dtype(np.int64)


def _size_faults(batch: GraphBatch, max_nodes: int | None) -> Iterator[tuple[int, str]]:
    counts = batch.node_counts
    for graph in np.flatnonzero(counts == 0).tolist():
        yield graph, "the graph has no nodes"
    if max_nodes is not None:
        for graph in np.flatnonzero(counts > max_nodes).tolist():
            yield graph, f"the graph has {counts[graph]} nodes; max_nodes allows {max_nodes}"


def _edge_end_faults(batch: GraphBatch) -> Iterator[tuple[int, str]]:
    counts = batch.node_counts
    limit = np.repeat(counts, batch.edge_counts)
    for name, ends in (("source", batch.edge_source), ("target", batch.edge_target)):
        for graph, edge in _first_of_each_graph(batch.edge_offsets, (ends < 0) | (ends >= limit)):
            where = f"edge {edge - batch.edge_offsets[graph]}"
            yield graph, f"{where} has {name} {ends[edge]}; the graph has nodes 0 to {counts[graph] - 1}"


def _category_faults(batch: GraphBatch) -> Iterator[tuple[int, str]]:
    schema = batch.schema
    for kind, offsets, categories, sizes in (
        ("node", batch.node_offsets, batch.node_categories, schema.node_category_counts),
        ("edge", batch.edge_offsets, batch.edge_categories, schema.edge_category_counts),
    ):
        outside = (categories < 0) | (categories >= np.array(sizes, dtype=np.int64))
        # Most often there is nothing, which is known of all columns at once much sooner than of each.
        if not outside.any():
            continue
        for column in np.flatnonzero(outside.any(axis=0)).tolist():
            for graph, row in _first_of_each_graph(offsets, outside[:, column]):
                where = f"{kind} {row - offsets[graph]}, categorical feature {column}"
                value, last = categories[row, column], sizes[column] - 1
                yield graph, f"{where}: category {value} is outside the vocabulary 0 to {last}"


def _attribute_faults(batch: GraphBatch, used: UsedAttributes) -> Iterator[tuple[int, str]]:
    nodes = ("node", batch.node_offsets, batch.node_attributes)
    edges = ("edge", batch.edge_offsets, batch.edge_attributes)
    for (kind, offsets, attributes), complaint, is_bad in (
        (nodes, "not finite", _not_finite),
        (edges, "not finite", _not_finite),
        (nodes, "not finite as float32", _beyond_float32),
        (edges, "not finite as float32", _beyond_float32),
        (edges, "negative", _negative),
    ):
        if not attributes.size or not (used.node if kind == "node" else used.edge):
            continue
        bad = is_bad(attributes)
        for graph, row in _first_of_each_graph(offsets, np.any(bad, axis=1)):
            column = int(np.argmax(bad[row]))
            where = f"{kind} {row - offsets[graph]}, attribute {column}"
            yield graph, f"{where} is {complaint}: {attributes[row, column]}"


def _not_finite(attributes: FloatArray) -> npt.NDArray[np.bool_]:
    return ~np.isfinite(attributes)


def _negative(attributes: FloatArray) -> npt.NDArray[np.bool_]:
    return np.asarray(attributes < 0)


def _beyond_float32(attributes: FloatArray) -> npt.NDArray[np.bool_]:
    with np.errstate(over="ignore"):
        return ~np.isfinite(attributes.astype(np.float32))


def _first_of_each_graph(offsets: IntArray, bad: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Pair every graph that has a bad row with the first such row; graph i owns rows ``offsets[i]:offsets[i + 1]``."""
    rows = np.flatnonzero(bad)
    if len(rows):
        graphs, first = np.unique(np.searchsorted(offsets, rows, side="right") - 1, return_index=True)
        yield from zip(graphs.tolist(), rows[first].tolist(), strict=True)
