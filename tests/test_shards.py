import contextlib
import io
import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wegl_dask.errors import SourceError
from wegl_dask.graphs import EdgeRepairs, GraphBatch, GraphSchema
from wegl_dask.shards import ingest_shard, read_shard, shard_table, summarize_shard, write_shard
from wegl_dask.sources.base import REJECTED_SCHEMA, LabelSchema, SourceShard

CLASSES = LabelSchema("class", class_names=("no", "ja"))


def rows_of(n_graphs, labels=CLASSES, values=None, **extra):
    return pa.table(
        {
            "graph_id": pa.array([f"g{i}" for i in range(n_graphs)], pa.string()),
            "source_file": pa.array(["in.csv"] * n_graphs, pa.string()),
            "source_row": pa.array(range(n_graphs), pa.int64()),
            "label": pa.array([None] * n_graphs if values is None else values, labels.arrow_type),
            "split": pa.array([None] * n_graphs, pa.string()),
            **extra,
        }
    )


@pytest.fixture
def two_graphs(make_batch):
    """A path of three nodes and a single node, with one feature of every kind and two categories a node."""
    path = SimpleNamespace(
        node_labels=[[0, 1], [2, 0], [1, 1]],
        node_attributes=[[0.5], [1.5], [-2.0]],
        edges=[(0, 1), (1, 0), (1, 2), (2, 1)],
        edge_labels=[[3], [3], [0], [0]],
        edge_attributes=[[1.0], [1.0], [0.25], [0.25]],
    )
    single = SimpleNamespace(
        node_labels=[[2, 1]], node_attributes=[[8.0]], edges=[], edge_labels=[], edge_attributes=[]
    )
    return make_batch([path, single], node_labels=(3, 2), node_attributes=1, edge_labels=(4,), edge_attributes=1)


@pytest.fixture
def shard_file(two_graphs, tmp_path):
    file = tmp_path / "part-00000.parquet"
    write_shard(file, two_graphs, rows_of(2, values=[1, 0]), CLASSES)
    return file


def many_small_graphs(n_graphs):
    """Graph i has one node of attribute i, so that a row group does not hold them all."""
    return GraphBatch(
        schema=GraphSchema(node_attribute_width=1),
        node_offsets=np.arange(n_graphs + 1),
        edge_offsets=np.zeros(n_graphs + 1, dtype=np.int64),
        edge_source=np.empty(0, dtype=np.int64),
        edge_target=np.empty(0, dtype=np.int64),
        node_categories=np.empty((n_graphs, 0), dtype=np.int64),
        node_attributes=np.arange(n_graphs, dtype=np.float64)[:, None],
        edge_categories=np.empty((0, 0), dtype=np.int64),
        edge_attributes=np.empty((0, 0)),
    )


def rewritten(file, change):
    """Write the table of a shard again after a change, as another program would."""
    pq.write_table(change(pq.read_table(file)), file)


# The file


def test_a_shard_is_a_parquet_file_with_a_row_a_graph(shard_file):
    table = pq.read_table(shard_file)
    assert table.to_pydict() == {
        "graph_id": ["g0", "g1"],
        "source_file": ["in.csv", "in.csv"],
        "source_row": [0, 1],
        "label": [1, 0],
        "split": [None, None],
        "num_nodes": [3, 1],
        "edge_source": [[0, 1, 1, 2], []],
        "edge_target": [[1, 0, 2, 1], []],
        "node_categories": [[0, 1, 2, 0, 1, 1], [2, 1]],
        "node_attributes": [[0.5, 1.5, -2.0], [8.0]],
        "edge_categories": [[3, 3, 0, 0], []],
        "edge_attributes": [[1.0, 1.0, 0.25, 0.25], []],
    }
    assert {name: str(field) for name, field in zip(table.schema.names, table.schema.types, strict=True)} == {
        "graph_id": "string",
        "source_file": "string",
        "source_row": "int64",
        "label": "int64",
        "split": "string",
        "num_nodes": "int32",
        "edge_source": "list<element: int32>",
        "edge_target": "list<element: int32>",
        "node_categories": "list<element: int16>",
        "node_attributes": "list<element: float>",
        "edge_categories": "list<element: int16>",
        "edge_attributes": "list<element: float>",
    }
    assert {key.decode(): json.loads(value) for key, value in table.schema.metadata.items()} == {
        "node_category_counts": [3, 2],
        "edge_category_counts": [4],
        "node_attribute_width": 1,
        "edge_attribute_width": 1,
        "label_kind": "class",
        "class_names": ["no", "ja"],
        "task_names": [],
    }


