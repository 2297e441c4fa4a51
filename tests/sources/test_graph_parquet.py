import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wegl_dask.errors import SourceError
from wegl_dask.graphs import GraphBatch, GraphSchema, offsets_from_counts
from wegl_dask.shards import ingest_shard, shard_bytes, write_shard
from wegl_dask.sources.base import LabelSchema
from wegl_dask.sources.graph_parquet import GraphParquetSource
from wegl_dask.spec import GraphParquetTable

CLASSES = LabelSchema("class", class_names=("a", "b"))


def table(path):
    return GraphParquetTable(kind="graph_parquet", path=path if isinstance(path, list) else str(path))


def batch_of(node_counts, first=0, schema=None):
    """Graphs of so many nodes; the nodes are numbered from `first` by their attribute."""
    n_nodes = sum(node_counts)
    width = 1 if schema is None else schema.node_attribute_width
    return GraphBatch(
        schema=schema or GraphSchema(node_attribute_width=1),
        node_offsets=offsets_from_counts(np.array(node_counts, dtype=np.int64)),
        edge_offsets=np.zeros(len(node_counts) + 1, dtype=np.int64),
        edge_source=np.empty(0, dtype=np.int32),
        edge_target=np.empty(0, dtype=np.int32),
        node_categories=np.empty((n_nodes, 0), dtype=np.int16),
        node_attributes=np.repeat(np.arange(first, first + n_nodes, dtype=np.float32)[:, None], width, axis=1),
        edge_categories=np.empty((0, 0), dtype=np.int16),
        edge_attributes=np.empty((0, 0), dtype=np.float32),
    )


def rows_of(n_graphs, first=0, labels=CLASSES, **extra):
    return pa.table(
        {
            "graph_id": pa.array([f"mol {first + i}" for i in range(n_graphs)], pa.string()),
            "source_file": pa.array(["molecules.csv"] * n_graphs, pa.string()),
            "source_row": pa.array([10 * (first + i) for i in range(n_graphs)], pa.int64()),
            "label": pa.array([None if i else 1 for i in range(n_graphs)], labels.arrow_type),
            "split": pa.array([None] * n_graphs, pa.string()),
            **extra,
        }
    )


@pytest.fixture
def two_parts(tmp_path):
    """A run's folder with the parts 2, 3 nodes and 4 nodes."""
    folder = tmp_path / "graphs"
    folder.mkdir()
    write_shard(folder / "part-00000.parquet", batch_of([2, 3]), rows_of(2), CLASSES)
    write_shard(folder / "part-00001.parquet", batch_of([4], first=5), rows_of(1, first=2), CLASSES)
    return folder


def test_the_parts_of_a_run_come_out_as_they_are(two_parts, read_source):
    found = read_source(table(two_parts))
    assert found.plan.schema == GraphSchema(node_attribute_width=1)
    assert found.plan.labels == CLASSES
    assert not found.plan.has_split
    assert [shard.graphs.node_counts.tolist() for shard in found.shards] == [[2, 3], [4]]
    assert found.graphs.node_attributes.ravel().tolist() == list(range(9))
    assert found.rows == {
        "graph_id": ["mol 0", "mol 1", "mol 2"],
        "source_file": ["molecules.csv"] * 3,
        "source_row": [0, 10, 20],
        "label": [1, None, 1],
        "split": [None, None, None],
    }
    assert found.rejected == []


@pytest.mark.parametrize("name", ["mutag", "ptc_mr"])
def test_shards_read_and_written_again_have_the_same_bytes(name, real_data, tmp_path, read_source):
    batch = real_data(name).batch
    (tmp_path / "first").mkdir()
    for part in range(3):
        graphs = batch.slice(50 * part, 50 * part + 50)
        graphs = ingest_shard_of(graphs, 50 * part)
        write_shard(tmp_path / "first" / f"part-{part:05d}.parquet", *graphs, CLASSES)
    found = read_source(table(tmp_path / "first"), nodes_per_shard=800)
    assert len(found.shards) == 3
    for shard in found.shards:
        done = ingest_shard(shard, max_nodes=None, directed=False)
        again = tmp_path / "again.parquet"
        write_shard(again, done.graphs, done.rows, CLASSES)
        assert again.read_bytes() == (tmp_path / "first" / f"part-{shard.shard:05d}.parquet").read_bytes()


