import http.server
import json
import shutil
import threading
import zipfile
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from wegl_dask.errors import SourceError
from wegl_dask.graphs import canonical_edges, concatenate, find_invalid
from wegl_dask.sources import _text, tud
from wegl_dask.sources.base import REJECTED_SCHEMA, SourcePlan
from wegl_dask.sources.tud import TudSource
from wegl_dask.spec import TudTable

# Three graphs: a triangle of nodes 1 to 3, a single node 4, a path 5 - 6.
SMALL = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n1, 3\n3, 1\n5, 6\n6, 5\n",
    "graph_indicator": "1\n1\n1\n2\n3\n3\n",
    "graph_labels": "7\n-1\n7\n",
    "node_labels": "4\n2\n2\n6\n2\n4\n",
    "edge_labels": "1\n1\n3\n3\n1\n1\n3\n3\n",
}


def make_source(root, name="SMALL", *, task="auto", download=False):
    return TudSource(TudTable(kind="tud", root=str(root), name=name, download=download), task)


def write(root, files, name="SMALL"):
    folder = root / name / "raw"
    folder.mkdir(parents=True)
    for kind, text in files.items():
        (folder / f"{name}_{kind}.txt").write_bytes(text.encode())
    return folder


def make_plan(source, nodes_per_shard=10_000):
    scans = [source.scan(piece, nodes_per_shard) for piece in source.pieces()]
    plan = source.plan(json.loads(json.dumps(scans)))
    assert SourcePlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    return plan


def read_shards(source, plan):
    shards = [shard for unit in plan.units for shard in source.read(plan, unit)]
    cuts = [cut for unit in plan.units for cut in unit.cuts]
    assert [shard.shard for shard in shards] == [cut.shard for cut in cuts] == list(range(len(cuts)))
    for shard, cut in zip(shards, cuts, strict=True):
        assert shard.rows.schema.equals(plan.row_schema())
        assert shard.rejected.schema.equals(REJECTED_SCHEMA)
        assert shard.graphs.n_graphs == shard.rows.num_rows
        assert shard.rows.num_rows + shard.rejected.num_rows == cut.n_rows
    return shards


def read_whole(source, nodes_per_shard=10_000):
    plan = make_plan(source, nodes_per_shard)
    shards = read_shards(source, plan)
    graphs = concatenate([shard.graphs for shard in shards])
    rows = pa.concat_tables(shard.rows for shard in shards)
    return plan, graphs, rows, pa.concat_tables(shard.rejected for shard in shards)


