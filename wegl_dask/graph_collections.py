"""Graphs that are read once and gone through several times, as a fit does, in bounded memory."""

import hashlib
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from wegl_dask.features import degrees, used_attributes
from wegl_dask.graph_inputs import GraphForm, GraphReader, common_schema, usable_graphs, with_schema
from wegl_dask.graphs import GraphBatch, GraphSchema, IntArray
from wegl_dask.labelled_graphs import (
    AttributeNames,
    Label,
    LabelledGraph,
    Vocabularies,
    plain_label,
    sorted_labels,
)
from wegl_dask.plain_graphs import PlainGraph, UnusableGraphError, schema_widths

SPOOL_BYTES = 256 * 2**20
"""Bytes of graphs that are held in memory; beyond that they are in a temporary file."""

_ARRAYS = (
    *("node_offsets", "edge_offsets", "edge_source", "edge_target"),
    *("node_categories", "node_attributes", "edge_categories", "edge_attributes"),
)
"""Arrays of a GraphBatch."""

_Values: TypeAlias = Mapping[str, Sequence[Label]]


@dataclass(frozen=True)
class Census:
    """What occurs in a collection of graphs.

    Attributes
    ----------
    graph_counts, node_counts : int64, (n_batches,)
        Graphs and nodes of each batch of the collection.
    categories : tuple of list of int
        For every categorical node feature the categories that occur, in ascending order.
    degrees : list of int
        The degrees that occur, in ascending order.
    digest : str
        Hash of the graphs, in their order.
    """

    graph_counts: IntArray
    node_counts: IntArray
    categories: tuple[list[int], ...]
    degrees: list[int]
    digest: str

    @property
    def n_graphs(self) -> int:
        """Number of graphs."""
        return int(self.graph_counts.sum())


class GraphCollection:
    """Graphs that were read once and can be gone through again, one reading at a time.

    They are held in memory up to `SPOOL_BYTES`, then in a temporary file that goes away with the object.

    Attributes
    ----------
    form : GraphForm
    census : Census
    """

    def __init__(self, form: GraphForm, census: Census, spool: "_Spool", renumbering: "_Renumbering") -> None:
        self.form = form
        self.census = census
        self._spool = spool
        self._renumbering = renumbering

    def __iter__(self) -> Iterator[GraphBatch]:
        """Go through the graphs in batches: valid, with canonical edges, without virtual nodes."""
        for batch in self._spool:
            yield with_schema(self._renumbering.apply(batch), self.form.schema)


def collect_graphs(
    graphs: Any,
    *,
    names: AttributeNames,
    schema: GraphSchema | None = None,
    node_values: _Values | None = None,
    edge_values: _Values | None = None,
    directed: bool = False,
    node_features: Sequence[str] | None = None,
    edge_features: str | None = None,
) -> GraphCollection:
    """Read a collection of graphs, and find out what they have in common.

    Parameters
    ----------
    graphs : GraphBatch or iterable
        See `wegl_dask.WEGL.fit`; it is gone through once.
    names : AttributeNames
        Attributes of networkx graphs that become features.
    schema : GraphSchema, optional
        Taken from the graphs by default: the features of the first graph (of the first with edges), and vocabularies
        that hold those of all GraphBatches and all categories of other graphs.
    node_values, edge_values : mapping of str to sequence, optional
        For attributes of networkx graphs that are read as categories, the values in the order of their numbers. Of
        other attributes they are the values that occur: numbers, ascending, then texts.
    directed : bool, default False
        How edges are read, see `wegl_dask.graphs.canonical_edges`.
    node_features, edge_features : optional
        What the graphs are embedded by, see `wegl_dask.features.used_attributes`: other attributes may be anything.

    Raises
    ------
    UnusableGraphError
        If there are no graphs, or one cannot be read or embedded; the message has its index and the reason.
    ValueError
        If `schema` declares other numbers of categories than there are values of networkx graphs.
    """
    vocabularies = _GrowingVocabularies(names, node_values or {}, edge_values or {})
    reader = GraphReader(names, vocabularies, None if schema is None else schema_widths(schema))
    spool = _Spool()
    tally = _Tally()
    schemas: list[tuple[GraphSchema, bool]] = []
    for first, found in reader.read(graphs):
        # The values of networkx graphs have their numbers for the time being.
        batch = found if schema is None or vocabularies.used else with_schema(found, schema)
        batch = usable_graphs(
            batch, first=first, directed=directed, used=used_attributes(batch.schema, node_features, edge_features)
        )
        schemas.append((batch.schema, bool(batch.n_edges)))
        tally.add(batch)
        spool.append(batch)
    if not schemas:
        raise UnusableGraphError("there are no graphs; a fit needs at least one")
    if not vocabularies.used:
        form = GraphForm(schema or common_schema(schemas), names)
        return GraphCollection(form, tally.census(spool.digest), spool, _Renumbering((), ()))
    values, renumbering = vocabularies.settled()
    if schema is not None:
        _require_values(schema, values, names)
    form = GraphForm(schema or values.schema(names), names, values)
    return GraphCollection(form, tally.census(spool.digest, renumbering), spool, renumbering)


