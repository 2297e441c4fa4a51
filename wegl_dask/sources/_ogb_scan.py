"""The pass over an Open Graph Benchmark set that checks its files against one another and finds each cut's lines."""

import csv
import gzip
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from wegl_dask.checksums import fingerprint
from wegl_dask.errors import SourceError
from wegl_dask.graphs import GraphSchema, IntArray, offsets_from_counts
from wegl_dask.molecules import ATOM_CATEGORY_COUNTS, BOND_CATEGORY_COUNTS
from wegl_dask.sources._cuts import cut_by_nodes, shard_loads
from wegl_dask.sources._files import FileSet
from wegl_dask.sources._text import BadLineError, BlockIndex, NumberType, reading, scan_numbers
from wegl_dask.sources.base import LabelSchema

FileKind = Literal["num-node-list", "num-edge-list", "edge", "node-feat", "edge-feat", "graph-label"]

GRAPH_FILES: tuple[FileKind, ...] = ("num-node-list", "num-edge-list", "graph-label")
"""The files of raw/ with one line a graph."""
NODE_FILES: tuple[FileKind, ...] = ("node-feat",)
EDGE_FILES: tuple[FileKind, ...] = ("edge", "edge-feat")

SPLIT_PARTS = ("train", "valid", "test")
_NO_PART = -1

_LONGEST_HEADER = 1 << 20
"""Bytes of the line that names the tasks, at most."""


def file_name(kind: FileKind) -> str:
    """Name of a file in the folder of a data set."""
    return f"raw/{kind}.csv.gz"


def is_molecular(data_set: str) -> bool:
    """Tell whether the features of a data set are those of `wegl_dask.molecules`, by its name."""
    return data_set.startswith("ogbg-mol")


def number_type(data_set: str, kind: FileKind) -> NumberType:
    """Tell what a file holds."""
    is_feature = kind in ("node-feat", "edge-feat")
    return "float64" if kind == "graph-label" or (is_feature and not is_molecular(data_set)) else "int64"


@contextmanager
def open_lines(files: FileSet, name: str) -> Iterator[BinaryIO]:
    """Open a compressed file for reading its text as bytes."""
    with files.open(name) as compressed, gzip.GzipFile(fileobj=compressed) as stream:
        yield stream  # type: ignore[misc]  # a GzipFile is a binary stream without the file's number


def count_nodes(files: FileSet) -> int:
    """Add up the sizes of the graphs."""
    name = file_name("num-node-list")
    with open_lines(files, name) as stream:
        return sum(int(values.sum()) for _, values in scan_numbers(stream, files.describe(name), "int64", BlockIndex()))


def read_split(files: FileSet, split: str | None, n_graphs: int) -> npt.NDArray[np.int8]:
    """Read which part of a split every graph is in: index of `SPLIT_PARTS`, or -1, as all are of no split, (n_graphs,)."""
    part_of_graph = np.full(n_graphs, _NO_PART, dtype=np.int8)
    if split is None:
        return part_of_graph
    for part, part_name in enumerate(SPLIT_PARTS):
        name = f"split/{split}/{part_name}.csv.gz"
        if name not in files.sizes:
            raise SourceError(
                f"{files.describe(name)} is missing; a split has the files train, valid and test.csv.gz: restore it, or "
                "name another split with source.split"
            )
        with open_lines(files, name) as stream:
            for first_line, values in scan_numbers(stream, files.describe(name), "int64", BlockIndex()):
                graphs = values[:, 0]
                outside = (graphs < 0) | (graphs >= n_graphs)
                other = part_of_graph[np.where(outside, 0, graphs)]
                bad = np.flatnonzero(outside | ((other != _NO_PART) & (other != part)))
                if len(bad):
                    line = int(bad[0])
                    problem = f"there are graphs 0 to {n_graphs - 1}"
                    if not outside[line]:
                        problem = f"{SPLIT_PARTS[other[line]]}.csv.gz names it too, and a graph is in one part at most"
                    raise SourceError(
                        f"line {first_line + line + 1} of {files.describe(name)} names graph {graphs[line]}; "
                        f"{problem}: restore the file, or name another split with source.split"
                    )
                part_of_graph[graphs] = part
    return part_of_graph