def assert_same_graphs(one, other):
    for name in ("node_offsets", "edge_offsets", "edge_source", "edge_target", "node_categories", "edge_categories"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_array_equal(one.node_attributes, other.node_attributes)
    np.testing.assert_array_equal(one.edge_attributes, other.edge_attributes)
    assert one.schema == other.schema


@pytest.fixture
def small(tmp_path):
    return write(tmp_path, SMALL)


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Make blocks so small that even the small data sets have many."""
    monkeypatch.setattr(_text, "BLOCK_BYTES", 16)


@pytest.mark.usefixtures("small")
def test_small_data_set_is_read_as_written_out_by_hand(tmp_path):
    plan, graphs, rows, rejected = read_whole(make_source(tmp_path))
    assert plan.schema.node_category_counts == (5,)  # 2 to 6
    assert plan.schema.edge_category_counts == (3,)  # 1 to 3
    assert graphs.node_offsets.tolist() == [0, 3, 4, 6]
    assert graphs.edge_offsets.tolist() == [0, 6, 6, 8]
    assert graphs.edge_source.tolist() == [0, 1, 1, 2, 0, 2, 0, 1]
    assert graphs.edge_target.tolist() == [1, 0, 2, 1, 2, 0, 1, 0]
    assert graphs.node_categories[:, 0].tolist() == [2, 0, 0, 4, 0, 2]
    assert graphs.edge_categories[:, 0].tolist() == [0, 0, 2, 2, 0, 0, 2, 2]
    assert rows.to_pylist() == [
        {"graph_id": "1", "source_file": "SMALL", "source_row": 0, "label": 1, "split": None},
        {"graph_id": "2", "source_file": "SMALL", "source_row": 1, "label": 0, "split": None},
        {"graph_id": "3", "source_file": "SMALL", "source_row": 2, "label": 1, "split": None},
    ]
    assert plan.labels.kind == "class"
    assert plan.labels.class_names == ("-1", "7")
    assert rejected.num_rows == 0


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("A", "1, 2\n2, 1\n2, 3\n3, 2\n1, 3\n3, 1\n6, 5\n5, 6\n"),
        ("graph_indicator", "1\n1\n1\n2\n2\n3\n"),
        ("graph_labels", "7\n7\n-1\n"),
        ("node_labels", "2\n4\n2\n6\n2\n4\n"),
        ("edge_labels", "1\n1\n3\n3\n1\n1\n3\n1\n"),
    ],
)
@pytest.mark.parametrize("nodes_per_shard", [1, 100])
@pytest.mark.usefixtures("tiny_blocks")
def test_a_file_that_changed_after_the_scan_is_noticed(small, tmp_path, kind, text, nodes_per_shard):
    source = make_source(tmp_path)
    plan = make_plan(source, nodes_per_shard)
    read_shards(source, plan)
    (small / f"SMALL_{kind}.txt").write_bytes(text.encode())
    with pytest.raises(SourceError, match="SMALL has other lines: it was changed after it was scanned"):
        read_shards(source, plan)


def test_published_sets_are_read_as_torch_geometric_reads_them(shared_data):
    io = pytest.importorskip("torch_geometric.io")
    for name in ("MUTAG", "PTC_MR", "ENZYMES", "PROTEINS", "IMDB-BINARY"):
        data, slices, sizes = io.read_tu_data(str(shared_data / "TUDataset" / name / "raw"), name)
        plan, graphs, rows, rejected = read_whole(make_source(shared_data / "TUDataset", name), 1000)
        assert rejected.num_rows == 0
        assert find_invalid(graphs) == {}
        assert sum(plan.schema.node_category_counts) == sizes["num_node_labels"]
        assert sum(plan.schema.edge_category_counts) == sizes["num_edge_labels"]
        np.testing.assert_array_equal(rows["label"].to_numpy(), data.y.numpy())
        # torch_geometric drops self-loops and sorts the edges of each graph, as canonical_edges does.
        graphs, _ = canonical_edges(graphs, directed=True)
        np.testing.assert_array_equal(graphs.edge_offsets, slices["edge_index"].numpy())
        np.testing.assert_array_equal(np.stack([graphs.edge_source, graphs.edge_target]), data.edge_index.numpy())
        if data.x is None:
            np.testing.assert_array_equal(graphs.node_counts, data._num_nodes)
        else:
            np.testing.assert_array_equal(graphs.node_offsets, slices["x"].numpy())
            labels = np.eye(sizes["num_node_labels"])[graphs.node_categories[:, 0]]
            np.testing.assert_array_equal(np.hstack([graphs.node_attributes, labels]), data.x.numpy())
        if plan.schema.edge_category_counts:
            labels = np.eye(sizes["num_edge_labels"])[graphs.edge_categories[:, 0]]
            np.testing.assert_array_equal(labels, data.edge_attr.numpy())


def test_known_sizes_of_published_sets(shared_data):
    for name, nodes, edges, classes in (
        ("MUTAG", 7, 4, (63, 125)),
        ("PTC_MR", 18, 4, (192, 152)),
        ("ENZYMES", 3, 0, (100,) * 6),
    ):
        plan, _, rows, _ = read_whole(make_source(shared_data / "TUDataset", name))
        assert sum(plan.schema.node_category_counts) == nodes
        assert sum(plan.schema.edge_category_counts) == edges
        assert tuple(np.bincount(rows["label"].to_numpy())) == classes


def test_published_zip_is_one_unit_read_in_one_pass(shared_data):
    source = make_source(shared_data / "TUDataset", "REDDIT-BINARY")
    plan, graphs, rows, _ = read_whole(source, 100_000)
    assert len(plan.units) == 1
    assert len(plan.units[0].cuts) > 5
    assert graphs.n_graphs == 2000
    assert round(graphs.n_nodes / 2000, 2) == 429.63
    assert np.bincount(rows["label"].to_numpy()).tolist() == [1000, 1000]
    assert find_invalid(graphs) == {}


def test_zip_and_flat_folder_equal_the_raw_folder(shared_data, tmp_path):
    raw = shared_data / "TUDataset" / "PTC_MR" / "raw"
    _, graphs, rows, _ = read_whole(make_source(shared_data / "TUDataset", "PTC_MR"), 500)
    flat, zipped = tmp_path / "flat", tmp_path / "zipped"
    shutil.copytree(raw, flat / "PTC_MR")
    zipped.mkdir()
    with zipfile.ZipFile(zipped / "PTC_MR.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(raw.iterdir(), reverse=True):
            archive.write(file, f"PTC_MR/{file.name}")
    for root in (flat, zipped):
        _, other_graphs, other_rows, _ = read_whole(make_source(root, "PTC_MR"), 500)
        assert_same_graphs(graphs, other_graphs)
        assert rows.equals(other_rows)


@pytest.mark.usefixtures("small")
def test_root_may_be_a_url(tmp_path):
    store = fsspec.filesystem("memory")
    store.put(f"{tmp_path}/SMALL", "/test_root/folder/SMALL", recursive=True)
    shutil.make_archive(str(tmp_path / "zipped"), "zip", tmp_path, "SMALL")
    store.put(str(tmp_path / "zipped.zip"), "/test_root/zip/SMALL.zip")
    expected = read_whole(make_source(tmp_path), 2)
    roots = (f"file://{tmp_path}", f"{tmp_path}/", "memory://test_root/folder", "memory://test_root/zip/")
    for root in roots:
        found = read_whole(make_source(root), 2)
        assert_same_graphs(found[1], expected[1])
        assert found[2].equals(expected[2])
    store.rm("/test_root", recursive=True)


@pytest.mark.parametrize("nodes_per_shard", [1, 40, 700])
def test_shard_size_does_not_change_the_graphs(shared_data, nodes_per_shard):
    source = make_source(shared_data / "TUDataset", "MUTAG")
    _, graphs, rows, _ = read_whole(source)
    plan, other_graphs, other_rows, _ = read_whole(source, nodes_per_shard)
    assert_same_graphs(graphs, other_graphs)
    assert rows.equals(other_rows)
    assert len(plan.units) == (188 if nodes_per_shard == 1 else pytest.approx(3371 / nodes_per_shard, rel=0.3))


def test_block_size_does_not_change_the_graphs(shared_data, monkeypatch):
    source = make_source(shared_data / "TUDataset", "MUTAG")
    _, graphs, rows, _ = read_whole(source, 100)
    monkeypatch.setattr(_text, "BLOCK_BYTES", 100)
    monkeypatch.setattr(tud, "_LINES_PER_STEP", 7)
    _, other_graphs, other_rows, _ = read_whole(source, 100)
    assert_same_graphs(graphs, other_graphs)
    assert rows.equals(other_rows)


@pytest.mark.parametrize("zipped", [False, True])
def test_files_that_are_not_sorted_by_graph_give_the_same_graphs(shared_data, tmp_path, zipped, monkeypatch):
    """Nodes and edges are shuffled; each graph's nodes keep their order, so only the order of edges can differ."""
    monkeypatch.setattr(_text, "BLOCK_BYTES", 2000)
    raw = shared_data / "TUDataset" / "MUTAG" / "raw"
    lines = {kind: (raw / f"MUTAG_{kind}.txt").read_text().splitlines() for kind in ("A", *SMALL)}
    rng = np.random.default_rng(0)
    graph_of_node = np.array(lines["graph_indicator"], dtype=int)
    drawn = rng.permutation(graph_of_node)
    # Line i of the shuffled files is node old[i]: the next one of graph drawn[i].
    old = np.argsort(graph_of_node, kind="stable")[np.argsort(np.argsort(drawn, kind="stable"))]
    new = np.argsort(old) + 1
    edge_order = rng.permutation(len(lines["A"]))
    ends = np.array([line.split(",") for line in lines["A"]], dtype=int)
    shuffled = {
        "graph_indicator": [str(graph) for graph in drawn],
        "node_labels": [lines["node_labels"][node] for node in old],
        "A": [f"{new[s - 1]}, {new[t - 1]}" for s, t in ends[edge_order]],
        "edge_labels": [lines["edge_labels"][edge] for edge in edge_order],
        "graph_labels": lines["graph_labels"],
    }
    folder = write(tmp_path, {kind: "\n".join(text) + "\n" for kind, text in shuffled.items()}, "MUTAG")
    if zipped:
        shutil.make_archive(str(tmp_path / "MUTAG"), "zip", tmp_path, "MUTAG")
        shutil.rmtree(folder.parent)
    _, expected, expected_rows, _ = read_whole(make_source(shared_data / "TUDataset", "MUTAG"))
    _, graphs, rows, rejected = read_whole(make_source(tmp_path, "MUTAG"), 500)
    assert rejected.num_rows == 0
    assert_same_graphs(canonical_edges(graphs)[0], canonical_edges(expected)[0])
    assert rows.equals(expected_rows)


def test_several_columns_of_labels_are_several_features(tmp_path):
    files = {**SMALL, "node_labels": "0,5\n1,5\n0,6\n0,5\n0,5\n0,7\n", "edge_labels": "1,0\n" * 8}
    write(tmp_path, files)
    plan, graphs, _, _ = read_whole(make_source(tmp_path), 2)
    assert plan.schema.node_category_counts == (2, 3)
    assert plan.schema.edge_category_counts == (1, 1)
    assert graphs.node_categories.tolist() == [[0, 0], [1, 0], [0, 1], [0, 0], [0, 0], [0, 2]]


def test_attributes_keep_their_values_and_missing_ones_are_left_to_the_check(tmp_path):
    files = {
        **SMALL,
        "node_attributes": "0.5, 1e3\n-1, 2\n0, 0\n nan, 1\n1,\n1,1\n",
        "edge_attributes": "0.25\n0.25\n1\n1\n2\n2\n-3\n3\n",
    }
    write(tmp_path, files)
    plan, graphs, _, rejected = read_whole(make_source(tmp_path), 2)
    assert (plan.schema.node_attribute_width, plan.schema.edge_attribute_width) == (2, 1)
    np.testing.assert_array_equal(
        graphs.node_attributes, [[0.5, 1000], [-1, 2], [0, 0], [np.nan, 1], [1, np.nan], [1, 1]]
    )
    assert graphs.edge_attributes[:, 0].tolist() == [0.25, 0.25, 1, 1, 2, 2, -3, 3]
    assert rejected.num_rows == 0
    assert set(find_invalid(graphs)) == {1, 2}


def test_attributes_that_are_too_large_are_left_to_the_check_without_a_warning(tmp_path):
    write(tmp_path, {**SMALL, "node_attributes": "1e300\n" * 6, "edge_attributes": "-1e300\n" * 8})
    _, graphs, _, _ = read_whole(make_source(tmp_path), 2)
    assert np.isposinf(graphs.node_attributes).all()
    assert np.isneginf(graphs.edge_attributes).all()


ATTRIBUTES = {"one": "0.5\n\n2\n", "one missing": "0.5\nnan\n2\n", "two": "0.5,1\n,2\n2,3\n"}


@pytest.mark.parametrize(
    ("task", "files", "kind", "labels"),
    [
        ("auto", {}, "class", [1, 0, 1]),
        ("auto", {"graph_attributes": ATTRIBUTES["two"]}, "class", [1, 0, 1]),
        ("auto", {"graph_labels": None, "graph_attributes": ATTRIBUTES["one missing"]}, "target", [0.5, None, 2.0]),
        ("auto", {"graph_labels": None, "graph_attributes": ATTRIBUTES["two"]}, "tasks", [[0.5, 1], [None, 2], [2, 3]]),
        ("auto", {"graph_labels": "1,0\n0,0\n0,1\n"}, "tasks", [[1, 0], [0, 0], [0, 1]]),
        ("auto", {"graph_labels": None}, "none", [None] * 3),
        ("none", {}, "none", [None] * 3),
        ("classification", {"graph_attributes": ATTRIBUTES["two"]}, "class", [1, 0, 1]),
        ("regression", {"graph_attributes": ATTRIBUTES["one missing"]}, "target", [0.5, None, 2.0]),
        ("regression", {}, "target", [7.0, -1.0, 7.0]),
        ("multitask", {"graph_attributes": ATTRIBUTES["two"]}, "tasks", [[0.5, 1], [None, 2], [2, 3]]),
        ("multitask", {}, "tasks", [[7], [-1], [7]]),
    ],
)
def test_task_decides_what_the_labels_are(tmp_path, task, files, kind, labels):
    write(tmp_path, {kind: text for kind, text in {**SMALL, **files}.items() if text is not None})
    plan, _, rows, _ = read_whole(make_source(tmp_path, task=task), 2)
    assert plan.labels.kind == kind
    if kind == "tasks":
        assert len(plan.labels.task_names) == len(labels[0])
        values = np.array(rows["label"].to_pylist(), dtype=float)
        np.testing.assert_array_equal(values, np.array(labels, dtype=float))
    else:
        assert rows["label"].to_pylist() == labels


def test_task_that_the_labels_do_not_allow_is_refused(small, tmp_path):
    (small / "SMALL_graph_labels.txt").unlink()
    (small / "SMALL_graph_attributes.txt").write_text("1,2\n1,2\n3,4\n")
    for task in ("classification", "regression"):
        with pytest.raises(SourceError, match=f'task = "{task}".*graph_attributes.txt with 2 columns'):
            make_plan(make_source(tmp_path, task=task))


def test_graph_without_nodes_is_a_graph_that_the_check_rejects(tmp_path):
    write(tmp_path, {**SMALL, "graph_indicator": "1\n1\n1\n1\n4\n4\n", "graph_labels": "1\n2\n2\n2\n1\n"})
    for nodes_per_shard in (1, 10_000):
        _, graphs, rows, _ = read_whole(make_source(tmp_path), nodes_per_shard)
        assert graphs.node_counts.tolist() == [4, 0, 0, 2, 0]
        assert find_invalid(graphs) == dict.fromkeys((1, 2, 4), "the graph has no nodes")
        assert rows["graph_id"].to_pylist() == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("nodes_per_shard", [1, 10_000])
@pytest.mark.usefixtures("tiny_blocks")
def test_both_graphs_that_an_edge_joins_are_rejected(small, tmp_path, nodes_per_shard):
    with (small / "SMALL_A.txt").open("a") as file:
        file.write("6, 2\n")
    with (small / "SMALL_edge_labels.txt").open("a") as file:
        file.write("1\n")
    _, graphs, rows, rejected = read_whole(make_source(tmp_path), nodes_per_shard)
    assert rows["graph_id"].to_pylist() == ["2"]
    assert graphs.node_categories.tolist() == [[4]]
    assert rejected.to_pylist() == [
        {
            "graph_id": graph_id,
            "source_file": "SMALL",
            "source_row": int(graph_id) - 1,
            "reason": f"line 9 of SMALL_A.txt joins node 6 to node 2; node {other} is not in this graph",
        }
        for graph_id, other in (("1", 6), ("3", 2))
    ]


@pytest.mark.parametrize("missing", [0, 7, -2, 10**15, -(2**63), 2**63 - 1])
def test_graph_with_an_edge_to_a_node_that_there_is_not_is_rejected(small, tmp_path, missing):
    text = SMALL["A"].replace("3, 2", f"3, {missing}")
    (small / "SMALL_A.txt").write_text(text)
    _, graphs, rows, rejected = read_whole(make_source(tmp_path), 1)
    assert rows["graph_id"].to_pylist() == ["2", "3"]
    assert graphs.n_edges == 2
    (row,) = rejected.to_pylist()
    assert row["graph_id"] == "1"
    assert row["reason"] == (
        f"line 4 of SMALL_A.txt joins node 3 to node {missing}; node {missing} is not in this graph"
    )


def test_edges_may_be_absent(tmp_path):
    write(tmp_path, {**SMALL, "A": "", "edge_labels": ""})
    _, graphs, _, _ = read_whole(make_source(tmp_path), 2)
    assert graphs.edge_counts.tolist() == [0, 0, 0]
    assert graphs.schema.edge_category_counts == ()


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n", "\n\n\n", "\n" * 40])
@pytest.mark.usefixtures("tiny_blocks")
def test_line_ends_and_empty_lines_at_the_end_do_not_matter(tmp_path, line_end, end):
    write(tmp_path / "plain", SMALL)
    write(tmp_path / "other", {kind: (text.rstrip() + end).replace("\n", line_end) for kind, text in SMALL.items()})
    expected, found = (read_whole(make_source(tmp_path / folder), 2) for folder in ("plain", "other"))
    assert_same_graphs(expected[1], found[1])
    assert expected[2].equals(found[2])


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("A", SMALL["A"].replace("2, 3", "2, x"), r"line 3 of .*SMALL_A\.txt is '2, x'; .* 2 whole numbers"),
        ("A", SMALL["A"].replace("2, 3", "2"), r"line 3 of .*SMALL_A\.txt is '2'"),
        ("A", SMALL["A"].replace("2, 3", "2, 3, 4"), r"line 3 of .*SMALL_A\.txt is '2, 3, 4'"),
        ("A", SMALL["A"].replace("2, 3", "2, 3.5"), r"line 3 of .*SMALL_A\.txt is '2, 3\.5'"),
        ("A", SMALL["A"].replace("2, 3", "2, 1" + "0" * 30), r"line 3 of .*SMALL_A\.txt is '2, 10000"),
        ("A", SMALL["A"].replace("2, 3\n", "2, 3\n\n"), r"line 4 of .*SMALL_A\.txt is ''"),
        ("A", "1 2\n2 1\n", r"line 1 of .*SMALL_A\.txt is '1 2'"),
        ("A", "1,2,3\n", r"SMALL_A\.txt has 3 columns; it must have 2"),
        ("A", SMALL["A"] + "9, 10\n", r"line 9 of .*SMALL_A\.txt joins nodes 9 and 10; .* has nodes 1 to 6"),
        (
            "A",
            SMALL["A"][5:],
            r"A\.txt has 7 lines and .*edge_labels\.txt has 8 lines; both must have one line for each edge",
        ),
        ("edge_labels", SMALL["edge_labels"][2:], r"A\.txt has 8 lines and .*edge_labels\.txt has 7 lines"),
        ("edge_labels", SMALL["edge_labels"].replace("3", "three"), r"line 3 of .*edge_labels\.txt is 'three'"),
        ("edge_attributes", "1\n", r"A\.txt has 8 lines and .*edge_attributes\.txt has 1 lines"),
        ("node_labels", "1\n2\n", r"graph_indicator\.txt has 6 lines and .*node_labels\.txt has 2 lines"),
        (
            "node_labels",
            f"{-(10**12)}\n{10**12}\n1\n1\n1\n1\n",
            r"column 1 of .*node_labels\.txt holds labels from -1000",
        ),
        ("node_attributes", "1\n2\n3\n4\n5\nsix\n", r"line 6 of .*node_attributes\.txt is 'six'; .* one number"),
        ("graph_indicator", "1\n1\n1\n2\n3\n4\n", r"line 6 of .*graph_indicator\.txt names graph 4; 3 graphs"),
        ("graph_indicator", "1\n1\n0\n2\n3\n3\n", r"line 3 of .*graph_indicator\.txt names graph 0"),
        ("graph_indicator", "", r"graph_indicator\.txt is empty"),
        ("graph_labels", "1\n2\n", r"line 5 of .*graph_indicator\.txt names graph 3; 2 graphs"),
        ("graph_labels", "1\nyes\n2\n", r"line 2 of .*graph_labels\.txt is 'yes'"),
        ("graph_attributes", "1\n2\n", r"graph_labels\.txt has 3 lines and .*graph_attributes\.txt has 2 lines"),
        ("graph_labels", "1\r2\r1\r", r"graph_labels\.txt"),
        ("graph_labels", "", r"graph_labels\.txt is empty; it must have a line for every graph"),
        ("graph_labels", "\n\r\n", r"graph_labels\.txt is empty; it must have a line for every graph"),
        ("graph_attributes", "", r"graph_attributes\.txt is empty; it must have a line for every graph"),
    ],
)
@pytest.mark.usefixtures("tiny_blocks")
def test_malformed_files_are_one_error_that_names_file_and_line(small, tmp_path, kind, text, message):
    (small / f"SMALL_{kind}.txt").write_bytes(text.encode())
    with pytest.raises(SourceError, match=message) as caught:
        make_plan(make_source(tmp_path))
    assert "\n" not in str(caught.value)