def encoded(found, shard, *, stored):
    done = ingest_shard(shard, max_nodes=None, directed=False)
    return shard_bytes(
        done.graphs,
        done.rows,
        found.plan.labels,
        found.plan.numbering,
        unnamed=shard.unnamed,
        stored=shard.stored if stored else None,
    )


def with_column(name, change):
    def changed(rows):
        index = rows.column_names.index(name)
        return rows.set_column(index, name, change(rows.column(name)))

    return changed


@pytest.fixture
def one_part(tmp_path):
    """A file of a triangle, and a path of two nodes."""
    graphs = replace(
        batch_of([3, 2]),
        edge_offsets=np.array([0, 6, 8]),
        edge_source=np.array([0, 0, 1, 1, 2, 2, 0, 1], dtype=np.int32),
        edge_target=np.array([1, 2, 0, 2, 0, 1, 1, 0], dtype=np.int32),
        edge_categories=np.empty((8, 0), dtype=np.int16),
        edge_attributes=np.empty((8, 0), dtype=np.float32),
    )
    file = tmp_path / "part.parquet"
    write_shard(file, graphs, rows_of(2), CLASSES, unnamed={"molecules.csv": [[10, 11]]})
    return file


LAID_OUT = {"compression": "zstd"}
"""As graph shards are, those of few rows."""


@pytest.mark.parametrize("options", [LAID_OUT, {**LAID_OUT, "use_dictionary": False, "version": "1.0"}])
def test_a_file_that_holds_what_would_be_written_is_copied(options, one_part, read_source):
    pq.write_table(pq.read_table(one_part), one_part, **options)
    found = read_source(table(one_part))
    assert encoded(found, found.shards[0], stored=True) == one_part.read_bytes()


@pytest.mark.parametrize(
    "other", [{"compression": "none"}, {"compression": {"graph_id": "gzip"}}, {"row_group_size": 1}]
)
def test_a_file_that_is_larger_or_slower_to_read_than_what_would_be_written_is_written_anew(
    other, one_part, read_source
):
    pq.write_table(pq.read_table(one_part), one_part, **{**LAID_OUT, **other})
    found = read_source(table(one_part))
    written = encoded(found, found.shards[0], stored=True)
    assert written == encoded(found, found.shards[0], stored=False)
    metadata = pq.read_metadata(io.BytesIO(written))
    columns = range(metadata.num_columns)
    assert metadata.num_row_groups == 1
    assert {metadata.row_group(0).column(column).compression for column in columns} == {"ZSTD"}


def test_files_of_full_row_groups_and_without_rows_are_copied(tmp_path, read_source):
    for name, n_graphs in (("full", 4096), ("more", 4097), ("none", 0)):
        (tmp_path / name).mkdir()
        write_shard(tmp_path / name / "a.parquet", batch_of([1] * n_graphs), rows_of(n_graphs), CLASSES)
        found = read_source(table(tmp_path / name))
        assert encoded(found, found.shards[0], stored=True) is found.shards[0].stored.content


@pytest.mark.parametrize(
    "change",
    [
        # Another form of the same.
        with_column("num_nodes", lambda column: column.cast(pa.int64())),
        with_column("edge_target", lambda column: column.cast(pa.large_list(pa.int32()))),
        lambda rows: rows.select(rows.column_names[::-1]),
        lambda rows: rows.replace_schema_metadata({**rows.schema.metadata, "author": "somebody"}),
        # What is mended or rejected.
        with_column("edge_source", lambda _: pa.array([[0, 0, 1], [0]], pa.list_(pa.int32()))),
        with_column("edge_target", lambda _: pa.array([[2, 1, 0, 2, 0, 1], [1, 0]], pa.list_(pa.int32()))),
        with_column("edge_target", lambda _: pa.array([[1, 2, 0, 2, 0, 1], [1, 9]], pa.list_(pa.int32()))),
        with_column("node_attributes", lambda _: pa.array([[0, 1, np.nan], [3, 4]], pa.list_(pa.float32()))),
    ],
)
def test_a_file_that_holds_anything_else_is_written_anew(change, one_part, read_source):
    rows = change(pq.read_table(one_part))
    if rows.column("edge_source")[0].as_py() == [0, 0, 1]:
        rows = with_column("edge_target", lambda _: pa.array([[1, 2, 2], [1]], pa.list_(pa.int32())))(rows)
    pq.write_table(rows, one_part)
    found = read_source(table(one_part))
    written = encoded(found, found.shards[0], stored=True)
    assert written != one_part.read_bytes()
    assert written == encoded(found, found.shards[0], stored=False)


