import itertools
import sys
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wegl_dask import graph_collections, graph_inputs
from wegl_dask.convert import import_pyg
from wegl_dask.graph_collections import collect_graphs
from wegl_dask.graph_inputs import GraphForm
from wegl_dask.graphs import ALL_ATTRIBUTES, GraphSchema, canonical_edges, concatenate
from wegl_dask.labelled_graphs import AttributeNames, Vocabularies
from wegl_dask.molecules import MOLECULE_SCHEMA, graphs_from_smiles
from wegl_dask.plain_graphs import UnusableGraphError

torch, Data = import_pyg()

NO_NAMES = AttributeNames()
MUTAG_NAMES = AttributeNames(node_labels=("atom",), edge_labels=("bond",))
EDGE = ([[0], [1]], [[0], [0]])
LONE_NODE = (np.empty((2, 0), dtype=int), [[0]])


def as_batches(graphs, make_batch):
    return [make_batch([graph], node_labels=(7,), edge_labels=(4,)) for graph in graphs]


def as_pyg(graphs, _):
    return [
        Data(
            x=torch.tensor(graph.node_labels),
            edge_index=torch.tensor(graph.edges).T,
            edge_attr=torch.tensor(graph.edge_labels),
            y=torch.tensor([1.0]),
        )
        for graph in graphs
    ]


def as_networkx(graphs, _):
    result = []
    for graph in graphs:
        made = nx.Graph()
        made.add_nodes_from((node, {"atom": label}) for node, (label,) in enumerate(graph.node_labels))
        made.add_edges_from(
            (source, target, {"bond": f"kind {label}"})
            for (source, target), (label,) in zip(graph.edges, graph.edge_labels, strict=True)
        )
        result.append(made)
    return result


def as_triples(graphs, _):
    return [(np.array(graph.edges).T, graph.node_labels, graph.edge_labels) for graph in graphs]


def as_ogb(graphs, _):
    return [
        (
            {
                "edge_index": np.array(graph.edges).T,
                "node_feat": np.array(graph.node_labels),
                "edge_feat": np.array(graph.edge_labels),
                "num_nodes": len(graph.node_labels),
            },
            np.array([1]),
        )
        for graph in graphs
    ]


KINDS = [as_batches, as_pyg, as_networkx, as_triples, as_ogb]


def collect(graphs, names=NO_NAMES, **options):
    return collect_graphs(graphs, names=names, **options)


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch):
    monkeypatch.setattr(graph_inputs, "BATCH_NODES", 40)


# All kinds of graphs


@pytest.mark.parametrize("convert", KINDS)
@pytest.mark.parametrize("container", [list, iter, tuple])
def test_every_kind_of_graph_is_read_alike(convert, container, mutag, make_batch, assert_same_batch):
    graphs = container(convert(mutag.graphs, make_batch))
    collection = collect(graphs, MUTAG_NAMES)
    batches = list(collection)
    assert all(batch.n_nodes <= 40 for batch in batches)
    assert len(batches) > 50
    assert_same_batch(concatenate(batches), canonical_edges(mutag.batch)[0])
    assert collection.form.schema == GraphSchema((7,), (4,))


@pytest.mark.parametrize("convert", KINDS)
def test_graphs_of_a_known_form_are_read_alike(convert, mutag, make_batch, assert_same_batch):
    values = Vocabularies((tuple(range(7)),), (tuple(f"kind {label}" for label in range(4)),))
    form = GraphForm(GraphSchema((7,), (4,)), MUTAG_NAMES, values if convert is as_networkx else None)
    found = list(form.read(convert(mutag.graphs[100:], make_batch)))
    firsts = [first for first, _ in found]
    assert firsts == [0, *itertools.accumulate(batch.n_graphs for _, batch in found[:-1])]
    expected = canonical_edges(mutag.batch.slice(100, 188))[0]
    assert_same_batch(canonical_edges(concatenate([batch for _, batch in found]))[0], expected)


