"""Principal components from products with random directions, against those from the whole scatter matrix."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from sklearn.decomposition import PCA

from wegl_dask import WEGL, GraphBatch, GraphSchema, fitting
from wegl_dask.errors import JobFileError
from wegl_dask.features import build_features
from wegl_dask.fit import fit_model, prepare_fit
from wegl_dask.ingest import ingest, plan_source
from wegl_dask.points import NodeEmbedding
from wegl_dask.progress import Progress
from wegl_dask.projection import Moments, column_factors, fit_projection, random_directions
from wegl_dask.spec import JobSpec
from wegl_dask.trial import trial_run


def decaying(n, width, rate, seed=0):
    """Vectors whose principal components have standard deviations that fall off by a rate."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(rng.standard_normal((width, width)))[0]
    return rng.standard_normal((n, width)) * rate ** np.arange(width) @ axes + 3


@pytest.mark.parametrize(("rate", "tolerance"), [(0.5, 1e-6), (0.9, 3e-2)])
def test_components_of_decaying_variances_are_those_of_an_exact_pca(rate, tolerance):
    vectors, n_components = decaying(500, 120, rate), 5
    directions = random_directions(120, n_components, seed=1)
    centred = vectors - vectors.mean(axis=0)
    found = fit_projection(
        Moments.of(vectors, scatter=False),
        encoder=None,
        columns=None,
        n_columns=120,
        repeats=1,
        standardize=False,
        components=n_components,
        sketch=(directions, centred.T @ (centred @ directions)),
    )
    exact = PCA(n_components, svd_solver="full").fit(vectors)
    np.testing.assert_allclose(found.variances, exact.explained_variance_ * 499 / 500, rtol=tolerance)
    np.testing.assert_allclose(np.abs(np.sum(found.components * exact.components_, axis=1)), 1, atol=tolerance)
    np.testing.assert_allclose(found.total_variance, centred.var(axis=0).sum())
    np.testing.assert_allclose(found.components @ found.components.T, np.eye(n_components), atol=1e-9)
    assert (found.components[range(5), np.abs(found.components).argmax(axis=1)] > 0).all()


def test_as_many_directions_as_columns_give_the_exact_components():
    vectors = np.random.default_rng(0).standard_normal((200, 12))
    directions = random_directions(12, 4, seed=0)
    assert directions.shape == (12, 12)
    centred = vectors - vectors.mean(axis=0)
    options = {"encoder": None, "columns": None, "n_columns": 12, "repeats": 1, "standardize": False, "components": 4}
    exact = fit_projection(Moments.of(vectors, scatter=True), **options)
    sketch = directions, centred.T @ (centred @ directions)
    found = fit_projection(Moments.of(vectors, scatter=False), **options, sketch=sketch)
    np.testing.assert_allclose(found.variances, exact.variances, rtol=1e-9)
    np.testing.assert_allclose(found.components, exact.components, atol=1e-6)


@pytest.mark.parametrize("rank", [1, 3, 30])
@pytest.mark.parametrize("width", [20, 35, 60])
def test_directions_that_outnumber_those_with_variance_find_the_components_of_an_exact_pca(rank, width):
    """Of the product with the directions a part is rounding error alone, by which nothing can be divided."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        rank = min(rank, width)
        vectors = rng.standard_normal((500, rank)) * 2.0 ** -np.arange(rank) @ rng.standard_normal((rank, width)) + 3
        directions, centred = random_directions(width, 5, seed), vectors - vectors.mean(axis=0)
        found = fit_projection(
            Moments.of(vectors, scatter=False),
            encoder=None,
            columns=None,
            n_columns=width,
            repeats=1,
            standardize=False,
            components=5,
            fewer=True,
            sketch=(directions, centred.T @ (centred @ directions)),
        )
        exact = PCA(min(rank, 5), svd_solver="full").fit(vectors)
        assert found.dimension == min(rank, 5)
        np.testing.assert_allclose(found.variances, exact.explained_variance_ * 499 / 500, rtol=1e-6)
        np.testing.assert_allclose(np.abs(np.sum(found.components * exact.components_, axis=1)), 1, atol=1e-6)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("node_features", [["labels"], ["degrees"], ["labels", "degrees"]])
def test_components_of_few_columns_are_the_exact_ones(mutag, node_features, standardize):
    """There are as many directions as columns, of which some depend on others: the degrees are the sum of the labels'."""
    options = {
        "n_layers": 2,
        "n_components": 5,
        "pooling": "concat",
        "node_features": node_features,
        "reference": "origin",
    }
    exact = WEGL(**options, standardize=standardize).fit(mutag.batch)
    found = WEGL(**options, standardize=standardize, projection_method="randomized").fit(mutag.batch)
    np.testing.assert_allclose(found.explained_variance_, exact.explained_variance_, rtol=1e-2)


@pytest.mark.parametrize("pooling", ["concat", "average", "final"])
@pytest.mark.parametrize("virtual_node", [False, True])
@pytest.mark.parametrize("standardize", [False, True])
def test_products_are_those_of_the_scatter_that_is_never_formed(mutag, pooling, virtual_node, standardize):
    features = build_features(mutag.batch.schema, ("labels",), max_degree=4, degree_clip=4, embedding_width=8, seed=0)
    nodes = NodeEmbedding(features, "labels", virtual_node, 3, pooling)
    seen = np.arange(7)
    exact = nodes.moments(mutag.batch, seen, scatter=True)
    factors = column_factors(exact, standardize=standardize)
    directions = random_directions(len(factors), 2, seed=0)
    expected = factors[:, None] * (exact.deviations @ (factors[:, None] * directions))
    parts = [mutag.batch.slice(0, 60), mutag.batch.slice(60, 188)]
    found = sum(nodes.sketch(part, seen, exact.mean, factors, directions) for part in parts)
    np.testing.assert_allclose(found, expected, atol=1e-8 * np.abs(expected).max())