def scan_data_set(data_set: str, files: FileSet, task: str, split: str | None, nodes_per_shard: int) -> dict[str, Any]:
    """Scan a data set.

    Parameters
    ----------
    data_set : str
        Its name.
    files : FileSet
        The folder that holds raw/, split/ and mapping/.
    task : {"auto", "none", "classification", "regression", "multitask"}
    split : str, optional
        Folder of split/; the only one that there is by default.
    nodes_per_shard : int

    Returns
    -------
    dict
        JSON values: ``schema``, ``labels``, ``has_split``, ``details`` and ``cuts`` of the plan. A cut has ``n_rows``,
        ``where`` and ``fingerprint``; ``where`` is its graphs and, a file, the `LineSpan` of its lines.

    Raises
    ------
    SourceError
        If a file cannot be read, or files contradict one another.
    """
    scan = _Scan(data_set, files)
    node_counts, edge_counts = scan.counts("num-node-list"), scan.counts("num-edge-list")
    n_graphs = len(node_counts)
    scan.check_lines("num-edge-list", n_graphs, "graph")
    labels = scan.labels(task)
    scan.check_lines("graph-label", n_graphs, "graph")
    schema = scan.features()
    scan.check_lines("node-feat", int(node_counts.sum()), "node")
    for kind in EDGE_FILES:
        scan.check_lines(kind, int(edge_counts.sum()), "edge")
    split = _choose_split(files, split)
    part_of_graph = read_split(files, split, n_graphs)
    details = {
        "n_graphs": n_graphs,
        "split": split,
        "columns": {kind: index.n_columns for kind, index in scan.indexes.items()},
    }
    whole = json.dumps([asdict(schema), asdict(labels), details], sort_keys=True)
    nodes, edges = offsets_from_counts(node_counts).tolist(), offsets_from_counts(edge_counts).tolist()
    # An undirected edge is listed once.
    loads = shard_loads(node_counts, 2 * edge_counts, nodes_per_shard)
    boundaries = cut_by_nodes(loads, nodes_per_shard).tolist()
    cuts = []
    for first, stop in itertools.pairwise(boundaries):
        ranges = dict.fromkeys(GRAPH_FILES, (first, stop))
        ranges |= dict.fromkeys(NODE_FILES, (nodes[first], nodes[stop]))
        ranges |= dict.fromkeys(EDGE_FILES, (edges[first], edges[stop]))
        lines = {kind: scan.indexes[kind].span(*span) for kind, span in ranges.items() if kind in scan.indexes}
        hashes = [scan.indexes[kind].fingerprint(span) for kind, span in lines.items()]
        hashed = fingerprint(part_of_graph[first:stop].tobytes(), *hashes)
        where = {"first_graph": first, "n_graphs": stop - first, "lines": lines, "hash": hashed}
        cuts.append({"n_rows": stop - first, "where": where, "fingerprint": fingerprint(whole, json.dumps(where))})
    return {
        "schema": asdict(schema),
        "labels": asdict(labels),
        "has_split": split is not None,
        "details": details,
        "cuts": cuts,
    }


