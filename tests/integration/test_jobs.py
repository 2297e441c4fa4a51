"""Whole jobs: the same bytes every time, every row accounted for, and values that follow from the files alone."""

import dataclasses
import gzip
import json

import numpy as np
import ot
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import Client

from wegl_dask import fit_tasks
from wegl_dask import run as run_module
from wegl_dask.errors import SourceError, TooManyRejectedError
from wegl_dask.pipeline import ingest_job
from wegl_dask.spec import ClusterTable
from wegl_dask.storage import RunFolder
from wegl_dask.verify import verify_run


@pytest.fixture(scope="module")
def one_worker():
    """A cluster of one worker, which has done nothing but the jobs of this module on the shipped sources."""
    from wegl_dask.cluster import open_client

    with open_client(ClusterTable(workers=1, memory_limit="1GB")) as client:
        yield client


@pytest.fixture
def finish_in_reverse(monkeypatch):
    """Submit the tasks of every stage in the opposite order: they finish in another one."""
    submit = run_module.run_stage

    def reversed_stage(client, stage, function, descriptors, **options):
        return submit(client, stage, function, descriptors[::-1], **options)

    def switch(on):
        monkeypatch.setattr(run_module, "run_stage", reversed_stage if on else submit)

    return switch


# --- The same bytes ---


@pytest.mark.parametrize("reference", ["kmeans", "normal", "barycenter", "sample", "origin"])
def test_the_bytes_do_not_depend_on_the_workers_nor_on_the_order_in_which_tasks_finish(
    reference, run, mutag_job, one_worker, finish_in_reverse, contents
):
    job = {"reference": {"kind": reference, "graphs": 40}, "seed": 3}
    run(mutag_job("two", **job))
    finish_in_reverse(True)
    run(mutag_job("one", **job), client=one_worker)
    two, one = mutag_job("two")["output"]["path"], mutag_job("one")["output"]["path"]
    assert len(contents(two)) == 12
    for subfolder in ("data", "graphs", "model"):
        assert contents(one, subfolder) == contents(two, subfolder)


def test_many_shards_with_rejects_give_the_same_bytes_again(run, molecules_job, finish_in_reverse, contents):
    outs = []
    for name, in_reverse in (("first", False), ("second", True)):
        finish_in_reverse(in_reverse)
        job = molecules_job(name, nodes={"virtual_node": True}, source={"nodes_per_shard": 150})
        run(job)
        outs.append(job["output"]["path"])
    assert len(contents(outs[0])) > 40
    for subfolder in ("data", "rejected", "graphs", "model"):
        assert contents(outs[0], subfolder) == contents(outs[1], subfolder)


def test_the_seed_changes_the_bytes(run, mutag_job, contents):
    run(mutag_job("zero", seed=0))
    run(mutag_job("one", seed=1))
    assert contents(mutag_job("zero")["output"]["path"]) != contents(mutag_job("one")["output"]["path"])


def test_how_the_input_is_cut_changes_the_embeddings_by_no_more_than_the_sample_of_nodes(run, mutag_job, table):
    """All nodes are in the sample here, so only the order of the sums is another."""
    run(mutag_job("many", reference={"kind": "normal"}))
    run(mutag_job("one", reference={"kind": "normal"}, source={"nodes_per_shard": 100_000}))
    many, one = (table(mutag_job(name)["output"]["path"]) for name in ("many", "one"))
    assert many.column("graph_id").equals(one.column("graph_id"))
    np.testing.assert_allclose(
        many.column("transport_cost").to_numpy(), one.column("transport_cost").to_numpy(), rtol=1e-6
    )


def test_nothing_in_a_part_tells_when_or_where_it_was_made(run, mutag_job):
    out = mutag_job()["output"]["path"]
    run(mutag_job())
    metadata = {
        key.decode(): json.loads(value)
        for key, value in pq.read_schema(f"{out}/data/part-00000.parquet").metadata.items()
    }
    assert set(metadata) == {
        *("n_points", "dimension", "dtype", "layout", "label_kind", "class_names", "task_names"),
        *("job", "numerics_version", "model", "seed", "versions"),
    }


# --- Rows ---


