"""The pass over a TU data set that checks its files against one another and finds where each cut's lines are."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wegl_dask.checksums import fingerprint
from wegl_dask.errors import SourceError
from wegl_dask.graphs import GraphSchema, IntArray
from wegl_dask.sources._cuts import cut_by_nodes, shard_loads
from wegl_dask.sources._files import FileSet
from wegl_dask.sources._text import BlockIndex, Numbers, NumberType, scan_numbers
from wegl_dask.sources.base import LabelSchema

FileKind = Literal[
    "A",
    "graph_indicator",
    "node_labels",
    "node_attributes",
    "edge_labels",
    "edge_attributes",
    "graph_labels",
    "graph_attributes",
]

NUMBERS: dict[FileKind, NumberType] = {
    "A": "int64",
    "graph_indicator": "int64",
    "node_labels": "int64",
    "node_attributes": "float64",
    "edge_labels": "int64",
    "edge_attributes": "float64",
    "graph_labels": "int64",
    "graph_attributes": "float64",
}
"""The files of a data set and what they hold."""

NODE_FILES: tuple[FileKind, ...] = ("graph_indicator", "node_labels", "node_attributes")
EDGE_FILES: tuple[FileKind, ...] = ("A", "edge_labels", "edge_attributes")
LABEL_FILES: tuple[FileKind, ...] = ("graph_labels", "graph_attributes")

_LARGEST_VOCABULARY = 2**31 - 1
_LARGEST_INT64 = np.iinfo(np.int64).max


def file_name(data_set: str, kind: FileKind) -> str:
    """Name of a file: the collection's rule."""
    return f"{data_set}_{kind}.txt"


def scan_data_set(data_set: str, files: FileSet, task: str, nodes_per_shard: int) -> dict[str, Any]:
    """Scan a data set.

    Parameters
    ----------
    data_set : str
        Its name.
    files : FileSet
        The folder of its files.
    task : {"auto", "none", "classification", "regression", "multitask"}
    nodes_per_shard : int

    Returns
    -------
    dict
        JSON values: ``schema``, ``labels``, ``details`` and ``cuts`` of the plan. A cut has ``n_rows``, ``where`` and
        ``fingerprint``; ``where`` is its graphs and, a kind of file, the `LineSpan` that holds its lines.

    Raises
    ------
    SourceError
        If a file cannot be read, or files contradict one another.
    """
    scan = _Scan(data_set, files)
    scan.label_files()
    labels, label_file = scan.choose_labels(task)
    owners = scan.indicator()
    n_graphs = scan.n_graphs
    edges = scan.edges(owners)
    boundaries = cut_by_nodes(shard_loads(owners.sizes(n_graphs), edges.counts, nodes_per_shard), nodes_per_shard)
    node_spans, edge_spans = owners.spans(n_graphs).joined(boundaries), edges.spans.joined(boundaries)
    node_categories, edge_categories = scan.vocabulary("node_labels"), scan.vocabulary("edge_labels")
    scan.attributes()
    schema = GraphSchema(
        node_category_counts=node_categories.counts,
        edge_category_counts=edge_categories.counts,
        node_attribute_width=scan.width("node_attributes"),
        edge_attribute_width=scan.width("edge_attributes"),
    )
    details = {
        "label_file": label_file,
        "node_label_minima": node_categories.minima,
        "edge_label_minima": edge_categories.minima,
        "columns": {kind: index.n_columns for kind, index in scan.indexes.items()},
    }
    whole = json.dumps([asdict(schema), asdict(labels), details], sort_keys=True)
    cuts = []
    for cut, (first, stop) in enumerate(itertools.pairwise(boundaries.tolist())):
        lines = {kind: scan.indexes[kind].span(*node_spans[cut]) for kind in NODE_FILES if kind in scan.indexes}
        lines |= {kind: scan.indexes[kind].span(*edge_spans[cut]) for kind in EDGE_FILES if kind in scan.indexes}
        if label_file is not None:
            lines[label_file] = scan.indexes[label_file].span(first, stop)
        hashed = fingerprint(*(scan.indexes[kind].fingerprint(span) for kind, span in lines.items()))
        where = {"first_graph": first, "n_graphs": stop - first, "lines": lines, "hash": hashed}
        cuts.append({"n_rows": stop - first, "where": where, "fingerprint": fingerprint(whole, json.dumps(where))})
    return {"schema": asdict(schema), "labels": asdict(labels), "details": details, "cuts": cuts}


