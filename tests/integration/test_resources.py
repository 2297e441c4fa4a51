"""Memory of the workers on the large data sets, and the quality of the reference on many nodes."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.cluster import KMeans

from wegl_dask.saved_model import Model
from wegl_dask.shards import read_shard
from wegl_dask.spec import ClusterTable
from wegl_dask.storage import RunFolder


@pytest.fixture
def peak_memory(run):
    """Run a job on two fresh workers of limited memory: bytes that each had resident at its peak. None may die."""
    from wegl_dask.cluster import open_client

    def peak():
        import os
        import resource

        return os.getpid(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def measure(job, limit):
        with open_client(ClusterTable(workers=2, memory_limit=limit)) as client:
            before = {process for process, _ in client.run(peak).values()}
            run(job, client=client)
            after = client.run(peak).values()
        assert {process for process, _ in after} == before
        return [memory for _, memory in after]

    return measure


@pytest.mark.slow
def test_ogbg_molhiv_needs_less_than_800_megabytes_a_worker(shared_data, tmp_path, peak_memory):
    job = {
        "source": {"kind": "ogb", "root": str(shared_data / "ogb"), "name": "ogbg-molhiv"},
        "nodes": {"virtual_node": True},
        "projection": {"components": 20, "fit_on": "train"},
        "output": {"path": str(tmp_path / "out")},
    }
    assert max(peak_memory(job, "800MB")) < 800e6


@pytest.mark.slow
@pytest.mark.parametrize("name", ["REDDIT-BINARY", "COLLAB"])
def test_large_social_graphs_need_less_than_three_gigabytes_a_worker(name, shared_data, tmp_path, peak_memory):
    root = shared_data / "TUDataset"
    if name == "COLLAB":
        root = tmp_path / "unpacked"
        subprocess.run([sys.executable, shared_data / "unpack.py", name, root], check=True)
    job = {
        "source": {"kind": "tud", "root": str(root), "name": name},
        "nodes": {"features": ["degrees"]},
        "projection": {"components": 20},
        "output": {"path": str(tmp_path / "out")},
    }
    assert max(peak_memory(job, "3GB")) < 3e9


def kmeans_ratio(out):
    """Inertia of a run's reference on all points, by that of full k-means in the median of five seeds."""
    model = Model.from_files(*RunFolder(str(out)).read_model())
    points = np.concatenate(
        [
            model.points.evaluate(block)[0]
            for path in sorted((out / "graphs").iterdir())
            for block in read_shard(path).graphs.blocks(20_000)
        ]
    )

    def inertia(centres):
        blocks = np.array_split(points, 1 + len(points) // 100_000)
        return sum(cdist(block, centres, "sqeuclidean").min(axis=1).sum() for block in blocks)

    assert len(np.unique(model.reference, axis=0)) == len(model.reference)
    full = [KMeans(len(model.reference), n_init=1, random_state=seed).fit(points).inertia_ for seed in range(5)]
    return inertia(model.reference) / np.median(full)


def molhiv_job(root, out):
    return {
        "source": {"kind": "ogb", "root": str(root), "name": "ogbg-molhiv"},
        "nodes": {"virtual_node": True},
        "projection": {"components": 20},
        "output": {"path": str(out)},
    }


def test_the_reference_of_4000_molecules_is_as_good_as_full_kmeans(run, molhiv_head, tmp_path):
    run(molhiv_job(molhiv_head(4000), tmp_path / "out"))
    assert kmeans_ratio(tmp_path / "out") < 1.03


@pytest.mark.slow
def test_the_reference_of_all_molecules_is_as_good_as_full_kmeans(run, shared_data, tmp_path):
    run(molhiv_job(shared_data / "ogb", tmp_path / "out"))
    assert kmeans_ratio(tmp_path / "out") < 1.03