def test_every_row_is_embedded_or_rejected_once_in_the_order_of_the_input(run, molecules_job, molecules, table):
    from rdkit import Chem, RDLogger

    job = molecules_job()
    summary = run(job)
    lines = molecules.read_text().splitlines()[1:]
    expected = [line.split(",") for line in lines]
    with_rejects = RDLogger.logger()
    with_rejects.setLevel(RDLogger.CRITICAL)
    good = [name for smiles, name in expected if Chem.MolFromSmiles(smiles) is not None]
    bad = [name for smiles, name in expected if Chem.MolFromSmiles(smiles) is None]
    with_rejects.setLevel(RDLogger.WARNING)
    data, rejected = table(job["output"]["path"]), table(job["output"]["path"], "rejected")
    assert data.column("graph_id").to_pylist() == good
    assert rejected.column("graph_id").to_pylist() == bad
    assert bad, "the file is to hold molecules that cannot be read"
    rows = data.column("source_row").to_pylist() + rejected.column("source_row").to_pylist()
    assert sorted(rows) == list(range(len(lines)))
    assert data.column("source_row").to_pylist() == sorted(data.column("source_row").to_pylist())
    assert set(data.column("source_file").to_pylist()) == {str(molecules)}
    assert (summary.rows, summary.rejected) == (len(good), len(bad))
    assert verify_run(RunFolder(job["output"]["path"]), deep=True) == []


def test_a_run_whose_fit_was_wrong_is_found_but_not_one_with_a_model_of_other_graphs(
    run, mutag_job, tmp_path, monkeypatch
):
    fit = fit_tasks.projection_from_moments

    def spoiled(*args, **options):
        projection = fit(*args, **options)
        return dataclasses.replace(projection, components=projection.components[::-1])

    monkeypatch.setattr(fit_tasks, "projection_from_moments", spoiled)
    tables = {"projection": {"components": 2}, "reference": {"kind": "normal"}}
    job = mutag_job("wrong", nodes={"features": ["labels", "degrees"]}, **tables)
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
        run(job, client=client)
    problems = verify_run(RunFolder(str(tmp_path / "wrong")), deep=True)
    assert [problem.path for problem in problems] == ["model/model.json"]
    assert problems[0].what.startswith("the variance of the points it was fitted to differs by ")
    # In a transform of other graphs the model is as it was given.
    source = {**job["source"], "max_nodes": 20, "max_rejected_fraction": 0.5}
    run({"source": source, "model": {"path": str(tmp_path / "wrong")}, "output": {"path": str(tmp_path / "given")}})
    assert verify_run(RunFolder(str(tmp_path / "given")), deep=True) == []


def test_the_versions_of_what_the_numbers_come_from_are_kept(run, molecules_job, mutag_job):
    from rdkit import rdBase

    packages = {"numpy", "scipy", "scikit-learn", "POT", "pyarrow", "dask", "distributed", "dask-ml", "wegl-dask"}
    for job, rdkit in ((molecules_job("molecules"), {"rdkit": rdBase.rdkitVersion}), (mutag_job("mutag"), {})):
        run(job)
        out = job["output"]["path"]
        kept = RunFolder(out).read_manifest()["versions"]
        assert kept.keys() == packages | rdkit.keys()
        assert kept.items() >= rdkit.items()
        assert json.loads(pq.read_schema(f"{out}/data/part-00000.parquet").metadata[b"versions"]) == kept


def test_graphs_that_are_too_large_are_rejected_with_the_number_of_nodes(run, mutag_job, table, mutag):
    job = mutag_job(source={"max_nodes": 20})
    run(job)
    sizes = {str(i + 1): len(graph.node_labels) for i, graph in enumerate(mutag.graphs)}
    rejected = table(job["output"]["path"], "rejected")
    assert rejected.column("graph_id").to_pylist() == [name for name, size in sizes.items() if size > 20]
    assert [reason.split(" nodes")[0] for reason in rejected.column("reason").to_pylist()] == [
        f"the graph has {size}" for size in sizes.values() if size > 20
    ]


def test_too_many_rejects_stop_the_job_and_a_larger_fraction_lets_it_go_on(run, mutag_job, table):
    few = {"source": {"max_nodes": 20, "max_rejected_fraction": 0.1}}
    with pytest.raises(TooManyRejectedError, match=r"\d+ of 188 rows were rejected.* = 0.1 allows 18: \d+ x the graph"):
        run(mutag_job(**few))
    few["source"]["max_rejected_fraction"] = 0.5
    run(mutag_job(**few))
    out = mutag_job()["output"]["path"]
    assert table(out).num_rows + table(out, "rejected").num_rows == 188


def test_on_error_fail_stops_at_the_first_reject_and_names_it(run, mutag_job):
    with pytest.raises(SourceError, match=r"MUTAG, row \d+ \(id \d+\): the graph has 2\d nodes; max_nodes allows 20; "):
        run(mutag_job(source={"max_nodes": 20, "on_error": "fail"}))


