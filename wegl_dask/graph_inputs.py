"""Whatever a caller has as graphs, read as a stream of graph batches of bounded size."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from wegl_dask.convert import (
    each_graph,
    is_networkx_graph,
    is_pyg_batch,
    is_pyg_graph,
    pyg_graph,
    single_graph,
)
from wegl_dask.graphs import (
    GraphBatch,
    GraphSchema,
    UsedAttributes,
    canonical_edges,
    concatenate,
    find_invalid,
    in_single_precision,
)
from wegl_dask.labelled_graphs import AttributeNames, LabelledGraph, Vocabularies, labelled_graph
from wegl_dask.plain_graphs import (
    PlainGraph,
    UnusableGraphError,
    Widths,
    describe_widths,
    join_graphs,
    largest_counts,
    naming_graph,
    plain_graph,
    schema_widths,
    whole_number,
)

BATCH_NODES = 16_384
"""Nodes in a batch of the stream; a graph that has more is a batch of its own."""

Kind: TypeAlias = Literal["batch", "pyg", "networkx", "ogb", "arrays"]

_ALLOWED = (
    "a graph is a GraphBatch, a torch_geometric Data or a Batch of them, a networkx graph, a pair (edge_index, x) or a triple "
    "(edge_index, x, edge_attr) of arrays, or a dictionary with edge_index, node_feat and edge_feat as ogb has them"
)


class Numbering(Protocol):
    """Gives the values that networkx graphs have as categories their numbers."""

    def number(self, graph: LabelledGraph, names: AttributeNames) -> PlainGraph:
        """Turn values into categories; `UnusableGraphError` where one has none."""


@dataclass(frozen=True)
class GraphForm:
    """What the graphs of a collection look like, so that others can be read alike.

    Attributes
    ----------
    schema : GraphSchema
    names : AttributeNames
        Attributes of networkx graphs that become features.
    vocabularies : Vocabularies or None
        The values that the categories of networkx graphs stand for; None where categories are numbers.
    """

    schema: GraphSchema
    names: AttributeNames
    vocabularies: Vocabularies | None = None

    def read(self, graphs: Any) -> Iterator[tuple[int, GraphBatch]]:
        """Read graphs of this form, see `GraphReader.read`; all batches have the schema of the form.

        Vocabularies that a GraphBatch declares may have other sizes; which categories there are says the form.
        """
        numbering = self.vocabularies or _NumbersOnly()
        for first, batch in GraphReader(self.names, numbering, schema_widths(self.schema)).read(graphs):
            yield first, with_schema(batch, self.schema)


class GraphReader:
    """Reads graphs of any kind, and joins them to batches.

    Parameters
    ----------
    names : AttributeNames
        Attributes of networkx graphs that become features.
    numbering : Numbering
        For the categories of networkx graphs.
    widths : tuple of int, optional
        The features that the graphs must have; by default the features of the first node and of the first edge.
    """

    def __init__(self, names: AttributeNames, numbering: Numbering, widths: Widths | None = None) -> None:
        self._names = names
        self._numbering = numbering
        self._node_widths = None if widths is None else widths[:2]
        self._edge_widths = None if widths is None else widths[2:]
        self._named: bool | None = None

    def read(self, graphs: Any) -> Iterator[tuple[int, GraphBatch]]:
        """Read graphs, in batches of at most `BATCH_NODES` nodes or one graph.

        Parameters
        ----------
        graphs : GraphBatch or iterable
            A GraphBatch, or any iterable of graphs; see `wegl_dask.WEGL.fit` for the kinds.

        Yields
        ------
        first : int
            Index of the batch's first graph.
        batch : GraphBatch
            Unchecked. Vocabularies are those that a GraphBatch declares, or reach up to the largest category. A batch
            without edges may have other edge features than the others.

        Raises
        ------
        UnusableGraphError
            If a graph cannot be read or has other features than the others; the message has its index.
        """
        held: list[PlainGraph | GraphBatch] = []
        first = n_graphs = n_nodes = 0
        for item in _items(graphs):
            with naming_graph(n_graphs):
                graph = self._read_item(item)
                self._check_features(graph)
            if isinstance(graph, GraphBatch) and not graph.n_graphs:
                continue
            if held and (n_nodes + graph.n_nodes > BATCH_NODES or type(graph) is not type(held[0])):
                yield first, self._join(held)
                first, n_nodes, held = n_graphs, 0, []
            if isinstance(graph, GraphBatch) and graph.n_nodes > BATCH_NODES:
                for block in graph.blocks(BATCH_NODES):
                    yield n_graphs, block
                    n_graphs += block.n_graphs
                first = n_graphs
                continue
            held.append(graph)
            n_nodes += graph.n_nodes
            n_graphs += graph.n_graphs if isinstance(graph, GraphBatch) else 1
        if held:
            yield first, self._join(held)

    def _read_item(self, item: Any) -> PlainGraph | GraphBatch:
        kind = _kind_of(item)
        if kind is None:
            hint = "; SMILES become graphs with wegl_dask.molecules.graphs_from_smiles" if isinstance(item, str) else ""
            raise UnusableGraphError(f"this is of type {type(item).__name__}; {_ALLOWED}{hint}")
        named = kind == "networkx"
        if self._named not in (None, named):
            raise UnusableGraphError(
                "networkx graphs and graphs of other kinds cannot be in one collection: convert them to one kind"
            )
        self._named = named
        match kind:
            case "batch":
                if item.has_virtual_nodes:
                    raise UnusableGraphError(
                        "the batch has virtual nodes; leave them out, virtual_node = True adds them"
                    )
                graph: PlainGraph | GraphBatch = item
            case "pyg":
                graph = pyg_graph(item.to_dict())
            case "networkx":
                graph = self._numbering.number(labelled_graph(item, self._names), self._names)
            case "ogb":
                graph = _ogb_graph(item if isinstance(item, Mapping) else item[0])
            case "arrays":
                graph = pyg_graph(dict(zip(("edge_index", "x", "edge_attr"), item, strict=False)))
        return graph

    def _check_features(self, graph: PlainGraph | GraphBatch) -> None:
        """Compare the features with those of the graphs before; edges can only be asked where there are some."""
        widths = _widths_of(graph)
        if self._node_widths is None:
            self._node_widths = widths[:2]
        if self._edge_widths is None and graph.n_edges:
            self._edge_widths = widths[2:]
        if widths[:2] != self._node_widths or (graph.n_edges and widths[2:] != self._edge_widths):
            expected = (*self._node_widths, *(widths[2:] if self._edge_widths is None else self._edge_widths))
            raise UnusableGraphError(
                f"the graph has {describe_widths(widths)}; the collection has {describe_widths(expected)}"
            )

    def _join(self, held: Sequence[PlainGraph | GraphBatch]) -> GraphBatch:
        edge_widths = _widths_of(held[0])[2:] if self._edge_widths is None else self._edge_widths
        widths = (*_widths_of(held[0])[:2], *edge_widths)
        batches = [graph for graph in held if isinstance(graph, GraphBatch)]
        if not batches:
            return join_graphs(graph.with_widths(widths) for graph in held if isinstance(graph, PlainGraph))
        if len(batches) == 1:
            return batches[0]
        schema = common_schema([(batch.schema, bool(batch.n_edges)) for batch in batches])
        return concatenate([with_schema(batch, schema) for batch in batches])


def usable_graphs(batch: GraphBatch, *, first: int, directed: bool, used: UsedAttributes) -> GraphBatch:
    """Bring graphs into the form in which they are embedded.

    Parameters
    ----------
    batch : GraphBatch
        As read.
    first : int
        Index of its first graph, for the message.
    directed : bool
        How edges are read, see `wegl_dask.graphs.canonical_edges`.
    used : UsedAttributes
        The attributes that are checked.

    Returns
    -------
    GraphBatch
        With canonical edges and float32 attributes.

    Raises
    ------
    UnusableGraphError
        If a graph cannot be embedded, with its index and the reason.
    """
    for graph, reason in find_invalid(batch, used=used).items():
        raise UnusableGraphError(f"graph {first + graph}: {reason}")
    return canonical_edges(in_single_precision(batch), directed=directed)[0]


def with_schema(batch: GraphBatch, schema: GraphSchema) -> GraphBatch:
    """Declare other vocabularies; a batch without edges gets the edge features of the schema as well."""
    if batch.schema == schema:
        return batch
    if batch.n_edges:
        return replace(batch, schema=schema)
    return replace(
        batch,
        schema=schema,
        edge_categories=np.empty((0, len(schema.edge_category_counts)), dtype=batch.edge_categories.dtype),
        edge_attributes=np.empty((0, schema.edge_attribute_width), dtype=batch.edge_attributes.dtype),
    )


def common_schema(schemas: Sequence[tuple[GraphSchema, bool]]) -> GraphSchema:
    """Find the schema that batches of the same features have in common.

    Parameters
    ----------
    schemas : sequence of (GraphSchema, bool)
        The schema of each batch, and whether it has edges: only then must its edge features be those of the others.

    Returns
    -------
    GraphSchema
        Every vocabulary holds those of all batches.
    """
    edges = next((schema for schema, has_edges in schemas if has_edges), schemas[0][0])
    edge_widths = schema_widths(edges)[2:]
    return GraphSchema(
        largest_counts([schema.node_category_counts for schema, _ in schemas]),
        largest_counts(
            [schema.edge_category_counts for schema, _ in schemas if schema_widths(schema)[2:] == edge_widths]
        ),
        schemas[0][0].node_attribute_width,
        edges.edge_attribute_width,
    )


class _NumbersOnly:
    """The numbering of a collection whose categories are numbers: networkx graphs have none."""

    def number(self, graph: LabelledGraph, names: AttributeNames) -> PlainGraph:
        if names.node_labels or names.edge_labels:
            raise UnusableGraphError(
                "which values of networkx graphs the categories of the fit stand for is not known, as it was not given "
                "networkx graphs: convert these with wegl_dask.convert.from_networkx"
            )
        return Vocabularies((), ()).number(graph, names)


def _items(graphs: Any) -> Iterator[Any]:
    """Iterate over a collection; a GraphBatch is the only item of itself, and a Batch of torch_geometric its graphs."""
    if isinstance(graphs, GraphBatch):
        yield graphs
        return
    if is_pyg_batch(graphs):
        yield from each_graph(graphs)
        return
    if not isinstance(graphs, tuple | list) and _kind_of(graphs) is not None:
        raise single_graph(graphs)
    try:
        iterator = iter(graphs)
    except TypeError:
        raise UnusableGraphError(
            f"this is of type {type(graphs).__name__}; needed is a GraphBatch or an iterable of graphs: {_ALLOWED}"
        ) from None
    yield from each_graph(iterator)


def _kind_of(item: Any) -> Kind | None:
    """Tell what a graph is without importing the library that it is of."""
    if isinstance(item, GraphBatch):
        return "batch"
    if is_pyg_graph(item):
        return "pyg"
    if is_networkx_graph(item):
        return "networkx"
    if isinstance(item, Mapping):
        return "ogb"
    if isinstance(item, tuple | list) and item and isinstance(item[0], Mapping):
        return "ogb"
    if isinstance(item, tuple | list) and len(item) in (2, 3):
        return "arrays"
    return None


def _ogb_graph(fields: Mapping[str, Any]) -> PlainGraph:
    """Read a graph as the library-agnostic data sets of ogb have it."""
    if fields.get("edge_index") is None:
        raise UnusableGraphError(f"the dictionary has no edge_index; it has {', '.join(map(str, fields)) or 'nothing'}")
    features = {name: {} if fields.get(name) is None else {name: fields[name]} for name in ("node_feat", "edge_feat")}
    n_nodes = fields.get("num_nodes")
    return plain_graph(
        fields["edge_index"],
        features["node_feat"],
        features["edge_feat"],
        None if n_nodes is None else whole_number("num_nodes", n_nodes),
    )


def _widths_of(graph: PlainGraph | GraphBatch) -> Widths:
    return schema_widths(graph.schema) if isinstance(graph, GraphBatch) else graph.widths
