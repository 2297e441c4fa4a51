"""Embeddings of a run computed anew: nothing is found in a run as it is, and every kind of difference is."""

import dataclasses
import json

import numpy as np
import pytest

from wegl_dask import network_simplex, saved_model, transport
from wegl_dask.checksums import sealed, unsealed
from wegl_dask.storage import RunFolder
from wegl_dask.tasks import ShardTask, embed_shard
from wegl_dask.verify import verify_run


def found(folder):
    """Problems of the parts; the runs of the fixtures have no manifest and no plan."""
    return [str(problem) for problem in verify_run(folder, deep=True) if problem.path.startswith("data/")]


def embed_again(folder, shard, **options):
    """Write the part of a shard again, as it comes out now."""
    settings = {"dtype": "float32", "layout": "list", "metadata": {}, "fail": False}
    task = ShardTask(shard, "", folder.sha256(f"graphs/part-{shard:05d}.parquet"))
    embed_shard(folder, task, model_fingerprint=folder.sha256("model/model.json"), **settings | options)


@pytest.fixture
def run(write_embedded_run):
    return RunFolder(write_embedded_run("mutag"))


@pytest.mark.parametrize("name", ["mutag", "ptc_mr", "enzymes", "molhiv_500"])
def test_nothing_is_found_in_runs_as_they_are(embedded_run, name):
    assert found(RunFolder(embedded_run(name))) == []


@pytest.mark.parametrize("form", [{"dtype": "float16"}, {"layout": "wide"}])
def test_nothing_is_found_in_runs_of_other_formats(write_embedded_run, form):
    assert found(RunFolder(write_embedded_run("mutag", **form))) == []


def test_a_run_without_graphs_or_without_a_model_is_not_computed_anew(run):
    run.remove_graphs()
    assert found(run) == []


def spoil(monkeypatch, change, n_points=10):
    """Let the linear program's solver return something else for problems of so many points."""
    solve = network_simplex.network_simplex()

    def spoiled(reference_weights, weights, costs, *options):
        result = solve(reference_weights, weights, costs, *options)
        return change(*result) if len(weights) == n_points else result

    monkeypatch.setattr(network_simplex, "network_simplex", lambda: spoiled)


def not_optimal(plan, *rest):
    return np.outer(plan.sum(axis=1), plan.sum(axis=0)), *rest


def test_a_plan_that_was_not_optimal_and_not_looked_at_is_found(run, monkeypatch):
    monkeypatch.setattr(transport, "CERTIFIED_EVERY", 10**9)
    spoil(monkeypatch, not_optimal)
    with monkeypatch.context() as patch:
        patch.setattr(transport, "EXCESS_TOLERANCE", np.inf)
        embed_again(run, 1)
    monkeypatch.undo()
    problems = found(run)
    assert [problem.split(": ")[:2] for problem in problems] == [
        ["data/part-00001.parquet", "computed anew, transport_cost differs"],
        ["data/part-00001.parquet", "computed anew, the embedding differs"],
    ]
    embed_again(run, 1)
    assert found(run) == []


def test_a_plan_that_cannot_be_proven_optimal_now_is_found(run, monkeypatch):
    spoil(monkeypatch, not_optimal)
    problems = found(run)
    assert any(
        "computed anew, the solver differs: " in problem and "exact is stored, and sinkhorn gives the plan" in problem
        for problem in problems
    )


def test_a_graph_that_was_rejected_without_need_is_found_and_one_that_cannot_be_embedded(run, monkeypatch):
    on_processor = saved_model.kernels("cpu")

    def failing(points, reference, **options):
        return dataclasses.replace(
            on_processor.embed_points(points, reference, **options), failures={2: "marginals off"}
        )

    with monkeypatch.context() as patch:
        patch.setattr(saved_model, "kernels", lambda _: on_processor._replace(embed_points=failing))
        embed_again(run, 0)
        assert found(run) == [
            f"data/part-0000{shard}.parquet: computed anew, graphs have no plan: 1 of 63 graphs of the shard; "
            f"number 2 (id g{row}), marginals off"
            for shard, row in ((1, 64), (2, 127))
        ]
    (problem,) = found(run)
    assert problem.startswith(
        "data/part-00000.parquet: computed anew, graphs that were rejected have a plan: 1 of 62 graphs of the shard; "
        "number 2 (id g2)"
    )


def test_a_model_of_other_graphs_or_no_model_is_found(run):
    model = unsealed(run.read("model/model.json"))
    run.write("model/model.json", b"{}")
    paths = [problem.path for problem in verify_run(run, deep=True)]
    assert "model/model.json" in paths
    model["schema"]["node_attribute_width"] = 1
    run.write("model/model.json", json.dumps(sealed(model)).encode())
    assert all("the model embeds graphs of [" in problem for problem in found(run))
    assert len(found(run)) == 3
