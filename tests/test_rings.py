"""The ring experiment of the paper: what is recovered is the truth that the rings were made from."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wegl_dask.canonical import canonical_points
from wegl_dask.geometry import geodesic, mean
from wegl_dask.shards import read_shard
from wegl_dask.transport import embed_points

SCRIPT = Path(__file__).parents[1] / "jobs" / "paper" / "rings.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("rings", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["rings"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["rings"]


@pytest.fixture(scope="module")
def embedded_rings(script):
    rings = script.make_rings(seed=3)
    points, offsets = np.concatenate(rings.points), [0, *itertools.accumulate(map(len, rings.points))]
    shape = (len(points) // len(rings.points), 2)
    reference = np.random.default_rng(0).normal(points.mean(axis=0), points.std(axis=0), shape)
    phi = embed_points(canonical_points(points, np.array(offsets), 2.0**-20), reference).phi
    return rings, phi, reference


def assert_ring(points, centre, radius):
    """The points lie around a centre, at a radius, with few of them in between."""
    np.testing.assert_allclose(points.mean(axis=0), centre, atol=0.1 * radius)
    distance = np.linalg.norm(points - centre, axis=1)
    assert np.median(distance) == pytest.approx(radius, rel=0.05)
    assert np.mean(np.abs(distance / radius - 1) < 0.25) > 0.95


def test_the_mean_of_rings_is_the_ring_of_mean_centre_and_radius(embedded_rings):
    rings, phi, reference = embedded_rings
    assert_ring(mean(phi, reference), rings.centres.mean(axis=0), rings.radii.mean())


@pytest.mark.parametrize("t", [0.25, 0.5, 0.75])
def test_rings_on_the_way_from_one_to_another_are_rings_in_between(embedded_rings, t):
    rings, phi, reference = embedded_rings
    points = geodesic(phi[0], phi[1], t, reference)
    centre = (1 - t) * rings.centres[0] + t * rings.centres[1]
    assert_ring(points, centre, (1 - t) * rings.radii[0] + t * rings.radii[1])


def test_the_rings_are_written_as_graphs_without_edges(script, tmp_path):
    rings = script.make_rings(seed=0, n_rings=3)
    script.write_graphs(rings, tmp_path / "rings")
    shard = read_shard(tmp_path / "rings" / "part-00000.parquet")
    assert shard.rows.column("graph_id").to_pylist() == ["ring-0", "ring-1", "ring-2"]
    assert shard.graphs.n_edges == 0
    np.testing.assert_allclose(shard.graphs.node_attributes, np.concatenate(rings.points), rtol=1e-6)


@pytest.mark.slow
def test_the_script_runs_the_job_and_draws_both_figures(tmp_path):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "run"
    options = [f"output.path={folder}", f"source.path={tmp_path / 'graphs'}", "cluster.workers=1"]
    command = [sys.executable, str(SCRIPT), *itertools.chain.from_iterable(("--set", option) for option in options)]
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "mean: a ring around" in done.stdout
    for name in ("rings.png", "noise.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
