"""The estimator: scikit-learn's protocol, the numbers against other libraries, models on storage."""

import errno
import itertools
import json
import pickle
import subprocess
import sys
import warnings
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import joblib
import networkx as nx
import numpy as np
import ot
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.validation import validate_data

import wegl_dask
from wegl_dask import WEGL, GraphSchema, WeglError, folders, graph_inputs, network_simplex
from wegl_dask.checksums import sealed, unsealed
from wegl_dask.claims import claim
from wegl_dask.features import build_features
from wegl_dask.folders import Folder
from wegl_dask.labelled_graphs import Vocabularies
from wegl_dask.parameters import JOB_KEYS
from wegl_dask.plain_graphs import UnusableGraphError
from wegl_dask.points import NodeEmbedding
from wegl_dask.reference import TooFewPointsError
from wegl_dask.spec import JobSpec

STORED = Path(__file__).parent / "data" / "model-format-1"
PATH = [[0, 1], [1, 2]]
TRIANGLE = [[0, 1, 2], [1, 2, 0]]
FOUR = [(PATH, [0, 1, 0]), (PATH, [1, 1, 0]), (TRIANGLE, [0, 0, 1]), (TRIANGLE, [1, 1, 0])]


@pytest.fixture(scope="module")
def mutag_labels(shared_data):
    lines = (shared_data / "TUDataset" / "MUTAG" / "raw" / "MUTAG_graph_labels.txt").read_text().split()
    return np.array(lines, dtype=int)


def test_vectors_that_single_precision_cannot_hold_are_refused(mutag):
    wegl = WEGL(node_features=["labels"], n_layers=0, reference=1e60 * np.eye(6)[:2])
    with pytest.raises(
        UnusableGraphError, match=r"graph 0: its embedding has an entry of .*e\+59; 3\.4e\+38 is the most"
    ):
        wegl.fit_transform(mutag.batch)


def test_more_layers_than_a_model_may_have_are_refused_by_the_fit(mutag):
    with pytest.raises(ValueError, match="'n_layers' parameter"):
        WEGL(n_layers=10_001).fit(mutag.batch)


@pytest.fixture(scope="module")
def molecules():
    return SimpleNamespace(
        graphs=[_stored_graph(graph) for graph in json.loads((STORED / "molecules" / "graphs.json").read_text())]
    )


def _stored_graph(graph):
    arrays = {key: np.array(value) for key, value in graph.items() if value is not None}
    return {**arrays, "edge_index": arrays["edge_index"].reshape(2, -1).astype(int)}


# scikit-learn's protocol


class RowsAsGraphs(TransformerMixin, BaseEstimator):
    """WEGL on the rows of a table, each a path whose nodes carry the row's numbers.

    scikit-learn's checks know tables alone. Here they reach `fit`, `transform` and the fitted state of WEGL all the same.
    """

    def __init__(self, n_layers=1, n_components=3, n_points=2, random_state=0):
        self.n_layers = n_layers
        self.n_components = n_components
        self.n_points = n_points
        self.random_state = random_state

    def fit(self, X, y=None):  # noqa: ARG002  the signature is scikit-learn's
        X = validate_data(self, X, dtype=np.float64)
        self.wegl_ = WEGL(
            self.n_layers,
            n_components=self.n_components,
            n_points=self.n_points,
            reference="normal",
            random_state=self.random_state,
        ).fit(map(self._graph, X))
        return self

    def transform(self, X):
        if not hasattr(self, "wegl_"):
            raise NotFittedError("call fit first")
        return self.wegl_.transform(map(self._graph, validate_data(self, X, dtype=np.float64, reset=False)))

    def fit_transform(self, X, y=None):
        return self.fit(X, y).transform(X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags = WEGL().__sklearn_tags__().transformer_tags
        return tags

    @staticmethod
    def _graph(row):
        ends = np.arange(len(row) - 1)
        return np.stack([ends, ends + 1]), np.stack([row, row[::-1] ** 2, np.cos(row)], axis=1)


@estimator_checks.parametrize_with_checks([RowsAsGraphs()])
def test_common_checks_of_scikit_learn_on_rows_as_graphs(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_estimator_cloneable,
        estimator_checks.check_estimator_repr,
        estimator_checks.check_estimator_tags_renamed,
        estimator_checks.check_valid_tag_types,
        estimator_checks.check_no_attributes_set_in_init,
        estimator_checks.check_do_not_raise_errors_in_init_or_set_params,
        estimator_checks.check_mixin_order,
        estimator_checks.check_parameters_default_constructible,
        estimator_checks.check_get_params_invariance,
        estimator_checks.check_set_params,
        estimator_checks.check_estimators_unfitted,
        estimator_checks.check_transformers_unfitted,
        estimator_checks.check_param_validation,
    ],
    ids=lambda check: check.__name__,
)
def test_checks_of_scikit_learn_that_need_no_table(check):
    check("WEGL", WEGL())