def _require_values(schema: GraphSchema, values: Vocabularies, names: AttributeNames) -> None:
    """Refuse categories of networkx graphs that stand for no value: none could be transformed, nor stored with the model."""
    for kind, labels, declared, known in (
        ("node", names.node_labels, schema.node_category_counts, values.node),
        ("edge", names.edge_labels, schema.edge_category_counts, values.edge),
    ):
        counts = tuple(map(len, known))
        if labels and declared != counts:
            raise ValueError(
                f"schema declares {_listed(declared)} {kind} categories, and {', '.join(map(repr, labels))} of the networkx "
                f"graphs have {_listed(counts)} values: leave out schema, and give all values that there may be, as "
                f"{kind}_labels = {{{labels[0]!r}: [...]}}"
            )


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts)) or "no"


class _Tally:
    """Counts what occurs, batch by batch."""

    def __init__(self) -> None:
        self._graph_counts: list[int] = []
        self._node_counts: list[int] = []
        self._categories: list[set[int]] = []
        self._degrees: set[int] = set()

    def add(self, batch: GraphBatch) -> None:
        self._graph_counts.append(batch.n_graphs)
        self._node_counts.append(batch.n_nodes)
        self._categories = self._categories or [set() for _ in batch.schema.node_category_counts]
        for seen, column in zip(self._categories, batch.node_categories.T, strict=True):
            seen.update(np.unique(column).tolist())
        self._degrees.update(np.unique(degrees(batch)).tolist())

    def census(self, digest: str, renumbering: "_Renumbering | None" = None) -> Census:
        categories = self._categories
        if renumbering is not None:
            categories = [
                {int(numbers[old]) for old in seen} for seen, numbers in zip(categories, renumbering.node, strict=True)
            ]
        return Census(
            np.array(self._graph_counts),
            np.array(self._node_counts),
            tuple(map(sorted, categories)),
            sorted(self._degrees),
            digest,
        )


@dataclass(frozen=True)
class _Renumbering:
    """New numbers of categories: for every feature an array from the old number to the new; none leaves all alone."""

    node: tuple[IntArray, ...]
    edge: tuple[IntArray, ...]

    def apply(self, batch: GraphBatch) -> GraphBatch:
        if not self.node and not self.edge:
            return batch
        return replace(
            batch,
            node_categories=_renumbered(batch.node_categories, self.node),
            edge_categories=_renumbered(batch.edge_categories, self.edge),
        )


def _renumbered(categories: IntArray, numbers: Sequence[IntArray]) -> IntArray:
    result = np.empty(categories.shape, dtype=np.int64)
    for column, new in enumerate(numbers):
        result[:, column] = new[categories[:, column]]
    return result


