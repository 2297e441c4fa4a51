"""Graphs of networkx, whose categories are texts or numbers of the user's choosing, and the vocabularies of those."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np

from wegl_dask.graphs import FloatArray, GraphSchema, IntArray
from wegl_dask.plain_graphs import PlainGraph, UnusableGraphError

Label: TypeAlias = str | int | float
_Item: TypeAlias = tuple[Any, Mapping[str, Any]]


@dataclass(frozen=True)
class AttributeNames:
    """Which attributes of networkx graphs are read, in the order of the features that they become.

    Attributes
    ----------
    node_labels, edge_labels : tuple of str
        Read as categories: texts, numbers or booleans.
    node_attributes, edge_attributes : tuple of str
        Read as numbers.
    """

    node_labels: tuple[str, ...] = ()
    node_attributes: tuple[str, ...] = ()
    edge_labels: tuple[str, ...] = ()
    edge_attributes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LabelledGraph:
    """One graph whose categories are not numbered yet.

    Attributes
    ----------
    n_nodes : int
    edge_index : int64, (2, n_edges)
        Both directions of every edge of an undirected graph, one after the other.
    node_labels, edge_labels : tuple of list
        One list a feature, one value a node (a listed edge).
    node_attributes, edge_attributes : float64, (n_nodes or n_edges, number of features)
    """

    n_nodes: int
    edge_index: IntArray
    node_labels: tuple[list[Label], ...]
    node_attributes: FloatArray
    edge_labels: tuple[list[Label], ...]
    edge_attributes: FloatArray


@dataclass(frozen=True)
class Vocabularies:
    """The values of every categorical feature, in the order of their categories: numbers, ascending, then texts.

    Values that compare equal (1, 1.0, True) are one category.
    """

    node: tuple[tuple[Label, ...], ...]
    edge: tuple[tuple[Label, ...], ...]

    @classmethod
    def of_graphs(cls, graphs: Iterable[LabelledGraph], names: AttributeNames) -> "Vocabularies":
        """Collect the values that occur; the graphs are not kept."""
        node: list[set[Label]] = [set() for _ in names.node_labels]
        edge: list[set[Label]] = [set() for _ in names.edge_labels]
        for graph in graphs:
            for values, labels in zip(node + edge, graph.node_labels + graph.edge_labels, strict=True):
                values.update(labels)
        return cls(tuple(map(sorted_labels, node)), tuple(map(sorted_labels, edge)))

    @classmethod
    def merged(cls, parts: Sequence["Vocabularies"]) -> "Vocabularies":
        """Join the vocabularies of several collections of the same features."""
        return cls(
            tuple(sorted_labels(set().union(*values)) for values in zip(*(part.node for part in parts), strict=True)),
            tuple(sorted_labels(set().union(*values)) for values in zip(*(part.edge for part in parts), strict=True)),
        )

    def to_json(self) -> dict[str, list[list[Label]]]:
        """Render as JSON values; `from_json` reads them back."""
        return {"node": list(map(list, self.node)), "edge": list(map(list, self.edge))}

    @classmethod
    def from_json(cls, values: Mapping[str, Sequence[Sequence[Label]]]) -> "Vocabularies":
        """Read back what `to_json` wrote."""
        return cls(tuple(map(tuple, values["node"])), tuple(map(tuple, values["edge"])))

    def schema(self, names: AttributeNames) -> GraphSchema:
        """Describe the graphs that `number` makes."""
        return GraphSchema(
            tuple(map(len, self.node)),
            tuple(map(len, self.edge)),
            len(names.node_attributes),
            len(names.edge_attributes),
        )

    def number(self, graph: LabelledGraph, names: AttributeNames) -> PlainGraph:
        """Turn values into categories.

        Raises
        ------
        UnusableGraphError
            If a value is not in its vocabulary.
        """
        return PlainGraph(
            graph.n_nodes,
            graph.edge_index,
            _numbered("node", graph.n_nodes, names.node_labels, graph.node_labels, self._numbers[0]),
            graph.node_attributes,
            _numbered("edge", graph.edge_index.shape[1], names.edge_labels, graph.edge_labels, self._numbers[1]),
            graph.edge_attributes,
        )

    @cached_property
    def _numbers(self) -> tuple[list[dict[Label, int]], list[dict[Label, int]]]:
        """From the values of every feature to their categories, of nodes and of edges."""
        node, edge = ([{value: i for i, value in enumerate(each)} for each in part] for part in (self.node, self.edge))
        return node, edge


def sorted_labels(values: Iterable[Label]) -> tuple[Label, ...]:
    """Sort distinct values: numbers, ascending, then texts."""
    return tuple(sorted(values, key=label_order))


def label_order(label: Label) -> tuple[bool, Label]:
    """Sort key of values: numbers, ascending, then texts."""
    return isinstance(label, str), label


def labelled_graph(graph: Any, names: AttributeNames) -> LabelledGraph:
    """Read the structure and the named attributes of a networkx graph.

    Nodes and edges keep the order that the graph lists them in. An edge of an undirected graph becomes two, one in each
    direction (a self-loop stays one); those of a directed graph stay as they are. Parallel edges of a multigraph are
    all kept.

    Parameters
    ----------
    graph : networkx.Graph
        Also a DiGraph, MultiGraph or MultiDiGraph.
    names : AttributeNames

    Raises
    ------
    UnusableGraphError
        If a node or an edge lacks a named attribute, or its value is of no use; the message names the node or edge.
    """
    nodes = list(graph.nodes(data=True))
    edges = list(graph.edges(data=True))
    index = {node: i for i, (node, _) in enumerate(nodes)}
    ends = np.array([(index[s], index[t]) for s, t, _ in edges], dtype=np.int64).reshape(-1, 2)
    # For every edge that comes out: the one that it is made of, and whether it runs backwards.
    made_of, backwards = np.arange(len(edges)), np.zeros(len(edges), dtype=bool)
    if not graph.is_directed():
        copies = np.where(ends[:, 0] == ends[:, 1], 1, 2)
        made_of = np.repeat(made_of, copies)
        backwards = np.diff(made_of, prepend=-1) == 0
    ends = np.where(backwards[:, None], ends[made_of, ::-1], ends[made_of])

    edge_items = [((s, t), data) for s, t, data in edges]
    edge_labels = [_read_labels(name, edge_items, _edge_name) for name in names.edge_labels]
    return LabelledGraph(
        n_nodes=len(nodes),
        edge_index=ends.T,
        node_labels=tuple(_read_labels(name, nodes, _node_name) for name in names.node_labels),
        node_attributes=_read_numbers(names.node_attributes, nodes, _node_name),
        edge_labels=tuple([values[i] for i in made_of.tolist()] for values in edge_labels),
        edge_attributes=_read_numbers(names.edge_attributes, edge_items, _edge_name)[made_of],
    )


def is_text(value: str) -> bool:
    """Say whether a text consists of whole characters; halves, which stand for bytes that are none, cannot be stored."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def plain_label(value: Any) -> Label | None:
    """Return a text of whole characters as it is, and a number that a double can hold as int or float; else None."""
    match value:
        case str():
            return value if is_text(value) else None
        case Real() | np.bool_():
            try:
                number = float(value)
            except OverflowError:
                return None
            if not math.isfinite(number):
                return None
            return int(value) if isinstance(value, Integral | np.bool_) else number
        case _:
            return None