def test_other_readers_see_the_same_rows(shard_file):
    assert pl.read_parquet(shard_file).to_dict(as_series=False) == pq.read_table(shard_file).to_pydict()


@settings(max_examples=30)
@given(data=st.data())
def test_what_is_written_is_read_back(data, plain_graphs, plain_batch, assert_same_batch):
    batch = plain_batch(data.draw(plain_graphs))
    n = batch.n_graphs
    maybe = st.none() | st.text(st.characters(codec="utf-8"), max_size=3)
    rows = rows_of(
        n,
        values=data.draw(st.lists(st.none() | st.integers(0, 1), min_size=n, max_size=n)),
        note=pa.array(data.draw(st.lists(maybe, min_size=n, max_size=n)), pa.string()),
    ).set_column(4, "split", pa.array(data.draw(st.lists(maybe, min_size=n, max_size=n)), pa.string()))
    file = io.BytesIO()
    write_shard(file, batch, rows, CLASSES)
    stored = read_shard(file)
    assert_same_batch(stored.graphs, batch)
    assert stored.rows.equals(rows)
    assert stored.labels == CLASSES


@pytest.mark.parametrize(
    ("labels", "values"),
    [
        (LabelSchema(), [None, None]),
        (LabelSchema("target"), [0.5, None]),
        (LabelSchema("tasks", task_names=("a", "b")), [[0.0, 2.5], None]),
        (LabelSchema("class", class_names=("µ", 'quote"')), [None, 1]),
    ],
)
def test_labels_of_every_kind_are_read_back(labels, values, two_graphs):
    file = io.BytesIO()
    rows = rows_of(2, labels, values)
    write_shard(file, two_graphs, rows, labels)
    stored = read_shard(file)
    assert stored.labels == labels
    assert stored.rows.column("label").type == labels.arrow_type
    assert stored.rows.column("label").to_pylist() == values


def test_features_that_are_not_there_have_columns_of_width_zero(make_batch, assert_same_batch):
    graph = SimpleNamespace(
        node_labels=[[]] * 2, node_attributes=[[]] * 2, edges=[(0, 1)], edge_labels=[[]], edge_attributes=[[]]
    )
    batch = make_batch([graph, graph])
    file = io.BytesIO()
    write_shard(file, batch, rows_of(2), CLASSES)
    assert_same_batch(read_shard(file).graphs, batch)


def test_a_shard_without_graphs_is_read_back(plain_batch, assert_same_batch):
    file = io.BytesIO()
    write_shard(file, plain_batch([]), rows_of(0), CLASSES)
    stored = read_shard(file)
    assert_same_batch(stored.graphs, plain_batch([]))
    assert stored.rows.equals(rows_of(0))
    assert summarize_shard(file).node_counts.tolist() == []


@pytest.mark.parametrize(("vocabulary", "stored_as"), [(32768, "int16"), (32769, "int32")])
def test_a_large_vocabulary_is_stored_in_32_bits(vocabulary, stored_as, make_batch):
    graph = SimpleNamespace(
        node_labels=[[vocabulary - 1]], node_attributes=[[]], edges=[(0, 0)], edge_labels=[[1]], edge_attributes=[[]]
    )
    file = io.BytesIO()
    write_shard(file, make_batch([graph], node_labels=(vocabulary,), edge_labels=(2,)), rows_of(1), CLASSES)
    assert str(pq.read_schema(file).field("node_categories").type.value_type) == stored_as
    assert str(pq.read_schema(file).field("edge_categories").type.value_type) == "int16"
    assert read_shard(file).graphs.node_categories.tolist() == [[vocabulary - 1]]


def test_equal_graphs_give_equal_bytes_whatever_their_number_types(two_graphs):
    files = [io.BytesIO(), io.BytesIO()]
    write_shard(files[0], two_graphs, rows_of(2), CLASSES)
    write_shard(files[1], read_shard(files[0]).graphs, rows_of(2), CLASSES)
    assert files[0].getvalue() == files[1].getvalue()


