import subprocess
import sys
import warnings

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wegl_dask.convert import from_edge_lists, from_networkx, from_pyg, import_pyg, to_pyg
from wegl_dask.errors import MissingDependencyError
from wegl_dask.graphs import GraphSchema, canonical_edges
from wegl_dask.labelled_graphs import Vocabularies
from wegl_dask.plain_graphs import UnusableGraphError

torch, Data = import_pyg()
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.data import Batch, InMemoryDataset
    from torch_geometric.loader import DataLoader

EDGES = torch.tensor([[0, 1, 1], [1, 0, 1]])


def test_importing_the_converters_imports_no_other_library():
    code = (
        "import sys, wegl_dask.convert, wegl_dask.sources.pyg, wegl_dask.sources.networkx;"
        "print(sorted({'torch', 'torch_geometric', 'networkx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_library_that_is_not_installed_is_named_with_the_line_that_installs_it(monkeypatch, plain_batch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        MissingDependencyError, match=r"torch-geometric is needed .* pip install 'wegl-dask\[datasets\]'"
    ):
        to_pyg(plain_batch([]))


# Edge lists


def test_edge_lists_become_a_batch():
    batch = from_edge_lists([([[0, 1], [1, 2]], [[3], [0], [1]]), ([[], []], [[2]])])
    assert batch.schema == GraphSchema((4,))
    assert batch.node_counts.tolist() == [3, 1]
    assert batch.node_categories.tolist() == [[3], [0], [1], [2]]
    assert (batch.edge_source.tolist(), batch.edge_target.tolist()) == ([0, 1], [1, 2])


def test_the_edge_list_at_fault_is_named():
    with pytest.raises(UnusableGraphError, match=r"graph 1: edge_index has shape \(3,\)"):
        from_edge_lists([([[0], [1]], [[1.0], [2.0]]), ([0, 1, 2], [[1.0]])])


# torch_geometric


@settings(max_examples=50)
@given(data=st.data())
def test_a_batch_comes_back_from_torch_geometric(data, plain_graphs, plain_batch, assert_same_batch):
    batch = plain_batch(data.draw(plain_graphs))
    assert_same_batch(from_pyg(to_pyg(batch), batch.schema), batch)


@pytest.mark.parametrize("name", ["mutag", "enzymes", "molhiv_500"])
def test_real_data_come_back_from_torch_geometric(name, real_data, assert_same_batch):
    batch = real_data(name).batch
    assert_same_batch(from_pyg(to_pyg(batch), batch.schema), batch)


def test_a_single_kind_of_features_is_x_and_edge_attr(mutag):
    data = to_pyg(mutag.batch)[5]
    plain = mutag.graphs[5]
    assert sorted(data.keys()) == ["edge_attr", "edge_index", "x"]
    assert data.x.dtype == data.edge_attr.dtype == data.edge_index.dtype == torch.int64
    assert data.x.tolist() == plain.node_labels
    assert data.edge_attr.tolist() == plain.edge_labels
    assert data.edge_index.T.tolist() == [list(pair) for pair in plain.edges]


def test_both_kinds_of_features_have_names_of_their_own(enzymes):
    data = to_pyg(enzymes.batch)[0]
    assert sorted(data.keys()) == ["edge_index", "node_attributes", "node_categories"]
    assert data.node_attributes.shape == (37, 18)
    assert data.node_categories.tolist() == enzymes.graphs[0].node_labels


def test_graphs_without_features_have_a_number_of_nodes():
    batch = from_pyg([Data(edge_index=EDGES, num_nodes=3)])
    assert batch.schema == GraphSchema()
    assert batch.node_counts.tolist() == [3]
    assert to_pyg(batch)[0].num_nodes == 3


def test_arrays_that_cannot_be_written_to_are_copied(mutag):
    batch = mutag.batch.slice(0, 2)
    batch.node_categories.flags.writeable = False
    to_pyg(batch)[0].x[0] = 6
    assert batch.node_categories[0] == mutag.graphs[0].node_labels[0]


def test_virtual_nodes_are_not_converted(mutag):
    with pytest.raises(ValueError, match="virtual nodes have no categories"):
        to_pyg(mutag.batch.with_virtual_nodes())


def test_an_edge_weight_is_an_attribute_where_there_is_no_other_feature():
    weights = torch.tensor([1, 2, 3])
    batch = from_pyg([Data(x=torch.zeros(2, 1), edge_index=EDGES, edge_weight=weights)])
    assert batch.edge_attributes.tolist() == [[1.0], [2.0], [3.0]]
    batch = from_pyg([Data(x=torch.zeros(2, 1), edge_index=EDGES, edge_weight=weights, edge_attr=weights)])
    assert batch.edge_attributes.shape == (3, 0)
    assert batch.edge_categories.tolist() == [[1], [2], [3]]