def test_scikit_learn_knows_that_it_takes_no_table():
    tags = WEGL().__sklearn_tags__()
    assert not tags.input_tags.two_d_array
    assert tags.requires_fit
    assert not tags.target_tags.required


def test_fitting_changes_no_parameter_and_fitting_again_gives_the_same(mutag):
    wegl = WEGL(node_features=["labels"], reference=np.zeros((1, 7)))
    before = wegl.get_params()
    first = wegl.fit_transform(mutag.batch)
    assert all(before[name] is value for name, value in wegl.get_params().items())
    np.testing.assert_array_equal(wegl.fit(mutag.batch).transform(mutag.batch), first)
    np.testing.assert_array_equal(clone(wegl).fit_transform(mutag.batch), first)


def test_transforming_changes_no_attribute(mutag):
    wegl = WEGL(n_points=4, reference="sample").fit(mutag.batch)
    before = dict(vars(wegl))
    wegl.transform(mutag.batch[:5])
    assert vars(wegl).keys() == before.keys()
    assert all(vars(wegl)[name] is value for name, value in before.items())


def test_a_pickled_estimator_transforms_alike(mutag):
    wegl = WEGL(n_points=4, reference="sample").fit(mutag.batch)
    copy = pickle.loads(pickle.dumps(wegl))
    np.testing.assert_array_equal(copy.transform(mutag.batch), wegl.transform(mutag.batch))


def test_output_can_be_a_data_frame(mutag):
    frame = (
        WEGL(n_points=2, n_components=3, reference="sample").set_output(transform="pandas").fit_transform(mutag.batch)
    )
    assert frame.columns.tolist() == [f"wegl{i}" for i in range(6)]
    assert frame.dtypes.unique() == [np.float32]
    assert len(frame) == 188


def test_a_pipeline_with_a_forest_classifies_mutag(mutag, mutag_labels):
    pipeline = make_pipeline(WEGL(pooling="concat"), RandomForestClassifier(random_state=0))
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    assert cross_val_score(pipeline, mutag.batch, mutag_labels, cv=folds).mean() > 0.8


def test_a_grid_search_runs_over_lists_of_graphs(mutag, mutag_labels):
    graphs = [
        (np.array(graph.edges).T, np.array(graph.node_labels), np.array(graph.edge_labels)) for graph in mutag.graphs
    ]
    pipeline = make_pipeline(
        WEGL(reference="sample", schema=GraphSchema((7,), (4,))), RandomForestClassifier(20, random_state=0)
    )
    search = GridSearchCV(pipeline, {"wegl__n_layers": [1, 3]}, cv=3, error_score="raise")
    search.fit(graphs, mutag_labels)
    assert search.predict(graphs[:3]).shape == (3,)


@pytest.mark.parametrize(
    ("parameters", "graphs"),
    [
        ({"n_layers": -1}, FOUR),
        ({"pooling": "max"}, FOUR),
        ({"reference": "median"}, FOUR),
        ({"regularization": 0}, FOUR),
        ({"schema": (3,)}, FOUR),
        ({"n_layers": True}, FOUR),
        ({"regularization": True}, FOUR),
        ({"node_labels": "atom"}, FOUR),
    ],
)
def test_parameters_of_no_use_are_refused_when_it_is_fitted(parameters, graphs):
    with pytest.raises(ValueError, match=f"The {next(iter(parameters))!r} parameter of WEGL must be"):
        WEGL(**parameters).fit(graphs)