@dataclass
class _Scan:
    """The files seen so far."""

    data_set: str
    files: FileSet
    indexes: dict[FileKind, BlockIndex] = field(default_factory=dict)

    def counts(self, kind: Literal["num-node-list", "num-edge-list"]) -> IntArray:
        """Read the sizes of the graphs."""
        counts = [np.empty(0, dtype=np.int64)]
        for first_line, values in self._blocks(kind, n_columns=1):
            if values.min() < 0:
                line = int(np.argmin(values))
                raise SourceError(
                    f"line {first_line + line + 1} of {self._describe(kind)} is {values[line, 0]}; a number of nodes or "
                    "edges is 0 or more: restore the file"
                )
            counts.append(values[:, 0])
        return np.concatenate(counts)

    def labels(self, task: str) -> LabelSchema:
        """Read the labels, and decide what they are."""
        if task == "none" or file_name("graph-label") not in self.files.sizes:
            if task in ("auto", "none"):
                return LabelSchema()
            raise SourceError(
                f'task = "{task}" needs labels, and {self._describe("graph-label")} is missing: set task = "none", or '
                "restore the file"
            )
        classes, whole_numbers = self._classes()
        width = self.indexes["graph-label"].n_columns
        if task == "multitask" or (task == "auto" and width > 1):
            return LabelSchema("tasks", task_names=self._task_names(width))
        if width > 1:
            raise SourceError(
                f'task = "{task}" needs one label a graph; {self._describe("graph-label")} has {width}: set task = '
                '"multitask"'
            )
        if task == "regression" or (task == "auto" and not whole_numbers):
            return LabelSchema("target")
        if not whole_numbers:
            raise SourceError(
                f'task = "classification" needs whole numbers; {self._describe("graph-label")} has others: set task = '
                '"regression"'
            )
        if task == "auto" and not len(classes):
            return LabelSchema()
        return LabelSchema("class", class_names=tuple(str(int(value)) for value in classes))

    def _classes(self) -> tuple[npt.NDArray[np.float64], bool]:
        """Read the labels: the different ones, where each graph has one, and whether all of them are whole numbers."""
        classes, whole_numbers = np.empty(0), True
        try:
            for _, values in self._blocks("graph-label"):
                if values.shape[1] == 1 and whole_numbers:
                    known = values[~np.isnan(values)]
                    whole_numbers = bool(np.all(np.isfinite(known)) and np.all(known == np.rint(known)))
                    classes = np.union1d(classes, known)
        except BadLineError as error:
            raise SourceError(f'{error}; labels that are no numbers can be left out with task = "none"') from error
        return classes, whole_numbers

    def features(self) -> GraphSchema:
        """Read edges and features to see that they are numbers, and how many."""
        molecular = is_molecular(self.data_set)
        expected: dict[FileKind, int | None] = {
            "edge": 2,
            "node-feat": len(ATOM_CATEGORY_COUNTS) if molecular else None,
            "edge-feat": len(BOND_CATEGORY_COUNTS) if molecular else None,
        }
        for kind, n_columns in expected.items():
            for _ in self._blocks(kind, n_columns):
                pass
        if molecular:
            return GraphSchema(
                node_category_counts=ATOM_CATEGORY_COUNTS if "node-feat" in self.indexes else (),
                edge_category_counts=BOND_CATEGORY_COUNTS if "edge-feat" in self.indexes else (),
            )
        node, edge = self.indexes.get("node-feat", BlockIndex()), self.indexes.get("edge-feat", BlockIndex())
        return GraphSchema(node_attribute_width=node.n_columns, edge_attribute_width=edge.n_columns)

    def check_lines(self, kind: FileKind, n_lines: int, what: str) -> None:
        """Check that a file has a line for everything that it describes."""
        if kind in self.indexes and self.indexes[kind].n_lines != n_lines:
            raise SourceError(
                f"{self._describe(kind)} has {self.indexes[kind].n_lines} lines and must have {n_lines}, one for each {what}: "
                "the files do not belong together, or one is incomplete"
            )

    def _task_names(self, n_tasks: int) -> tuple[str, ...]:
        """Take the names from the table of the molecules where there is one, else number the tasks."""
        table = "mapping/mol.csv.gz"
        if is_molecular(self.data_set) and table in self.files.sizes:
            where = self.files.describe(table)
            with open_lines(self.files, table) as stream, reading(where):
                header = stream.readline(_LONGEST_HEADER).decode(errors="replace")
            try:
                columns = next(csv.reader([header]))
            except csv.Error as error:
                raise SourceError(
                    f"{where}: its first line has no names of columns: {error}; fetch it again"
                ) from error
            names = tuple(name for name in columns if name not in ("smiles", "mol_id"))
            if len(names) == n_tasks:
                repeated = LabelSchema("tasks", task_names=names).repeated_name()
                if repeated is not None:
                    raise SourceError(f"{where}: two columns have the name {repeated[1]!r}: rename one of them")
                return names
        return tuple(f"task_{task}" for task in range(n_tasks))

    def _blocks(self, kind: FileKind, n_columns: int | None = None) -> Iterator[tuple[int, Any]]:
        """Read a file, if there is one, and index it."""
        name = file_name(kind)
        if name not in self.files.sizes:
            return
        index = self.indexes[kind] = BlockIndex(n_columns=n_columns or 0)
        number = number_type(self.data_set, kind)
        with open_lines(self.files, name) as stream:
            blank = kind == "graph-label"
            for block in scan_numbers(stream, self._describe(kind), number, index, blank_is_missing=blank):
                if n_columns not in (None, index.n_columns):
                    raise SourceError(
                        f"{self._describe(kind)} has {index.n_columns} columns; in {self.data_set} it must have "
                        f"{n_columns}: check that the file is what its name says"
                    )
                yield block

    def _describe(self, kind: FileKind) -> str:
        return self.files.describe(file_name(kind))


def _choose_split(files: FileSet, wanted: str | None) -> str | None:
    """Name the split to read, or None where there is none."""
    splits = sorted({name.split("/")[1] for name in files.sizes if name.startswith("split/") and name.count("/") > 1})
    if wanted is not None and wanted not in splits:
        found = f"are {', '.join(splits)}" if splits else "is none"
        raise SourceError(f'source.split = "{wanted}" is not in {files.describe("split")}; there {found}')
    if wanted is None and len(splits) > 1:
        raise SourceError(f"{files.describe('split')} has {', '.join(splits)}; choose one with source.split")
    return wanted or (splits[0] if splits else None)