def _read_labels(name: str, items: Sequence[_Item], describe: Callable[[Any], str]) -> list[Label]:
    labels = []
    for key, data in items:
        label = plain_label(value := _value(name, key, data, describe))
        if label is None:
            raise UnusableGraphError(
                f"{describe(key)}: the attribute {name!r} is {value!r}; a text or a finite number is needed"
            )
        labels.append(label)
    return labels


def _read_numbers(names: Sequence[str], items: Sequence[_Item], describe: Callable[[Any], str]) -> FloatArray:
    numbers = np.empty((len(items), len(names)))
    for column, name in enumerate(names):
        for row, (key, data) in enumerate(items):
            value = _value(name, key, data, describe)
            if not isinstance(value, Real | np.bool_):
                raise UnusableGraphError(f"{describe(key)}: the attribute {name!r} is {value!r}; a number is needed")
            try:
                numbers[row, column] = value
            except OverflowError:
                raise UnusableGraphError(
                    f"{describe(key)}: the attribute {name!r} is beyond the real numbers"
                ) from None
    return numbers


def _value(name: str, key: Any, data: Mapping[str, Any], describe: Callable[[Any], str]) -> Any:
    if name not in data:
        raise UnusableGraphError(f"{describe(key)} has no attribute {name!r}")
    return data[name]


def _node_name(node: Any) -> str:
    return f"node {node!r}"


def _edge_name(ends: tuple[Any, Any]) -> str:
    return f"the edge from {ends[0]!r} to {ends[1]!r}"


def _numbered(
    kind: str,
    n_rows: int,
    names: Sequence[str],
    columns: Sequence[Sequence[Label]],
    numbers: Sequence[Mapping[Label, int]],
) -> IntArray:
    categories = np.empty((n_rows, len(names)), dtype=np.int64)
    for i, (name, labels, number) in enumerate(zip(names, columns, numbers, strict=True)):
        try:
            categories[:, i] = [number[label] for label in labels]
        except KeyError as error:
            raise UnusableGraphError(
                f"a {kind} has {error.args[0]!r} as {name!r}, which is not in the vocabulary of {len(number)} values"
            ) from None
    return categories