def test_importing_it_imports_neither_dask_nor_torch_and_the_package_not_even_numpy():
    code = (
        "import sys, wegl_dask; print('numpy' in sys.modules);"
        "wegl = wegl_dask.WEGL(n_points=2).fit([([[0], [1]], [0, 1, 1]), ([[0, 1], [1, 2]], [1, 0, 0])]);"
        "print(sorted({'dask', 'distributed', 'torch', 'rdkit', 'ot'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["False", "[]"]
    assert "WEGL" in dir(wegl_dask)


# The numbers


@pytest.mark.parametrize("name", ["mutag", "molhiv_500"])
def test_statistics_are_those_of_all_nodes_together(name, real_data):
    """Against scikit-learn on the node embeddings written out."""
    batch = real_data(name).batch
    features = build_features(
        batch.schema,
        ("labels",) if name == "mutag" else ("atom_embedding",),
        max_degree=4,
        degree_clip=500,
        embedding_width=40,
        seed=3,
    )
    vectors = NodeEmbedding(features, "labels", True, 2, "final").evaluate(batch)
    wegl = WEGL(
        2, n_components=5, n_points=3, reference="normal", virtual_node=True, atom_embedding_width=40, random_state=3
    ).fit(batch)
    scaler = StandardScaler().fit(vectors)
    pca = PCA(5).fit(scaler.transform(vectors))
    np.testing.assert_allclose(wegl.mean_, scaler.mean_, atol=1e-12)
    np.testing.assert_allclose(wegl.scale_, scaler.scale_, rtol=1e-9)
    np.testing.assert_allclose(np.abs(wegl.components_ @ pca.components_.T), np.eye(5), atol=1e-6)
    np.testing.assert_allclose(wegl.explained_variance_ratio_, pca.explained_variance_ratio_, rtol=1e-9)
    assert (wegl.n_graphs_seen_, wegl.n_nodes_seen_) == (batch.n_graphs, len(vectors))
    assert (wegl.n_points_, wegl.n_components_, wegl.reference_.shape) == (3, 5, (3, 5))


@pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
def test_vectors_are_barycentric_projections_of_plans_of_pot(mutag, solver):
    wegl = WEGL(n_points=5, n_components=None, standardize=False, pooling="average", reference="sample", solver=solver)
    graphs = mutag.batch[:20]
    vectors, costs = wegl.fit(graphs).transform(graphs, return_cost=True)
    features = build_features(graphs.schema, ("labels",), max_degree=0, degree_clip=0, embedding_width=0, seed=0)
    points = NodeEmbedding(features, "labels", False, 4, "average").evaluate(graphs)
    for graph, own in enumerate(np.split(points, graphs.node_offsets[1:-1])):
        cost = ot.dist(wegl.reference_, own)
        weights = ot.unif(5), ot.unif(len(own))
        if solver == "exact":
            assert costs[graph] == pytest.approx(ot.emd2(*weights, cost), rel=1e-8)
            # The plan need not be unique; its projection has the same mean in any case.
            mean = (wegl.reference_ + np.sqrt(5) * vectors[graph].reshape(5, 7)).mean(axis=0)
            np.testing.assert_allclose(mean, own.mean(axis=0), atol=1e-6)
        else:
            plan = ot.sinkhorn(
                *weights, cost, 0.01 * cost.max(), method="sinkhorn_log", numItermax=20_000, stopThr=1e-8
            )
            expected = (5 * plan @ own - wegl.reference_) / np.sqrt(5)
            np.testing.assert_allclose(vectors[graph], expected.ravel(), atol=1e-5)


def test_there_are_as_many_points_as_a_graph_has_on_average_and_components_as_there_are_directions(mutag):
    wegl = WEGL(reference="sample").fit(mutag.batch)
    assert wegl.n_points_ == 3371 // 188
    assert wegl.n_components_ == 7
    assert WEGL(reference="sample", virtual_node=True).fit(mutag.batch).n_points_ == (3371 + 188) // 188
    plain = WEGL(reference="sample", n_components=None).fit(mutag.batch)
    assert plain.components_ is None
    assert plain.n_components_ == 7


def test_k_means_is_as_good_as_that_of_scikit_learn_on_all_nodes(molhiv_500):
    batch = molhiv_500.batch
    wegl = WEGL(n_points=15, n_components=8).fit(batch)
    points, _ = wegl.model_.points.evaluate(batch)
    squares = np.square(points[:, None] - wegl.reference_).sum(axis=2).min(axis=1).sum()
    best = KMeans(15, n_init=5, random_state=1).fit(points).inertia_
    assert squares < 1.03 * best


@pytest.mark.parametrize("kind", ["normal", "barycenter", "sample"])
def test_references_of_every_kind_are_distinct_points_in_order(kind, mutag):
    wegl = WEGL(n_points=6, reference=kind, reference_graphs=10).fit(mutag.batch)
    assert wegl.reference_.shape == (6, 7)
    rows = list(map(tuple, wegl.reference_))
    assert sorted(set(rows)) == rows
    assert wegl.transform(mutag.batch).shape == (188, 42)


@pytest.mark.parametrize("solver", ["exact", "sinkhorn"])
def test_with_the_origin_as_reference_the_vector_is_the_average_of_the_points(solver, mutag, tmp_path):
    wegl = WEGL(reference="origin", n_components=5, virtual_node=True, solver=solver).fit(mutag.batch)
    vectors, costs = wegl.transform(mutag.batch, return_cost=True)
    points, offsets = wegl.model_.points.evaluate(mutag.batch)
    graphs = np.split(points, offsets[1:-1])
    assert wegl.reference_.tolist() == [[0.0] * 5]
    np.testing.assert_allclose(vectors, [graph.mean(axis=0) for graph in graphs], atol=1e-5)
    np.testing.assert_allclose(costs, [np.square(graph).sum(axis=1).mean() for graph in graphs], rtol=1e-4)
    wegl.save(tmp_path / "model")
    np.testing.assert_array_equal(WEGL.load(tmp_path / "model").transform(mutag.batch), vectors)


def test_the_origin_is_one_point(mutag):
    with pytest.raises(ValueError, match='reference = "origin" is one point, and n_points = 3'):
        WEGL(reference="origin", n_points=3).fit(mutag.batch)


def test_a_reference_can_be_given(mutag):
    given = np.random.default_rng(0).standard_normal((4, 7))
    wegl = WEGL(reference=given).fit(mutag.batch)
    np.testing.assert_allclose(wegl.reference_, given[np.lexsort(given.T[::-1])], atol=1e-8)
    for reference, reason in (
        (given[:, :3], r"reference has shape \(4, 3\); \(number of points, 7\) is needed"),
        (given[[0, 1, 1]], "reference has 3 points, of which 2 are distinct"),
        (given * np.nan, "reference has entries that are not finite"),
        ([[0.0] * 7] * 0, r"reference has shape \(0,\)"),
    ):
        with pytest.raises(ValueError, match=reason):
            WEGL(reference=reference).fit(mutag.batch)
    with pytest.raises(ValueError, match="reference has 4 points, and n_points = 5; leave out n_points"):
        WEGL(reference=given, n_points=5).fit(mutag.batch)


def test_random_states_of_all_kinds_are_taken(mutag):
    def reference(state):
        return WEGL(n_points=5, reference="normal", random_state=state).fit(mutag.batch).reference_

    assert np.array_equal(reference(1), reference(1))
    assert not np.array_equal(reference(1), reference(2))
    assert np.array_equal(reference(np.random.RandomState(1)), reference(np.random.RandomState(1)))
    assert not np.array_equal(reference(None), reference(None))


# Streams


def test_vectors_do_not_depend_on_how_graphs_come_or_are_cut(mutag, monkeypatch):
    wegl = WEGL(n_points=6, reference="sample").fit(mutag.batch)
    expected = wegl.transform(mutag.batch)
    monkeypatch.setattr(graph_inputs, "BATCH_NODES", 50)
    np.testing.assert_array_equal(wegl.transform(mutag.batch), expected)
    np.testing.assert_array_equal(wegl.transform(iter(mutag.batch)), expected)
    np.testing.assert_array_equal(wegl.transform([mutag.batch[:7], mutag.batch[7:]]), expected)
    one_by_one = np.concatenate([wegl.transform(graph) for graph in mutag.batch])
    np.testing.assert_array_equal(one_by_one, expected)


def test_a_generator_is_gone_through_once(mutag, monkeypatch):
    monkeypatch.setattr(graph_inputs, "BATCH_NODES", 50)
    taken = 0

    def graphs():
        nonlocal taken
        for graph in mutag.batch:
            taken += 1
            yield graph

    wegl = WEGL(n_points=6, reference="sample")
    vectors = wegl.fit_transform(graphs())
    assert taken == 188
    np.testing.assert_array_equal(vectors, wegl.transform(mutag.batch))


@pytest.mark.parametrize("reference", ["kmeans", "barycenter"])
def test_results_do_not_depend_on_the_number_of_jobs(mutag, monkeypatch, reference):
    monkeypatch.setattr(graph_inputs, "BATCH_NODES", 500)
    alone = WEGL(n_points=4, reference=reference, reference_graphs=9)
    expected = alone.fit_transform(mutag.batch)
    with joblib.parallel_config("threading"):
        several = clone(alone).set_params(n_jobs=2)
        np.testing.assert_array_equal(several.fit_transform(mutag.batch), expected)
        np.testing.assert_array_equal(several.transform(mutag.batch), expected)


def test_no_graphs_give_no_vectors(mutag):
    wegl = WEGL(n_points=2, n_components=3, reference="sample").fit(mutag.batch)
    vectors, costs = wegl.transform([], return_cost=True)
    assert (vectors.shape, vectors.dtype, costs.shape) == ((0, 6), np.float32, (0,))


# What cannot be embedded


def test_graphs_that_cannot_be_embedded_are_named(mutag):
    wegl = WEGL(n_points=2, reference="sample").fit(mutag.batch)
    bad = (mutag.graphs[0].edges[:1], [[9]], [[0]])
    good = mutag.batch[0]
    with pytest.raises(UnusableGraphError, match="graph 2: edge_index has shape"):
        wegl.transform([good, good, bad])
    with pytest.raises(
        UnusableGraphError, match="graph 1: node 0, categorical feature 0: category 9 is outside the voc"
    ):
        wegl.transform([([[0], [1]], [[1], [0]], [[0]]), ([[0], [1]], [[9], [0]], [[0]])])
    with pytest.raises(UnusableGraphError, match="graph 0: the graph has 0 categories and 2 attributes a node"):
        wegl.transform([([[0], [1]], [[1.0, 0.0]] * 2, [[0]])])
    with pytest.raises(WeglError, match="graph 1: the graph has no nodes"):
        WEGL().fit([good, mutag.batch[:0], (np.empty((2, 0)), np.empty((0, 1), dtype=int))])


def test_graphs_that_lack_a_feature_are_refused_in_the_words_of_the_parameters(mutag):
    with pytest.raises(ValueError, match=r"^node_features asks for attributes, and these graphs have none"):
        WEGL(node_features="attributes").fit(mutag.batch)
    with pytest.raises(ValueError, match=r'^edge_features = "weight" needs one attribute an edge; these graphs have 0'):
        WEGL(edge_features="weight").fit(mutag.batch)
    with pytest.raises(TooFewPointsError, match=r"to have 3000 distinct points; set n_points to [0-9]+ at most"):
        WEGL(n_points=3000).fit(mutag.batch)
    with pytest.raises(ValueError, match="choose node_features that tell nodes apart, or set n_components = None"):
        WEGL(node_features="labels").fit([(TRIANGLE, [1, 1, 1])] * 3)


@pytest.mark.parametrize("method", ["exact", "randomized"])
def test_layers_after_which_the_node_embeddings_overflow_are_too_many(mutag, method):
    """The four kinds of edge multiply the embeddings by up to four in every layer; double precision holds 4^511."""
    wegl = WEGL(300, n_components=2, projection_method=method)
    with pytest.raises(
        ValueError, match=r"variances are not finite .*: lower n_layers, or set edge_features to \"none\""
    ):
        wegl.fit(mutag.batch)


@pytest.mark.parametrize(
    "failure",
    [
        np.linalg.LinAlgError("Eigenvalues did not converge"),
        ValueError("nodes.features could not be broadcast together"),
    ],
)
def test_what_fails_inside_is_not_reported_as_an_error_of_the_parameters(mutag, monkeypatch, failure):
    def failing(*_, **__):
        raise failure

    monkeypatch.setattr(np.linalg, "eigh", failing)
    with pytest.raises(type(failure), match=f"^{failure}$"):
        WEGL(n_components=2).fit(mutag.batch)


def test_a_graph_that_the_exact_solver_fails_on_is_warned_of(mutag, monkeypatch):
    wegl = WEGL(n_points=4, reference="sample").fit(mutag.batch)
    real = network_simplex.network_simplex()

    def failing(*arguments):
        plan, cost, one, two, _ = real(*arguments)
        return plan, cost, one, two, 3

    monkeypatch.setattr(network_simplex, "network_simplex", lambda: failing)
    with pytest.warns(ConvergenceWarning, match="the exact solver failed on 5 graphs"):
        wegl.transform(mutag.batch[:5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WEGL(n_points=4, reference="sample", solver="sinkhorn").fit_transform(mutag.batch[:5])


# Models on storage


def test_a_saved_model_is_loaded_with_its_parameters(mutag, tmp_path):
    wegl = WEGL(
        3, pooling="concat", n_components=4, n_points=5, reference="sample", virtual_node=True, random_state=8
    ).fit(mutag.batch)
    wegl.save(tmp_path / "a model")
    assert sorted(path.name for path in (tmp_path / "a model").iterdir()) == ["arrays.npz", "model.json"]
    loaded = WEGL.load(tmp_path / "a model")
    np.testing.assert_array_equal(loaded.transform(mutag.batch), wegl.transform(mutag.batch))
    chosen = {"node_features": ["labels"], "edge_features": "labels", "schema": mutag.batch.schema}
    assert loaded.get_params() == wegl.get_params() | chosen
    np.testing.assert_array_equal(clone(loaded).fit_transform(mutag.batch), wegl.transform(mutag.batch))
    for name in (name for name in vars(wegl) if name.endswith("_") and name != "model_"):
        np.testing.assert_equal(getattr(loaded, name), getattr(wegl, name), err_msg=name)
    loaded.save("memory://saved-twice")
    again = WEGL.load("memory://saved-twice")
    np.testing.assert_array_equal(again.reference_, wegl.reference_)


@pytest.mark.parametrize(
    "parameters",
    [
        {"virtual_node": np.True_, "standardize": np.False_},
        {"n_layers": np.int64(2), "n_components": np.int8(2), "random_state": np.uint32(3)},
        {"solver": np.str_("sinkhorn"), "regularization": np.float32(0.5), "auto_size": np.int64(5)},
        {"schema": GraphSchema((np.int64(2),), node_attribute_width=np.int32(0))},
    ],
)
def test_parameters_of_numpy_are_saved_as_those_of_python(parameters, tmp_path):
    wegl = WEGL(**{"n_points": np.int64(2), **parameters}).fit(FOUR)
    wegl.save(tmp_path)
    loaded = WEGL.load(tmp_path)
    np.testing.assert_array_equal(loaded.transform(FOUR), wegl.transform(FOUR))
    for name in parameters.keys() - {"schema"}:
        assert getattr(loaded, name) == parameters[name]
        assert type(getattr(loaded, name)).__module__ == "builtins"


def test_a_model_stays_when_the_one_that_is_to_take_its_place_cannot_be_written(mutag, tmp_path, monkeypatch):
    first = WEGL(n_points=3, reference="sample").fit(mutag.batch)
    second = WEGL(n_points=4, reference="sample").fit(mutag.batch)
    first.save(tmp_path)
    beside = folders._beside
    written = []

    def full(path, content, **options):
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path.name)
        return beside(path, content, **options)

    monkeypatch.setattr(folders, "_beside", full)
    with pytest.raises(WeglError, match="the disk is full"):
        second.save(tmp_path)
    assert written == ["arrays.npz"]
    np.testing.assert_array_equal(WEGL.load(tmp_path).reference_, first.reference_)


@pytest.mark.parametrize("name", ["", "model"])
def test_a_model_is_not_saved_where_it_would_hide_that_of_a_run(name, mutag, tmp_path):
    claim(Folder(str(tmp_path)), 'name = "nightly"')
    with pytest.raises(
        WeglError, match=f"^{tmp_path} holds a run, whose model this is not: save to a folder of its own$"
    ):
        WEGL(n_points=3, reference="sample").fit(mutag.batch).save(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.toml", "records"]


def test_a_model_is_saved_beside_a_job_file_that_somebody_wrote_and_at_the_top_of_a_store(mutag, tmp_path):
    (tmp_path / "job.toml").write_text('name = "nightly"')
    wegl = WEGL(n_points=3, reference="sample").fit(mutag.batch)
    for path in (tmp_path / "model", "memory:///model"):
        wegl.save(path)
        np.testing.assert_array_equal(WEGL.load(path).reference_, wegl.reference_)


def test_equal_fits_are_saved_as_equal_bytes(mutag, tmp_path):
    for name in ("one", "two"):
        WEGL(n_points=3, reference="sample").fit(mutag.batch).save(tmp_path / name)
    for file in ("model.json", "arrays.npz"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    WEGL(n_points=3, reference="sample").fit(mutag.batch[1:]).save(tmp_path / "two")
    one, two = (json.loads((tmp_path / name / "model.json").read_text()) for name in ("one", "two"))
    assert one["fingerprint"] != two["fingerprint"]


@pytest.mark.parametrize("components", [None, 2])
def test_nodes_without_edges_keep_their_features_whatever_edges_would_be_labelled_by(components, tmp_path):
    graphs = [nx.empty_graph(3), nx.empty_graph(2)]
    for graph, atoms in zip(graphs, ("CNO", "NN"), strict=True):
        nx.set_node_attributes(graph, dict(enumerate(atoms)), "atom")
    arrays = [([[], []], [0, 1, 2], np.empty((0, 2), dtype=int)), ([[], []], [1, 1], np.empty((0, 2), dtype=int))]
    of_networkx = {"node_labels": ["atom"], "edge_labels": ["bond"]}
    for given, names in ((graphs, of_networkx), (arrays, {})):
        settings = {"n_components": components, "n_points": 2, **names}
        # A node is its own neighbour, of weight 1: layers change nothing.
        expected = WEGL(n_layers=0, edge_features="none", **settings).fit_transform(given)
        assert np.ptp(expected, axis=0).any()
        wegl = WEGL(n_layers=3, **settings)
        np.testing.assert_allclose(wegl.fit_transform(given), expected, atol=1e-6)
        wegl.save(tmp_path)
        np.testing.assert_array_equal(WEGL.load(tmp_path).transform(given), wegl.transform(given))
        with pytest.raises(ValueError, match='edge_features = "labels": these graphs have no edge labels'):
            WEGL(edge_features="labels", **settings).fit(given)


@pytest.mark.parametrize("given", [None, GraphSchema((4,), (5,))])
def test_another_fit_of_a_loaded_model_counts_the_categories_that_were_declared(tmp_path, given):
    def path(*bonds):
        return np.array([[0, 1, 2], [1, 2, 3]]), np.array([0, 1, 1, 2]), np.array(bonds)

    first, few = [path(0, 1, 2), path(2, 0, 1)], [path(0, 0, 1), path(1, 0, 0)]
    WEGL(n_layers=1, n_components=1, n_points=2, schema=given).fit(first).save(tmp_path)
    loaded = WEGL.load(tmp_path)
    declared = given or GraphSchema((3,), (3,))
    assert loaded.schema == declared
    # Bonds of the kinds 2 to 4, which these graphs have not, add to the weight of self-connections all the same.
    expected = WEGL(n_layers=1, n_components=1, n_points=2, schema=declared).fit_transform(few)
    np.testing.assert_array_equal(clone(loaded).fit_transform(few), expected)
    assert np.abs(WEGL(n_layers=1, n_components=1, n_points=2).fit_transform(few) - expected).max() > 0.005
    with pytest.raises(UnusableGraphError, match=r"graph 0: node 1, .* category 7 is outside the vocabulary"):
        loaded.fit([(np.array([[0], [1]]), np.array([0, 7]), np.array([0]))])


@pytest.mark.parametrize("values", [["atom"], {"atom": ["N", "C", "O"]}])
@pytest.mark.parametrize("declared", [1, 3, 5])
def test_a_schema_of_networkx_graphs_declares_as_many_categories_as_there_are_values(tmp_path, values, declared):
    graphs = [nx.path_graph(3), nx.path_graph(2)]
    for graph, atoms in zip(graphs, ("CNC", "ON"), strict=True):
        nx.set_node_attributes(graph, dict(enumerate(atoms)), "atom")
    wegl = WEGL(n_layers=1, n_points=2, node_labels=values, schema=GraphSchema((declared,)))
    if declared != 3:
        message = (
            f"schema declares {declared} node categories, and 'atom' of the networkx graphs have 3 values: leave out schema, "
            r"and give all values that there may be, as node_labels = \{'atom': \[...\]\}"
        )
        with pytest.raises(ValueError, match=message):
            wegl.fit(graphs)
        return
    # Whatever is fitted can be stored, and read.
    wegl.fit(graphs).save(tmp_path)
    np.testing.assert_array_equal(WEGL.load(tmp_path).transform(graphs), wegl.transform(graphs))
    np.testing.assert_array_equal(
        wegl.set_params(schema=None).fit_transform(graphs), WEGL.load(tmp_path).transform(graphs)
    )


def test_a_model_keeps_the_values_of_networkx_graphs(tmp_path):
    def graph(*atoms):
        made = nx.path_graph(len(atoms))
        nx.set_node_attributes(made, dict(enumerate(atoms)), "atom")
        nx.set_node_attributes(made, 0.5, "charge")
        return made

    graphs = [graph("C", "N", "C"), graph("O", "C"), graph("C", "C", "N", "O")]
    wegl = WEGL(n_points=2, node_labels=["atom"], node_attributes=["charge"], node_features=["labels", "attributes"])
    expected = wegl.fit_transform(graphs)
    assert wegl.vocabularies_ == Vocabularies((("C", "N", "O"),), ())
    wegl.save(tmp_path)
    loaded = WEGL.load(tmp_path)
    assert loaded.node_labels == {"atom": ("C", "N", "O")}
    np.testing.assert_array_equal(loaded.transform(graphs), expected)
    assert loaded.fit(graphs[:1]).schema_ == GraphSchema((3,), (), 1)
    with pytest.raises(
        UnusableGraphError, match="graph 0: a node has 'Cl' as 'atom', which is not in the vocabulary of 3"
    ):
        loaded.transform([graph("C", "Cl")])


def test_a_model_with_a_given_reference_is_loaded(mutag, tmp_path):
    wegl = WEGL(reference=np.random.default_rng(0).standard_normal((3, 7))).fit(mutag.batch)
    wegl.save(tmp_path)
    loaded = WEGL.load(tmp_path)
    np.testing.assert_array_equal(loaded.reference, wegl.reference_)
    np.testing.assert_array_equal(clone(loaded).fit(mutag.batch).transform(mutag.batch), wegl.transform(mutag.batch))


def test_a_model_has_the_tables_of_a_job_file(mutag, tmp_path):
    WEGL(reference="sample").fit(mutag.batch).save(tmp_path)
    job = json.loads((tmp_path / "model.json").read_text())["job"]
    spec = JobSpec.from_values(
        {**job, "source": {"kind": "tud", "root": "x", "name": "MUTAG"}, "output": {"path": "y"}}
    )
    again = spec.model_dump(mode="json", include=set(job), exclude_none=True)
    assert again == job
    known = set(
        itertools.chain(
            *(_keys(value, f"{key}.") if isinstance(value, dict) else [key] for key, value in again.items())
        )
    )
    assert known | {"reference.points", "reference.max_nodes"} == {*JOB_KEYS.values(), "projection.fit_on"}


def test_the_defaults_are_those_of_a_job_but_for_the_number_of_components():
    spec = JobSpec.from_values({"source": {"kind": "tud", "root": "x", "name": "MUTAG"}, "output": {"path": "y"}})
    of_a_job = {parameter: attrgetter(key)(spec) for parameter, key in JOB_KEYS.items()}
    assert of_a_job["n_components"] is None
    assert {name: WEGL().get_params()[name] for name in JOB_KEYS} == of_a_job | {"n_components": 20}
    assert spec.projection.fit_on == "all"


def _keys(table, prefix):
    return [f"{prefix}{key}" for key in table]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"format_version": 99}, "the model is of format 99, written by wegl-dask 0.1.0; this is .* install a later"),
        ({"fitted_on": None}, "the model cannot be used: in model.json, fitted_on is None: "),
        ({"numbering": ...}, "the model is not complete: model.json has no numbering; copy it anew, or fit it again"),
        ({"schema": ...}, "the model is not complete: model.json has no schema"),
        ({"N": 7}, r"model.json has N = 7 and d = 5, and the model's array reference has shape \(6, 5\)"),
    ],
)
def test_a_model_that_cannot_be_read_is_an_error(damage, reason, tmp_path):
    for file in ("model.json", "arrays.npz"):
        (tmp_path / file).write_bytes((STORED / "molecules" / file).read_bytes())
    model = unsealed((tmp_path / "model.json").read_bytes()) | damage
    model = {key: value for key, value in model.items() if value is not ...}
    (tmp_path / "model.json").write_text(json.dumps(sealed(model)))
    with pytest.raises(WeglError, match=reason):
        WEGL.load(tmp_path)