def test_a_part_of_a_file_and_labels_that_are_left_out_are_written_anew(tmp_path, one_part, read_source):
    (tmp_path / "large").mkdir()
    write_shard(tmp_path / "large" / "a.parquet", batch_of([10] * 16), rows_of(16), CLASSES)
    assert [shard.stored for shard in read_source(table(tmp_path / "large"), nodes_per_shard=100).shards] == [
        None,
        None,
    ]
    found = read_source(table(one_part), task="none")
    (written,) = (pq.read_table(io.BytesIO(encoded(found, shard, stored=True))) for shard in found.shards)
    assert written.column("label").to_pylist() == [None, None]


def ingest_shard_of(graphs, first):
    from wegl_dask.sources.base import REJECTED_SCHEMA, SourceShard

    shard = SourceShard(0, graphs, rows_of(graphs.n_graphs, first), REJECTED_SCHEMA.empty_table())
    done = ingest_shard(shard, max_nodes=None, directed=False)
    return done.graphs, done.rows


def test_splits_labels_of_tasks_and_extra_columns_are_passed_through(tmp_path, read_source):
    labels = LabelSchema("tasks", task_names=("p", "q"))
    rows = rows_of(2, labels=LabelSchema("target"), smiles=["C", None], mass=[16.0, 1.5], seen=[True, False])
    rows = rows.set_column(3, "label", pa.array([[1.0, None], None], labels.arrow_type))
    rows = rows.set_column(4, "split", pa.array(["train", None]))
    write_shard(tmp_path / "a.parquet", batch_of([1, 1]), rows, labels)
    found = read_source(table(tmp_path / "a.parquet"))
    assert found.plan.has_split
    assert found.plan.labels == labels
    assert found.plan.extra_columns == {"smiles": "string", "mass": "double", "seen": "bool"}
    assert found.rows == rows.to_pydict()


def test_task_none_leaves_the_labels_out(two_parts, read_source):
    found = read_source(table(two_parts), task="none")
    assert found.plan.labels == LabelSchema()
    assert found.rows["label"] == [None, None, None]


def test_a_task_that_the_labels_fit_takes_them(two_parts, read_source):
    assert read_source(table(two_parts), task="classification").plan.labels == CLASSES


def test_a_task_that_the_labels_do_not_fit_is_refused(two_parts, read_source):
    with pytest.raises(
        SourceError,
        match=r'part-00000\.parquet has labels of kind "class", and task = "regression" needs kind "target"',
    ):
        read_source(table(two_parts), task="regression")


# Cuts


def test_a_file_of_more_than_one_and_a_half_times_the_nodes_is_cut(tmp_path, read_source):
    write_shard(tmp_path / "a.parquet", batch_of([10] * 15), rows_of(15), CLASSES)
    assert len(read_source(table(tmp_path), nodes_per_shard=100).shards) == 1
    write_shard(tmp_path / "a.parquet", batch_of([10] * 16), rows_of(16), CLASSES)
    found = read_source(table(tmp_path), nodes_per_shard=100)
    assert [shard.graphs.n_nodes for shard in found.shards] == [100, 60]
    assert found.graphs.node_attributes.ravel().tolist() == list(range(160))
    assert found.rows["graph_id"] == [f"mol {i}" for i in range(16)]


def test_a_large_graph_is_a_shard_of_its_own(tmp_path, read_source):
    write_shard(tmp_path / "a.parquet", batch_of([1000]), rows_of(1), CLASSES)
    assert [shard.graphs.n_nodes for shard in read_source(table(tmp_path), nodes_per_shard=100).shards] == [1000]


@pytest.mark.parametrize("nodes_per_shard", [500, 3000, 5000, 100_000])
def test_no_row_group_is_read_for_two_units(nodes_per_shard, tmp_path, read_source):
    counts = [1 + i % 3 for i in range(10_000)]
    write_shard(tmp_path / "a.parquet", batch_of(counts), rows_of(10_000), CLASSES)
    found = read_source(table(tmp_path), nodes_per_shard=nodes_per_shard)
    metadata = pq.read_metadata(tmp_path / "a.parquet")
    groups = {int(sum(metadata.row_group(j).num_rows for j in range(i))) for i in range(metadata.num_row_groups)}
    assert {unit.cuts[0].where["start"] for unit in found.plan.units} <= groups
    assert all(shard.graphs.n_nodes <= 1.5 * nodes_per_shard for shard in found.shards)
    assert found.graphs.node_counts.tolist() == counts
    assert found.rows["source_row"] == [10 * i for i in range(10_000)]