def test_a_shard_is_read_from_a_url(two_graphs, assert_same_batch):
    write_shard("memory://shards/part-00000.parquet", two_graphs, rows_of(2), CLASSES)
    assert_same_batch(read_shard("memory://shards/part-00000.parquet").graphs, two_graphs)


# Parts of a file


@pytest.mark.parametrize("row_range", [(0, 0), (0, 9000), (17, 18), (4090, 4100), (8192, 9000), (9000, 9000)])
def test_a_row_range_is_the_slice_of_the_whole(row_range, tmp_path, assert_same_batch):
    batch, rows = many_small_graphs(9000), rows_of(9000)
    write_shard(tmp_path / "a.parquet", batch, rows, CLASSES)
    part = read_shard(tmp_path / "a.parquet", row_range)
    assert_same_batch(part.graphs, batch.slice(*row_range))
    assert part.rows.equals(rows.slice(row_range[0], row_range[1] - row_range[0]))


def test_only_the_row_groups_of_the_range_are_read(tmp_path):
    file = tmp_path / "a.parquet"
    write_shard(file, many_small_graphs(9000), rows_of(9000), CLASSES)
    first_page = pq.read_metadata(file).row_group(0).column(0).dictionary_page_offset
    content = bytearray(file.read_bytes())
    content[first_page : first_page + 4000] = b"\xff" * 4000
    file.write_bytes(content)
    assert read_shard(file, (8192, 8194)).graphs.node_attributes.tolist() == [[8192.0], [8193.0]]
    with pytest.raises(SourceError, match=r"a\.parquet"):
        read_shard(file)


def test_a_shard_says_which_values_its_categories_stand_for(two_graphs, tmp_path):
    file, numbering = tmp_path / "a.parquet", {"vocabularies": {"node": [["C", 7]], "edge": []}}
    write_shard(file, two_graphs, rows_of(2), CLASSES, numbering)
    assert summarize_shard(file).numbering == numbering
    write_shard(file, two_graphs, rows_of(2), CLASSES)
    assert summarize_shard(file).numbering == {}
    for text, reason in (("{", "is not JSON"), ('{"a": 1}', "its keys are vocabularies"), ("[]", "its keys are")):
        table = pq.read_table(file)
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"numbering": text.encode()}), file)
        with pytest.raises(SourceError, match=f"a.parquet: the schema metadata entry numbering .*{reason}"):
            summarize_shard(file)


def test_the_summary_tells_what_is_in_the_file(two_graphs, tmp_path):
    rows = rows_of(2, mass=[1.5, 2.5]).set_column(4, "split", pa.array([None, "test"]))
    write_shard(tmp_path / "a.parquet", two_graphs, rows, CLASSES)
    summary = summarize_shard(tmp_path / "a.parquet")
    assert summary.schema == two_graphs.schema
    assert summary.labels == CLASSES
    assert summary.extra_columns == {"mass": pa.float64()}
    assert summary.node_counts.tolist() == [3, 1]
    assert summary.row_group_rows == (2,)
    assert summary.has_split


def test_the_summary_knows_that_no_graph_has_a_split(shard_file):
    assert not summarize_shard(shard_file).has_split


# What cannot be written


def test_virtual_nodes_are_not_written(two_graphs):
    with pytest.raises(ValueError, match="virtual nodes"):
        shard_table(two_graphs.with_virtual_nodes(), rows_of(2), CLASSES)


def test_there_must_be_a_row_a_graph(two_graphs):
    with pytest.raises(ValueError, match="3 rows for 2 graphs"):
        shard_table(two_graphs, rows_of(3), CLASSES)


def test_the_labels_must_be_of_their_kind(two_graphs):
    with pytest.raises(ValueError, match='kind "target" are of type double, not int64'):
        shard_table(two_graphs, rows_of(2), LabelSchema("target"))


def test_an_extra_column_cannot_have_the_name_of_another(two_graphs):
    with pytest.raises(SourceError, match="'num_nodes' has the name of a column that every graph shard has"):
        shard_table(two_graphs, rows_of(2, num_nodes=[1, 2]), CLASSES)