# --- Stages ---


def test_other_jobs_start_from_the_shards_of_an_ingest(run, mutag_job, contents, tmp_path):
    summary = run(mutag_job("shards"), only=ingest_job)
    assert (summary.rows, summary.n_points, summary.parts_made) == (188, 0, 12)
    shards = tmp_path / "shards"
    assert not (shards / "data").exists()
    assert not (shards / "_SUCCESS").exists()
    from_shards = {
        "source": {"kind": "graph_parquet", "path": str(shards / "graphs")},
        "output": {"path": str(tmp_path / "from")},
    }
    run(from_shards)
    run(mutag_job("direct"))
    direct, indirect = contents(tmp_path / "direct", "graphs"), contents(tmp_path / "from", "graphs")
    assert list(indirect.values()) == list(direct.values())


def test_an_ingest_is_continued_by_the_whole_job(run, mutag_job, written_at):
    out = mutag_job()["output"]["path"]
    run(mutag_job(), only=ingest_job)
    before = written_at(out)
    run(mutag_job())
    assert {path: moment for path, moment in written_at(out).items() if path in before} == before


def test_graphs_are_removed_at_the_end_unless_they_are_kept(run, mutag_job, contents):
    run(mutag_job("kept"))
    run(mutag_job("not_kept", output={"keep_graphs": False}))
    kept, not_kept = mutag_job("kept")["output"]["path"], mutag_job("not_kept")["output"]["path"]
    assert contents(not_kept) == contents(kept)
    assert contents(not_kept, "graphs") == {}
    assert verify_run(RunFolder(not_kept)) == []


def test_only_parts_stay_where_parts_are_and_no_scratch(run, mutag_job, tmp_path):
    run(mutag_job())
    top = {path.name for path in (tmp_path / "out").iterdir()}
    assert top == {"job.toml", "graphs", "model", "data", "records", "manifest.json", "_SUCCESS"}
    assert all(path.name.startswith("part-") for path in (tmp_path / "out" / "data").iterdir())


# --- What workers load ---


def test_no_worker_imports_torch_for_tu_ogb_and_smiles(
    run, mutag_job, molecules_job, molhiv_head, one_worker, tmp_path
):
    run(mutag_job("tud"), client=one_worker)
    run(molecules_job("smiles"), client=one_worker)
    ogb = {"kind": "ogb", "root": str(molhiv_head(100)), "name": "ogbg-molhiv"}
    run({"source": ogb, "output": {"path": str(tmp_path / "ogb")}}, client=one_worker)

    def loaded():
        import sys

        return sorted({"torch", "ogb", "torch_geometric"} & set(sys.modules))

    assert list(one_worker.run(loaded).values()) == [[]]


# --- Values ---


def test_embeddings_of_labelled_graphs_follow_from_the_model_files_alone(run, mutag_job, mutag, recomputed, table):
    job = mutag_job(diffusion={"layers": 3, "pooling": "average"})
    run(job)
    nodes = [np.eye(7)[np.array(graph.node_labels)[:, 0]] for graph in mutag.graphs]
    edges = [
        {pair: np.eye(4)[label] for pair, (label,) in zip(graph.edges, graph.edge_labels, strict=True)}
        for graph in mutag.graphs
    ]
    check_rows(job, table, recomputed, nodes, edges)


def test_embeddings_of_molecules_follow_from_the_model_files_alone(
    run, molhiv_500, molhiv_head, recomputed, table, tmp_path
):
    ogb = {"kind": "ogb", "root": str(molhiv_head(500)), "name": "ogbg-molhiv", "nodes_per_shard": 4000}
    job = {
        "source": ogb,
        "nodes": {"virtual_node": True},
        "projection": {"components": 20, "fit_on": "train"},
        "output": {"path": str(tmp_path / "out")},
    }
    run(job)
    with np.load(tmp_path / "out" / "model" / "arrays.npz") as arrays:
        encoder = arrays["encoder"]
    first_column = np.cumsum([0, 119, 5, 12, 12, 10, 6, 6, 2])
    nodes = [encoder[np.array(graph.node_labels) + first_column].sum(axis=1) for graph in molhiv_500.graphs]
    edges = [
        {
            pair: np.concatenate([np.eye(5)[bond[0]], np.eye(6)[bond[1]], np.eye(2)[bond[2]]])
            for pair, bond in zip(graph.edges, graph.edge_labels, strict=True)
        }
        for graph in molhiv_500.graphs
    ]
    check_rows(job, table, recomputed, nodes, edges)


