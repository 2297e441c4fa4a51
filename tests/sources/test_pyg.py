import pickle
import shutil
import warnings

import pytest

from wegl_dask.convert import import_pyg, to_pyg
from wegl_dask.errors import SourceError
from wegl_dask.graphs import GraphSchema, canonical_edges
from wegl_dask.shards import ingest_shard
from wegl_dask.sources.base import LabelSchema
from wegl_dask.sources.pyg import PygSource
from wegl_dask.spec import PygTable

torch, Data = import_pyg()
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch_geometric.data import Batch, InMemoryDataset
    from torch_geometric.datasets import TUDataset

EDGES = torch.tensor([[0, 1], [1, 0]])


def table(path, *, trust=True):
    return PygTable(kind="pyg", path=path if isinstance(path, list) else str(path), trust=trust)


def molecule(n_nodes=2, y=0, **fields):
    return Data(
        **{"x": torch.arange(n_nodes)[:, None], "edge_index": EDGES, "edge_attr": torch.tensor([1, 1]), "y": y} | fields
    )


def of_an_older_version(data):
    """Put a graph in the state in which versions of torch_geometric before 2.0 saved it."""
    del data.__dict__["_store"]
    return data


def reasons(found):
    return {row["graph_id"]: row["reason"] for row in found.rejected}


@pytest.fixture
def saved(tmp_path):
    def save(content, name="data.pt"):
        torch.save(content, tmp_path / name)
        return tmp_path / name

    return save


# The forms of a file


def test_a_list_of_graphs_is_read_in_its_order(saved, read_source):
    file = saved([molecule(2, 1), molecule(5, 0), molecule(3, 1)])
    found = read_source(table(file))
    assert found.plan.schema == GraphSchema((5,), (2,))
    assert found.plan.labels == LabelSchema("class", class_names=("0", "1"))
    assert found.graphs.node_categories.ravel().tolist() == [0, 1, 0, 1, 2, 3, 4, 0, 1, 2]
    assert found.graphs.edge_categories.tolist() == [[1]] * 6
    assert found.rows == {
        "graph_id": ["0", "1", "2"],
        "source_file": [str(file)] * 3,
        "source_row": [0, 1, 2],
        "label": [1, 0, 1],
        "split": [None] * 3,
    }
    assert found.rejected == []


def test_a_single_graph_is_a_collection_of_one(saved, read_source):
    assert read_source(table(saved(molecule(4)))).graphs.node_counts.tolist() == [4]


@pytest.mark.parametrize("form", ["saved", "tuple", "dictionary of fields"])
def test_the_joined_graphs_of_a_data_set_are_those_of_the_list(form, saved, read_source, tmp_path, assert_same_batch):
    graphs = [
        molecule(2, 1),
        molecule(5, 0, edge_index=torch.empty((2, 0), dtype=torch.long), edge_attr=torch.empty(0, dtype=torch.long)),
        molecule(3, 1),
    ]
    listed = read_source(table(saved(graphs, "list.pt")))
    file = tmp_path / "joined.pt"
    if form == "saved":
        InMemoryDataset.save(graphs, file)
    else:
        data, slices = InMemoryDataset.collate(graphs)
        torch.save((data, slices) if form == "tuple" else (data.to_dict(), slices, {"x": 5}, Data), file)
    joined = read_source(table(file))
    assert_same_batch(joined.graphs, listed.graphs)
    assert joined.rows["label"] == listed.rows["label"]


def test_the_joined_graphs_of_a_data_set_without_features_keep_their_numbers_of_nodes(tmp_path, read_source):
    InMemoryDataset.save([Data(edge_index=EDGES, num_nodes=n, y=0) for n in (2, 7, 3)], tmp_path / "joined.pt")
    found = read_source(table(tmp_path / "joined.pt"))
    assert found.graphs.node_counts.tolist() == [2, 7, 3]
    assert found.plan.schema == GraphSchema()


def test_a_data_set_of_one_graph_has_no_slices(tmp_path, read_source):
    InMemoryDataset.save([molecule(3)], tmp_path / "one.pt")
    assert read_source(table(tmp_path / "one.pt")).graphs.node_counts.tolist() == [3]