def test_some_cuts_of_a_unit_can_be_read_alone(tmp_path):
    write_shard(tmp_path / "a.parquet", batch_of([10] * 40), rows_of(40), CLASSES)
    source = GraphParquetSource(table(tmp_path), "auto")
    plan = source.plan([source.scan(piece, 100) for piece in source.pieces()])
    (unit,) = plan.units
    wanted = type(unit)(unit.piece, (unit.cuts[1], unit.cuts[3]))
    assert [shard.rows.column("graph_id")[0].as_py() for shard in source.read(plan, wanted)] == ["mol 10", "mol 30"]


def test_a_part_without_graphs_is_a_shard_without_graphs(two_parts, read_source):
    write_shard(two_parts / "part-00000.parquet", batch_of([]), rows_of(0), CLASSES)
    assert [shard.graphs.n_graphs for shard in read_source(table(two_parts)).shards] == [0, 1]


def test_the_fingerprint_of_a_cut_changes_with_its_file_alone(two_parts, read_source):
    before = [cut.fingerprint for cut in read_source(table(two_parts)).cuts]
    assert [cut.fingerprint for cut in read_source(table(two_parts)).cuts] == before
    write_shard(two_parts / "part-00001.parquet", batch_of([4], first=6), rows_of(1, first=2), CLASSES)
    after = [cut.fingerprint for cut in read_source(table(two_parts)).cuts]
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_the_number_of_nodes_is_extrapolated_from_some_files(tmp_path):
    for part in range(20):
        write_shard(tmp_path / f"part-{part:05d}.parquet", batch_of([30, 20]), rows_of(2), CLASSES)
    assert GraphParquetSource(table(tmp_path), "auto").estimated_nodes() == 1000


# Files that do not fit


def test_files_of_different_features_are_refused_with_both_names(two_parts, read_source):
    other = GraphSchema(node_attribute_width=2)
    write_shard(two_parts / "part-00002.parquet", batch_of([1], schema=other), rows_of(1), CLASSES)
    with pytest.raises(
        SourceError,
        match=r"part-00000\.parquet and .*part-00002\.parquet differ in their features: .*1.* and .*2.*; the shards of one",
    ):
        read_source(table(two_parts))


def test_files_of_different_class_names_are_refused_with_both_names(two_parts, read_source):
    write_shard(two_parts / "part-00001.parquet", batch_of([1]), rows_of(1), LabelSchema("class", ("b", "a")))
    with pytest.raises(SourceError, match=r'differ in their labels: .*\["a", "b"\].* and .*\["b", "a"\]'):
        read_source(table(two_parts))


@pytest.mark.parametrize(
    ("labels", "key"),
    [(LabelSchema("class", ("b", "a", "b")), "class"), (LabelSchema("tasks", (), ("b", "b")), "task")],
)
def test_two_classes_or_tasks_of_one_name_are_refused(two_parts, read_source, labels, key):
    label = pa.array([[0.0, 1.0] if key == "task" else 2], labels.arrow_type)
    rows = rows_of(1, labels=CLASSES).set_column(3, "label", label)
    write_shard(two_parts / "part-00000.parquet", batch_of([4]), rows, labels)
    with pytest.raises(
        SourceError, match=rf"part-00000\.parquet: .* {key}_names names 'b' twice, .* a name of its own"
    ):
        read_source(table(two_parts))


def test_the_numbering_of_categories_is_handed_on_and_is_one_for_all_files(two_parts, read_source):
    numbering = {"node_label_minima": [3], "edge_label_minima": []}
    for part, n_nodes in enumerate(([2, 3], [4])):
        graphs = batch_of(n_nodes), rows_of(len(n_nodes))
        write_shard(two_parts / f"part-{part:05d}.parquet", *graphs, CLASSES, numbering)
    assert read_source(table(two_parts)).plan.numbering == numbering
    write_shard(two_parts / "part-00001.parquet", batch_of([4]), rows_of(1), CLASSES)
    with pytest.raises(SourceError, match=r"differ in their vocabularies: .*node_label_minima.* and \{\}"):
        read_source(table(two_parts))


