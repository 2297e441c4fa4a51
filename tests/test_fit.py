import pytest

from wegl_dask.errors import JobFileError
from wegl_dask.fit import prepare_fit, sample_size
from wegl_dask.graphs import GraphSchema
from wegl_dask.ingest import ShardCensus
from wegl_dask.molecules import ATOM_CATEGORY_COUNTS
from wegl_dask.records import PartFile, PartRecord
from wegl_dask.sources.base import LabelSchema, SourcePlan
from wegl_dask.spec import JobSpec

LABELLED = GraphSchema(node_category_counts=(4,))


def prepared(schema=LABELLED, **tables):
    """Prepare the fit of a job to two shards: 7 graphs of 30 nodes, 4 of them with 16 nodes for training."""
    counts = (
        {"graphs": 5, "nodes": 20, "train_graphs": 3, "train_nodes": 10, "degrees": [1, 2]},
        {"graphs": 2, "nodes": 10, "train_graphs": 1, "train_nodes": 6, "degrees": [2, 9]},
    )
    records = {
        shard: PartRecord(
            "ingest", shard, "made from", (PartFile(f"graphs/part-{shard:05d}.parquet", 1, 1, str(shard)),), 0.1, extra
        )
        for shard, extra in enumerate(counts)
    }
    plan = SourcePlan(schema, LabelSchema(), {}, (), has_split=True)
    source = {"kind": "graph_parquet", "path": "graphs"}
    job = JobSpec.from_values({"source": source, "output": {"path": "out"}, **tables})
    return prepare_fit(job, ShardCensus(plan, records))


def test_the_number_of_points_is_the_mean_number_of_nodes_rounded_down():
    fit = prepared()
    assert (fit.n_points, fit.n_graphs, fit.n_nodes) == (4, 7, 30)
    assert [fit.counts(shard) for shard in (0, 1)] == [(5, 20), (2, 10)]


def test_virtual_nodes_count():
    fit = prepared(nodes={"virtual_node": True})
    assert (fit.n_points, fit.n_nodes) == (5, 37)
    assert fit.counts(0) == (5, 25)


def test_the_training_graphs_alone_decide_where_the_fit_is_on_them():
    fit = prepared(projection={"fit_on": "train"}, nodes={"virtual_node": True})
    assert (fit.n_points, fit.n_graphs, fit.n_nodes) == (5, 4, 20)
    assert [fit.counts(shard) for shard in (0, 1)] == [(3, 13), (1, 7)]


def test_a_barycenter_is_of_the_points_of_its_graphs_whatever_max_nodes_says():
    reference = {"kind": "barycenter", "max_nodes": 3}
    # Two of seven graphs that have 30 nodes together, and as many as there are.
    assert sample_size(prepared(reference={**reference, "graphs": 2})) == 9
    assert sample_size(prepared(reference={**reference, "graphs": 200})) == 30


def test_a_number_of_points_that_is_given_stands():
    assert prepared(reference={"points": 11}).n_points == 11


@pytest.mark.parametrize(
    ("schema", "features", "width"),
    [
        (GraphSchema(node_category_counts=(4, 3), node_attribute_width=2), ["labels"], 7),
        (GraphSchema(node_attribute_width=2), ["attributes"], 2),
        (GraphSchema(), ["degrees"], 10),
        (GraphSchema(node_category_counts=ATOM_CATEGORY_COUNTS), ["atom_embedding"], 300),
    ],
)
def test_features_that_the_job_does_not_name_follow_from_the_data(schema, features, width):
    fit = prepared(schema)
    assert fit.spec.nodes.features == features
    assert fit.dimension == width


def test_concatenated_layers_and_components_decide_the_dimension():
    assert prepared(diffusion={"layers": 3, "pooling": "concat"}).dimension == 16
    assert prepared(projection={"components": 2}).dimension == 2
    with pytest.raises(
        JobFileError, match="components = 17, and the node embeddings have 16 columns: set it to 16 at most"
    ):
        prepared(diffusion={"layers": 3, "pooling": "concat"}, projection={"components": 17})


def test_edge_labels_are_taken_where_there_are_some():
    assert prepared().spec.edges.features == "none"
    assert prepared(GraphSchema((4,), (2,))).spec.edges.features == "labels"


@pytest.mark.parametrize(
    "tables",
    [{"seed": 1}, {"reference": {"kind": "normal"}}, {"diffusion": {"layers": 1}}, {"reference": {"points": 3}}],
)
def test_what_the_model_follows_from_changes_the_fingerprint(tables):
    assert prepared(**tables).fingerprint != prepared().fingerprint


def test_what_the_model_does_not_follow_from_leaves_the_fingerprint():
    assert prepared(name="another", cluster={"workers": 3}).fingerprint == prepared().fingerprint