def test_real_data_read_by_torch_geometric_are_the_real_data(shared_data, mutag, tmp_path, read_source):
    shutil.copytree(shared_data / "TUDataset" / "MUTAG" / "raw", tmp_path / "MUTAG" / "raw")
    data_set = TUDataset(str(tmp_path), "MUTAG")
    (processed,) = data_set.processed_paths
    found = read_source(table(processed), nodes_per_shard=500)
    assert len(found.shards) == 7
    # torch_geometric writes labels one-hot, as real numbers.
    assert found.plan.schema == GraphSchema((), (), 7, 4)
    assert found.graphs.node_attributes.argmax(axis=1).tolist() == mutag.batch.node_categories.ravel().tolist()
    canonical, expected = canonical_edges(found.graphs)[0], canonical_edges(mutag.batch)[0]
    assert canonical.edge_offsets.tolist() == expected.edge_offsets.tolist()
    assert canonical.edge_source.tolist() == expected.edge_source.tolist()
    assert canonical.edge_target.tolist() == expected.edge_target.tolist()
    assert canonical.edge_attributes.argmax(axis=1).tolist() == expected.edge_categories.ravel().tolist()
    lines = (shared_data / "TUDataset" / "MUTAG" / "raw" / "MUTAG_graph_labels.txt").read_text().split()
    assert found.rows["label"] == [{"-1": 0, "1": 1}[line] for line in lines]