class _GrowingVocabularies:
    """Numbers the values of networkx graphs as they come up, since a stream does not tell what comes later.

    Attributes
    ----------
    used : bool
        A graph was numbered.
    """

    def __init__(self, names: AttributeNames, node_values: _Values, edge_values: _Values) -> None:
        self.used = False
        self._node = [_Column("node", name, node_values.get(name)) for name in names.node_labels]
        self._edge = [_Column("edge", name, edge_values.get(name)) for name in names.edge_labels]

    def number(self, graph: LabelledGraph, names: AttributeNames) -> PlainGraph:
        """Turn values into categories; `UnusableGraphError` for one that is not among those given."""
        del names
        self.used = True
        return PlainGraph(
            graph.n_nodes,
            graph.edge_index,
            _numbered(graph.n_nodes, self._node, graph.node_labels),
            graph.node_attributes,
            _numbered(graph.edge_index.shape[1], self._edge, graph.edge_labels),
            graph.edge_attributes,
        )

    def settled(self) -> tuple[Vocabularies, _Renumbering]:
        """Return the vocabularies in their order, and where the numbers given so far are in them."""
        node, edge = ([column.settled() for column in columns] for columns in (self._node, self._edge))
        return (
            Vocabularies(tuple(values for values, _ in node), tuple(values for values, _ in edge)),
            _Renumbering(tuple(new for _, new in node), tuple(new for _, new in edge)),
        )


class _Column:
    """The values of one categorical feature and their numbers."""

    def __init__(self, kind: str, name: str, given: Sequence[Label] | None) -> None:
        self._kind = kind
        self._name = name
        self._is_given = given is not None
        self._number: dict[Label, int] = {}
        for value in () if given is None else given:
            label = plain_label(value)
            if label is None or label in self._number:
                what = "is given twice" if label is not None else "is neither a text nor a finite number"
                raise ValueError(f"of the values of the {kind} attribute {name!r}, {value!r} {what}")
            self._number[label] = len(self._number)

    def numbers(self, labels: Sequence[Label]) -> list[int]:
        number = self._number
        if not self._is_given:
            return [number.setdefault(label, len(number)) for label in labels]
        try:
            return [number[label] for label in labels]
        except KeyError as error:
            raise UnusableGraphError(
                f"a {self._kind} has {error.args[0]!r} as {self._name!r}, which is none of the {len(number)} values given"
            ) from None

    def settled(self) -> tuple[tuple[Label, ...], IntArray]:
        values = tuple(self._number) if self._is_given else sorted_labels(self._number)
        new = np.empty(len(values), dtype=np.int64)
        new[[self._number[value] for value in values]] = np.arange(len(values))
        return values, new


def _numbered(n_rows: int, columns: Sequence[_Column], labels: Sequence[Sequence[Label]]) -> IntArray:
    categories = np.empty((n_rows, len(columns)), dtype=np.int64)
    for i, (column, values) in enumerate(zip(columns, labels, strict=True)):
        categories[:, i] = column.numbers(values)
    return categories


class _Spool:
    """Batches one after another in a file, which is on disk only when it is large."""

    def __init__(self) -> None:
        self._file = tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES, prefix="wegl-dask-")  # noqa: SIM115  see below
        weakref.finalize(self, self._file.close)
        self._schemas: list[GraphSchema] = []
        self._hash = hashlib.blake2b(digest_size=16)

    @property
    def digest(self) -> str:
        """Hash of all batches."""
        return self._hash.hexdigest()

    def append(self, batch: GraphBatch) -> None:
        self._schemas.append(batch.schema)
        for name in _ARRAYS:
            array = np.ascontiguousarray(_narrowed(name, getattr(batch, name)))
            self._hash.update(array.data)
            np.lib.format.write_array(self._file, array, allow_pickle=False)

    def __iter__(self) -> Iterator[GraphBatch]:
        self._file.seek(0)
        for schema in self._schemas:
            arrays = {name: np.lib.format.read_array(self._file, allow_pickle=False) for name in _ARRAYS}
            yield GraphBatch(schema, has_virtual_nodes=False, **arrays)


def _narrowed(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Take as few bytes for whole numbers as graph shards do; offsets stay as they are."""
    if array.dtype.kind != "i" or name.endswith("_offsets"):
        return array
    return array.astype(np.int16 if array.size and array.max() <= np.iinfo(np.int16).max else np.int32)