def wide_graphs(n_graphs=60, width=5000, seed=0):
    """Graphs without edges, of ten nodes each, with more attributes than a scatter matrix may have columns."""
    rng = np.random.default_rng(seed)
    n_nodes = 10 * n_graphs
    attributes = rng.standard_normal((n_nodes, 6)) * 2.0 ** -np.arange(6) @ rng.standard_normal((6, width))
    attributes += 1e-3 * rng.standard_normal((n_nodes, width))
    none = np.zeros(0, dtype=np.int64)
    return GraphBatch(
        GraphSchema(node_attribute_width=width),
        np.arange(n_graphs + 1) * 10,
        np.zeros(n_graphs + 1, dtype=np.int64),
        none,
        none,
        np.zeros((n_nodes, 0), dtype=np.int64),
        attributes,
        np.zeros((0, 0), dtype=np.int64),
        np.zeros((0, 0)),
    )


def test_more_columns_than_a_scatter_matrix_may_have_are_projected_when_asked_for():
    graphs = wide_graphs()
    settings = {"n_layers": 0, "n_components": 4, "reference": "sample", "n_points": 3, "standardize": False}
    with pytest.raises(ValueError, match=r"of 5000 x 5000 columns, and 4096 are allowed: .* projection_method to"):
        WEGL(**settings).fit(graphs)
    found = WEGL(projection_method="randomized", **settings).fit(graphs)
    exact = PCA(4, svd_solver="full").fit(graphs.node_attributes)
    np.testing.assert_allclose(np.abs(np.sum(found.components_ * exact.components_, axis=1)), 1, atol=1e-6)
    np.testing.assert_allclose(found.explained_variance_ratio_, exact.explained_variance_ratio_, rtol=1e-5)


@pytest.mark.parametrize("method", ["exact", "randomized"])
@pytest.mark.parametrize("value", [0.0, 0.7])
def test_attributes_that_are_all_alike_have_no_components(method, value):
    graphs = wide_graphs(width=50)
    alike = replace(graphs, node_attributes=np.full_like(graphs.node_attributes, value))
    wegl = WEGL(0, n_components=2, reference="sample", n_points=1, projection_method=method)
    with pytest.raises(ValueError, match="the node embeddings do not vary, so that there are no principal components"):
        wegl.fit(alike)


def test_a_model_keeps_the_method(mutag, tmp_path):
    WEGL(2, n_components=3, reference="sample", projection_method="randomized").fit(mutag.batch).save(
        tmp_path / "model"
    )
    assert WEGL.load(tmp_path / "model").projection_method == "randomized"


def fitted_by_a_job(shared_data, diffusion=MappingProxyType({}), **projection):
    spec = JobSpec.from_values(
        {
            "source": {"kind": "tud", "root": str(shared_data / "TUDataset"), "name": "MUTAG", "nodes_per_shard": 700},
            "diffusion": {"pooling": "concat", **diffusion},
            "projection": {"components": 3, **projection},
            "reference": {"kind": "sample"},
            "output": {"path": "unused"},
        }
    )
    with trial_run(spec, Progress) as run:
        census = ingest(run, plan_source(run))
        assert len(census.records) > 3
        fit_model(run, prepare_fit(run.spec, census))
        return run.folder.read_model()[1]


def test_a_job_finds_the_components_of_the_estimator_and_the_exact_ones_nearly(shared_data, mutag):
    found, exact = (fitted_by_a_job(shared_data, method=method) for method in ("randomized", "exact"))
    wegl = WEGL(pooling="concat", n_components=3, projection_method="randomized", reference="sample").fit(mutag.batch)
    np.testing.assert_allclose(found["components"], wegl.components_, atol=1e-8)
    np.testing.assert_allclose(found["variances"], exact["variances"], rtol=1e-2)
    np.testing.assert_array_equal(found["mean"], exact["mean"])


@pytest.mark.parametrize("method", ["exact", "randomized"])
def test_a_job_of_too_many_layers_is_refused(shared_data, method):
    with pytest.raises(
        JobFileError, match=r"variances are not finite .*: lower diffusion.layers, or .* with --overwrite"
    ):
        fitted_by_a_job(shared_data, {"layers": 300, "pooling": "average"}, method=method)


@pytest.mark.parametrize(
    "failure",
    [
        np.linalg.LinAlgError("Eigenvalues did not converge"),
        ValueError("nodes.features could not be broadcast together"),
    ],
)
def test_what_fails_inside_is_not_reported_as_an_error_of_the_job(shared_data, monkeypatch, failure):
    def failing(*_, **__):
        raise failure

    monkeypatch.setattr(np.linalg, "eigh", failing)
    with pytest.raises(type(failure), match=f"^{failure}$"):
        fitted_by_a_job(shared_data)


def test_a_job_of_too_many_columns_is_refused_with_both_ways_out(shared_data, monkeypatch):
    monkeypatch.setattr(fitting, "SCATTER_WIDTH", 20)
    with pytest.raises(JobFileError, match=r"of 35 x 35 columns, and 20 are allowed: .* or set projection.method to"):
        fitted_by_a_job(shared_data)
    assert fitted_by_a_job(shared_data, method="randomized")["components"].shape == (3, 35)