def test_a_whole_batch_is_read_in_blocks(mutag, assert_same_batch):
    batches = list(collect(mutag.batch))
    assert max(batch.n_nodes for batch in batches) <= 40
    assert_same_batch(concatenate(batches), canonical_edges(mutag.batch)[0])
    chained = list(collect([mutag.batch.slice(0, 3), mutag.batch.slice(3, 3), mutag.batch.slice(3, 188)]))
    assert_same_batch(concatenate(chained), canonical_edges(mutag.batch)[0])


def test_a_data_set_of_torch_geometric_is_read(mutag, make_batch, assert_same_batch):
    from torch_geometric.data import Dataset

    class Listed(Dataset):
        def len(self):
            return 20

        def get(self, idx):
            return as_pyg(mutag.graphs[idx : idx + 1], make_batch)[0]

    found = concatenate(list(collect(Listed(), schema=mutag.batch.schema)))
    assert_same_batch(found, canonical_edges(mutag.batch.slice(0, 20))[0])


def test_a_batch_of_torch_geometric_is_read_as_its_graphs(mutag, make_batch, assert_same_batch):
    from torch_geometric.data import Batch
    from torch_geometric.loader import DataLoader

    graphs = as_pyg(mutag.graphs, make_batch)
    batched = Batch.from_data_list(graphs)
    expected = canonical_edges(mutag.batch)[0]
    for given_graphs in (
        batched,
        [batched],
        DataLoader(graphs, batch_size=30),
        [*graphs[:5], *DataLoader(graphs[5:], 9)],
    ):
        found = list(collect(given_graphs))
        assert max(batch.n_nodes for batch in found) <= 40
        assert_same_batch(concatenate(found), expected)
    graphs[7].edge_attr = graphs[7].edge_attr.float()
    with pytest.raises(
        UnusableGraphError, match="graph 7: the graph has 1 categories and 0 attributes a node, 0 and 1 an"
    ):
        collect(iter([Batch.from_data_list(graphs[:6]), graphs[6], Batch.from_data_list(graphs[7:8])]))


def test_graphs_without_labels_and_without_features_are_read():
    (batch,) = collect(
        [
            {"edge_index": np.array([[0], [1]]), "node_feat": None, "edge_feat": None, "num_nodes": 3},
            {"edge_index": np.empty((2, 0)), "num_nodes": 2},
        ]
    )
    assert batch.schema == GraphSchema()
    assert batch.node_counts.tolist() == [3, 2]
    (batch,) = collect([nx.path_graph(3), nx.star_graph(2)])
    assert batch.edge_counts.tolist() == [4, 4]


@pytest.mark.parametrize("n_nodes", ["x", 2.5, np.array([2]), float("nan")])
def test_a_number_of_nodes_that_is_none_is_named_with_its_graph(n_nodes):
    graph = {"edge_index": np.array([[0], [1]]), "num_nodes": 2}
    with pytest.raises(UnusableGraphError, match=r"^graph 1: num_nodes is .*; a whole number is needed"):
        collect([graph, {**graph, "num_nodes": n_nodes}])


@pytest.mark.parametrize("field", [0, 1, 2])
def test_masked_values_are_not_read_as_what_is_below_the_mask(field):
    arrays = [np.array([[0], [1]]), np.array([3, 1]), np.array([2])]
    masked = [np.ma.array(each, mask=place == field) for place, each in enumerate(arrays)]
    names = ["edge_index", "x", "edge_attr"], ["edge_index", "node_feat", "edge_feat"]
    for name, graph in zip(names, (tuple(masked), dict(zip(names[1], masked, strict=True))), strict=True):
        with pytest.raises(UnusableGraphError, match=f"^graph 1: {name[field]} has masked values"):
            collect(
                [type(graph)(dict(zip(names[1], arrays, strict=True)) if isinstance(graph, dict) else arrays), graph]
            )
    # Nothing is masked here.
    assert collect([tuple(map(np.ma.asarray, arrays))]).form.schema == GraphSchema((4,), (3,))