# Files of other programs, and damaged files


def test_wider_types_of_another_program_are_read(shard_file, two_graphs, assert_same_batch):
    metadata = pq.read_schema(shard_file).metadata
    frame = pl.read_parquet(shard_file).with_columns(
        pl.col("num_nodes").cast(pl.Int64), pl.col("node_categories").cast(pl.List(pl.UInt8))
    )
    table = frame.to_arrow()
    assert str(table.schema.field("node_categories").type).startswith("large_list")
    pq.write_table(table.replace_schema_metadata(metadata), shard_file)
    assert_same_batch(read_shard(shard_file).graphs, two_graphs)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SourceError, match=r"there is no graph shard .*gone\.parquet"):
        read_shard(tmp_path / "gone.parquet")


def test_a_file_of_another_kind_is_named(tmp_path):
    (tmp_path / "text.parquet").write_text("graph_id,label\n")
    with pytest.raises(SourceError, match=r"cannot read the graph shard .*text\.parquet"):
        read_shard(tmp_path / "text.parquet")


@pytest.mark.parametrize("kept", [0, 3, 400, -1])
def test_a_file_that_is_cut_off_is_named(kept, shard_file):
    shard_file.write_bytes(shard_file.read_bytes()[:kept])
    with pytest.raises(SourceError, match=r"part-00000\.parquet"):
        read_shard(shard_file)


def test_an_altered_value_is_found_by_its_checksum(shard_file):
    column = next(
        pq.read_metadata(shard_file).row_group(0).column(i)
        for i in range(20)
        if pq.read_metadata(shard_file).row_group(0).column(i).path_in_schema.startswith("node_attributes")
    )
    content = bytearray(shard_file.read_bytes())
    content[column.data_page_offset - 2] ^= 1  # the last byte of the dictionary
    shard_file.write_bytes(content)
    with pytest.raises(SourceError, match=r"part-00000\.parquet"):
        read_shard(shard_file)


@settings(max_examples=100)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_and_never_anything_else(data, two_graphs_bytes):
    content = bytearray(two_graphs_bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    # Some bytes say nothing, and the names in the footer have no checksum.
    with contextlib.suppress(SourceError):
        read_shard(io.BytesIO(bytes(content)))


@pytest.fixture(scope="module")
def two_graphs_bytes(make_batch):
    graph = SimpleNamespace(
        node_labels=[[1], [0]], node_attributes=[[0.5], [2.0]], edges=[(0, 1)], edge_labels=[[0]], edge_attributes=[[1]]
    )
    file = io.BytesIO()
    batch = make_batch([graph], node_labels=(2,), edge_labels=(1,), node_attributes=1, edge_attributes=1)
    write_shard(file, batch, rows_of(1), CLASSES)
    return file.getvalue()


@pytest.mark.parametrize("column", ["graph_id", "split", "num_nodes", "edge_attributes"])
def test_a_missing_column_is_named(column, shard_file):
    rewritten(shard_file, lambda table: table.drop_columns([column]))
    with pytest.raises(SourceError, match=rf"no graph shard: the column {column} is missing; it needs graph_id"):
        read_shard(shard_file)


def test_missing_metadata_are_named(shard_file):
    rewritten(shard_file, lambda table: table.replace_schema_metadata({"label_kind": '"none"'}))
    with pytest.raises(SourceError, match="no entry node_category_counts; needed are"):
        summarize_shard(shard_file)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("node_category_counts", "[3, 2", "node_category_counts is not JSON: '\\[3, 2'"),
        ("node_category_counts", '"many"', "node_category_counts is 'many'"),
        ("edge_attribute_width", "0.5", "edge_attribute_width is 0.5"),
        ("label_kind", '"rank"', "kind is 'rank'"),
        (
            "node_category_counts",
            b"[18446744073709551616]",
            "node_category_counts is 18446744073709551616: Input should",
        ),
        (
            "node_attribute_width",
            b"18446744073709551616",
            "node_attribute_width is 18446744073709551616: Input should be less",
        ),
        ("edge_attribute_width", b"-1", "edge_attribute_width is -1: Input should be greater"),
    ],
)
def test_wrong_metadata_are_named(key, value, words, shard_file):
    rewritten(shard_file, lambda table: table.replace_schema_metadata({**table.schema.metadata, key.encode(): value}))
    with pytest.raises(SourceError, match=words):
        read_shard(shard_file)


