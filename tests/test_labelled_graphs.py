from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wegl_dask.graphs import GraphSchema
from wegl_dask.labelled_graphs import AttributeNames, Vocabularies, labelled_graph, plain_label, sorted_labels
from wegl_dask.plain_graphs import UnusableGraphError

NAMES = AttributeNames(("atom",), ("charge",), ("bond",), ("length",))


@pytest.fixture
def water():
    graph = nx.Graph()
    graph.add_node("O", atom="oxygen", charge=-0.8)
    graph.add_node(("H", 1), atom="hydrogen", charge=0.4)
    graph.add_node(("H", 2), atom="hydrogen", charge=0.4)
    graph.add_edge("O", ("H", 1), bond=1, length=0.96)
    graph.add_edge(("H", 2), "O", bond="weak", length=2)
    return graph


def test_an_undirected_edge_is_listed_in_both_directions_one_after_the_other(water):
    graph = labelled_graph(water, NAMES)
    assert graph.n_nodes == 3
    assert graph.edge_index.T.tolist() == [[0, 1], [1, 0], [0, 2], [2, 0]]
    assert graph.node_labels == (["oxygen", "hydrogen", "hydrogen"],)
    assert graph.node_attributes.tolist() == [[-0.8], [0.4], [0.4]]
    assert graph.edge_labels == ([1, 1, "weak", "weak"],)
    assert graph.edge_attributes.tolist() == [[0.96], [0.96], [2.0], [2.0]]


def test_a_directed_edge_is_listed_as_it_is():
    graph = nx.DiGraph([(0, 1), (2, 1), (1, 2)])
    assert labelled_graph(graph, AttributeNames()).edge_index.T.tolist() == [[0, 1], [1, 2], [2, 1]]


def test_parallel_edges_are_all_listed_and_a_loop_once():
    graph = nx.MultiGraph([(0, 1), (0, 1), (1, 1)])
    assert labelled_graph(graph, AttributeNames()).edge_index.T.tolist() == [[0, 1], [1, 0], [0, 1], [1, 0], [1, 1]]


def test_a_graph_of_nothing_has_no_nodes():
    graph = labelled_graph(nx.Graph(), NAMES)
    assert graph.n_nodes == 0
    assert graph.edge_index.shape == (2, 0)


@settings(max_examples=50)
@given(
    edges=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5))),
    kind=st.sampled_from([nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph]),
)
def test_the_edges_are_those_of_the_adjacency_matrix(edges, kind):
    graph = kind()
    graph.add_nodes_from(range(6))
    graph.add_edges_from(edges)
    counts = np.zeros((6, 6))
    np.add.at(counts, tuple(labelled_graph(graph, AttributeNames()).edge_index), 1)
    np.testing.assert_array_equal(counts, nx.to_numpy_array(graph))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda g: g.nodes["O"].pop("atom"), "node 'O' has no attribute 'atom'"),
        (lambda g: g.nodes[("H", 2)].pop("charge"), r"node \('H', 2\) has no attribute 'charge'"),
        (lambda g: g.edges["O", ("H", 1)].pop("bond"), r"the edge from 'O' to \('H', 1\) has no attribute 'bond'"),
        (lambda g: g.nodes["O"].update(atom=None), "node 'O': the attribute 'atom' is None; a text or a finite number"),
        (lambda g: g.nodes["O"].update(atom=float("nan")), "node 'O': the attribute 'atom' is nan"),
        (lambda g: g.nodes["O"].update(atom=["C"]), r"node 'O': the attribute 'atom' is \['C'\]"),
        (lambda g: g.nodes["O"].update(charge="0.5"), "node 'O': the attribute 'charge' is '0.5'; a number is needed"),
        (lambda g: g.nodes["O"].update(charge=None), "node 'O': the attribute 'charge' is None"),
        (lambda g: g.nodes["O"].update(charge=10**400), "node 'O': the attribute 'charge' is beyond the real numbers"),
        (lambda g: g.edges["O", ("H", 1)].update(length=[1]), r"'O' to \('H', 1\): the attribute 'length' is \[1\]"),
    ],
)
def test_an_attribute_of_no_use_is_refused_with_the_name_of_its_node_or_edge(change, reason, water):
    change(water)
    with pytest.raises(UnusableGraphError, match=reason):
        labelled_graph(water, NAMES)


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("C", "C"),
        (7, 7),
        (True, 1),
        (np.int16(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(False), 0),
        (Fraction(1, 4), 0.25),
        (float("inf"), None),
        (float("nan"), None),
        (None, None),
        (2 + 0j, None),
        (("a", 1), None),
    ],
)
def test_texts_and_finite_numbers_are_labels(value, label):
    found = plain_label(value)
    assert found == label
    assert type(found) is type(label)


def test_labels_are_sorted_numbers_first():
    assert sorted_labels({"b", 10, "B", 2.5, "", -1}) == (-1, 2.5, 10, "", "B", "b")


def test_categories_are_the_ranks_of_the_values_that_occur(water):
    graph = labelled_graph(water, NAMES)
    vocabularies = Vocabularies.of_graphs([graph], NAMES)
    assert vocabularies == Vocabularies((("hydrogen", "oxygen"),), ((1, "weak"),))
    assert vocabularies.schema(NAMES) == GraphSchema((2,), (2,), 1, 1)
    plain = vocabularies.number(graph, NAMES)
    assert plain.node_categories.tolist() == [[1], [0], [0]]
    assert plain.edge_categories.tolist() == [[0], [0], [1], [1]]


def test_merged_vocabularies_are_those_of_all_graphs(water):
    other = nx.relabel_nodes(water, {"O": "S"})
    other.nodes["S"]["atom"] = "sulfur"
    graphs = [labelled_graph(graph, NAMES) for graph in (water, other)]
    parts = [Vocabularies.of_graphs([graph], NAMES) for graph in graphs]
    assert Vocabularies.merged(parts) == Vocabularies.of_graphs(graphs, NAMES)
    assert Vocabularies.merged(parts).node == (("hydrogen", "oxygen", "sulfur"),)


def test_a_value_outside_the_vocabulary_is_named(water):
    vocabularies = Vocabularies((("hydrogen", "sulfur"),), ((1, "weak"),))
    with pytest.raises(UnusableGraphError, match="a node has 'oxygen' as 'atom', which is not in the vocabulary of 2"):
        vocabularies.number(labelled_graph(water, NAMES), NAMES)
