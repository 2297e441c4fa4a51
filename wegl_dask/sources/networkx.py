"""Graph files that networkx reads as input, one graph a file."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from wegl_dask.checksums import fingerprint
from wegl_dask.errors import SourceError
from wegl_dask.labelled_graphs import AttributeNames, LabelledGraph, Vocabularies, labelled_graph
from wegl_dask.plain_graphs import UnusableGraphError
from wegl_dask.sorted_texts import SortedTexts
from wegl_dask.sources._collected import CollectedGraph, collected_shard
from wegl_dask.sources._cuts import cut_by_nodes, shard_loads
from wegl_dask.sources._label_kinds import Labels, decide_labels, encode_labels, read_labels, tally_labels
from wegl_dask.sources._networkx_files import NETWORKX_ENDINGS, import_networkx, parse_graph
from wegl_dask.sources._text import changed_since_scan
from wegl_dask.sources.base import Cut, SourcePlan, SourceShard, Unit
from wegl_dask.sources.paths import COMPRESSIONS, compression_of, expand
from wegl_dask.sources.streams import open_stream
from wegl_dask.spec import NetworkxTable

_FILES_PER_PIECE = 1000
_SAMPLED_FILES = 16


@dataclass(frozen=True)
class NetworkxSource:
    """Read GraphML, GML and node-link JSON files.

    A piece is a block of files. The id of a graph is the name of its file without the ending. The vocabulary of a
    categorical attribute is the values that occur in any file, numbers in ascending order before texts in
    alphabetical. A file that cannot be parsed is a rejected row.

    Attributes
    ----------
    table : NetworkxTable
    task : str
        The job's ``task``; "auto" takes texts and whole numbers for classes, real numbers for targets, lists of
        numbers for tasks.
    """

    table: NetworkxTable
    task: str

    def estimated_nodes(self) -> int:
        """Extrapolate from the first file, the last and some between."""
        files = self._files()
        sample = np.unique(np.linspace(0, len(files) - 1, _SAMPLED_FILES).astype(int)).tolist()
        nodes = 0
        for i in sample:
            try:
                nodes += len(parse_graph(files[i], _read(files[i])))
            except UnusableGraphError:
                continue
        return nodes * len(files) // len(sample)

    def pieces(self) -> Sequence[str]:
        """List the files, in blocks."""
        import_networkx()
        files = self._files()
        return [
            json.dumps(_block(files[i : i + _FILES_PER_PIECE]), ensure_ascii=False)
            for i in range(0, len(files), _FILES_PER_PIECE)
        ]

    def scan(self, piece: str, nodes_per_shard: int) -> dict[str, Any]:
        """Read a block of files, collect the values that occur, and cut it."""
        files = _files_of(json.loads(piece))
        hashes: list[str] = []
        sizes: list[tuple[int, int]] = []
        labels: list[Labels] = []
        splits: list[str | None] = []

        def graphs() -> Iterator[LabelledGraph]:
            for file in files:
                content = _read(file)
                hashes.append(fingerprint(content))
                sizes.append((0, 0))
                try:
                    graph = self._read_graph(file, content)
                except UnusableGraphError:
                    continue
                sizes[-1] = (graph.labelled.n_nodes, graph.labelled.edge_index.shape[1])
                labels.append(graph.labels)
                splits.append(graph.split)
                yield graph.labelled

        vocabularies = Vocabularies.of_graphs(graphs(), self._names)
        node_counts, edge_counts = np.array(sizes, dtype=np.int64).reshape(-1, 2).T
        loads = shard_loads(node_counts, edge_counts, nodes_per_shard)
        boundaries = cut_by_nodes(loads, nodes_per_shard).tolist()
        return {
            "cuts": [
                {
                    "n_rows": stop - start,
                    "where": _block(files[start:stop]),
                    "hash": fingerprint(*hashes[start:stop]),
                }
                for start, stop in pairwise(boundaries)
            ],
            "vocabularies": vocabularies.to_json(),
            "labels": tally_labels(labels),
            "n_graphs": len(labels),
            "n_splits": len(splits) - splits.count(None),
        }

    def plan(self, scans: Sequence[dict[str, Any]]) -> SourcePlan:
        """Put the vocabularies together and the cuts in a row.

        Raises
        ------
        SourceError
            If no graph has the label or the split that is named, or the labels are not what `task` says.
        """
        vocabularies = Vocabularies.merged([Vocabularies.from_json(scan["vocabularies"]) for scan in scans])
        where = (
            f"the graph attribute {self.table.label!r}" if self.table.label else "labels, as source.label is not set"
        )
        labels, classes = decide_labels([scan["labels"] for scan in scans], self.task, where)
        n_graphs = sum(scan["n_graphs"] for scan in scans)
        n_labels = sum(tally["count"] for scan in scans for tally in scan["labels"].values())
        n_splits = sum(scan["n_splits"] for scan in scans)
        for key, name, found in (("label", self.table.label, n_labels), ("split", self.table.split, n_splits)):
            if name is not None and n_graphs and not found and (key == "split" or self.task != "none"):
                raise SourceError(
                    f"source.{key} = {name!r}: none of the {n_graphs} graphs has a graph attribute of that name; correct it "
                    "or take it out"
                )
        plan = SourcePlan(
            vocabularies.schema(self._names),
            labels,
            {},
            (),
            has_split=n_splits > 0,
            details={
                "vocabularies": vocabularies.to_json(),
                "attribute_names": {name: list(values) for name, values in asdict(self._names).items()},
                "classes": list(classes),
            },
        )
        units = tuple(
            Unit(
                cut["where"]["folder"],
                (Cut(shard, cut["n_rows"], cut["where"], _cut_fingerprint(cut["hash"], cut["where"])),),
            )
            for shard, cut in enumerate(cut for scan in scans for cut in scan["cuts"])
        )
        return replace(plan, units=units)

    def read(self, plan: SourcePlan, unit: Unit, *, known_ids: SortedTexts | None = None) -> Iterator[SourceShard]:
        """Read the files of each cut."""
        del known_ids
        vocabularies = Vocabularies.from_json(plan.details["vocabularies"])
        for cut in unit.cuts:
            hashes: list[str] = []
            rows = (self._collect(plan, vocabularies, file, hashes) for file in _files_of(cut.where))
            shard = collected_shard(plan, cut.shard, rows)
            if _cut_fingerprint(fingerprint(*hashes), cut.where) != cut.fingerprint:
                raise changed_since_scan(f"a file in {cut.where['folder']}", "holds another graph")
            yield shard

    @property
    def _names(self) -> AttributeNames:
        table = self.table
        return AttributeNames(
            tuple(table.node_labels),
            tuple(table.node_attributes),
            tuple(table.edge_labels),
            tuple(table.edge_attributes),
        )

    def _files(self) -> list[str]:
        endings = (ending + compression for compression in ("", *COMPRESSIONS) for ending in NETWORKX_ENDINGS)
        return expand(self.table.path, tuple(endings))

    def _read_graph(self, file: str, content: bytes) -> "_ReadGraph":
        graph = parse_graph(file, content)
        labels, split = [], None
        if self.table.label is not None and self.task != "none":
            labels = read_labels(f"the graph attribute {self.table.label!r}", graph.graph.get(self.table.label))
        if self.table.split is not None and self.table.split in graph.graph:
            split = str(graph.graph[self.table.split])
        return _ReadGraph(labelled_graph(graph, self._names), labels, split)

    def _collect(self, plan: SourcePlan, vocabularies: Vocabularies, file: str, hashes: list[str]) -> CollectedGraph:
        """Read a file, and put its hash to those of the others."""
        content = _read(file)
        hashes.append(fingerprint(content))
        graph_id = PurePosixPath(file.removesuffix(compression_of(file))).stem
        try:
            found = self._read_graph(file, content)
            graph = vocabularies.number(found.labelled, self._names)
            label = encode_labels(found.labels, plan.labels, plan.details["classes"])
        except UnusableGraphError as error:
            return CollectedGraph(graph_id, file, 0, str(error))
        return CollectedGraph(graph_id, file, 0, graph, label, found.split)


@dataclass(frozen=True)
class _ReadGraph:
    labelled: LabelledGraph
    labels: Labels
    split: str | None


def _cut_fingerprint(hashed: str, where: Mapping[str, Any]) -> str:
    """Hash what the files of a cut hold, and which they are."""
    return fingerprint(hashed, json.dumps(where))


def _read(file: str) -> bytes:
    with open_stream(file) as stream:
        return stream.read()


def _block(files: Sequence[str]) -> dict[str, Any]:
    """Write a list of files in short: what their names begin with, up to a slash, is written once."""
    common = os.path.commonprefix(files)  # noqa: RUF071  whole folders of URLs, too
    prefix = common[: common.rfind("/") + 1]
    return {"folder": prefix, "names": [file.removeprefix(prefix) for file in files]}


def _files_of(block: Mapping[str, Any]) -> list[str]:
    return [block["folder"] + name for name in block["names"]]