def test_graph_numbers_without_labels_may_not_run_far_ahead(small, tmp_path):
    (small / "SMALL_graph_labels.txt").unlink()
    (small / "SMALL_graph_indicator.txt").write_text(f"1\n1\n1\n2\n3\n{10**15}\n")
    with pytest.raises(SourceError, match="names graph 1000000000000000 and has 6 lines"):
        make_plan(make_source(tmp_path))


def test_missing_files_are_named(small, tmp_path):
    (small / "SMALL_graph_indicator.txt").unlink()
    with pytest.raises(SourceError, match=r"SMALL_graph_indicator\.txt is missing"):
        make_source(tmp_path).pieces()
    shutil.rmtree(small)
    with pytest.raises(SourceError, match=r"SMALL_A\.txt was looked for in .*SMALL and in .*SMALL\.zip"):
        make_source(tmp_path).pieces()


def test_broken_zip_is_one_error(tmp_path):
    (tmp_path / "SMALL.zip").write_bytes(b"PK nothing")
    with pytest.raises(SourceError, match=r"SMALL\.zip cannot be read: File is not a zip file"):
        make_source(tmp_path).pieces()


@pytest.mark.parametrize(("at", "value"), [(0, b"XX"), (42, b"\xff\xff\xff\x7f"), (8, b"\x63"), (6, b"\x01")])
def test_a_member_that_is_not_where_the_directory_of_a_zip_says_is_one_error(at, value, tmp_path, small):
    """Its header is something else, or its place is not in the file, or it is compressed otherwise, or encrypted."""
    for name in small.iterdir():
        with zipfile.ZipFile(tmp_path / "SMALL.zip", "a") as archive:
            archive.write(name, f"SMALL/{name.name}")
    shutil.rmtree(small)
    content = bytearray((tmp_path / "SMALL.zip").read_bytes())
    # In the directory two more bytes, the version that made it, come first.
    start = content.index(b"PK\x03\x04") if at == 0 else content.index(b"PK\x01\x02") + (0 if at == 42 else 2)
    content[start + at : start + at + len(value)] = value
    (tmp_path / "SMALL.zip").write_bytes(content)
    with pytest.raises(SourceError, match=r"SMALL\.zip"):
        make_plan(make_source(tmp_path))