def test_real_numbers_are_attributes_as_float32():
    (batch,) = collect([([[0], [1]], [[0.1], [2.0]], [[0.5]])])
    assert batch.schema == GraphSchema((), (), 1, 1)
    assert batch.node_attributes.dtype == np.float32
    assert batch.edge_attributes.ravel().tolist() == [0.5, 0.5]


def test_directed_edges_stay_as_they_are():
    (batch,) = collect([([[0, 0], [1, 2]], [[0]] * 3)], directed=True)
    assert batch.edge_target.tolist() == [1, 2]
    (batch,) = collect([([[0, 0], [1, 2]], [[0]] * 3)])
    assert batch.edge_target.tolist() == [1, 2, 0, 0]


# What graphs have in common


def test_vocabularies_reach_up_to_the_largest_category_in_any_batch():
    graphs = [([[0], [1]], [[i % 5], [0]], [[i % 3]]) for i in range(100)]
    assert collect(graphs).form.schema == GraphSchema((5,), (3,))


def test_vocabularies_that_batches_declare_are_kept(make_batch):
    molecules, _ = graphs_from_smiles(["C", "CC", "CCO", "c1ccccc1"] * 10)
    assert collect(molecules[:1]).form.schema == MOLECULE_SCHEMA
    assert collect(list(molecules)).form.schema == MOLECULE_SCHEMA
    graph = SimpleNamespace(
        node_labels=[[0]], node_attributes=[[]], edges=[(0, 0)], edge_labels=[[0]], edge_attributes=[[]]
    )
    few, many = (
        make_batch([graph], node_labels=(2,), edge_labels=(9,)),
        make_batch([graph], node_labels=(5,), edge_labels=(3,)),
    )
    assert collect([few, many]).form.schema == GraphSchema((5,), (9,))


@pytest.mark.parametrize("lone_first", [True, False])
def test_graphs_without_edges_leave_the_features_of_edges_open(lone_first):
    lone = [LONE_NODE] * 60
    edged = [([[0], [1]], [[0], [1]], [[2]])] * 30
    collection = collect([*lone, *edged] if lone_first else [*edged, *lone])
    assert collection.form.schema == GraphSchema((2,), (3,))
    batch = concatenate(list(collection))
    assert (batch.n_graphs, batch.edge_categories.shape) == (90, (60, 1))
    assert collect(lone).form.schema == GraphSchema((1,))


def test_a_given_schema_decides():
    schema = GraphSchema((9,), (4,))
    collection = collect([([[0], [1]], [[0], [1]], [[2]]), LONE_NODE], schema=schema)
    assert collection.form.schema == schema
    assert next(iter(collection)).schema == schema
    with pytest.raises(UnusableGraphError, match="graph 1: node 1, categorical feature 0: category 9 is outside the"):
        collect([LONE_NODE, ([[0], [1]], [[0], [9]], [[0]])], schema=schema)
    with pytest.raises(UnusableGraphError, match="graph 0: the graph has 0 categories and 1 attributes a node"):
        collect([([[0], [1]], [[0.5], [1.0]], [[0]])], schema=schema)


def test_values_of_networkx_graphs_are_numbered_in_order_whatever_order_they_come_in():
    graphs = []
    for value in ["b", 7, "a", 2.5, "c", 3] * 20:
        graph = nx.Graph()
        graph.add_node("x", atom=value)
        graph.add_node("y", atom="b")
        graph.add_edge("x", "y", bond=str(value))
        graphs.append(graph)
    collection = collect(graphs, MUTAG_NAMES)
    assert collection.form.vocabularies == Vocabularies(
        ((2.5, 3, 7, "a", "b", "c"),), (("2.5", "3", "7", "a", "b", "c"),)
    )
    batch = concatenate(list(collection))
    assert batch.node_categories.ravel().tolist() == [4, 4, 2, 4, 3, 4, 0, 4, 5, 4, 1, 4] * 20
    assert collection.census.categories == ([0, 1, 2, 3, 4, 5],)
    assert batch.edge_categories.ravel().tolist() == [4, 4, 2, 2, 3, 3, 0, 0, 5, 5, 1, 1] * 20