def test_a_folder_without_a_model_is_an_error(tmp_path):
    with pytest.raises(WeglError, match=r"cannot read .*model.json: it is not there"):
        WEGL.load(tmp_path)
    with pytest.raises(NotFittedError):
        WEGL().save(tmp_path)


def test_a_model_of_the_first_release_gives_the_vectors_of_then(molecules):
    wegl = WEGL.load(STORED / "molecules")
    with np.load(STORED / "molecules" / "embeddings.npz") as stored:
        vectors, costs = wegl.transform(molecules.graphs, return_cost=True)
        np.testing.assert_allclose(vectors, stored["vectors"], atol=1e-5)
        np.testing.assert_allclose(costs, stored["costs"], rtol=1e-9)
    assert (
        wegl.get_params()
        == WEGL(
            3,
            n_components=5,
            n_points=6,
            virtual_node=True,
            atom_embedding_width=12,
            random_state=7,
            node_features=["atom_embedding"],
            edge_features="labels",
            max_reference_nodes=1_000_000,
            schema=wegl.schema_,
        ).get_params()
    )


def test_a_model_of_networkx_graphs_of_the_first_release_gives_the_vectors_of_then():
    graphs = [
        nx.node_link_graph(graph, edges="edges")
        for graph in json.loads((STORED / "networkx" / "graphs.json").read_text())
    ]
    with np.load(STORED / "networkx" / "embeddings.npz") as stored:
        vectors, costs = WEGL.load(STORED / "networkx").transform(graphs, return_cost=True)
        np.testing.assert_allclose(vectors, stored["vectors"], atol=1e-5)
        np.testing.assert_allclose(costs, stored["costs"], rtol=1e-9)