def test_tensors_with_a_gradient_are_read():
    batch = from_pyg([Data(x=torch.ones(2, 1, requires_grad=True), edge_index=EDGES)])
    assert batch.node_attributes.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("short", [torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_attributes_of_short_floating_types_are_read(short):
    # All have at least two binary digits behind the point.
    batch = from_pyg([Data(x=torch.tensor([[1.25], [-0.5]], dtype=short), edge_index=EDGES)])
    assert batch.node_attributes.tolist() == [[1.25], [-0.5]]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"x": torch.ones(2, 1)}, r"graph 1: edge_index is missing; a graph without edges has one of shape \(2, 0\)"),
        ({"edge_index": EDGES}, "graph 1: x is missing"),
        ({"x": torch.ones(2, 3), "edge_index": EDGES}, "graph 1: the graph has 0 categories and 3 attributes a node"),
        ({"x": torch.ones(2, 1).to_sparse(), "edge_index": EDGES}, "graph 1: x cannot be read as a dense array"),
        ({"x": torch.ones(2, 1), "edge_index": EDGES.T}, r"graph 1: edge_index has shape \(3, 2\)"),
        (
            {"x": torch.ones(2, 1), "edge_index": EDGES, "edge_attr": torch.ones(2, 1)},
            "graph 1: edge_attr has 2 rows; the graph has 3 edges",
        ),
    ],
)
def test_a_data_object_of_no_use_is_named(fields, reason):
    good = Data(x=torch.ones(2, 1), edge_index=EDGES)
    with pytest.raises(UnusableGraphError, match=reason):
        from_pyg([good, Data(**fields)])


def batched(n_graphs=3):
    return Batch.from_data_list([Data(x=torch.ones(i + 2, 1), edge_index=EDGES, y=i) for i in range(n_graphs)])


def test_a_batch_of_torch_geometric_is_the_graphs_that_it_was_made_of(mutag, assert_same_batch):
    graphs, schema = to_pyg(mutag.batch), mutag.batch.schema
    for given_graphs in (
        Batch.from_data_list(graphs),
        DataLoader(graphs, batch_size=50),
        [Batch.from_data_list(graphs)],
    ):
        assert_same_batch(from_pyg(given_graphs, schema), mutag.batch)
    assert from_pyg([graphs[0], Batch.from_data_list(graphs[1:3])]).n_graphs == 3


def test_the_graphs_of_a_data_set_are_not_joined_to_see_that_it_is_none_itself(monkeypatch, mutag, assert_same_batch):
    data_set = InMemoryDataset()
    data_set.data, data_set.slices = InMemoryDataset.collate(to_pyg(mutag.batch))
    monkeypatch.setattr(Batch, "from_data_list", lambda *_, **__: pytest.fail("all graphs were joined"))
    assert_same_batch(from_pyg(data_set, mutag.batch.schema), mutag.batch)


def test_a_batch_that_cannot_be_taken_apart_is_refused():
    advice = "give its graphs themselves, as a list of Data, or a Batch as Batch.from_data_list makes it"
    made_by_hand = Batch(x=torch.ones(3, 1), edge_index=EDGES, batch=torch.tensor([0, 0, 1]))
    with pytest.raises(UnusableGraphError, match=f"item 1: the Batch .* cannot be taken apart .*: {advice}"):
        from_pyg([Data(x=torch.ones(2, 1), edge_index=EDGES), made_by_hand])
    # More, fewer, and what nothing is noted down about.
    more, fewer, added = batched(), batched(), batched()
    more.edge_index = torch.zeros((2, 30), dtype=torch.long)
    fewer.x = torch.ones(2, 1)
    added.edge_weight = torch.ones(9)
    for changed, found in (
        (more, "edge_index of the Batch of torch_geometric was changed after the Batch was made"),
        (fewer, "the Batch of torch_geometric cannot be taken apart"),
        (added, "edge_weight of the Batch of torch_geometric was changed"),
    ):
        with pytest.raises(UnusableGraphError, match=f"^{found}.*: {advice}"):
            from_pyg(changed)


def test_the_joined_fields_of_several_graphs_do_not_pass_for_one():
    fields = {"x": torch.ones(3, 1), "edge_index": EDGES}
    for several in ({"batch": torch.tensor([0, 0, 1])}, {"ptr": torch.tensor([0, 2, 3])}):
        with pytest.raises(
            UnusableGraphError, match=r"graph 0: these are 2 graphs joined to one, .*: give them one by one"
        ):
            from_pyg([Data(**fields, **several)])
    # Of one graph alone, and what has these names and means something else.
    for one in ({"batch": torch.zeros(3)}, {"ptr": torch.tensor([0, 3])}, {"batch": "A7"}, {"ptr": torch.arange(9)}):
        assert from_pyg([Data(**fields, **one)]).node_counts.tolist() == [3]


# networkx


@pytest.mark.parametrize(
    ("convert", "graph"),
    [(from_pyg, Data(x=torch.ones(2, 1), edge_index=EDGES[:, :1])), (from_networkx, nx.path_graph(2))],
)
def test_what_is_no_graph_of_the_library_is_named(convert, graph):
    of_the_other = nx.path_graph(3) if convert is from_pyg else Data(x=torch.ones(2, 1), edge_index=EDGES[:, :1])
    with pytest.raises(UnusableGraphError, match=f"single graph, of type {type(graph).__name__}: put it in a list"):
        convert(graph)
    for other in ("CCO", ([[0], [1]], [0, 1]), of_the_other):
        with pytest.raises(UnusableGraphError, match=f"^graph 1: this is of type {type(other).__name__}.* needed$"):
            convert([graph, other])


