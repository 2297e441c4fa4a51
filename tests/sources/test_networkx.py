import gzip
import json
import sys

import networkx as nx
import pytest

from wegl_dask.errors import MissingDependencyError, SourceError
from wegl_dask.graphs import GraphSchema, canonical_edges
from wegl_dask.sources import networkx as networkx_source
from wegl_dask.sources.base import LabelSchema, SourcePlan
from wegl_dask.sources.networkx import NetworkxSource
from wegl_dask.spec import NetworkxTable

GRAPHML = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
  <key id="d0" for="node" attr.name="atom" attr.type="string"/>
  <key id="d1" for="edge" attr.name="length" attr.type="double"/>
  <key id="d2" for="graph" attr.name="toxic" attr.type="int"/>
  <graph edgedefault="{default}">
    <data key="d2">1</data>
    <node id="n0"><data key="d0">C</data></node>
    <node id="n1"><data key="d0">N</data></node>
    <node id="n2"><data key="d0">C</data></node>
    <edge source="n0" target="n1"><data key="d1">1.5</data></edge>
    <edge source="n2" target="n1"><data key="d1">2</data></edge>
  </graph>
</graphml>
"""

GML = """graph [
  toxic 0
  node [ id 7 label "first" atom "O" ]
  node [ id 3 label "second" atom "C" ]
  edge [ source 7 target 3 length 0.5 ]
]
"""

NODE_LINK = {
    "directed": False,
    "multigraph": False,
    "graph": {"toxic": 1},
    "nodes": [{"id": "a", "atom": "C"}, {"id": 2, "atom": 6}],
    "links": [{"source": "a", "target": 2, "length": 1}],
}


def table(path, **keys):
    return NetworkxTable(kind="networkx", path=path if isinstance(path, list) else str(path), **keys)


def reasons(found):
    return {row["graph_id"]: row["reason"] for row in found.rejected}


@pytest.fixture
def folder(tmp_path):
    """One graph in each of the formats, and a file that is none."""
    (tmp_path / "a.graphml").write_text(GRAPHML.format(default="undirected"))
    (tmp_path / "b.gml").write_text(GML)
    (tmp_path / "c.json").write_text(json.dumps(NODE_LINK))
    (tmp_path / "README.txt").write_text("about these graphs")
    return tmp_path


def test_files_of_all_formats_are_read_in_the_order_of_their_names(folder, read_source):
    found = read_source(table(folder, label="toxic", node_labels=["atom"], edge_attributes=["length"]))
    assert found.plan.schema == GraphSchema((4,), (), 0, 1)
    names = {"node_labels": ["atom"], "node_attributes": [], "edge_labels": [], "edge_attributes": ["length"]}
    vocabularies = {"node": [[6, "C", "N", "O"]], "edge": []}
    assert found.plan.numbering == {"vocabularies": vocabularies, "attribute_names": names}
    assert found.plan.labels == LabelSchema("class", class_names=("0", "1"))
    assert found.rows == {
        "graph_id": ["a", "b", "c"],
        "source_file": [str(folder / name) for name in ("a.graphml", "b.gml", "c.json")],
        "source_row": [0, 0, 0],
        "label": [1, 0, 1],
        "split": [None, None, None],
    }
    assert found.rejected == []
    assert found.graphs.node_offsets.tolist() == [0, 3, 5, 7]
    assert found.graphs.node_categories.ravel().tolist() == [1, 2, 1, 3, 1, 1, 0]
    assert found.graphs.edge_source.tolist() == [0, 1, 1, 2, 0, 1, 0, 1]
    assert found.graphs.edge_target.tolist() == [1, 0, 2, 1, 1, 0, 1, 0]
    assert found.graphs.edge_attributes.ravel().tolist() == [1.5, 1.5, 2.0, 2.0, 0.5, 0.5, 1.0, 1.0]


def test_the_edges_of_a_directed_graph_stay_as_they_are(tmp_path, read_source):
    (tmp_path / "a.graphml").write_text(GRAPHML.format(default="directed"))
    found = read_source(table(tmp_path))
    assert (found.graphs.edge_source.tolist(), found.graphs.edge_target.tolist()) == ([0, 2], [1, 1])


def test_parallel_edges_of_a_multigraph_are_kept(tmp_path, read_source):
    graph = nx.MultiGraph([("x", "y"), ("x", "y")])
    nx.write_graphml(graph, tmp_path / "multi.graphml")
    (tmp_path / "multi.json").write_text(json.dumps(nx.node_link_data(graph, edges="edges")))
    nx.write_gml(graph, tmp_path / "multi.gml")
    found = read_source(table(tmp_path))
    assert found.graphs.edge_counts.tolist() == [4, 4, 4]
    assert canonical_edges(found.graphs)[1].parallel_edges_merged == 6


@pytest.mark.parametrize("of_twice", [{"multigraph": False}, {"multigraph": True}, {}])
@pytest.mark.parametrize("directed", [False, True])
def test_of_an_edge_that_node_link_json_lists_twice_the_first_counts(tmp_path, read_source, of_twice, directed):
    ends = [("a", 2), ("a", 2)] if directed else [("a", 2), (2, "a")]
    links = [{"source": s, "target": t, "key": 7, "length": i + 1} for i, (s, t) in enumerate(ends)]
    graph = {**NODE_LINK, "links": links, "directed": directed}
    graph.pop("multigraph")
    (tmp_path / "twice.json").write_text(json.dumps(graph | of_twice))
    graphs, found = canonical_edges(read_source(table(tmp_path, edge_attributes=["length"])).graphs)
    # The edge of length 1 is there in one direction, or in both.
    assert graphs.edge_attributes.ravel().tolist() == [1.0, 1.0]
    assert found.parallel_edges_merged == (1 if directed else 2)


def test_the_key_of_an_edge_of_node_link_json_is_an_attribute(tmp_path, read_source):
    links = [{"source": "a", "target": 2, "key": 7}]
    (tmp_path / "a.json").write_text(json.dumps({**NODE_LINK, "links": links}))
    assert read_source(table(tmp_path, edge_attributes=["key"])).graphs.edge_attributes.ravel().tolist() == [7.0, 7.0]


def test_edges_of_graphml_with_the_same_ends_and_the_same_id_are_refused(tmp_path, read_source):
    twice = GRAPHML.format(default="undirected").replace("<edge source=", '<edge id="e" source=')
    (tmp_path / "different_ends.graphml").write_text(twice)
    (tmp_path / "same_ends.graphml").write_text(twice.replace('source="n2"', 'source="n0"'))
    found = read_source(table(tmp_path, edge_attributes=["length"]))
    assert found.rows["graph_id"] == ["different_ends"]
    reason = "two edges that join the same nodes have the same id: give them others, or none"
    assert reasons(found) == {"same_ends": reason}


def test_compressed_files_are_read(tmp_path, read_source):
    (tmp_path / "mol.1.gml.gz").write_bytes(gzip.compress(GML.encode()))
    found = read_source(table(tmp_path))
    assert found.rows["graph_id"] == ["mol.1"]


def test_the_label_of_gml_nodes_is_an_attribute(folder, read_source):
    found = read_source(table(folder / "b.gml", node_labels=["label"]))
    assert found.plan.details["vocabularies"]["node"] == [["first", "second"]]


def test_splits_and_missing_labels(tmp_path, read_source):
    for name, values in {"a": {"y": 0.5, "part": "train"}, "b": {"part": "test"}, "c": {"y": 2}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(NODE_LINK | {"graph": values}))
    found = read_source(table(tmp_path, label="y", split="part"))
    assert found.plan.labels == LabelSchema("target")
    assert found.plan.has_split
    assert found.rows["label"] == [0.5, None, 2.0]
    assert found.rows["split"] == ["train", "test", None]


def test_lists_of_numbers_are_labels_of_tasks(tmp_path, read_source):
    for name, y in {"a": [0, 1.5], "b": [None, 1]}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(NODE_LINK | {"graph": {"y": y}}))
    found = read_source(table(tmp_path, label="y"))
    assert found.plan.labels == LabelSchema("tasks", task_names=("task_0", "task_1"))
    assert str(found.rows["label"]) == "[[0.0, 1.5], [nan, 1.0]]"


@pytest.mark.parametrize("name", ["mutag", "ptc_mr"])
def test_real_data_come_back_from_files(name, real_data, tmp_path, read_source):
    plain = real_data(name).graphs[:60]
    batch = real_data(name).batch.slice(0, 60)
    for index, source in enumerate(plain):
        graph = nx.Graph()
        for node, (label,) in enumerate(source.node_labels):
            graph.add_node(f"node {node}", kind=label)
        for (start, stop), (label,) in zip(source.edges, source.edge_labels, strict=True):
            graph.add_edge(f"node {start}", f"node {stop}", kind=label)
        name = f"graph {index:03d}"
        if index % 3 == 0:
            nx.write_graphml(graph, tmp_path / f"{name}.graphml")
        elif index % 3 == 1:
            nx.write_gml(graph, tmp_path / f"{name}.gml")
        else:
            (tmp_path / f"{name}.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    found = read_source(table(tmp_path, node_labels=["kind"], edge_labels=["kind"]), nodes_per_shard=200)
    assert found.rows["graph_id"] == [f"graph {index:03d}" for index in range(60)]
    assert len(found.shards) > 3
    occurring = [sorted(set(column.tolist())) for column in batch.node_categories.T]
    assert found.plan.details["vocabularies"]["node"] == occurring
    # Categories are ranks among the values that occur; put the values back to compare.
    values = found.plan.details["vocabularies"]
    canonical, expected = canonical_edges(found.graphs)[0], canonical_edges(batch)[0]
    assert [values["node"][0][c] for c in canonical.node_categories[:, 0]] == expected.node_categories[:, 0].tolist()
    assert [values["edge"][0][c] for c in canonical.edge_categories[:, 0]] == expected.edge_categories[:, 0].tolist()
    for array in ("node_offsets", "edge_offsets", "edge_source", "edge_target"):
        assert getattr(canonical, array).tolist() == getattr(expected, array).tolist(), array


def test_pieces_are_blocks_of_files_and_the_vocabulary_reaches_over_all(tmp_path, read_source, monkeypatch):
    monkeypatch.setattr(networkx_source, "_FILES_PER_PIECE", 3)
    for index in range(8):
        nodes = [{"id": 0, "atom": f"atom {index % 5}"}]
        (tmp_path / f"{index}.json").write_text(json.dumps(NODE_LINK | {"nodes": nodes, "links": []}))
    found = read_source(table(tmp_path, node_labels=["atom"]))
    assert len(found.source.pieces()) == 3
    assert [shard.graphs.n_graphs for shard in found.shards] == [3, 3, 2]
    assert found.graphs.node_categories.ravel().tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_a_large_graph_is_a_shard_of_its_own(tmp_path, read_source):
    for index, n_nodes in enumerate([4, 4, 4, 30, 4]):
        nx.write_graphml(nx.path_graph(n_nodes), tmp_path / f"{index}.graphml")
    found = read_source(table(tmp_path), nodes_per_shard=10)
    assert [shard.graphs.node_counts.tolist() for shard in found.shards] == [[4, 4, 4], [30], [4]]


def test_the_fingerprint_of_a_cut_changes_with_its_files(folder, read_source):
    before = [cut.fingerprint for cut in read_source(table(folder), nodes_per_shard=2).cuts]
    assert [cut.fingerprint for cut in read_source(table(folder), nodes_per_shard=2).cuts] == before
    (folder / "b.gml").write_text(GML.replace("length 0.5", "length 0.6"))
    after = [cut.fingerprint for cut in read_source(table(folder), nodes_per_shard=2).cuts]
    assert [one == two for one, two in zip(before, after, strict=True)] == [True, False, True]


def test_a_file_that_changed_after_the_scan_is_noticed(folder):
    source = NetworkxSource(table(folder), "auto")
    plan = SourcePlan.from_json(
        json.loads(json.dumps(source.plan([source.scan(p, 2) for p in source.pieces()]).to_json()))
    )
    assert sum(shard.rows.num_rows for unit in plan.units for shard in source.read(plan, unit)) == 3
    (folder / "b.gml").write_text(GML.replace("length 0.5", "length 0.6"))
    with pytest.raises(SourceError, match="holds another graph: it was changed after it was scanned"):
        [*(shard for unit in plan.units for shard in source.read(plan, unit))]


def test_the_number_of_nodes_is_extrapolated_from_some_files(folder):
    (folder / "d.gml").write_text("nothing")
    source = NetworkxSource(table(folder), "auto")
    assert source.estimated_nodes() == 7


# Files and graphs of no use


UNDECLARED = GRAPHML.format(default="undirected").replace('<node id="n2"><data key="d0">C</data></node>', "")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("bad.graphml", "<graphml", "the file is not GraphML: ParseError: "),
        ("bad.graphml", "", "the file is not GraphML: ParseError: no element found"),
        ("bad.graphml", "<html></html>", "the file is not GraphML: NetworkXError: file not successfully read"),
        ("bad.graphml", UNDECLARED, "an edge has the end 'n2', which is none of the 2 nodes"),
        (
            "bad.graphml",
            GRAPHML.format(default="undirected").replace('id="n1"', 'id="n0"').replace('"n1"', '"n0"'),
            "the 3 nodes have only 2 different ids",
        ),
        ("bad.gml", "", "the file is not GML: NetworkXError: "),
        ("bad.gml", GML[:60], "the file is not GML: NetworkXError: "),
        (
            "bad.gml",
            GML.replace("target 3", "target 4"),
            "the file is not GML: NetworkXError: edge #0 has undefined target 4",
        ),
        ("bad.gml", GML.replace("id 3", "id 7"), "the file is not GML: NetworkXError: node id 7 is duplicated"),
        ("bad.json", "{", "the file is not node-link JSON: JSONDecodeError: "),
        ("bad.json", "[]", "the file is not node-link JSON: ValueError: an object with"),
        ("bad.json", "7", "the file is not node-link JSON: TypeError: "),
        (
            "bad.json",
            '{"graph": true, "nodes": [], "edges": []}',
            'TypeError: "graph" is True; an object with the attributes of the graph is needed',
        ),
        ("bad.json", '{"nodes": []}', 'ValueError: an object with "nodes" and "edges" (or "links") is needed'),
        (
            "bad.json",
            '{"nodes": [{"id": 0}], "edges": [{"source": 0}]}',
            "the file is not node-link JSON: KeyError: 'target'",
        ),
        ("bad.json", '{"nodes": [3], "edges": []}', "the file is not node-link JSON: AttributeError: "),
        ("bad.json", '{"nodes": [{"id": {}}], "edges": []}', "the file is not node-link JSON: TypeError: "),
        ("bad.json", "[" * 100_000, "the file is not node-link JSON: RecursionError: "),
        (
            "bad.json",
            '{"nodes": [{"id": 0}], "edges": [{"source": 0, "target": 1}]}',
            "an edge has the end 1, which is none of the 1 nodes",
        ),
        ("bad.json", '{"nodes": [{"id": 0}, {"id": 0}], "edges": []}', "the 2 nodes have only 1 different ids"),
    ],
)
def test_a_file_that_is_not_what_its_ending_says_is_rejected(name, content, reason, folder, read_source):
    (folder / name).write_text(content)
    found = read_source(table(folder))
    assert found.rows["graph_id"] == ["a", "b", "c"]
    (rejected,) = found.rejected
    assert rejected["graph_id"] == "bad"
    assert rejected["source_file"] == str(folder / name)
    assert reason in rejected["reason"]


def test_bytes_that_are_no_text_are_rejected(folder, read_source):
    for ending in ("graphml", "gml", "json"):
        (folder / f"{ending}.{ending}").write_bytes(b"\xff\xfe\x00\x81")
    assert sorted(reasons(read_source(table(folder)))) == ["gml", "graphml", "json"]


def test_a_file_named_in_full_must_have_an_ending_that_is_known(folder, read_source):
    found = read_source(table([str(folder / "a.graphml"), str(folder / "README.txt")]))
    assert reasons(found) == {"README": "the ending of the file is none of .graphml, .gml, .json"}


def test_a_missing_attribute_rejects_the_graph_with_the_name_of_the_node(folder, read_source):
    nodes = [{"id": "a", "atom": "Xx"}, {"id": 2}]
    (folder / "d.json").write_text(json.dumps(NODE_LINK | {"nodes": nodes}))
    found = read_source(table(folder, node_labels=["atom"]))
    assert reasons(found) == {"d": "node 2 has no attribute 'atom'"}
    assert "Xx" not in found.plan.details["vocabularies"]["node"][0]


def test_a_text_where_a_number_is_needed_rejects_the_graph(folder, read_source):
    found = read_source(table(folder, node_attributes=["atom"]))
    assert reasons(found)["a"] == "node 'n0': the attribute 'atom' is 'C'; a number is needed"
    assert found.graphs.n_graphs == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("d.json", json.dumps(NODE_LINK).replace('"C"', r'"\ud800"')),
        ("d.json", json.dumps(NODE_LINK | {"graph": {"toxic": "\udfff"}})),
        ("d.gml", GML.replace('"O"', '"&#55296;"')),
    ],
)
def test_halves_of_characters_are_rejected(name, content, folder, read_source):
    (folder / name).write_text(content)
    found = read_source(table(folder, node_labels=["atom"], label="toxic"))
    ((rejected, reason),) = reasons(found).items()
    assert rejected == "d"
    assert "which is no character: correct it" in reason


def test_whole_characters_may_be_written_as_numbers(folder, read_source):
    (folder / "d.json").write_text(json.dumps(NODE_LINK).replace('"C"', r'"\ud83d\ude00 \u00e4"'))
    (folder / "e.gml").write_text(GML.replace('"O"', '"&#228;"'))
    found = read_source(table(folder, node_labels=["atom"]))
    assert not found.rejected
    assert {"\U0001f600 ä", "ä"} <= set(found.plan.details["vocabularies"]["node"][0])


def test_graphml_keys_without_a_type_are_texts(folder, read_source):
    """networkx warns of them, and warnings are errors here."""
    text = GRAPHML.format(default="undirected").replace(' attr.type="string"', "").replace(' attr.type="double"', "")
    (folder / "a.graphml").write_text(text)
    assert not read_source(table(folder, node_labels=["atom"])).rejected
    found = read_source(table(folder, edge_attributes=["length"]))
    assert reasons(found) == {"a": "the edge from 'n0' to 'n1': the attribute 'length' is '1.5'; a number is needed"}


def test_a_label_of_no_use_rejects_the_graph(folder, read_source):
    (folder / "d.json").write_text(json.dumps(NODE_LINK | {"graph": {"toxic": {"yes": 1}}}))
    found = read_source(table(folder, label="toxic"))
    assert reasons(found) == {
        "d": "the graph attribute 'toxic' is {'yes': 1}; a text, finite numbers or nothing is needed"
    }


@pytest.mark.parametrize("key", ["label", "split"])
def test_a_graph_attribute_that_no_graph_has_stops_the_job(key, folder, read_source):
    with pytest.raises(SourceError, match=rf"source\.{key} = 'toxik': none of the 3 graphs has a graph attribute"):
        read_source(table(folder, **{key: "toxik"}))


def test_a_label_that_is_not_asked_for_may_be_missing(folder, read_source):
    assert read_source(table(folder, label="toxik"), task="none").plan.labels == LabelSchema()


def test_a_task_without_labels_is_refused(folder, read_source):
    with pytest.raises(SourceError, match=r"source.label is not set: no graph has one, and task = \"classification\""):
        read_source(table(folder), task="classification")


def test_networkx_that_is_not_installed_is_named(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingDependencyError, match=r"networkx is needed .* pip install 'wegl-dask\[datasets\]'"):
        NetworkxSource(table(folder), "auto").pieces()
