"""Diffusion and entropic plans by torch, on its CPU backend: what NumPy and SciPy find."""

import io
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import sparse

from wegl_dask import WEGL, diffusion, kernels, transport
from wegl_dask.canonical import WeightedPoints, canonical_points
from wegl_dask.checking import check_job
from wegl_dask.embed import embed
from wegl_dask.errors import MissingDependencyError, WeglError
from wegl_dask.fit import fit_model, prepare_fit
from wegl_dask.ingest import ingest, plan_source
from wegl_dask.pipeline import run_job
from wegl_dask.progress import Progress
from wegl_dask.spec import JobSpec
from wegl_dask.trial import trial_run

torch = pytest.importorskip("torch")

from wegl_dask import torch_kernels  # noqa: E402

FLOAT32 = {"rtol": 1e-5, "atol": 1e-6}


@pytest.fixture
def on_cpu(monkeypatch):
    """Let "cuda" stand for torch's CPU backend."""
    monkeypatch.setattr(torch_kernels, "DEVICE", "cpu")
    kernels._torch_kernels.cache_clear()
    yield
    kernels._torch_kernels.cache_clear()


@pytest.fixture
def cloud():
    """Graphs of 1 to 40 points in three dimensions, and a reference of 7."""
    rng = np.random.default_rng(3)
    counts = rng.integers(1, 41, 60)
    points = rng.normal(size=(counts.sum(), 3)) * rng.uniform(0.1, 10, counts.sum())[:, None]
    offsets = np.append(0, np.cumsum(counts))
    return canonical_points(points, offsets, 2.0**-20), rng.normal(size=(7, 3))


@pytest.mark.parametrize("pooling", ["concat", "average", "final"])
@pytest.mark.parametrize("layers", [0, 1, 3])
@pytest.mark.parametrize("is_sparse", [True, False])
@pytest.mark.usefixtures("on_cpu")
def test_features_are_diffused_as_by_scipy(pooling, layers, is_sparse):
    operator = sparse.random_array((30, 30), density=0.2, rng=np.random.default_rng(0), format="csr")
    features = sparse.random_array((30, 5), density=0.3, rng=np.random.default_rng(1), format="csr")
    given = features if is_sparse else features.toarray()
    found = torch_kernels.pooled(operator, given, layers=layers, pooling=pooling)
    dense = [np.linalg.matrix_power(operator.toarray(), layer) @ features.toarray() for layer in range(layers + 1)]
    expected = {"concat": np.hstack(dense), "average": np.mean(dense, axis=0), "final": dense[-1]}[pooling]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.usefixtures("on_cpu")
def test_what_comes_in_at_each_layer_is_propagated_and_added():
    rng = np.random.default_rng(0)
    operator = sparse.csr_array(rng.normal(size=(4, 4)))
    terms = [rng.normal(size=(4, 2)), None, rng.normal(size=(4, 2))]
    expected = operator @ operator @ terms[0] + terms[2]
    np.testing.assert_allclose(torch_kernels.accumulated(operator, terms[0], terms[1:]), expected)
    np.testing.assert_allclose(diffusion.accumulated(operator, terms[0], terms[1:]), expected)


@pytest.mark.parametrize("solver", ["exact", "sinkhorn", "auto"])
@pytest.mark.usefixtures("on_cpu")
def test_graphs_are_embedded_as_on_the_cpu(solver, cloud, monkeypatch):
    points, reference = cloud
    monkeypatch.setattr(torch_kernels, "BATCH_PAIRS", 1000)
    options = {"solver": solver, "regularization": 0.05, "auto_size": 140}
    found, expected = (module.embed_points(points, reference, **options) for module in (torch_kernels, transport))
    np.testing.assert_allclose(found.phi, expected.phi, **FLOAT32)
    np.testing.assert_allclose(found.transport_cost, expected.transport_cost, **FLOAT32)
    np.testing.assert_array_equal(found.entropic, expected.entropic)
    np.testing.assert_allclose(found.regularization, expected.regularization)
    assert found.failures == expected.failures == {}
    assert {"exact": {False}, "sinkhorn": {True}, "auto": {False, True}}[solver] == set(found.entropic.tolist())


@pytest.mark.usefixtures("on_cpu")
def test_a_graph_is_embedded_alike_in_any_batch(cloud):
    points, reference = cloud
    together = torch_kernels.embed_points(points, reference, solver="sinkhorn", regularization=0.05)
    alone = [
        torch_kernels.embed_points(points.slice(i, i + 1), reference, solver="sinkhorn", regularization=0.05).phi[0]
        for i in range(5)
    ]
    np.testing.assert_allclose(together.phi[:5], alone, atol=1e-7)


@pytest.mark.usefixtures("on_cpu")
def test_plans_that_do_not_converge_are_found_exactly(cloud, monkeypatch):
    points, reference = cloud
    exact = transport.embed_points(points, reference)
    monkeypatch.setattr(torch_kernels, "SINKHORN_ITERATIONS", 3)
    found = torch_kernels.embed_points(points, reference, solver="sinkhorn", regularization=0.001)
    fell_back = ~found.entropic
    assert fell_back.any()
    np.testing.assert_array_equal(found.phi[fell_back], exact.phi[fell_back])
    assert np.isnan(found.regularization[fell_back]).all()
    monkeypatch.setattr(transport, "COST_ENTRIES", 1)
    found = torch_kernels.embed_points(points, reference, solver="sinkhorn", regularization=0.001, auto_size=1)
    assert list(found.failures) == np.flatnonzero(fell_back).tolist()
    assert "more pairs of points than transport.auto_size" in found.failures[int(np.flatnonzero(fell_back)[0])]
    assert np.isnan(found.phi[fell_back]).all()