@pytest.mark.parametrize("name", ["ptc_mr", "enzymes"])
def test_converted_graphs_come_back_in_shards_cut_by_nodes(name, real_data, saved, read_source, assert_same_batch):
    batch = real_data(name).batch
    found = read_source(table(saved(to_pyg(batch))), nodes_per_shard=1000)
    assert len(found.plan.units) == 1
    assert len(found.shards) == len({first // 1000 for first in batch.node_offsets[:-1].tolist()})
    assert_same_batch(found.graphs, batch)


def test_a_batch_is_the_graphs_that_it_was_made_of(saved, read_source, assert_same_batch):
    graphs = [molecule(2, 1), molecule(5, 0), molecule(3, 1)]
    listed = read_source(table(saved(graphs, "list.pt")))
    batched = read_source(table(saved(Batch.from_data_list(graphs), "batch.pt")))
    assert_same_batch(batched.graphs, listed.graphs)
    assert batched.rows["label"] == listed.rows["label"]


def test_a_list_of_batches_is_the_graphs_that_they_were_made_of(saved, read_source, assert_same_batch):
    graphs = [molecule(2, 1), molecule(5, 0), molecule(3, 1), molecule(4, 1)]
    listed = read_source(table(saved(graphs, "list.pt")))
    batched = read_source(table(saved([Batch.from_data_list(graphs[:3]), graphs[3]], "batches.pt")))
    assert_same_batch(batched.graphs, listed.graphs)
    assert batched.rows["label"] == listed.rows["label"]
    assert batched.rows["source_row"] == [0, 1, 2, 3]


def test_a_batch_that_cannot_be_taken_apart_is_named(saved, read_source):
    lost = Batch.from_data_list([molecule(2, 1), molecule(5, 0)])
    del lost._slice_dict
    for content, where in ((lost, ""), ([molecule(), lost], "item 1: ")):
        words = rf"data\.pt: {where}the Batch of torch_geometric cannot be taken apart .*: give its graphs themselves"
        with pytest.raises(SourceError, match=words):
            read_source(table(saved(content)))


def test_a_batch_in_the_form_of_its_fields_is_rejected(saved, read_source):
    joined = Batch.from_data_list([molecule(2, 1), molecule(5, 0)]).to_dict()
    for content in ([joined, molecule()], (joined, None)):
        found = read_source(table(saved(content)))
        assert "2 graphs joined to one" in reasons(found)["0"]


def test_the_vocabulary_reaches_over_all_files(saved, read_source, tmp_path):
    saved([molecule(3, 5)], "a.pt")
    saved([molecule(9, 2, edge_attr=torch.tensor([4, 0]))], "b.pt")
    found = read_source(table(tmp_path))
    assert found.plan.schema == GraphSchema((9,), (5,))
    assert found.plan.labels.class_names == ("2", "5")
    assert found.rows["label"] == [1, 0]
    assert found.rows["graph_id"] == ["0", "0"]
    assert [unit.piece for unit in found.plan.units] == [str(tmp_path / "a.pt"), str(tmp_path / "b.pt")]


def test_an_empty_list_has_no_shards(saved, read_source, tmp_path):
    saved([], "a.pt")
    saved([molecule()], "b.pt")
    assert [unit.piece for unit in read_source(table(tmp_path)).plan.units] == [str(tmp_path / "b.pt")]


def test_the_fingerprint_of_a_cut_changes_with_its_file_alone(saved, read_source, tmp_path):
    saved([molecule(3)], "a.pt")
    saved([molecule(3)], "b.pt")
    before = [cut.fingerprint for cut in read_source(table(tmp_path)).cuts]
    assert [cut.fingerprint for cut in read_source(table(tmp_path)).cuts] == before
    saved([molecule(3, edge_index=EDGES.flip(0))], "b.pt")
    after = [cut.fingerprint for cut in read_source(table(tmp_path)).cuts]
    assert (after[0] == before[0], after[1] == before[1]) == (True, False)
    # What a larger vocabulary changes is not the cut, but the plan's head, which every shard depends on as well.
    saved([molecule(4)], "b.pt")
    found = read_source(table(tmp_path))
    assert found.plan.schema == GraphSchema((4,), (2,))
    assert found.cuts[0].fingerprint == before[0]


# Labels


@pytest.mark.parametrize(
    ("labels", "kind", "column"),
    [
        ([torch.tensor([1]), torch.tensor(0), 1], "class", [1, 0, 1]),
        ([torch.tensor([0.5]), torch.tensor([[1.5]]), 2.0], "target", [0.5, 1.5, 2.0]),
        ([torch.tensor([float("nan")]), 1.0, 2.0], "target", [None, 1.0, 2.0]),
        ([torch.tensor([[1.0, 0.0]]), torch.tensor([0, 1]), None], "tasks", [[1.0, 0.0], [0.0, 1.0], None]),
        ([None, None, None], "none", [None, None, None]),
        (["active", "inactive", "active"], "class", [0, 1, 0]),
    ],
)
def test_labels_of_every_form_are_read(labels, kind, column, saved, read_source):
    found = read_source(table(saved([molecule(2, y) for y in labels])))
    assert found.plan.labels.kind == kind
    assert found.rows["label"] == column


def test_real_labels_are_classes_where_the_task_says_so(saved, read_source):
    file = saved([molecule(2, y) for y in (1.0, 0.0)])
    assert read_source(table(file), task="classification").plan.labels.class_names == ("0", "1")
    assert read_source(table(file), task="auto").plan.labels.kind == "target"


def test_labels_that_are_not_asked_for_are_not_looked_at(saved, read_source):
    found = read_source(table(saved([molecule(2, y={"strange": 1})])), task="none")
    assert found.plan.labels == LabelSchema()
    assert found.graphs.n_graphs == 1


def test_a_task_that_the_labels_do_not_fit_is_refused(saved, read_source):
    with pytest.raises(SourceError, match=r"labels y of .*data\.pt: one is 0.5, which is no class"):
        read_source(table(saved([molecule(2, y=0.5)])), task="classification")


# Graphs of no use


def test_graphs_of_no_use_are_rejected_with_their_row_and_reason(saved, read_source):
    file = saved(
        [
            molecule(),
            molecule(x=None),
            molecule(x=torch.ones(2, 3)),
            molecule(edge_index=None),
            molecule(edge_index=EDGES.T.repeat(2, 1)),
            molecule(edge_attr=torch.tensor([1])),
            molecule(y=torch.tensor([1, 0])),
            molecule(x=torch.tensor([2**40, 0])),
            "no graph",
            molecule(x=None, num_nodes=torch.tensor([[1, 2]])),
            molecule(),
            of_an_older_version(molecule()),
            molecule(y=10**400),
            molecule(y="\udcc3"),
        ]
    )
    found = read_source(table(file))
    assert found.rows["graph_id"] == ["0", "10"]
    assert found.plan.schema == GraphSchema((2,), (2,))
    assert reasons(found) == {
        "1": "x is missing, and num_nodes does not say how many nodes the graph has",
        "2": "the graph has 0 categories and 3 attributes a node, 1 and 0 an edge; "
        "the collection has 1 categories and 0 attributes a node, 1 and 0 an edge",
        "3": "edge_index is missing; a graph without edges has one of shape (2, 0)",
        "4": "edge_index has shape (4, 2); (2, number of edges) is needed",
        "5": "edge_attr has 1 rows; the graph has 2 edges",
        "6": "the graph has 2 labels; the collection has 1 a graph",
        "7": "x has the category 1099511627776; categories are below 2147483648, "
        "and numbers that are none must be of a real type",
        "8": "the entry is a str, not a torch_geometric Data",
        "9": "num_nodes is tensor([[1, 2]]); a whole number is needed",
        "11": "torch_geometric cannot read the entry: The 'data' object was created by an older version of PyG. If this "
        "error occurred while loading an already existing dataset, remove the 'processed/' directory in the dataset's root "
        "folder and try again.",
        "12": f"y is {10**400}; a text, finite numbers or nothing is needed",
        "13": r"y is '\udcc3'; a text, finite numbers or nothing is needed",
    }
    assert {row["source_file"] for row in found.rejected} == {str(file)}
    assert [row["source_row"] for row in found.rejected] == [*range(1, 10), 11, 12, 13]


def test_what_the_checks_find_is_rejected_when_the_shard_is_ingested(saved, read_source):
    found = read_source(
        table(
            saved(
                [
                    molecule(edge_index=EDGES + 1),
                    molecule(x=torch.tensor([[0], [-1]])),
                    molecule(x=torch.empty(0, 1, dtype=torch.long)),
                    molecule(),
                ]
            )
        )
    )
    (shard,) = found.shards
    assert ingest_shard(shard, max_nodes=None, directed=False).rejected.column("reason").to_pylist() == [
        "edge 1 has source 2; the graph has nodes 0 to 1",
        "node 1, categorical feature 0: category -1 is outside the vocabulary 0 to 1",
        "the graph has no nodes",
    ]


def test_the_features_of_the_collection_are_those_of_most_graphs(saved, read_source, tmp_path):
    real = {"x": torch.ones(2, 3)}
    saved([molecule(), molecule(**real)], "a.pt")
    saved([molecule(**real), molecule(**real)], "b.pt")
    found = read_source(table(tmp_path))
    assert found.plan.schema == GraphSchema((), (2,), 3, 0)
    assert [(row["source_file"], row["source_row"]) for row in found.rejected] == [(str(tmp_path / "a.pt"), 0)]


def test_graphs_without_edges_do_not_decide_what_edges_have(saved, read_source):
    bare = {"edge_index": torch.empty((2, 0), dtype=torch.long), "edge_attr": None}
    found = read_source(table(saved([molecule(**bare), molecule(9, **bare), molecule()])))
    assert found.plan.schema == GraphSchema((9,), (2,))
    assert found.graphs.edge_counts.tolist() == [0, 0, 2]


# Files of no use


def test_an_untrusted_file_is_refused_before_it_is_opened(tmp_path):
    canary = tmp_path / "canary"

    class Payload:
        def __reduce__(self):
            return (canary.touch, ())

    (tmp_path / "evil.pt").write_bytes(pickle.dumps([Payload()]))
    source = PygSource(table(tmp_path / "evil.pt", trust=False), "auto")
    for step in (source.pieces, source.estimated_nodes, lambda: source.scan(str(tmp_path / "evil.pt"), 100)):
        with pytest.raises(SourceError, match=r"runs code that the file contains; set source.trust = true"):
            step()
    assert not canary.exists()


@pytest.mark.parametrize("content", [b"", b"no pickle at all", b"PK\x03\x04 but no archive", b"\x80\x02}q\x00."])
def test_a_file_that_cannot_be_loaded_is_named(content, tmp_path, read_source):
    (tmp_path / "broken.pt").write_bytes(content)
    with pytest.raises(SourceError, match=r"broken\.pt cannot be loaded with torch.load: \w+"):
        read_source(table(tmp_path / "broken.pt"))


def test_a_file_that_asks_for_more_memory_than_there_is_is_named(saved, read_source, monkeypatch):
    """A byte of a pickle can be the number that an object is remembered under: the highest would take 69 GB."""
    file = saved([molecule()])

    def load(*_, **__):
        raise MemoryError

    monkeypatch.setattr("torch.load", load)
    with pytest.raises(SourceError, match=r"data\.pt cannot be loaded .*: it is damaged, or asks for more memory"):
        read_source(table(file))


def test_a_file_that_is_cut_off_is_named(saved, read_source):
    file = saved([molecule()] * 50)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"data\.pt cannot be loaded with torch.load"):
        read_source(table(file))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (torch.ones(3), "holds a Tensor; needed is a list of torch_geometric Data"),
        ({"a": 1}, "holds a dict; needed is"),
        ((molecule(), {}), "holds joined graphs whose slices do not fit"),
        ((molecule(), {"x": [0, 2], "edge_index": [0, 1, 2]}), "holds joined graphs whose slices do not fit"),
        *(
            (
                (molecule(3), {"x": ends, "edge_index": [0, 1, 2]}),
                "holds joined graphs whose slices do not fit: those of x",
            )
            for ends in ([0, 2, 4], [-1, 2, 3], [0, 3, 2], [2, 0, 3])
        ),
        (
            (
                Data(x=torch.zeros(3, 1), edge_index=torch.zeros(4, dtype=torch.int64)),
                {"x": [0, 1, 3], "edge_index": [0, 2, 4]},
            ),
            "holds joined graphs whose slices do not fit: those of edge_index",
        ),
        ((1, {"x": [0, 2]}), "holds a tuple; needed is"),
    ],
)
def test_a_file_of_something_else_is_named(content, words, saved, read_source):
    with pytest.raises(SourceError, match=rf"data\.pt {words}"):
        read_source(table(saved(content)))


def test_a_file_that_lost_graphs_after_the_scan_is_named(saved):
    file = saved([molecule(), molecule()])
    source = PygSource(table(file), "auto")
    plan = source.plan([source.scan(piece, 100) for piece in source.pieces()])
    saved([molecule()])
    with pytest.raises(SourceError, match=r"data\.pt has 1 graphs: it was changed after it was scanned"):
        list(source.read(plan, plan.units[0]))
    other = molecule()
    other.x = other.x + 1
    saved([molecule(), other])
    with pytest.raises(SourceError, match=r"data\.pt holds other graphs: it was changed after it was scanned"):
        list(source.read(plan, plan.units[0]))