def test_damaged_member_of_a_zip_is_one_error(tmp_path):
    text = "".join(f"{node}, {node + 1}\n" for node in range(1, 500))
    with zipfile.ZipFile(tmp_path / "SMALL.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("SMALL/SMALL_graph_indicator.txt", "1\n" * 500)
        archive.writestr("SMALL/SMALL_A.txt", text)
        where = archive.getinfo("SMALL/SMALL_A.txt").header_offset
    content = bytearray((tmp_path / "SMALL.zip").read_bytes())
    content[where + 200 : where + 220] = bytes(20)
    (tmp_path / "SMALL.zip").write_bytes(content)
    with pytest.raises(SourceError, match=r"SMALL_A\.txt is damaged or cut off"):
        make_plan(make_source(tmp_path))


@pytest.mark.usefixtures("tiny_blocks")
def test_fingerprint_follows_the_bytes_of_the_cut_alone(tmp_path):
    n_graphs = 30
    files = {
        "A": "".join(f"{2 * graph + 1}, {2 * graph + 2}\n" for graph in range(n_graphs)),
        "graph_indicator": "".join(f"{graph + 1}\n" * 2 for graph in range(n_graphs)),
        "graph_labels": "1\n2\n" * (n_graphs // 2),
        "node_labels": "1\n2\n" * n_graphs,
        "node_attributes": "0.25\n0.75\n" * n_graphs,
        "edge_attributes": "0.25\n" * n_graphs,
    }
    folder = write(tmp_path, files)
    source = make_source(tmp_path)

    def fingerprints():
        return [cut.fingerprint for unit in make_plan(source, 20).units for cut in unit.cuts]

    before = fingerprints()
    assert len(set(before)) == len(before) == 3
    assert fingerprints() == before
    for kind, old, new in (
        ("A", "1, 2\n", "2, 1\n"),
        ("graph_labels", "1\n", "2\n"),
        ("node_labels", "1\n", "2\n"),
        ("node_attributes", "0.25\n", "0.26\n"),
        ("edge_attributes", "0.25\n", "0.26\n"),
    ):
        path = folder / f"SMALL_{kind}.txt"
        path.write_text(new + files[kind].removeprefix(old))
        after = fingerprints()
        assert after[0] != before[0], kind
        assert after[2] == before[2], kind
        path.write_text(files[kind])


def test_file_that_shrank_after_the_scan_is_one_error(small, tmp_path):
    source = make_source(tmp_path)
    plan = make_plan(source)
    (small / "SMALL_A.txt").write_text("1, 2\n")
    with pytest.raises(SourceError, match="ends after line 1: it was changed after it was scanned"):
        read_shards(source, plan)


def test_class_that_appeared_after_the_scan_is_one_error(small, tmp_path):
    source = make_source(tmp_path)
    plan = make_plan(source)
    (small / "SMALL_graph_labels.txt").write_text("7\n3\n7\n")
    with pytest.raises(SourceError, match="class 3, which is new"):
        read_shards(source, plan)


def test_estimate_is_of_the_right_size(shared_data):
    for name, n_nodes in (("PROTEINS", 43_471), ("REDDIT-BINARY", 859_254)):
        estimate = make_source(shared_data / "TUDataset", name).estimated_nodes()
        assert n_nodes / 3 < estimate < n_nodes * 3


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A web server of the folder `tmp_path`/web, in the place of the published zips."""
    folder = tmp_path / "web"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=folder)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setattr(tud, "DOWNLOAD_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield folder
        server.shutdown()
        thread.join()


def test_data_set_that_is_not_there_is_downloaded_once(web, tmp_path):
    write(tmp_path / "made", SMALL)
    shutil.make_archive(str(web / "SMALL"), "zip", tmp_path / "made")
    root = tmp_path / "root"
    source = make_source(root, download=True)
    assert source.estimated_nodes() > 0
    assert [path.name for path in root.iterdir()] == ["SMALL.zip"]
    assert make_source("memory://test_download", download=True).pieces() == ["SMALL"]
    store = fsspec.filesystem("memory")
    assert store.cat("/test_download/SMALL.zip") == (root / "SMALL.zip").read_bytes()
    store.rm("/test_download", recursive=True)
    (web / "SMALL.zip").unlink()
    _, graphs, rows, _ = read_whole(source)
    _, expected, expected_rows, _ = read_whole(make_source(tmp_path / "made"))
    assert_same_graphs(graphs, expected)
    assert rows.equals(expected_rows)


@pytest.mark.usefixtures("web")
def test_workers_do_not_download(tmp_path):
    with pytest.raises(SourceError, match="the data set SMALL is not there"):
        make_source(tmp_path / "root", download=True).scan("SMALL", 10)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "HTTP Error 404"), (b"<html>", "is not a zip"), ("cut", "is not a zip, or was cut short")],
)
def test_failed_download_says_where_the_files_belong_and_leaves_nothing(web, tmp_path, content, reason):
    if content == "cut":
        shutil.make_archive(str(web / "SMALL"), "zip", write(tmp_path / "made", SMALL))
        content = (web / "SMALL.zip").read_bytes()[:-30]
    if content is not None:
        (web / "SMALL.zip").write_bytes(content)
    root = tmp_path / "root"
    with pytest.raises(SourceError, match=rf"looked for in .*SMALL\.zip; .*{reason}.*put the zip there by hand"):
        make_source(root, download=True).pieces()
    assert list(root.iterdir()) == []


def test_unreachable_server_is_one_error(tmp_path, monkeypatch):
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        port = server.server_port
    monkeypatch.setattr(tud, "DOWNLOAD_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(SourceError, match="could not be fetched"):
        make_source(tmp_path, download=True).pieces()


def test_root_that_cannot_be_written_is_one_error(web, tmp_path):
    (tmp_path / "root").write_text("a file, not a folder")
    (web / "SMALL.zip").write_bytes(b"")
    with pytest.raises(SourceError, match="root"):
        make_source(tmp_path / "root", download=True).pieces()


def test_unknown_protocol_is_one_error():
    with pytest.raises(SourceError, match="nosuchprotocol"):
        make_source("nosuchprotocol://bucket/data").pieces()


def test_reading_needs_no_torch(shared_data):
    import subprocess
    import sys

    code = (
        "import sys; from wegl_dask.sources.tud import TudSource; from wegl_dask.spec import TudTable\n"
        f"source = TudSource(TudTable(kind='tud', root={str(shared_data / 'TUDataset')!r}, name='MUTAG'), 'auto')\n"
        "plan = source.plan([source.scan('MUTAG', 1000)])\n"
        "print(sum(s.graphs.n_graphs for u in plan.units for s in source.read(plan, u)))\n"
        "print([name for name in ('torch', 'torch_geometric', 'rdkit', 'ogb') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert result.stdout.split("\n")[:2] == ["188", "[]"]