def test_given_values_of_networkx_graphs_keep_their_order():
    graph = nx.Graph()
    graph.add_node(0, atom="N")
    names = AttributeNames(node_labels=("atom",))
    collection = collect([graph], names, node_values={"atom": ["O", "N", "C"]})
    assert collection.form.schema == GraphSchema((3,))
    assert next(iter(collection)).node_categories.tolist() == [[1]]
    graph.add_node(1, atom="F")
    with pytest.raises(
        UnusableGraphError, match="graph 0: a node has 'F' as 'atom', which is none of the 3 values given"
    ):
        collect([graph], names, node_values={"atom": ["O", "N", "C"]})


def test_the_census_counts_what_occurs(ptc_mr):
    census = collect(ptc_mr.batch).census
    assert (census.n_graphs, int(census.node_counts.sum())) == (344, sum(len(g.node_labels) for g in ptc_mr.graphs))
    assert census.categories == (sorted({label for g in ptc_mr.graphs for (label,) in g.node_labels}),)
    degrees = {0} if any(not g.edges for g in ptc_mr.graphs) else set()
    for graph in ptc_mr.graphs:
        targets = [target for _, target in graph.edges]
        degrees |= {targets.count(node) for node in range(len(graph.node_labels))}
    assert census.degrees == sorted(degrees)


def test_the_digest_changes_with_the_graphs(mutag):
    digest = collect(mutag.batch).census.digest
    assert collect(list(mutag.batch)).census.digest == digest
    assert collect(mutag.batch[:187]).census.digest != digest
    assert collect(mutag.batch[::-1]).census.digest != digest


# Reading several times


@settings(max_examples=40)
@given(data=st.data())
def test_a_collection_is_the_same_at_every_reading_and_however_it_is_cut(
    data, plain_graphs, plain_batch, assert_same_batch
):
    graphs = data.draw(plain_graphs.filter(bool))
    whole = plain_batch(graphs)
    pieces = sorted(data.draw(st.lists(st.integers(0, len(graphs)), max_size=3)))
    bounds = [0, *pieces, len(graphs)]
    collection = collect([whole[start:stop] for start, stop in itertools.pairwise(bounds)])
    expected = canonical_edges(graph_inputs.in_single_precision(whole))[0]
    if (whole.edge_attributes < 0).any():
        return
    for _ in range(2):
        assert_same_batch(concatenate(list(collection)), expected)


def test_graphs_that_exceed_the_memory_are_in_a_file(monkeypatch, mutag, assert_same_batch):
    monkeypatch.setattr(graph_collections, "SPOOL_BYTES", 10_000)
    collection = collect(mutag.batch)
    assert collection._spool._file._rolled
    for _ in range(2):
        assert_same_batch(concatenate(list(collection)), canonical_edges(mutag.batch)[0])