def test_a_batch_without_graphs_among_others_adds_nothing(mutag):
    batch = mutag.batch
    wegl = WEGL(2, n_points=3, n_components=4).fit(batch)
    expected = wegl.transform(batch)
    assert wegl.transform(batch[:0]).shape == (0, expected.shape[1])
    assert np.array_equal(wegl.transform([batch[:0], *(batch[i] for i in range(5)), batch[:0]]), expected[:5])
    with pytest.raises(UnusableGraphError, match="there are no graphs; a fit needs at least one"):
        WEGL().fit(batch[:0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, 2, 1], "1 is given twice"),
        ([1, True], "True is given twice"),
        (["C", None], "None is neither a text nor a finite number"),
        ([float("nan")], "nan is neither a text nor a finite number"),
    ],
)
def test_values_of_an_attribute_that_cannot_be_numbered_are_refused(values, message):
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, 1, "z")
    with pytest.raises(ValueError, match=rf"of the values of the node attribute 'z', {message}"):
        WEGL(1, n_points=1, node_labels={"z": values}).fit([graph])


@pytest.mark.parametrize("values", [np.unique([1, 2, 3]), [*np.unique([1, 2, 3])], (1, 2, 3)])
def test_values_of_an_attribute_may_be_of_numpy(values):
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, dict(enumerate([3, 1, 2])), "z")
    wegl = WEGL(1, n_points=2, n_components=None, node_labels={"z": values}).fit([graph, graph])
    assert wegl.n_nodes_seen_ == 6


def test_categories_that_are_numbered_far_apart_are_refused_before_they_take_memory():
    graphs = [([[0], [1]], [0, 2**31 - 2]), ([[0, 1], [1, 2]], [0, 1, 0])]
    with pytest.raises(
        ValueError, match=r"have 2,147,483,647 columns, .*: number the categories of the graphs 0, 1, 2"
    ):
        WEGL(n_layers=0, n_points=2, n_components=2).fit(graphs)


def test_points_that_are_too_large_for_k_means_are_told_of_with_the_parameters():
    # Of two nodes that weigh 9 for one another and are alike, a layer makes (1 + 9) / 2 times as much.
    graph = ([[0], [1]], np.full((2, 1), 1e38), [[9.0]])
    wegl = WEGL(1, n_components=None, n_points=1, standardize=False, edge_features="weight")
    with pytest.raises(
        ValueError, match=r"an entry of 5\.0e\+38; 3\.4e\+38 is .* set standardize = true, lower n_layers"
    ):
        wegl.fit([graph])
    assert np.isfinite(wegl.set_params(n_layers=0).fit_transform([graph])).all()