@dataclass(frozen=True)
class _Vocabulary:
    """Smallest label and number of labels of each column; labels between that do not occur are counted."""

    minima: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Owners:
    """Who owns each node, run length coded: nodes ``starts[i]:starts[i + 1]`` belong to ``names[i]``.

    A file that is sorted by graph has as many runs as graphs, however many nodes there are.
    """

    starts: IntArray
    names: IntArray

    def of(self, nodes: IntArray) -> IntArray:
        """Owner of each node, -1 for nodes that there are not."""
        run = np.searchsorted(self.starts, nodes, side="right") - 1
        return np.append(self.names, -1)[run]

    def of_ends(self, ends: IntArray) -> tuple[IntArray, IntArray]:
        """Owners of both ends of edges, (n, 2): the same array twice where both are always one's."""
        source, target = np.ascontiguousarray(ends.T)
        run = np.searchsorted(self.starts, source, side="right") - 1
        owner = np.append(self.names, -1)[run]
        bounds = np.concatenate([self.starts, [_LARGEST_INT64, self.starts[0]]])
        if np.all((bounds[run] <= target) & (target < bounds[run + 1]) & (owner >= 0)):
            return owner, owner
        return owner, self.of(target)

    def sizes(self, n_owners: int) -> IntArray:
        """Count the nodes of each owner."""
        sizes = np.zeros(n_owners, dtype=np.int64)
        np.add.at(sizes, self.names, np.diff(self.starts))
        return sizes

    def spans(self, n_owners: int) -> "_Spans":
        """Find the range of nodes that all nodes of an owner lie in."""
        spans = _Spans.none(n_owners)
        spans.add(self.names, self.starts[:-1], self.starts[1:])
        return spans


@dataclass(frozen=True)
class _Spans:
    """The range of lines that all lines of each graph lie in; filled in as the lines are seen."""

    first: IntArray
    stop: IntArray

    @classmethod
    def none(cls, n_graphs: int) -> "_Spans":
        return cls(np.full(n_graphs, _LARGEST_INT64), np.zeros(n_graphs, dtype=np.int64))

    def add(self, graphs: IntArray, first: IntArray, stop: IntArray) -> None:
        """Graph ``graphs[i]`` has lines from ``first[i]`` to before ``stop[i]``; -1 is no graph."""
        named = graphs >= 0
        np.minimum.at(self.first, graphs[named], first[named])
        np.maximum.at(self.stop, graphs[named], stop[named])

    def joined(self, boundaries: IntArray) -> list[tuple[int, int]]:
        """Join the ranges of the graphs of each cut."""
        first = np.minimum.reduceat(self.first, boundaries[:-1])
        stop = np.maximum.reduceat(self.stop, boundaries[:-1])
        return list(zip(first.tolist(), stop.tolist(), strict=True))


@dataclass(frozen=True)
class _EdgeLines:
    """Where the edges of each graph are in their files: the range of their lines, and how many there are."""

    spans: _Spans
    counts: IntArray


