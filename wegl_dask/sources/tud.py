"""Data sets of the TU collection: text files that number the nodes of all graphs from 1, in a folder or a zip.

The format is that of https://chrsmrrs.github.io/datasets/docs/format/. A data set is one piece. The files need not be
sorted by graph; reading is only faster when they are.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from wegl_dask.checksums import fingerprint
from wegl_dask.errors import SourceError
from wegl_dask.graphs import FloatArray, GraphBatch, IntArray, offsets_from_counts, single_precision
from wegl_dask.sorted_texts import SortedTexts
from wegl_dask.sources._download import download_zip
from wegl_dask.sources._files import FileSet
from wegl_dask.sources._labels import label_column
from wegl_dask.sources._text import LineSpan, NumberReader, Numbers, changed_since_scan
from wegl_dask.sources._tud_scan import (
    EDGE_FILES,
    NODE_FILES,
    NUMBERS,
    FileKind,
    file_name,
    scan_data_set,
)
from wegl_dask.sources.base import REJECTED_SCHEMA, Cut, SourcePlan, SourceShard, Unit
from wegl_dask.spec import TudTable

DOWNLOAD_URL = "https://www.chrsmrrs.com/graphkerneldatasets"
"""Where the published zips are: DOWNLOAD_URL/NAME.zip."""

_LINES_PER_STEP = 1 << 17
"""Lines of all node files, or of all edge files, that are taken in at a time."""

_BYTES_PER_NODE = 5
"""A line of the indicator has about as many."""


@dataclass(frozen=True)
class TudSource:
    """A data set of the TU collection.

    It is looked for in the folder ``root/NAME/``, in its subfolder ``raw/`` or not, then in the published zip
    ``root/NAME.zip``, and read without torch.

    Node and edge labels are numbered as ``torch_geometric.datasets.TUDataset`` does it: from the smallest that occurs,
    without leaving out those between that do not occur. Unlike there, self-loops and repeated edges are handed on, for
    the ingest to count them, labels and attributes stay apart, and a data set that has both graph labels and graph
    attributes is one of classes, unless `task` says otherwise.

    A row's ``graph_id`` is the graph's number in the indicator file, from 1, its ``source_row`` is that less 1, and its
    ``source_file`` is the name of the data set, so that a folder and a zip give the same rows. A graph with an edge
    that leads out of it is rejected; so are both graphs that an edge joins.

    Attributes
    ----------
    table : TudTable
    task : {"auto", "none", "classification", "regression", "multitask"}
        What to take for labels. One column of graph labels is classes and one column of graph attributes a target
        for "auto", several columns of either are tasks; "regression" takes attributes or, without them, labels as
        numbers.
    """

    table: TudTable
    task: str

    def estimated_nodes(self) -> int:
        """Guess the number of nodes from the size of the indicator file; downloads the data set if need be."""
        files = self._files(download=True)
        return max(1, files.sizes[file_name(self.table.name, "graph_indicator")] // _BYTES_PER_NODE)

    def pieces(self) -> Sequence[str]:
        """Name the data set, which is one piece; it is downloaded if need be."""
        self._files(download=True)
        return [self.table.name]

    def scan(self, piece: str, nodes_per_shard: int) -> dict[str, Any]:
        """Read all files once, in blocks; see `scan_data_set`."""
        files = self._files()
        return {**scan_data_set(piece, files, self.task, nodes_per_shard), "one_pass": files.is_zip}

    def plan(self, scans: Sequence[dict[str, Any]]) -> SourcePlan:
        """Give each cut a unit, or all together one if they are in a zip, whose files are read from their beginning."""
        (scan,) = scans
        cuts = [{"shard": shard, **cut} for shard, cut in enumerate(scan["cuts"])]
        groups = [cuts] if scan["one_pass"] else [[cut] for cut in cuts]
        units = [{"piece": self.table.name, "cuts": group} for group in groups]
        parts = {key: scan[key] for key in ("schema", "labels", "details")}
        return SourcePlan.from_json({**parts, "extra_columns": {}, "has_split": False, "units": units})

    def read(self, plan: SourcePlan, unit: Unit, *, known_ids: SortedTexts | None = None) -> Iterator[SourceShard]:
        """Read the lines of each cut, going through every file once where the files are sorted by graph."""
        del known_ids
        files = self._files()
        kinds: list[FileKind] = [*NODE_FILES, *EDGE_FILES, plan.details["label_file"]]
        with ExitStack() as stack:
            readers: dict[FileKind, NumberReader] = {}
            for kind in kinds:
                if kind in plan.details["columns"]:
                    name = file_name(self.table.name, kind)
                    stream = stack.enter_context(files.open(name))
                    columns = plan.details["columns"][kind]
                    readers[kind] = NumberReader(stream, files.describe(name), NUMBERS[kind], columns)
            for cut in unit.cuts:
                yield _CutReader(self.table.name, plan, cut, readers).read()

    def _files(self, *, download: bool = False) -> FileSet:
        root, name = self.table.root.rstrip("/"), self.table.name
        folder, archive = f"{root}/{name}", f"{root}/{name}.zip"
        address = f"{DOWNLOAD_URL}/{name}.zip"
        edges = file_name(name, "A")
        found = FileSet.in_folder(folder).around(edges) or FileSet.in_zip(archive).around(edges)
        if found is None:
            missing = f"the data set {name} is not there: {edges} was looked for in {folder} and in {archive}"
            if not (download and self.table.download):
                raise SourceError(f"{missing}; point source.root to where it is, or put {address} there")
            try:
                download_zip(address, archive)
            except SourceError as error:
                raise SourceError(f"{missing}; {error}; put the zip there by hand") from error
            return self._files()
        indicator = file_name(name, "graph_indicator")
        if indicator not in found.sizes:
            raise SourceError(
                f"{found.describe(indicator)} is missing; it names the graph of every node: fetch it again"
            )
        return found


@dataclass(frozen=True)
class _Nodes:
    """The nodes of a cut, graph after graph.

    Attributes
    ----------
    offsets : int64, (n_graphs + 1,)
    graph : int64, (n_nodes,)
        Index of each node's graph in the cut.
    labels : int32, (n_nodes, columns)
    attributes : float32, (n_nodes, columns)
    first_line : int
        Line of the node files that `place` begins with.
    place : int64, (lines,)
        Which node each line is, -1 where it is another cut's.
    """

    offsets: IntArray
    graph: IntArray
    labels: IntArray
    attributes: FloatArray
    first_line: int
    place: IntArray

    def find(self, lines: IntArray) -> IntArray:
        """Which node each line of the node files is, -1 for those of other cuts and those that there are not."""
        line = lines - self.first_line
        inside = (line >= 0) & (line < len(self.place))
        if inside.all():
            return self.place[line]
        return np.where(inside, self.place[np.where(inside, line, 0)], -1)


@dataclass(frozen=True)
class _Edges:
    """The edges of a cut, graph after graph, and the graphs that have an edge to elsewhere, with a description of it."""

    graph: IntArray
    source: IntArray
    target: IntArray
    labels: IntArray
    attributes: FloatArray
    faults: dict[int, str]


@dataclass(frozen=True)
class _CutReader:
    """Reads one cut: the lines of its spans, less those that are other cuts'."""

    data_set: str
    plan: SourcePlan
    cut: Cut
    readers: dict[FileKind, NumberReader]

    def read(self) -> SourceShard:
        first_graph, n_graphs = self.cut.where["first_graph"], self.cut.where["n_graphs"]
        nodes = self._nodes()
        edges = self._edges(nodes)
        numbers = np.arange(first_graph, first_graph + n_graphs)
        graphs = GraphBatch(
            schema=self.plan.schema,
            node_offsets=nodes.offsets,
            edge_offsets=offsets_from_counts(np.bincount(edges.graph, minlength=n_graphs)),
            edge_source=edges.source,
            edge_target=edges.target,
            node_categories=nodes.labels,
            node_attributes=nodes.attributes,
            edge_categories=edges.labels,
            edge_attributes=edges.attributes,
        )
        columns = {
            "graph_id": pa.array((numbers + 1).astype(str).tolist(), pa.string()),
            "source_file": pa.array([self.data_set] * n_graphs, pa.string()),
            "source_row": pa.array(numbers, pa.int64()),
            "label": self._labels(),
            "split": pa.nulls(n_graphs, pa.string()),
        }
        rows = pa.table(columns, schema=self.plan.row_schema())
        hashes = [self.readers[kind].fingerprint() for kind in self.cut.where["lines"]]
        if fingerprint(*hashes) != self.cut.where["hash"]:
            raise changed_since_scan(f"the data set {self.data_set}", "has other lines")
        left_out = np.array(sorted(edges.faults), dtype=np.int64)
        rejected = rows.take(left_out).select(REJECTED_SCHEMA.names[:3])
        rejected = rejected.append_column("reason", pa.array([edges.faults[graph] for graph in left_out], pa.string()))
        if len(left_out):
            kept = np.setdiff1d(np.arange(n_graphs), left_out)
            graphs, rows = graphs.take(kept), rows.take(kept)
        return SourceShard(self.cut.shard, graphs, rows, rejected)

    def _nodes(self) -> _Nodes:
        first_graph, n_graphs = self.cut.where["first_graph"], self.cut.where["n_graphs"]
        minima = np.array(self.plan.details["node_label_minima"], dtype=np.int64)
        span = self._go_to(NODE_FILES)
        lines, owners, labels, attributes = [], [], [], []
        for start, size in _steps(span):
            graph = self._read("graph_indicator", size)[:, 0] - 1 - first_graph
            mine = np.flatnonzero((graph >= 0) & (graph < n_graphs))
            lines.append(mine + (start - span.start))
            owners.append(graph[mine])
            labels.append((self._read("node_labels", size)[mine] - minima).astype(np.int32))
            attributes.append(single_precision(self._read("node_attributes", size)[mine]))
        graph, line = np.concatenate(owners), np.concatenate(lines)
        order = _order(graph)
        place = np.full(span.stop - span.start, -1)
        place[line[order]] = np.arange(len(line))
        return _Nodes(
            offsets=offsets_from_counts(np.bincount(graph, minlength=n_graphs)),
            graph=graph[order],
            labels=np.concatenate(labels)[order],
            attributes=np.concatenate(attributes)[order],
            first_line=span.start,
            place=place,
        )

    def _edges(self, nodes: _Nodes) -> _Edges:
        minima = np.array(self.plan.details["edge_label_minima"], dtype=np.int64)
        owners, sources, targets, labels, attributes = [], [], [], [], []
        faults: dict[int, str] = {}
        for start, size in _steps(self._go_to(EDGE_FILES)):
            ends = self._read("A", size)
            source, target = nodes.find(ends[:, 0] - 1), nodes.find(ends[:, 1] - 1)
            # Of an end that is elsewhere the graph does not matter.
            graph = np.append(nodes.graph, -1)[source]
            whole = (source >= 0) & (target >= 0) & (graph == np.append(nodes.graph, -1)[target])
            for here, there in ((source, ends[:, 1]), (target, ends[:, 0])):
                for line in np.flatnonzero(~whole & (here >= 0)).tolist():
                    faults.setdefault(
                        int(nodes.graph[here[line]]),
                        f"line {start + line + 1} of {file_name(self.data_set, 'A')} joins node {ends[line, 0]} to "
                        f"node {ends[line, 1]}; node {there[line]} is not in this graph",
                    )
            first_node = nodes.offsets[graph[whole]]
            owners.append(graph[whole].astype(np.int32))
            sources.append((source[whole] - first_node).astype(np.int32))
            targets.append((target[whole] - first_node).astype(np.int32))
            labels.append((self._read("edge_labels", size)[whole] - minima).astype(np.int32))
            attributes.append(single_precision(self._read("edge_attributes", size)[whole]))
        graph = np.concatenate(owners)
        order = _order(graph)
        return _Edges(
            graph=graph[order],
            source=np.concatenate(sources)[order],
            target=np.concatenate(targets)[order],
            labels=np.concatenate(labels)[order],
            attributes=np.concatenate(attributes)[order],
            faults=faults,
        )

    def _labels(self) -> pa.Array:
        label_file = self.plan.details["label_file"]
        n_graphs = self.cut.where["n_graphs"]
        if label_file is None:
            return label_column(self.plan.labels, np.empty((n_graphs, 0)), "")
        span = self._go_to((label_file,))
        values = self._read(label_file, span.stop - span.start)
        return label_column(self.plan.labels, values, file_name(self.data_set, label_file))

    def _go_to(self, kinds: Sequence[FileKind]) -> LineSpan:
        """Go to the cut's lines in files that correspond line by line, and return the lines."""
        spans = [LineSpan(*self.cut.where["lines"][kind]) for kind in kinds if kind in self.readers]
        for kind, span in zip((kind for kind in kinds if kind in self.readers), spans, strict=True):
            self.readers[kind].go_to(span)
        return spans[0]

    def _read(self, kind: FileKind, n_lines: int) -> Numbers:
        """Read the next lines of a file; of a file that is not there they have no columns."""
        reader = self.readers.get(kind)
        return np.empty((n_lines, 0)) if reader is None else reader.read(n_lines)


def _steps(span: LineSpan) -> Iterator[tuple[int, int]]:
    """Cut a span into pieces that are read at a time: first line and number of lines; at least one piece."""
    for start in range(span.start, max(span.stop, span.start + 1), _LINES_PER_STEP):
        yield start, min(_LINES_PER_STEP, span.stop - start)


def _order(graph: IntArray) -> IntArray | slice:
    """Sort by graph, and otherwise as it was; nothing is moved if it is sorted."""
    if np.all(graph[1:] >= graph[:-1]):
        return slice(None)
    return np.argsort(graph, kind="stable")