def test_files_of_different_extra_columns_are_refused_with_both_names(two_parts, read_source):
    write_shard(two_parts / "part-00001.parquet", batch_of([1]), rows_of(1, mass=[1.0]), CLASSES)
    with pytest.raises(SourceError, match=r'differ in their extra columns: \{\} and \{"mass": "double"\}'):
        read_source(table(two_parts))


def test_an_extra_column_that_cannot_be_passed_through_is_named(two_parts, read_source):
    write_shard(two_parts / "part-00001.parquet", batch_of([1]), rows_of(1, tags=[["x"]]), CLASSES)
    with pytest.raises(SourceError, match=r"part-00001\.parquet: the column tags is of type list<element: string>"):
        read_source(table(two_parts))


def test_a_file_that_is_no_shard_is_named(two_parts, read_source):
    pq.write_table(pa.table({"smiles": ["C"]}), two_parts / "part-00001.parquet")
    with pytest.raises(SourceError, match=r"part-00001\.parquet is no graph shard: the column graph_id is missing"):
        read_source(table(two_parts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: rows.append_column("edge_source", rows.column("edge_source")),
            "2 columns of the name edge_source; keep one",
        ),
        (
            lambda rows: rows.append_column("x", rows.column("split")).append_column("x", rows.column("split")),
            "2 columns of the name x; keep one",
        ),
        (
            lambda rows: rows.set_column(6, "edge_source", pa.array([1] * rows.num_rows)),
            "the column edge_source is of type int64; lists are needed",
        ),
        (lambda rows: rows.append_column("x", pa.array([["C"]] * rows.num_rows)), "the column x is of type list"),
    ],
)
def test_columns_that_are_not_those_of_a_shard_are_named(change, message, two_parts, read_source):
    file = two_parts / "part-00001.parquet"
    rows = pq.read_table(file)
    assert rows.column_names[6] == "edge_source"
    pq.write_table(change(rows), file)
    with pytest.raises(SourceError, match=rf"part-00001\.parquet.* {message}"):
        read_source(table(two_parts))


def test_a_damaged_file_is_named(two_parts, read_source):
    file = two_parts / "part-00001.parquet"
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(SourceError, match=r"cannot read the graph shard .*part-00001\.parquet"):
        read_source(table(two_parts))


def test_a_file_that_changed_after_the_scan_is_named(two_parts):
    source = GraphParquetSource(table(two_parts), "auto")
    plan = source.plan([source.scan(piece, 1000) for piece in source.pieces()])
    other = GraphSchema(node_attribute_width=2)
    write_shard(two_parts / "part-00000.parquet", batch_of([1, 1], schema=other), rows_of(2), CLASSES)
    with pytest.raises(
        SourceError, match=r"part-00000\.parquet has other features: it was changed after it was scanned"
    ):
        list(source.read(plan, plan.units[0]))
    write_shard(two_parts / "part-00000.parquet", batch_of([2, 1]), rows_of(2), CLASSES)
    with pytest.raises(SourceError, match=r"part-00000\.parquet holds other rows: it was changed after it was scanned"):
        list(source.read(plan, plan.units[0]))
    write_shard(two_parts / "part-00000.parquet", batch_of([1]), rows_of(1), CLASSES)
    with pytest.raises(SourceError, match=r"part-00000\.parquet has 1 rows, and rows 0 to 2 were asked for"):
        list(source.read(plan, plan.units[0]))


def test_a_file_that_has_no_row_group_has_no_graphs(two_parts, read_source):
    file = two_parts / "part-00000.parquet"
    pq.ParquetWriter(file, pq.read_schema(file)).close()
    assert pq.read_metadata(file).num_row_groups == 0
    found = read_source(table(two_parts))
    assert [shard.graphs.n_graphs for shard in found.shards] == [0, 1]
    assert found.rows["graph_id"] == ["mol 2"]


def test_shards_are_read_from_a_url(read_source):
    write_shard("memory://run/graphs/part-00000.parquet", batch_of([2, 3]), rows_of(2), CLASSES)
    found = read_source(table("memory://run/graphs"))
    assert found.graphs.node_counts.tolist() == [2, 3]