def replacing(column, values, value_type):
    """Put other values in place of a column."""

    def change(table):
        place = table.schema.get_field_index(column)
        return table.set_column(place, column, pa.array(values, value_type))

    return change


@pytest.mark.parametrize(
    ("column", "values", "value_type", "words"),
    [
        ("num_nodes", [3, None], pa.int32(), "column num_nodes: row 1 is None; it must be 0 or more"),
        ("num_nodes", [-3, 1], pa.int32(), "column num_nodes: row 0 is -3"),
        ("num_nodes", [3, 2], pa.int32(), "column node_categories: row 1 has 2 values; 2 rows of 2 values are needed"),
        ("node_attributes", [[0.5], [8.0]], pa.list_(pa.float32()), "column node_attributes: row 0 has 1 values"),
        ("edge_target", [[1, 0, 2, 1], [0]], pa.list_(pa.int32()), "column edge_target: row 1 has 1 values"),
        ("edge_source", [None, []], pa.list_(pa.int32()), "part-00000.parquet, column edge_"),
        ("node_attributes", [[0.5, None, 1.0], [8.0]], pa.list_(pa.float32()), "node_attributes has null values"),
        ("edge_source", [[2**31, 1, 1, 2], []], pa.list_(pa.int64()), "column edge_source: Integer value 2147483648"),
        ("num_nodes", ["three", "one"], pa.string(), "column num_nodes: Failed to parse string: '"),
        ("num_nodes", [3.5, 1.0], pa.float64(), "column num_nodes: Float value 3.5"),
        (
            "graph_id",
            [b"\xff", b"a"],
            pa.binary(),
            "column graph_id: Invalid UTF8 payload; values that fit the type string",
        ),
        (
            "split",
            [{"a": 1}, None],
            pa.struct({"a": pa.int64()}),
            "column split: Unsupported cast from struct<a: int64>",
        ),
        (
            "graph_id",
            ["a", None],
            pa.string(),
            "column graph_id: row 1 is null; a graph shard has a value in every row",
        ),
        ("source_file", [None, "x"], pa.string(), "column source_file: row 0 is null"),
        ("source_row", [5, None], pa.int64(), "column source_row: row 1 is null"),
    ],
)
def test_columns_that_do_not_fit_one_another_are_named(column, values, value_type, words, shard_file):
    rewritten(shard_file, replacing(column, values, value_type))
    with pytest.raises(SourceError, match=words):
        read_shard(shard_file)


@pytest.mark.parametrize(
    ("values", "value_type", "words"),
    [
        (["three", "one"], pa.string(), "column num_nodes: Failed to parse string: '"),
        ([3.5, 1.0], pa.float64(), "column num_nodes: Float value 3.5"),
    ],
)
def test_numbers_of_nodes_that_are_none_are_told_of_when_a_shard_is_planned(values, value_type, words, shard_file):
    rewritten(shard_file, replacing("num_nodes", values, value_type))
    with pytest.raises(SourceError, match=words):
        summarize_shard(shard_file)


@pytest.mark.parametrize(
    ("labels", "values", "words"),
    [
        (LabelSchema("class", class_names=("x", "y")), [1, 2], "row 1 has 2 as its class; there are 2"),
        (LabelSchema("class", class_names=("x", "y")), [-1, None], "row 0 has -1 as its class; there are 2"),
        (LabelSchema("tasks", task_names=("p", "q")), [[1.0], [1.0, 2.0]], "row 0 has 1 labels; 2 are needed"),
        (LabelSchema("tasks", task_names=("p", "q")), [None, [1.0, 2.0, 3.0]], "row 1 has 3 labels; 2 are needed"),
    ],
)
def test_labels_that_do_not_fit_are_named(labels, values, words, two_graphs):
    file = io.BytesIO()
    write_shard(file, two_graphs, rows_of(2, labels, values), labels)
    with pytest.raises(SourceError, match=rf"column label: {words}"):
        read_shard(file)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("graph_id", ["a", None]),
        ("num_nodes", [3, -1]),
        ("label", [1, 2]),
        ("edge_target", [[1, 0, 2, 1], [5]]),
    ],
)
def test_a_row_that_is_at_fault_has_its_number_in_the_file_where_a_range_is_read(column, values, shard_file):
    rewritten(shard_file, lambda table: replacing(column, values, table.schema.field(column).type)(table))
    with pytest.raises(SourceError, match=f"column {column}: row 1 "):
        read_shard(shard_file, (1, 2))