def test_no_library_is_imported_for_its_graphs():
    import subprocess

    code = (
        "import sys, wegl_dask.graph_collections;"
        "print(sorted({'torch', 'torch_geometric', 'networkx', 'ogb', 'dask', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# What cannot be read


@pytest.mark.parametrize(
    ("graphs", "reason"),
    [
        ([], "there are no graphs; a fit needs at least one"),
        (17, "this is of type int; needed is a GraphBatch or an iterable of graphs: a graph is a GraphBatch, a torch"),
        (nx.path_graph(3), "this is a single graph, of type Graph: put it in a list"),
        (
            Data(edge_index=torch.tensor([[0], [1]]), num_nodes=2),
            "this is a single graph, of type Data: put it in a list",
        ),
        ({"edge_index": [[0], [1]]}, "this is a single graph, of type dict: put it in a list"),
        (
            [EDGE, "CCO"],
            "graph 1: this is of type str; .* SMILES become graphs with wegl_dask.molecules.graphs_from_smiles",
        ),
        ([EDGE, None], "graph 1: this is of type NoneType; a graph is"),
        ([EDGE, np.zeros((2, 3))], "graph 1: this is of type ndarray; a graph is"),
        ([EDGE, nx.path_graph(3)], "graph 1: networkx graphs and graphs of other kinds cannot be in one collection"),
        ([EDGE, ([[0], [2]], [[0], [0]])], "graph 1: edge 0 has target 2; the graph has nodes 0 to 1"),
        ([EDGE, ([[0], [1]], [[0], [-1]])], "graph 1: node 1, categorical feature 0: category -1 is outside"),
        ([([[0], [1]], [[0.0], [np.nan]])], "graph 0: node 1, attribute 0 is not finite: nan"),
        ([([[0], [1]], [[0.0], [1e39]])], "graph 0: node 1, attribute 0 is not finite"),
        ([([[0], [1]], [[0], [0]], [[-1.0]])], "graph 0: edge 0, attribute 0 is negative: -1"),
        (
            [EDGE, ([[0], [1]], [[0, 0], [0, 0]])],
            "graph 1: the graph has 2 categories and 0 attributes a node, .* has 1 cat",
        ),
        (
            [EDGE, ([[0], [1]], [[0], [0]], [[1]])],
            "graph 1: the graph has 1 categories and 0 attributes a node, 1 and 0 an",
        ),
        ([EDGE, ([0, 1, 2], [[0]])], r"graph 1: edge_index has shape \(3,\)"),
        (
            [EDGE, {"node_feat": np.zeros((1, 1), dtype=int)}],
            "graph 1: the dictionary has no edge_index; it has node_feat",
        ),
        ([EDGE, ([[], []], np.empty((0, 1), dtype=int))], "graph 1: the graph has no nodes"),
    ],
)
def test_what_cannot_be_read_is_named_with_the_reason(graphs, reason):
    with pytest.raises(UnusableGraphError, match=reason):
        collect(graphs, edge_features="attributes")


@pytest.mark.parametrize("kind", ["bad structure", "bad graph"])
def test_the_index_counts_through_all_batches(kind, mutag):
    bad = ([0], [[0]]) if kind == "bad structure" else ([[0], [5]], [[0], [0]])
    graphs = [*mutag.batch.slice(0, 5), mutag.batch.slice(5, 100), *mutag.batch.slice(100, 102), bad]
    with pytest.raises(UnusableGraphError, match="graph 102: "):
        collect(graphs, schema=mutag.batch.schema)
    with pytest.raises(UnusableGraphError, match="graph 3: "):
        [
            graph_inputs.usable_graphs(batch, first=first, directed=False, used=ALL_ATTRIBUTES)
            for first, batch in GraphForm(GraphSchema((1,)), NO_NAMES).read(itertools.chain([EDGE] * 3, [bad]))
        ]


def test_a_batch_with_virtual_nodes_is_refused(mutag):
    with pytest.raises(UnusableGraphError, match="graph 0: the batch has virtual nodes; leave them out"):
        collect(mutag.batch.with_virtual_nodes())


def test_networkx_graphs_need_the_values_of_the_fit():
    graph = nx.Graph()
    graph.add_node(0, atom="N")
    form = GraphForm(GraphSchema((3,)), AttributeNames(node_labels=("atom",)))
    with pytest.raises(UnusableGraphError, match="graph 0: which values of networkx graphs the categories of the fit"):
        list(form.read([graph]))
    form = GraphForm(GraphSchema((1,)), AttributeNames(node_labels=("atom",)), Vocabularies((("C",),), ()))
    with pytest.raises(UnusableGraphError, match="graph 0: a node has 'N' as 'atom', which is not in the vocabulary"):
        list(form.read([graph]))
