import numpy as np
import pytest

from wegl_dask.graphs import GraphSchema
from wegl_dask.plain_graphs import UnusableGraphError, join_graphs, plain_graph

PATH = [[0, 1], [1, 2]]
LARGEST = 2**31 - 1


def test_whole_numbers_are_categories_and_real_numbers_attributes():
    graph = plain_graph(
        PATH,
        {
            "kind": np.array([0, 4, 1], dtype=np.uint8),
            "x": np.ones((3, 2), dtype=np.float16),
            "ring": [True, False, True],
        },
        {"bond": [[2, 7], [0, 1]], "length": [0.5, 1.5]},
    )
    assert graph.n_nodes == 3
    assert graph.edge_index.tolist() == PATH
    assert graph.node_categories.tolist() == [[0, 1], [4, 0], [1, 1]]
    assert graph.node_attributes.tolist() == [[1.0, 1.0]] * 3
    assert graph.edge_categories.tolist() == [[2, 7], [0, 1]]
    assert graph.edge_attributes.tolist() == [[0.5], [1.5]]


def test_numbers_keep_their_precision():
    assert plain_graph(PATH, {"x": [0.1, 0.2, 0.3]}, {}).node_attributes.tolist() == [[0.1], [0.2], [0.3]]


def test_a_graph_without_edges_may_have_an_edge_index_of_any_type():
    graph = plain_graph(np.empty((2, 0), dtype=np.float32), {"x": [1]}, {})
    assert graph.edge_index.shape == (2, 0)
    assert graph.edge_index.dtype == np.int64


def test_the_number_of_nodes_may_be_all_there_is():
    graph = plain_graph(PATH, {}, {}, n_nodes=5)
    assert graph.n_nodes == 5
    assert graph.widths == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((PATH, {}, {}), "x is missing, and num_nodes does not say how many nodes the graph has"),
        (([0, 1], {"x": [1]}, {}), r"edge_index has shape \(2,\); \(2, number of edges\) is needed"),
        ((np.zeros((3, 2), dtype=int), {"x": [1]}, {}), r"edge_index has shape \(3, 2\)"),
        ((np.zeros((2, 3)), {"x": [1]}, {}), "edge_index is of type float64; whole numbers are needed"),
        ((PATH, {"x": np.ones((3, 1, 1))}, {}), r"x has shape \(3, 1, 1\); \(number of rows, number of features\)"),
        ((PATH, {"x": 1.5}, {}), r"x has shape \(\)"),
        ((PATH, {"x": ["C", "N", "O"]}, {}), "x is of type <U1; whole or real numbers are needed"),
        ((PATH, {"x": [1j, 0, 0]}, {}), "x is of type complex128"),
        ((PATH, {"x": [[1.0], [1.0, 2.0]]}, {}), "x is no array: .*inhomogeneous"),
        ((PATH, {"x": [1.0] * 3, "z": [1, 2]}, {}), "z has 2 rows; the graph has 3 nodes"),
        ((PATH, {"x": [1.0] * 3}, {"bond": [1] * 3}), "bond has 3 rows; the graph has 2 edges"),
        ((PATH, {"x": [1.0] * 3}, {}, 4), "x has 3 rows; the graph has 4 nodes"),
        ((PATH, {}, {}, -1), "the number of nodes is -1"),
        ((PATH, {"x": [0, LARGEST + 1, 1]}, {}), "x has the category 2147483648; categories are below 2147483648"),
        ((PATH, {"x": np.array([0, 2**64 - 1, 1], dtype=np.uint64)}, {}), "x has the category 18446744073709551615"),
    ],
)
def test_arrays_of_no_use_are_refused_with_a_reason(arguments, reason):
    with pytest.raises(UnusableGraphError, match=reason):
        plain_graph(*arguments)


def test_graphs_are_joined_in_their_order():
    batch = join_graphs(
        [plain_graph(PATH, {"x": [2, 0, 1]}, {"w": [0.5, 2.0]}), plain_graph([[1], [0]], {"x": [5, 5]}, {"w": [4.0]})]
    )
    assert batch.schema == GraphSchema((6,), (), 0, 1)
    assert batch.node_offsets.tolist() == [0, 3, 5]
    assert batch.edge_offsets.tolist() == [0, 2, 3]
    assert batch.edge_source.tolist() == [0, 1, 1]
    assert batch.edge_target.tolist() == [1, 2, 0]
    assert batch.node_categories.tolist() == [[2], [0], [1], [5], [5]]
    assert batch.edge_attributes.tolist() == [[0.5], [2.0], [4.0]]


def test_no_graphs_are_an_empty_batch():
    assert join_graphs([]).n_graphs == 0
    assert join_graphs([], GraphSchema((3,), (), 2)).node_attributes.shape == (0, 2)


def test_a_given_schema_is_kept():
    schema = GraphSchema((119,), (5,))
    assert join_graphs([plain_graph(PATH, {"x": [2, 0, 1]}, {"bond": [0, 3]})], schema).schema == schema


def test_a_graph_without_edges_fits_any_edge_features_whether_first_or_later():
    bare = plain_graph(np.empty((2, 0), dtype=int), {"x": [8]}, {})
    full = plain_graph(PATH, {"x": [0, 1, 2]}, {"bond": [1, 3]})
    for graphs in ([bare, full], [full, bare]):
        batch = join_graphs(graphs)
        assert batch.schema == GraphSchema((9,), (4,))
        assert batch.edge_categories.tolist() == [[1], [3]]


def test_a_graph_of_other_features_is_named():
    graphs = [plain_graph(PATH, {"x": [0, 1, 2]}, {}), plain_graph(PATH, {"x": [0.0, 1.0, 2.0]}, {})]
    with pytest.raises(
        UnusableGraphError,
        match="graph 1: the graph has 0 categories and 1 attributes a node, 0 and 0 an edge; "
        "the collection has 1 categories and 0 attributes a node",
    ):
        join_graphs(graphs)