@pytest.mark.parametrize("row_range", [(0, 3), (2, 1), (-1, 1)])
def test_rows_that_are_not_there_are_refused(row_range, shard_file):
    with pytest.raises(SourceError, match=f"has 2 rows, and rows {row_range[0]} to {row_range[1]} were asked for"):
        read_shard(shard_file, row_range)


# Ingest


def source_shard(batch, rejected=(), labels=CLASSES):
    rows = rows_of(batch.n_graphs, labels)
    table = pa.Table.from_pylist(list(rejected), schema=REJECTED_SCHEMA)
    return SourceShard(shard=0, graphs=batch, rows=rows, rejected=table)


@pytest.fixture
def one_feature_batch(make_batch):
    """Single nodes with the attributes given, NaN and infinity among them."""

    def make(*values):
        graphs = [
            SimpleNamespace(node_labels=[[]], node_attributes=[[value]], edges=[], edge_labels=[], edge_attributes=[])
            for value in values
        ]
        return make_batch(graphs, node_attributes=1)

    return make


def test_valid_graphs_get_canonical_edges_and_32_bit_attributes(make_batch):
    graph = SimpleNamespace(
        node_labels=[[0]] * 3,
        node_attributes=[[0.1]] * 3,
        edges=[(2, 0), (1, 1), (2, 0), (0, 1)],
        edge_labels=[[1], [0], [0], [0]],
        edge_attributes=[[2.0], [1.0], [3.0], [4.0]],
    )
    batch = make_batch([graph], node_labels=(1,), node_attributes=1, edge_labels=(2,), edge_attributes=1)
    done = ingest_shard(source_shard(batch), max_nodes=None, directed=False)
    assert done.graphs.edge_source.tolist() == [0, 0, 1, 2]
    assert done.graphs.edge_target.tolist() == [1, 2, 0, 0]
    assert done.graphs.edge_attributes.tolist() == [[4.0], [2.0], [4.0], [2.0]]
    assert done.graphs.node_attributes.dtype == done.graphs.edge_attributes.dtype == np.float32
    assert done.repairs == EdgeRepairs(self_loops_dropped=1, parallel_edges_merged=1, reverse_edges_added=2)
    assert done.rejected.num_rows == 0
    directed = ingest_shard(source_shard(batch), max_nodes=None, directed=True).graphs
    assert (directed.edge_source.tolist(), directed.edge_target.tolist()) == ([0, 2], [1, 0])


def test_invalid_graphs_are_rejected_with_their_row_and_the_rest_stay_in_order(one_feature_batch):
    batch = one_feature_batch(0.0, float("nan"), 2.0, float("inf"), 4.0)
    done = ingest_shard(source_shard(batch), max_nodes=None, directed=False)
    assert done.graphs.node_attributes.tolist() == [[0.0], [2.0], [4.0]]
    assert done.rows.column("graph_id").to_pylist() == ["g0", "g2", "g4"]
    assert done.rejected.schema == REJECTED_SCHEMA
    assert done.rejected.to_pylist() == [
        {
            "graph_id": "g1",
            "source_file": "in.csv",
            "source_row": 1,
            "reason": "node 0, attribute 0 is not finite: nan",
        },
        {
            "graph_id": "g3",
            "source_file": "in.csv",
            "source_row": 3,
            "reason": "node 0, attribute 0 is not finite: inf",
        },
    ]


def test_rejects_of_the_source_and_of_the_checks_are_in_the_order_of_the_rows(one_feature_batch):
    source_rejects = [
        {"graph_id": f"x{row}", "source_file": "in.csv", "source_row": row, "reason": "broken"} for row in (-1, 2, 7)
    ]
    batch = one_feature_batch(float("nan"), 1.0, 2.0, float("nan"))
    done = ingest_shard(source_shard(batch, source_rejects), max_nodes=None, directed=False)
    assert done.rejected.column("source_row").to_pylist() == [-1, 0, 2, 3, 7]
    assert done.rejected.column("graph_id").to_pylist() == ["x-1", "g0", "x2", "g3", "x7"]