@pytest.mark.parametrize("pair", [([[0], [1]], [0, 1], [1]), 5, "ab"])
def test_what_is_no_pair_of_arrays_is_named(pair):
    with pytest.raises(UnusableGraphError, match=r"^graph 1: this is of type .*; a pair \(edge_index, x\) is needed$"):
        from_edge_lists([([[0], [1]], [0, 1]), pair])


def test_the_name_of_one_attribute_need_not_be_in_a_list():
    graph = nx.Graph()
    graph.add_node(0, element="C", mass=12.0)
    graph.add_node(1, element="B", mass=11.0)
    graph.add_edge(0, 1, bond=2, length=1.5)
    batch = from_networkx(
        [graph], node_labels="element", node_attributes="mass", edge_labels="bond", edge_attributes="length"
    )
    assert (batch.node_categories.ravel().tolist(), batch.node_attributes.ravel().tolist()) == ([1, 0], [12.0, 11.0])
    assert (batch.edge_categories.ravel().tolist(), batch.edge_attributes.ravel().tolist()) == ([0, 0], [1.5, 1.5])


def test_networkx_graphs_become_a_batch():
    first = nx.path_graph(["a", "b", "c"])
    nx.set_node_attributes(first, {"a": "C", "b": "N", "c": 6}, "atom")
    nx.set_node_attributes(first, 0.5, "charge")
    nx.set_edge_attributes(first, {("a", "b"): True, ("b", "c"): False}, "ring")
    nx.set_edge_attributes(first, 2, "length")
    second = nx.DiGraph()
    second.add_node(0, atom="N", charge=1)
    batch = from_networkx(
        [first, second],
        node_labels=["atom"],
        node_attributes=["charge"],
        edge_labels=["ring"],
        edge_attributes=["length"],
    )
    assert batch.schema == GraphSchema((3,), (2,), 1, 1)
    assert batch.node_categories.tolist() == [[1], [2], [0], [2]]
    assert batch.node_attributes.tolist() == [[0.5], [0.5], [0.5], [1.0]]
    assert batch.edge_offsets.tolist() == [0, 4, 4]
    assert (batch.edge_source.tolist(), batch.edge_target.tolist()) == ([0, 1, 1, 2], [1, 0, 2, 1])
    assert batch.edge_categories.tolist() == [[1], [1], [0], [0]]
    assert batch.edge_attributes.tolist() == [[2.0]] * 4


def test_a_given_vocabulary_is_kept():
    graph = nx.Graph()
    graph.add_node(0, atom="N")
    batch = from_networkx([graph], node_labels=["atom"], vocabularies=Vocabularies((("C", "N", "O"),), ()))
    assert batch.schema == GraphSchema((3,))
    assert batch.node_categories.tolist() == [[1]]


def test_the_networkx_graph_at_fault_is_named():
    graphs = [nx.path_graph(2), nx.path_graph(3)]
    nx.set_node_attributes(graphs[0], 1, "atom")
    with pytest.raises(UnusableGraphError, match="graph 1: node 0 has no attribute 'atom'"):
        from_networkx(graphs, node_labels=["atom"])
    nx.set_node_attributes(graphs[1], 2, "atom")
    with pytest.raises(UnusableGraphError, match="graph 1: a node has 2 as 'atom'"):
        from_networkx(graphs, node_labels=["atom"], vocabularies=Vocabularies(((1,),), ()))


@pytest.mark.parametrize("name", ["ptc_mr", "molhiv_500"])
def test_real_data_come_back_from_networkx(name, real_data, assert_same_batch):
    plain = real_data(name)
    graphs = []
    for source in plain.graphs:
        graph = nx.Graph()
        for node, labels in enumerate(source.node_labels):
            graph.add_node(node, **{f"n{i}": label for i, label in enumerate(labels)})
        for (start, stop), labels in zip(source.edges, source.edge_labels, strict=True):
            graph.add_edge(start, stop, **{f"e{i}": label for i, label in enumerate(labels)})
        graphs.append(graph)
    vocabularies = Vocabularies(
        tuple(tuple(range(size)) for size in plain.schema["node_labels"]),
        tuple(tuple(range(size)) for size in plain.schema["edge_labels"]),
    )
    batch = from_networkx(
        graphs,
        node_labels=[f"n{i}" for i in range(len(vocabularies.node))],
        edge_labels=[f"e{i}" for i in range(len(vocabularies.edge))],
        vocabularies=vocabularies,
    )
    # The labels of an undirected edge are one, so what the data set lists twice has to agree.
    assert_same_batch(canonical_edges(batch)[0], canonical_edges(plain.batch)[0])
    assert batch.node_attributes.shape == (plain.batch.n_nodes, 0)
    assert np.array_equal(batch.edge_counts, plain.batch.edge_counts)