@pytest.fixture(scope="session")
def recomputed():
    """Work an embedding out from model.json, arrays.npz and the formulas of the paper, with dense matrices.

    Takes the initial features of a graph's nodes and the features of its listed edges.
    """

    def points_of(model, arrays, features, edges):
        n, (job, channels) = len(features), (model["job"], len(next(iter(edges.values()))))
        weights = np.zeros((channels, n, n))
        for (source, target), values in edges.items():
            weights[:, target, source] = values
        if job["nodes"]["virtual_node"]:
            weights = np.pad(weights, ((0, 0), (0, 1), (0, 1)), constant_values=1 / n)
            features = np.vstack([features, np.zeros(features.shape[1])])
        for channel in weights:
            np.fill_diagonal(channel, 1.0)
        degrees = weights.sum(axis=2)
        operator = (weights / np.sqrt(degrees[:, :, None] * degrees[:, None, :])).sum(axis=0)
        layers = [features]
        for _ in range(job["diffusion"]["layers"]):
            layers.append(operator @ layers[-1])
        pooled = {"concat": np.hstack(layers), "average": np.mean(layers, axis=0), "final": layers[-1]}
        points = (pooled[job["diffusion"]["pooling"]] - arrays["mean"]) / arrays["scale"]
        return points @ arrays["components"].T if "components" in arrays else points

    def embed(out, features, edges):
        model = json.loads((out / "model" / "model.json").read_text())
        with np.load(out / "model" / "arrays.npz") as file:
            arrays = dict(file)
        reference, step = arrays["reference"], model["rounding_step"]
        n_points = len(reference)
        rows = []
        for nodes, bonds in zip(features, edges, strict=True):
            points = np.round(points_of(model, arrays, nodes, bonds) / step) * step + 0.0
            points, counts = np.unique(points, axis=0, return_counts=True)
            weights = counts / counts.sum()
            costs = ((reference[:, None, :] - points[None, :, :]) ** 2).sum(axis=2)
            plan = ot.emd(np.full(n_points, 1 / n_points), weights, costs, numItermax=1_000_000)
            phi = (n_points * plan @ points - reference) / np.sqrt(n_points)
            cost = ot.emd2(np.full(n_points, 1 / n_points), weights, costs, numItermax=1_000_000)
            rows.append((phi.ravel(), cost))
        return np.array([phi for phi, _ in rows]), np.array([cost for _, cost in rows])

    return embed


def check_rows(job, table, recomputed, nodes, edges):
    from pathlib import Path

    out = Path(job["output"]["path"])
    data = table(out)
    phi, cost = recomputed(out, nodes, edges)
    np.testing.assert_allclose(data.column("transport_cost").to_numpy(), cost, rtol=1e-9)
    found = np.array(data.column("embedding").to_pylist(), dtype=np.float32)
    np.testing.assert_allclose(found, phi, rtol=1e-5, atol=1e-5 * np.abs(phi).max())
    assert data.column("num_nodes").to_pylist() == [len(features) for features in nodes]


@pytest.mark.parametrize("ending", ["csv.gz", "parquet"])
def test_a_file_that_is_one_unit_is_read_by_all_workers_to_the_same_bytes(run, contents, tmp_path, monkeypatch, ending):
    molecules = ["C" * (1 + i % 7) + "O" * (i % 3) for i in range(9000)]
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"smiles": molecules}), path)
    else:
        path.write_bytes(gzip.compress("\n".join(["smiles", *molecules]).encode()))
    handed_out = []
    original = run_module.run_stage

    def note(client, stage, function, descriptors, **options):
        if stage == "ingest":
            handed_out.append([task.indices for task in descriptors])
        return original(client, stage, function, descriptors, **options)

    monkeypatch.setattr(run_module, "run_stage", note)
    outs = [tmp_path / "all", tmp_path / "one"]
    for out, n_threads in zip(outs, (5, 1), strict=True):
        monkeypatch.setattr(run_module.Run, "n_threads", n_threads)
        run(
            {
                "source": {"kind": "smiles", "path": str(path), "nodes_per_shard": 20_000},
                "reference": {"kind": "normal", "points": 3},
                "projection": {"components": 2},
                "output": {"path": str(out)},
            }
        )
    by_all, by_one = handed_out
    assert len(by_one) == 1
    assert len(by_all) == min(5, len(by_one[0])) > 1
    assert [shard for indices in by_all for shard in indices] == list(by_one[0])
    for subfolder in ("graphs", "data"):
        assert contents(outs[0], subfolder) == contents(outs[1], subfolder)