def test_rejects_of_the_source_alone_stay_as_they_are(one_feature_batch):
    source_rejects = [
        {"graph_id": name, "source_file": name, "source_row": 0, "reason": "broken"} for name in ("b", "a")
    ]
    done = ingest_shard(source_shard(one_feature_batch(1.0), source_rejects), max_nodes=None, directed=False)
    assert done.rejected.to_pylist() == source_rejects


def test_a_number_beyond_32_bits_is_rejected_with_its_value(one_feature_batch, make_batch):
    batch = one_feature_batch(3.4e38, 3.5e38, 1e-300)
    done = ingest_shard(source_shard(batch), max_nodes=None, directed=False)
    assert done.rejected.column("reason").to_pylist() == ["node 0, attribute 0 is not finite as float32: 3.5e+38"]
    assert done.graphs.node_attributes.tolist() == [[float(np.float32(3.4e38))], [0.0]]
    heavy = SimpleNamespace(
        node_labels=[[]] * 2,
        node_attributes=[[]] * 2,
        edges=[(0, 1), (1, 0)],
        edge_labels=[[]] * 2,
        edge_attributes=[[1.0], [1e300]],
    )
    light = SimpleNamespace(node_labels=[[]], node_attributes=[[]], edges=[], edge_labels=[], edge_attributes=[])
    done = ingest_shard(source_shard(make_batch([light, heavy], edge_attributes=1)), max_nodes=None, directed=False)
    assert done.rejected.column("graph_id").to_pylist() == ["g1"]
    assert done.rejected.column("reason").to_pylist() == ["edge 1, attribute 0 is not finite as float32: 1e+300"]


def test_graphs_that_are_too_large_are_rejected(two_graphs):
    done = ingest_shard(source_shard(two_graphs), max_nodes=2, directed=False)
    assert done.rejected.column("reason").to_pylist() == ["the graph has 3 nodes; max_nodes allows 2"]
    assert done.graphs.node_counts.tolist() == [1]


def test_a_shard_may_lose_all_its_graphs(one_feature_batch):
    done = ingest_shard(source_shard(one_feature_batch(float("nan"))), max_nodes=None, directed=False)
    assert (done.graphs.n_graphs, done.rows.num_rows, done.rejected.num_rows) == (0, 0, 1)
    file = io.BytesIO()
    write_shard(file, done.graphs, done.rows, CLASSES)
    assert read_shard(file).graphs.n_graphs == 0


@pytest.mark.parametrize("name", ["mutag", "enzymes", "molhiv_500"])
def test_an_ingested_shard_ingested_again_has_the_same_bytes(name, real_data):
    batch = real_data(name).batch
    first, second = io.BytesIO(), io.BytesIO()
    done = ingest_shard(source_shard(batch), max_nodes=None, directed=False)
    write_shard(first, done.graphs, done.rows, CLASSES)
    stored = read_shard(first)
    again = ingest_shard(
        SourceShard(0, stored.graphs, stored.rows, REJECTED_SCHEMA.empty_table()), max_nodes=None, directed=False
    )
    write_shard(second, again.graphs, again.rows, CLASSES)
    assert first.getvalue() == second.getvalue()


def test_which_rows_have_no_id_is_kept_and_a_shard_that_does_not_say_has_none(tmp_path, two_graphs):
    file, unnamed = tmp_path / "a.parquet", {"é.csv": [[0, 2], [7, 8]]}
    write_shard(file, two_graphs, rows_of(2), CLASSES, unnamed=unnamed)
    assert read_shard(file).unnamed == unnamed
    table = pq.read_table(file)
    write_shard(file, two_graphs, rows_of(2), CLASSES)
    assert read_shard(file).unnamed == {}
    for text in ("", "[]", '{"a": [1, 2]}', '{"a": [[1]]}', '{"a": [[1, "x"]]}'):
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"unnamed": text.encode()}), file)
        with pytest.raises(SourceError, match=r"a.parquet: the schema metadata entry unnamed .* ranges of rows"):
            read_shard(file)
