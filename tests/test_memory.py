"""The memory that a job is said to need, and the refusal of what cannot fit."""

import json
import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from wegl_dask.diffusion import propagation_operator
from wegl_dask.errors import JobFileError
from wegl_dask.graphs import GraphBatch, GraphSchema, canonical_edges, offsets_from_counts
from wegl_dask.memory import (
    PLANNED_SHARD_BYTES,
    STARTED_ANEW,
    Extent,
    Features,
    embed_terms,
    ingest_terms,
    kept_bytes,
    moments_terms,
    reference_terms,
    require_fitting,
    total_bytes,
)
from wegl_dask.sources import open_source
from wegl_dask.sources.base import SourcePlan, Unit
from wegl_dask.spec import TudTable

SHARDS = {
    0: {"graphs": 100, "nodes": 2000, "edges": 5000, "largest_graph": 90},
    1: {"graphs": 3, "nodes": 1900, "edges": 90_000, "largest_graph": 800},
}
LARGEST = Extent(graphs=100, points=2000, edges=90_000, largest_graph=800)
PLAIN = Features(GraphSchema((3,)), blocks=1, edges="none")


def test_the_largest_of_each_counts_whichever_shard_it_is_in():
    assert Extent.of_shards(SHARDS, virtual_node=False) == LARGEST


def test_virtual_nodes_and_their_edges_count():
    assert Extent.of_shards(SHARDS, virtual_node=True) == Extent(100, 2100, 90_000 + 2 * 1900, 801)


def test_a_scatter_matrix_counts_three_times_and_only_where_there_is_one():
    with_pca, without = (moments_terms(LARGEST, PLAIN, 3000, scatter=scatter) for scatter in (True, False))
    assert with_pca["the scatter matrix"] == 3 * 8 * 3000**2
    assert without["the scatter matrix"] == 0
    assert total_bytes(with_pca) > total_bytes(without) > STARTED_ANEW.worker


def rings(schema, chords, n_graphs=200, n_nodes=100):
    """Graphs in which every node is joined to the next few of a ring, with edge labels and attributes by chance."""
    rng = np.random.default_rng(0)
    first = np.tile(np.arange(n_nodes), n_graphs * chords)
    further = np.repeat(np.tile(np.arange(1, chords + 1), n_graphs), n_nodes)
    n_all, n_edges = n_graphs * n_nodes, len(first)
    labels = [rng.integers(0, count, n_edges) for count in schema.edge_category_counts]
    batch = GraphBatch(
        schema,
        node_offsets=offsets_from_counts(np.full(n_graphs, n_nodes)),
        edge_offsets=offsets_from_counts(np.full(n_graphs, n_nodes * chords)),
        edge_source=first,
        edge_target=(first + further) % n_nodes,
        node_categories=np.zeros((n_all, len(schema.node_category_counts)), dtype=np.int16),
        node_attributes=np.zeros((n_all, 0), dtype=np.float32),
        edge_categories=np.array(labels, dtype=np.int16).reshape(len(labels), n_edges).T,
        edge_attributes=rng.random((n_edges, schema.edge_attribute_width), dtype=np.float32),
    )
    return canonical_edges(batch)[0]


def peak_of_operator(batch, edge_features):
    """Measure several times: threads that other tests have left behind take memory too."""
    propagation_operator(batch.slice(0, 1), edge_features)
    peaks = []
    for _ in range(3):
        tracemalloc.start()
        propagation_operator(batch, edge_features)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return min(peaks)


@pytest.mark.parametrize("virtual_node", [False, True])
@pytest.mark.parametrize("chords", [1, 20])
@pytest.mark.parametrize(
    ("edge_features", "labels", "attributes"),
    [
        ("labels", (4,), 0),
        ("labels", (25,), 0),
        ("labels", (26,), 0),
        ("labels", (3, 1000, 5), 0),
        ("attributes", (), 50),
    ],
)
def test_what_edge_features_take_beyond_none_is_counted(edge_features, labels, attributes, chords, virtual_node):
    schema = GraphSchema((3,), labels, 0, attributes)
    batch = rings(schema, chords)
    if virtual_node:
        batch = batch.with_virtual_nodes()
    extent = Extent(batch.n_graphs, batch.n_nodes, batch.n_edges, 100)
    taken = peak_of_operator(batch, edge_features) - peak_of_operator(batch, "none")
    counted = Features(schema, 1, edge_features).operator_bytes(extent) - Features(schema, 1, "none").operator_bytes(
        extent
    )
    assert taken <= counted + 100_000
    # Nor many times what is needed.
    assert counted <= 3 * max(taken, 0) + 90 * batch.n_edges


def test_what_edges_carry_is_counted_whether_it_is_used_or_not():
    with_both = GraphSchema((3,), (5, 6), 0, 100)
    for edges in ("none", "labels", "attributes"):
        found, plain = Features(with_both, 1, edges), Features(GraphSchema((3,)), 1, "none")
        more = found.graph_bytes(LARGEST) - plain.graph_bytes(LARGEST)
        # In single precision alone they are 4 bytes a value.
        assert more > 4 * 100 * LARGEST.edges
        for terms in (
            lambda features: moments_terms(LARGEST, features, 10**9, scatter=False),
            lambda features: embed_terms(LARGEST, features, 5, 400, solver="auto", auto_size=1),
        ):
            kept = terms(found)["the graphs of a shard"] - terms(plain)["the graphs of a shard"]
            assert kept > 4 * 100 * LARGEST.edges
    of_ingest, without = (ingest_terms(LARGEST, schema, 1) for schema in (with_both, GraphSchema((3,))))
    # As they are read and in canonical order, in double and in single precision.
    assert sum(of_ingest.values()) - sum(without.values()) > (8 + 4) * 100 * LARGEST.edges