@pytest.mark.usefixtures("on_cpu")
def test_graphs_that_cannot_be_solved_fail_alone():
    points = WeightedPoints(
        np.array([[0.0], [1.0], [np.inf], [2.0]]), np.array([0.5, 0.5, 1.0, 1.0]), np.array([0, 2, 2, 3, 4])
    )
    found = torch_kernels.embed_points(points, np.array([[0.0], [1.0]]), solver="sinkhorn")
    assert found.failures == {1: "the graph has no points", 2: "the transport costs are not finite"}
    assert np.isfinite(found.phi).all(axis=1).tolist() == [True, False, False, True]


@pytest.mark.usefixtures("on_cpu")
def test_graphs_too_large_for_the_device_are_solved_elsewhere(cloud, monkeypatch):
    points, reference = cloud
    expected = transport.embed_points(points, reference, solver="sinkhorn", regularization=0.05)
    monkeypatch.setattr(torch_kernels, "LARGEST_PAIRS", 0)
    found = torch_kernels.embed_points(points, reference, solver="sinkhorn", regularization=0.05)
    np.testing.assert_array_equal(found.phi, expected.phi)


@pytest.mark.usefixtures("on_cpu")
def test_the_estimator_finds_the_same_on_both(mutag):
    settings = {"n_layers": 2, "solver": "sinkhorn", "regularization": 0.1, "n_components": 4}
    on_device = WEGL(device="cuda", **settings).fit(mutag.batch)
    expected = WEGL(**settings).fit(mutag.batch)
    np.testing.assert_allclose(on_device.reference_, expected.reference_, **FLOAT32)
    np.testing.assert_allclose(on_device.transform(mutag.batch), expected.transform(mutag.batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["concat", "average", "final"])
@pytest.mark.parametrize("components", [None, 3])
@pytest.mark.usefixtures("on_cpu")
def test_points_of_a_model_are_the_same_on_both(pooling, components, mutag):
    model = WEGL(2, pooling=pooling, n_components=components, reference="sample").fit(mutag.batch).model_
    one, two = model.points.evaluate(mutag.batch)[0], model.on("cuda").points.evaluate(mutag.batch)[0]
    np.testing.assert_allclose(one, two, atol=1e-12)


@pytest.mark.usefixtures("on_cpu")
def test_a_model_on_a_device_is_stored_as_any_other(mutag, tmp_path):
    WEGL(2, reference="sample", device="cuda").fit(mutag.batch).save(tmp_path / "model")
    loaded = WEGL.load(tmp_path / "model")
    assert (loaded.device, loaded.model_.points.nodes.device) == ("cpu", "cpu")


@pytest.mark.usefixtures("on_cpu")
def test_a_job_gives_the_same_on_both(shared_data):
    found = {}
    for device in ("cpu", "cuda"):
        spec = JobSpec.from_values(
            {
                "source": {"kind": "tud", "root": str(shared_data / "TUDataset"), "name": "MUTAG", "download": False},
                "projection": {"components": 4},
                "reference": {"kind": "sample"},  # k-means takes another way at the least difference
                "transport": {"solver": "sinkhorn", "regularization": 0.1},
                "output": {"path": "unused"},
                "cluster": {"device": device},
            }
        )
        with trial_run(spec, Progress) as run:
            census = ingest(run, plan_source(run))
            records = embed(run, census, fit_model(run, prepare_fit(run.spec, census)))
            content = [run.folder.read(file.path) for record in records.values() for file in record.files]
        found[device] = pq.read_table(io.BytesIO(content[0]))
    assert set(found["cuda"]["solver"].to_pylist()) == {"sinkhorn"}
    one, two = (np.stack(table["embedding"].to_numpy()) for table in found.values())
    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_workers_without_a_gpu_are_told_of_before_anything_is_done(dask_client, shared_data, tmp_path):
    source = {"kind": "tud", "root": str(shared_data / "TUDataset"), "name": "MUTAG"}
    spec = JobSpec.from_values(
        {"source": source, "output": {"path": str(tmp_path / "run")}, "cluster": {"device": "cuda"}}
    )
    message = r'cluster.device = "cuda", and 2 of 2 workers cannot use it; tcp://.*: torch .* finds no GPU on .*'
    with pytest.raises(WeglError, match=message):
        run_job(spec, dask_client)
    with pytest.raises(WeglError, match="finds no GPU"):
        check_job(spec)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_estimator_says_that_there_is_no_gpu():
    with pytest.raises(WeglError, match=r'finds no GPU on .* or set device = "cpu"'):
        WEGL(device="cuda").fit([])


def test_torch_that_is_not_installed_is_named_with_its_extra(monkeypatch):
    kernels._torch_kernels.cache_clear()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "wegl_dask.torch_kernels")
    monkeypatch.delattr("wegl_dask.torch_kernels")
    with pytest.raises(MissingDependencyError, match=r"torch is needed here .* pip install 'wegl-dask\[gpu\]'"):
        kernels.kernels("cuda")