@dataclass
class _Scan:
    """The files seen so far. The methods are called in the order they are written in."""

    data_set: str
    files: FileSet
    indexes: dict[FileKind, BlockIndex] = field(default_factory=dict)
    classes: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    n_graphs: int = 0

    def label_files(self) -> None:
        """Count the graphs and collect the classes."""
        for kind in LABEL_FILES:
            for _, values in self._blocks(kind):
                if kind == "graph_labels":
                    self.classes = np.union1d(self.classes, values)
        for kind in LABEL_FILES:
            if kind in self.indexes and not self.indexes[kind].n_lines:
                raise SourceError(
                    f"{self._describe(kind)} is empty; it must have a line for every graph: restore it, or remove it to go "
                    "without these labels"
                )
        self._check_lines(LABEL_FILES, "graph")
        self.n_graphs = max((index.n_lines for index in self.indexes.values()), default=0)

    def choose_labels(self, task: str) -> tuple[LabelSchema, FileKind | None]:
        """Decide what the labels are, and which file has them."""
        widths = {kind: self.width(kind) for kind in LABEL_FILES if kind in self.indexes}
        label_file = _choose_label_file(task, widths)
        if label_file is None:
            if task in ("auto", "none"):
                return LabelSchema(), None
            needed = {
                "classification": "graph_labels.txt with one column",
                "regression": "graph_attributes.txt or graph_labels.txt with one column",
                "multitask": "graph_attributes.txt or graph_labels.txt",
            }[task]
            found = ", ".join(f"{kind}.txt with {n} column{'s'[: n > 1]}" for kind, n in widths.items()) or "neither"
            raise SourceError(
                f'task = "{task}" needs {self.data_set}_{needed}; {self.data_set} has {found}: set task = "auto", or '
                'task = "none" to leave the labels out'
            )
        width = widths[label_file]
        if task == "multitask" or width > 1:
            return LabelSchema("tasks", task_names=tuple(f"task_{task}" for task in range(width))), label_file
        if task == "classification" or (task == "auto" and label_file == "graph_labels"):
            return LabelSchema("class", class_names=tuple(str(value) for value in self.classes.tolist())), label_file
        return LabelSchema("target"), label_file

    def indicator(self) -> _Owners:
        """Read which graph, from 0, each node belongs to."""
        known = self.n_graphs
        starts, names = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        last = -1
        for first_line, values in self._blocks("graph_indicator", n_columns=1):
            graphs = values[:, 0] - 1
            bad = np.flatnonzero((graphs < 0) | (graphs >= (known or _LARGEST_INT64)))
            if len(bad):
                allowed = f"{known} graphs are labelled, so 1 to {known} is" if known else "1 and more is"
                raise SourceError(
                    f"line {first_line + bad[0] + 1} of {self._describe('graph_indicator')} names graph "
                    f"{values[bad[0], 0]}; {allowed} allowed: the files do not belong together, or one is incomplete"
                )
            changes = np.flatnonzero(np.diff(graphs, prepend=last))
            starts.append(changes + first_line)
            names.append(graphs[changes])
            last = graphs[-1]
        n_nodes = self.indexes["graph_indicator"].n_lines
        if n_nodes == 0:
            raise SourceError(f"{self._describe('graph_indicator')} is empty; it must name the graph of every node")
        owners = _Owners(np.append(np.concatenate(starts), n_nodes), np.concatenate(names))
        if not known:
            self.n_graphs = int(owners.names.max()) + 1
            if self.n_graphs > n_nodes:
                raise SourceError(
                    f"{self._describe('graph_indicator')} names graph {self.n_graphs} and has {n_nodes} lines; graphs "
                    "are numbered from 1 without gaps: renumber them"
                )
        return owners

    def edges(self, owners: _Owners) -> _EdgeLines:
        """Find the range of lines that all edges of a graph lie in; an edge between two graphs is in both ranges."""
        n_nodes = int(owners.starts[-1])
        spans, counts = _Spans.none(self.n_graphs), np.zeros(self.n_graphs, dtype=np.int64)
        for first_line, values in self._blocks("A", n_columns=2):
            source, target = owners.of_ends(values - 1)
            nowhere = np.flatnonzero((source < 0) & (target < 0))
            if len(nowhere):
                line = int(nowhere[0])
                raise SourceError(
                    f"line {first_line + line + 1} of {self._describe('A')} joins nodes {values[line, 0]} and "
                    f"{values[line, 1]}; {self._describe('graph_indicator')} has nodes 1 to {n_nodes}: the files do "
                    "not belong together, or one is incomplete"
                )
            # The edges of a graph follow one another, mostly.
            for side in (source,) if source is target else (source, target):
                changes = np.flatnonzero(np.diff(side, prepend=-2))
                stops = np.append(changes[1:], len(side))
                spans.add(side[changes], first_line + changes, first_line + stops)
                if side is source:
                    named = side[changes] >= 0
                    np.add.at(counts, side[changes][named], (stops - changes)[named])
        return _EdgeLines(spans, counts)

    def vocabulary(self, kind: Literal["node_labels", "edge_labels"]) -> _Vocabulary:
        """Read the smallest and largest label of each column."""
        lowest: list[Numbers] = []
        highest: list[Numbers] = []
        for _, values in self._blocks(kind):
            lowest.append(values.min(axis=0))
            highest.append(values.max(axis=0))
        self._check_aligned(kind)
        if not lowest:
            return _Vocabulary()
        minima, maxima = np.min(lowest, axis=0).tolist(), np.max(highest, axis=0).tolist()
        for column, (low, high) in enumerate(zip(minima, maxima, strict=True)):
            if high - low >= _LARGEST_VOCABULARY:
                raise SourceError(
                    f"column {column + 1} of {self._describe(kind)} holds labels from {low} to {high}; their range "
                    f"may be at most {_LARGEST_VOCABULARY}: renumber them"
                )
        return _Vocabulary(tuple(minima), tuple(high - low + 1 for low, high in zip(minima, maxima, strict=True)))

    def attributes(self) -> None:
        """Check the attributes."""
        for kind in ("node_attributes", "edge_attributes"):
            for _ in self._blocks(kind):
                pass
            self._check_aligned(kind)

    def width(self, kind: FileKind) -> int:
        """Columns of a file; 0 if there is none."""
        return self.indexes[kind].n_columns if kind in self.indexes else 0

    def _blocks(self, kind: FileKind, n_columns: int | None = None) -> Iterator[tuple[int, Any]]:
        """Read a file, if there is one, and index it."""
        name = file_name(self.data_set, kind)
        if name not in self.files.sizes:
            return
        index = self.indexes[kind] = BlockIndex(n_columns=n_columns or 0)
        with self.files.open(name) as stream:
            for block in scan_numbers(stream, self.files.describe(name), NUMBERS[kind], index):
                if n_columns not in (None, index.n_columns):
                    raise SourceError(
                        f"{self.files.describe(name)} has {index.n_columns} columns; it must have {n_columns}: check "
                        "that the file is what its name says"
                    )
                yield block

    def _check_aligned(self, kind: FileKind) -> None:
        nodes = kind in NODE_FILES
        self._check_lines(("graph_indicator" if nodes else "A", kind), "node" if nodes else "edge")

    def _check_lines(self, kinds: tuple[FileKind, ...], what: str) -> None:
        present = [kind for kind in kinds if kind in self.indexes]
        if len({self.indexes[kind].n_lines for kind in present}) > 1:
            found = " and ".join(f"{self._describe(kind)} has {self.indexes[kind].n_lines} lines" for kind in present)
            raise SourceError(
                f"{found}; both must have one line for each {what}: the files do not belong together, or one is incomplete"
            )

    def _describe(self, kind: FileKind) -> str:
        return self.files.describe(file_name(self.data_set, kind))


def _choose_label_file(task: str, widths: dict[FileKind, int]) -> FileKind | None:
    """Pick the file that has the labels for `task`; `widths` are the columns of those there are."""
    order: tuple[FileKind, ...] = ("graph_attributes", "graph_labels")
    match task:
        case "none":
            candidates: list[FileKind] = []
        case "auto":
            candidates = [kind for kind in reversed(order) if kind in widths]
        case "classification":
            candidates = [kind for kind in ("graph_labels",) if widths.get(kind) == 1]
        case "regression":
            candidates = [kind for kind in order if widths.get(kind) == 1]
        case _:
            candidates = sorted((kind for kind in order if kind in widths), key=lambda kind: widths[kind] == 1)
    return candidates[0] if candidates else None
