"""Graphs of torch_geometric as input: files that torch.save wrote."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any, TypeAlias

import numpy as np

from wegl_dask.convert import EDGE_FIELDS, NODE_FIELDS, each_graph, import_pyg, is_pyg_batch, pyg_graph
from wegl_dask.errors import SourceError
from wegl_dask.graphs import GraphSchema
from wegl_dask.plain_graphs import (
    PlainGraph,
    UnusableGraphError,
    Widths,
    covering_counts,
    largest_counts,
    schema_widths,
)
from wegl_dask.sorted_texts import SortedTexts
from wegl_dask.sources._collected import CollectedGraph, collected_shard
from wegl_dask.sources._cuts import cut_by_nodes, shard_loads
from wegl_dask.sources._hashes import cut_fingerprint, hash_file
from wegl_dask.sources._label_kinds import Labels, decide_labels, encode_labels, read_labels, tally_labels
from wegl_dask.sources._text import changed_since_scan
from wegl_dask.sources.base import Cut, SourcePlan, SourceShard, Unit
from wegl_dask.sources.paths import expand, size_of
from wegl_dask.sources.streams import open_stream
from wegl_dask.spec import PygTable

_BYTES_PER_NODE = 100
"""A node with a few features and two edges, about."""

# The last two are not read, but tell several graphs that were joined from one.
_FIELDS = {*NODE_FIELDS, *EDGE_FIELDS, "edge_index", "edge_weight", "y", "batch", "ptr"}

_Fields: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class PygSource:
    """Read files with a list of `Data`, a single `Data`, a `Batch`, or the processed form of an `InMemoryDataset`.

    A `Batch`, alone or in a list, is the graphs that it was made of, which count as rows like those of a list.
    A file is one piece, and loaded whole. Which fields are read says `wegl_dask.convert.pyg_graph`; the label is ``y``.
    The features of the collection are those that most graphs with edges have. A vocabulary reaches up to the largest
    category in any of the files.

    Attributes
    ----------
    table : PygTable
    task : str
        The job's ``task``; "auto" takes one whole number for a class, one real number for a target, several numbers
        for tasks.
    """

    table: PygTable
    task: str

    def estimated_nodes(self) -> int:
        """Guess from the sizes of the files."""
        return sum(map(size_of, self.pieces())) // _BYTES_PER_NODE

    def pieces(self) -> Sequence[str]:
        """List the files.

        Raises
        ------
        SourceError
            If the job file does not say that they may be loaded.
        """
        self._check_trust()
        return expand(self.table.path, (".pt", ".pth"))

    def scan(self, piece: str, nodes_per_shard: int) -> dict[str, Any]:
        """Load a file, find out what its graphs have, and cut it.

        Raises
        ------
        SourceError
            If the file cannot be loaded or holds something else.
        """
        self._check_trust()
        found: list[PlainGraph] = []
        labels: list[Labels] = []
        sizes = []
        for fields in _load(piece):
            sizes.append((0, 0))
            try:
                graph, graph_labels = self._read_graph(fields)
            except UnusableGraphError:
                continue
            found.append(graph)
            labels.append(graph_labels)
            sizes[-1] = (graph.n_nodes, graph.n_edges)
        node_counts, edge_counts = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
        loads = shard_loads(node_counts, edge_counts, nodes_per_shard)
        return {
            "file": piece,
            "hash": hash_file(piece),
            "boundaries": cut_by_nodes(loads, nodes_per_shard).tolist(),
            "features": _tally_features(found),
            "labels": tally_labels(labels),
        }

    def plan(self, scans: Sequence[dict[str, Any]]) -> SourcePlan:
        """Decide on features and labels, and put the cuts of all files in a row.

        Raises
        ------
        SourceError
            If the labels are not what `task` says.
        """
        schema = _decide_schema([tally for scan in scans for tally in scan["features"]])
        labels, classes = decide_labels([scan["labels"] for scan in scans], self.task, f"labels y of {self.table.path}")
        plan = SourcePlan(schema, labels, {}, (), details={"classes": list(classes)})
        shards = count()
        units = tuple(
            Unit(
                scan["file"],
                tuple(
                    Cut(
                        next(shards),
                        stop - start,
                        {"start": start, "stop": stop},
                        cut_fingerprint(scan["hash"], start, stop),
                    )
                    for start, stop in pairwise(scan["boundaries"])
                ),
            )
            for scan in scans
            if len(scan["boundaries"]) > 1
        )
        return replace(plan, units=units)

    def read(self, plan: SourcePlan, unit: Unit, *, known_ids: SortedTexts | None = None) -> Iterator[SourceShard]:
        """Load a file and read its cuts.

        Raises
        ------
        SourceError
            If the file cannot be loaded, or is not what it was when it was scanned.
        """
        del known_ids
        self._check_trust()
        graphs = _load(unit.piece)
        if unit.cuts[-1].where["stop"] > len(graphs):
            raise changed_since_scan(unit.piece, f"has {len(graphs)} graphs")
        # After it was loaded: what was loaded is no newer.
        hashed = hash_file(unit.piece)
        if any(cut_fingerprint(hashed, **cut.where) != cut.fingerprint for cut in unit.cuts):
            raise changed_since_scan(unit.piece, "holds other graphs")
        for cut in unit.cuts:
            rows = range(cut.where["start"], cut.where["stop"])
            yield collected_shard(plan, cut.shard, (self._collect(plan, unit.piece, row, graphs[row]) for row in rows))

    def _collect(self, plan: SourcePlan, file: str, row: int, item: Any) -> CollectedGraph:
        try:
            graph, labels = self._read_graph(item)
            graph = graph.with_widths(schema_widths(plan.schema))
            label = encode_labels(labels, plan.labels, plan.details["classes"])
        except UnusableGraphError as error:
            return CollectedGraph(str(row), file, row, str(error))
        return CollectedGraph(str(row), file, row, graph, label)

    def _check_trust(self) -> None:
        if not self.table.trust:
            raise SourceError(
                f"loading {self.table.path} runs code that the file contains; set source.trust = true in the job file if "
                "you trust where it is from"
            )

    def _read_graph(self, item: Any) -> tuple[PlainGraph, Labels]:
        if not hasattr(item, "to_dict") and not isinstance(item, Mapping):
            raise UnusableGraphError(f"the entry is a {type(item).__name__}, not a torch_geometric Data")
        try:
            fields = item if isinstance(item, Mapping) else item.to_dict()
        except RuntimeError as error:
            # What older versions of torch_geometric have saved is loaded, but not read, by this one.
            raise UnusableGraphError(f"torch_geometric cannot read the entry: {error}") from error
        graph = pyg_graph(fields)
        if self.task == "none":
            return graph, []
        y: Any = fields.get("y")
        return graph, read_labels("y", y.reshape(-1).tolist() if hasattr(y, "reshape") else y)


def _load(file: str) -> Sequence[Any]:
    """Load the graphs of a file, each as `Data` or as the dictionary of its fields."""
    torch, _ = import_pyg()
    try:
        with open_stream(file) as stream:
            content = torch.load(stream, map_location="cpu", weights_only=False)
    # What is no pickle, or one of classes that are not there, fails in any of these ways.
    except (
        *(OSError, RuntimeError, EOFError, pickle.PickleError),
        *(ValueError, TypeError, AttributeError, LookupError, ImportError),
    ) as error:
        what = " ".join(str(error).split())
        raise SourceError(f"{file} cannot be loaded with torch.load: {type(error).__name__}: {what}") from error
    except MemoryError as error:
        # A single damaged byte can ask for any amount.
        raise SourceError(
            f"{file} cannot be loaded with torch.load: it is damaged, or asks for more memory than a worker has"
        ) from error
    if isinstance(content, tuple) and len(content) > 1 and isinstance(content[1], Mapping | None):
        joined, slices = content[:2]
        if isinstance(joined, Mapping) or hasattr(joined, "to_dict"):
            return _separate(file, joined if isinstance(joined, Mapping) else joined.to_dict(), slices)
    if isinstance(content, list) or is_pyg_batch(content):
        try:
            return list(each_graph(content))
        except UnusableGraphError as error:
            raise SourceError(f"{file}: {error}") from error
    if hasattr(content, "to_dict"):
        return [content]
    raise SourceError(
        f"{file} holds a {type(content).__name__}; needed is a list of torch_geometric Data or Batches, one Data, a Batch, or the "
        "processed file of an InMemoryDataset"
    )


def _separate(file: str, collated: _Fields, slices: Mapping[str, Any] | None) -> Sequence[_Fields]:
    """Cut the joined graphs of an `InMemoryDataset` apart."""
    if slices is None:
        return [collated]
    boundaries = {name: list(map(int, slices[name])) for name in slices if name in _FIELDS and name in collated}
    lengths = {len(ends) for ends in boundaries.values()}
    if "edge_index" not in boundaries or len(lengths) != 1:
        raise SourceError(
            f"{file} holds joined graphs whose slices do not fit: {sorted(slices)}; save the data set again"
        )
    graphs: list[dict[str, Any]] = [{} for _ in range(lengths.pop() - 1)]
    for name, ends in boundaries.items():
        values = collated[name]
        size = _length(values, axis=1 if name == "edge_index" else 0)
        # Python cuts by any numbers, and a graph would get the nodes of another.
        if any(start > stop for start, stop in pairwise([0, *ends, size])):
            raise SourceError(
                f"{file} holds joined graphs whose slices do not fit: those of {name} go from {min(ends)} to {max(ends)}, not "
                f"in ascending order within its {size} entries; save the data set again"
            )
        for graph, (start, stop) in zip(graphs, pairwise(ends), strict=True):
            graph[name] = values[:, start:stop] if name == "edge_index" else values[start:stop]
    # The number of nodes is not sliced but listed.
    for graph, n_nodes in zip(graphs, collated.get("_num_nodes", []), strict=False):
        graph["num_nodes"] = n_nodes
    return graphs


def _length(values: Any, axis: int) -> int:
    """Entries along an axis of a tensor, or of a list; none where there is no such axis."""
    shape = values.shape if hasattr(values, "shape") else (len(values),) if hasattr(values, "__len__") else ()
    return int(shape[axis]) if axis < len(shape) else 0


def _tally_features(graphs: Sequence[PlainGraph]) -> list[dict[str, Any]]:
    """Sum up which features the graphs have, as JSON values for `_decide_schema`."""
    alike: dict[Widths, list[PlainGraph]] = {}
    for graph in graphs:
        alike.setdefault(graph.widths, []).append(graph)
    return [
        {
            "widths": widths,
            "graphs": len(group),
            "graphs_with_edges": sum(graph.n_edges > 0 for graph in group),
            "node_category_counts": covering_counts([graph.node_categories for graph in group], widths[0]),
            "edge_category_counts": covering_counts([graph.edge_categories for graph in group], widths[2]),
        }
        for widths, group in alike.items()
    ]


def _decide_schema(tallies: Sequence[Mapping[str, Any]]) -> GraphSchema:
    """Choose the features that most graphs with edges have; edges can only be asked where there are some."""
    votes: dict[Widths, tuple[int, int]] = {}
    for tally in tallies:
        widths = tuple(tally["widths"])
        with_edges, graphs = votes.get(widths, (0, 0))
        votes[widths] = (with_edges + tally["graphs_with_edges"], graphs + tally["graphs"])
    if not votes:
        return GraphSchema()
    chosen = max(votes, key=lambda widths: votes[widths])
    return GraphSchema(
        largest_counts([t["node_category_counts"] for t in tallies if tuple(t["widths"][:2]) == chosen[:2]]),
        largest_counts([t["edge_category_counts"] for t in tallies if tuple(t["widths"][2:]) == chosen[2:]]),
        chosen[1],
        chosen[3],
    )