@pytest.mark.parametrize(
    ("solver", "auto_size", "pairs"),
    [
        ("exact", 1, 800 * 400),
        ("auto", 200_000, 200_000),
        ("sinkhorn", 200_000, 200_000),
        ("auto", 50_000, 131_072),
        ("sinkhorn", 50_000, 131_072),
    ],
)
def test_costs_and_plan_count_for_the_largest_graph_that_may_be_solved_exactly(solver, auto_size, pairs):
    terms = embed_terms(LARGEST, PLAIN, 5, 400, solver=solver, auto_size=auto_size)
    assert terms["the costs and the plan of the largest graph"] == 56 * pairs


def test_a_graph_below_the_size_of_auto_counts_as_it_is():
    terms = embed_terms(LARGEST, PLAIN, 5, 400, solver="auto", auto_size=10_000_000)
    assert terms["the costs and the plan of the largest graph"] == 56 * 800 * 400


def test_the_sample_for_k_means_is_kept_in_single_precision():
    assert total_bytes(reference_terms(1000, 20, "kmeans")) == STARTED_ANEW.worker + 4 * 1000 * 20
    assert total_bytes(reference_terms(1000, 20, "sample")) == STARTED_ANEW.worker + 8 * 1000 * 20


def test_what_fits_is_not_refused():
    require_fitting({"embed": {"the graphs of a shard": 1e6}}, 500_000_000)


def test_what_does_not_fit_is_refused_with_both_numbers_the_stage_and_what_to_do():
    stages = {
        "sample": {"the graphs of a shard": 1e6},
        "embed": {"the graphs of a shard": 1e6, "the costs and the plan of the largest graph": 2e9},
    }
    with pytest.raises(JobFileError) as raised:
        require_fitting(stages, 1_000_000_000)
    assert str(raised.value) == (
        "the stage embed needs about 2.15 GB of memory a worker, and a worker has 1 GB: give workers more memory "
        "(cluster.memory_limit, on Slurm cluster.memory), or "
        'set transport.solver = "auto", or lower source.max_nodes (the costs and the plan of the largest graph would take '
        "2 GB)"
    )


def test_a_worker_may_not_use_its_last_twentieth():
    limit = (STARTED_ANEW.worker + 50_000_000) / 0.95
    require_fitting({"embed": {"the graphs of a shard": 50_000_000}}, math.ceil(limit) + 1)
    with pytest.raises(JobFileError):
        require_fitting({"embed": {"the graphs of a shard": 50_000_000}}, math.floor(limit) - 1)


def test_what_the_other_stages_had_is_kept_within_the_room_that_there_is():
    stages = {
        "moments": {"the graphs of a shard": 20e6, "what k-means imports": 160e6},
        "sample": {"the points of a shard": 30e6},
        "embed": {"the vectors of a shard": 200e6, "what k-means imports": 160e6},
    }
    # Half of it: the rest is used again.
    assert kept_bytes(stages, None) == 25e6
    for size, kept in ((30e6, 40e6), (40e6, 25e6)):
        assert kept_bytes({**stages, "reference": {"the sample for the reference": size}}, None) == kept
    # The embed stage needs 150 + 360 MB, and a worker keeps up to half of its limit.
    assert kept_bytes(stages, 1_040_000_000) == 10e6
    assert kept_bytes(stages, 1_000_000_000) == 0
    # No more than the C library keeps.
    assert kept_bytes({**stages, "ingest": {"the graphs of a shard": 200e6}}, None) == 125e6
    assert kept_bytes({**stages, "ingest": {"the graphs of a shard": 230e6}}, None) == 128 * 2**20


def test_the_memory_of_no_stage_is_nothing_kept():
    assert kept_bytes({"embed": {"the vectors of a shard": 1e9}}, None) == 0


def test_a_planned_shard_takes_what_is_said(shared_data):
    """What a worker holds when it has read the plan of a collection of files with a shard each, as other runs leave them."""
    source = open_source(TudTable(kind="tud", root=str(shared_data / "TUDataset"), name="MUTAG"), "auto")
    (piece,) = source.pieces()
    plan = source.plan([source.scan(piece, 1000)])
    cut = plan.units[0].cuts[0]
    n_shards = 5000
    units = tuple(
        Unit(f"/data/graphs/part-{i:05d}.parquet", (replace(cut, shard=i, fingerprint=f"{i:064x}"),))
        for i in range(n_shards)
    )
    content = json.dumps(replace(plan, units=units).to_json())
    tracemalloc.start()
    kept = SourcePlan.from_json(json.loads(content))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(kept.units) == n_shards
    assert PLANNED_SHARD_BYTES / 2 < peak / n_shards < PLANNED_SHARD_BYTES
