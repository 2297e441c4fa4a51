"""Graph property sets of the Open Graph Benchmark, from their raw compressed text files, in a folder or a zip.

The layout is that of https://ogb.stanford.edu/docs/graphprop/: ``raw/`` has the graphs one after another, ``split/`` the
row numbers of each part. A data set is one piece and one unit: compressed files are read from their beginning, all in
step, so that only a shard of each is in memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wegl_dask.checksums import fingerprint
from wegl_dask.errors import SourceError
from wegl_dask.graphs import GraphBatch, offsets_from_counts, single_precision
from wegl_dask.sorted_texts import SortedTexts
from wegl_dask.sources._download import download_zip
from wegl_dask.sources._files import FileSet
from wegl_dask.sources._labels import label_column
from wegl_dask.sources._ogb_scan import (
    SPLIT_PARTS,
    FileKind,
    count_nodes,
    file_name,
    is_molecular,
    number_type,
    open_lines,
    read_split,
    scan_data_set,
)
from wegl_dask.sources._text import LineSpan, NumberReader, Numbers, changed_since_scan
from wegl_dask.sources.base import REJECTED_SCHEMA, Cut, SourcePlan, SourceShard, Unit
from wegl_dask.spec import OgbTable

DOWNLOAD_URL = "https://snap.stanford.edu/ogb/data/graphproppred"
"""Where the published zips are."""

_OTHER_ZIPS = {
    "ogbg-mollipo": "csv_mol_download/lipophilicity.zip",
    "ogbg-ppa": "ogbg_ppi_medium.zip",
    "ogbg-code2": "code2.zip",
}
"""Zips that are not called by the rule of the molecule sets, ogbg-molX: csv_mol_download/X.zip."""


@dataclass(frozen=True)
class OgbSource:
    """A graph property set of the Open Graph Benchmark.

    It is looked for in the folder ``root/ogbg_NAME/`` and in the zip under ``root`` that is published for it, and read
    without torch and without asking anything. Features of the sets ``ogbg-mol*`` are categories, with the vocabularies
    of `wegl_dask.molecules`; those of other sets are attributes. An undirected edge is listed once, as the files have
    it.

    A row's ``graph_id`` and ``source_row`` are the row number from 0, by which splits name it too, and its
    ``source_file`` is the name of the data set.

    Attributes
    ----------
    table : OgbTable
    task : {"auto", "none", "classification", "regression", "multitask"}
        What the labels are. For "auto" one column of whole numbers is classes, one of other numbers a target, several
        are tasks.
    """

    table: OgbTable
    task: str

    def estimated_nodes(self) -> int:
        """Add up the sizes of the graphs; downloads the data set if need be."""
        return max(1, count_nodes(self._files(download=True)))

    def pieces(self) -> Sequence[str]:
        """Name the data set, which is one piece; it is downloaded if need be."""
        self._files(download=True)
        return [self._name]

    def scan(self, piece: str, nodes_per_shard: int) -> dict[str, Any]:
        """Read all files once, in blocks; see `scan_data_set`."""
        return scan_data_set(piece, self._files(), self.task, self.table.split, nodes_per_shard)

    def plan(self, scans: Sequence[dict[str, Any]]) -> SourcePlan:
        """Make all cuts one unit."""
        (scan,) = scans
        cuts = [{"shard": shard, **cut} for shard, cut in enumerate(scan["cuts"])]
        units = [{"piece": self._name, "cuts": cuts}] if cuts else []
        parts = {key: scan[key] for key in ("schema", "labels", "has_split", "details")}
        return SourcePlan.from_json({**parts, "extra_columns": {}, "units": units})

    def read(self, plan: SourcePlan, unit: Unit, *, known_ids: SortedTexts | None = None) -> Iterator[SourceShard]:
        """Read the lines of each cut, going through every file once."""
        del known_ids
        files, columns = self._files(), plan.details["columns"]
        part_of_graph = read_split(files, plan.details["split"], plan.details["n_graphs"])
        with ExitStack() as stack:
            readers: dict[FileKind, NumberReader] = {}
            for kind in get_args(FileKind):
                if kind in columns:
                    name = file_name(kind)
                    readers[kind] = NumberReader(
                        stack.enter_context(open_lines(files, name)),
                        files.describe(name),
                        number_type(self._name, kind),
                        columns[kind],
                        blank_is_missing=kind == "graph-label",
                    )
            for cut in unit.cuts:
                yield _CutReader(self._name, plan, cut, readers).read(part_of_graph)

    @property
    def _name(self) -> str:
        return self.table.name.replace("_", "-")

    def _files(self, *, download: bool = False) -> FileSet:
        root, name = self.table.root.rstrip("/"), self._name
        folder = f"{root}/{name.replace('-', '_')}"
        edges = file_name("edge")
        zip_path = _OTHER_ZIPS.get(name)
        if zip_path is None and is_molecular(name):
            zip_path = f"csv_mol_download/{name.removeprefix('ogbg-mol')}.zip"
        archive = None if zip_path is None else f"{root}/{zip_path.rpartition('/')[2]}"
        found = FileSet.in_folder(folder).around(edges)
        if found is None and archive is not None:
            found = FileSet.in_zip(archive).around(edges)
        if found is None:
            missing = f"the data set {name} is not there: {edges} was looked for in {folder}"
            if archive is None:
                raise SourceError(f"{missing}; point source.root to the folder above, no zip of that name is published")
            missing = f"{missing} and in {archive}"
            address = f"{DOWNLOAD_URL}/{zip_path}"
            if not (download and self.table.download):
                raise SourceError(f"{missing}; point source.root to where it is, or put {address} there")
            try:
                download_zip(address, archive)
            except SourceError as error:
                raise SourceError(f"{missing}; {error}; put the zip there by hand") from error
            return self._files()
        for kind in ("num-node-list", "num-edge-list"):
            if file_name(kind) not in found.sizes:
                raise SourceError(
                    f"{found.describe(file_name(kind))} is missing; it has a line a graph: fetch it again"
                )
        return found


@dataclass(frozen=True)
class _CutReader:
    """Reads one cut: a range of lines of each file."""

    data_set: str
    plan: SourcePlan
    cut: Cut
    readers: dict[FileKind, NumberReader]

    def read(self, part_of_graph: npt.NDArray[np.int8]) -> SourceShard:
        first, n_graphs = self.cut.where["first_graph"], self.cut.where["n_graphs"]
        schema = self.plan.schema
        node_counts = self._read("num-node-list", n_graphs)[:, 0]
        edge_counts = self._read("num-edge-list", n_graphs)[:, 0]
        n_nodes, n_edges = int(node_counts.sum()), int(edge_counts.sum())
        nodes, edges = self._read("node-feat", n_nodes), self._read("edge-feat", n_edges)
        ends = self._read("edge", n_edges)
        graphs = GraphBatch(
            schema=schema,
            node_offsets=offsets_from_counts(node_counts),
            edge_offsets=offsets_from_counts(edge_counts),
            edge_source=ends[:, 0],
            edge_target=ends[:, 1],
            node_categories=nodes[:, : len(schema.node_category_counts)],
            node_attributes=single_precision(nodes[:, : schema.node_attribute_width]),
            edge_categories=edges[:, : len(schema.edge_category_counts)],
            edge_attributes=single_precision(edges[:, : schema.edge_attribute_width]),
        )
        part = part_of_graph[first : first + n_graphs]
        numbers = np.arange(first, first + n_graphs)
        rows = pa.table(
            {
                "graph_id": pa.array(numbers.astype(str).tolist(), pa.string()),
                "source_file": pa.array([self.data_set] * n_graphs, pa.string()),
                "source_row": pa.array(numbers, pa.int64()),
                "label": label_column(self.plan.labels, self._read("graph-label", n_graphs), file_name("graph-label")),
                "split": pa.array(SPLIT_PARTS, pa.string()).take(pa.array(part, mask=part < 0)),
            },
            schema=self.plan.row_schema(),
        )
        hashes = [self.readers[kind].fingerprint() for kind in self.cut.where["lines"]]
        if fingerprint(part.tobytes(), *hashes) != self.cut.where["hash"]:
            raise changed_since_scan(f"the data set {self.data_set}", "has other lines")
        return SourceShard(self.cut.shard, graphs, rows, REJECTED_SCHEMA.empty_table())

    def _read(self, kind: FileKind, n_lines: int) -> Numbers:
        """Read the cut's lines of a file, of which there must be `n_lines`; of a file that is not there, no columns."""
        if kind not in self.readers:
            return np.empty((n_lines, 0))
        span = LineSpan(*self.cut.where["lines"][kind])
        if span.stop - span.start != n_lines:
            raise changed_since_scan(f"a file beside {file_name(kind)}", f"tells of {n_lines} lines in it")
        self.readers[kind].go_to(span)
        return self.readers[kind].read(n_lines)
