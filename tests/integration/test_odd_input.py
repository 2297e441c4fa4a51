"""Whole jobs on input that is odd but real: every row ends in ``data/`` or in ``rejected/``, in order, with a reason."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wegl_dask.graphs import GraphBatch, GraphSchema
from wegl_dask.reading import read_embeddings
from wegl_dask.shards import write_shard
from wegl_dask.sources.base import LabelSchema
from wegl_dask.storage import RunFolder
from wegl_dask.verify import verify_run

AWKWARD = "Läufe 100% (neu)/a=1,b #2 [x]?*"
LONG = "sehr-" * 45 + "lang"


@pytest.fixture
def done(run, table, tmp_path):
    """Run a job on a source: its embeddings, and the ids and reasons of ``rejected/``, in their order."""

    def done(source, **tables):
        out = tmp_path / AWKWARD / "out"
        run({"source": {**source, "max_rejected_fraction": 0.9}, "output": {"path": str(out)}, **tables})
        assert verify_run(RunFolder(str(out)), deep=True) == []
        rejected = table(out, "rejected") if any((out / "rejected").glob("*")) else None
        pairs = () if rejected is None else zip(*(rejected.column(c).to_pylist() for c in ("graph_id", "reason")))  # noqa: B905
        return read_embeddings(str(out)), list(pairs)

    return done


# --- Graphs ---


TRIANGLE = [(1, 2), (2, 1), (2, 3), (3, 2), (1, 3), (3, 1)]
STRUCTURES = [
    ("a triangle", 3, TRIANGLE),
    ("one node", 1, []),
    ("two nodes without an edge", 2, []),
    ("a path and an isolated node", 4, [(1, 2), (2, 1), (2, 3), (3, 2)]),
    ("with a self-loop", 3, [*TRIANGLE, (2, 2)]),
    ("with parallel edges", 3, [*TRIANGLE, (1, 2), (1, 2), (3, 2)]),
    ("one direction only", 3, [(1, 2), (3, 2), (1, 3)]),
    ("listed backwards", 3, TRIANGLE[::-1]),
    ("joined to the next one", 2, [(1, 2), (2, 1), (2, 3)]),
    ("joined to the one before", 2, [(1, 2), (2, 1)]),
    ("its last node is isolated, and the last of the file", 3, [(1, 2), (2, 1)]),
]


def test_graphs_of_every_structure_in_one_data_set(done, tmp_path):
    folder = tmp_path / "tu" / "ODD"
    folder.mkdir(parents=True)
    starts = np.cumsum([0, *(size for _, size, _ in STRUCTURES)])
    files = {
        "A": [
            f"{start + s}, {start + t}"
            for start, (_, _, edges) in zip(starts, STRUCTURES, strict=False)
            for s, t in edges
        ],
        "graph_indicator": np.repeat(np.arange(1, len(STRUCTURES) + 1), [size for _, size, _ in STRUCTURES]),
        "graph_labels": [0] * len(STRUCTURES),
    }
    for name, lines in files.items():
        (folder / f"ODD_{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    source = {"kind": "tud", "root": str(tmp_path / "tu"), "name": "ODD", "nodes_per_shard": 5}
    found, rejected = done(source, reference={"points": 2})
    assert [name for name, _ in rejected] == ["9", "10"]
    assert all("joins node" in reason and "is not in this graph" in reason for _, reason in rejected)
    assert found.graph_id.tolist() == ["1", "2", "3", "4", "5", "6", "7", "8", "11"]
    assert found.num_nodes.tolist() == [3, 1, 2, 4, 3, 3, 3, 3, 3]
    assert np.isfinite(found.X).all()
    for same in ("5", "6", "7", "8"):
        assert np.array_equal(found.X[found.graph_id.tolist().index(same)], found.X[0]), same
    # Isolated nodes are alike, however many there are.
    assert np.array_equal(found.X[1], found.X[2])
    assert not np.array_equal(found.X[3], found.X[-1])


def test_weights_of_zero_and_columns_that_are_constant(done, tmp_path):
    folder = tmp_path / "tu" / "ODD"
    folder.mkdir(parents=True)
    files = {
        "A": [f"{3 * g + s}, {3 * g + t}" for g in range(4) for s, t in TRIANGLE],
        "graph_indicator": np.repeat(np.arange(1, 5), 3),
        "edge_attributes": [0.0 if edge % 3 else float(edge) for edge in range(24)],
        "node_attributes": [f"7.25, {node}, {node % 2}" for node in range(12)],
    }
    for name, lines in files.items():
        (folder / f"ODD_{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    source = {"kind": "tud", "root": str(tmp_path / "tu"), "name": "ODD"}
    found, rejected = done(source, edges={"features": "weight"}, reference={"points": 3})
    assert rejected == []
    assert np.isfinite(found.X).all()
    assert len(np.unique(found.X, axis=0)) == 4


def test_a_graph_of_20_000_nodes_among_thousands_of_ten(done, tmp_path):
    rng = np.random.default_rng(0)
    sizes = np.full(2001, 10)
    sizes[777] = 20_000
    # Every node is joined to the one before it, or to any earlier one, of its graph.
    nodes = np.concatenate([np.arange(1, size) for size in sizes])
    earlier = (nodes * rng.random(len(nodes))).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    batch = GraphBatch(
        GraphSchema((6,), (), 0, 0),
        offsets,
        offsets - np.arange(len(offsets)),
        nodes,
        earlier,
        rng.integers(0, 6, (offsets[-1], 1)),
        np.empty((offsets[-1], 0)),
        np.empty((len(nodes), 0), dtype=np.int64),
        np.empty((len(nodes), 0)),
    )
    ids = [f"g{i}" for i in range(len(sizes))]
    rows = pa.table(
        {
            "graph_id": ids,
            "source_file": ["f"] * len(ids),
            "source_row": pa.array(range(len(ids)), pa.int64()),
            "label": pa.nulls(len(ids), pa.float64()),
            "split": pa.nulls(len(ids), pa.string()),
        }
    )
    write_shard(tmp_path / "part-00000.parquet", batch, rows, LabelSchema())
    source = {"kind": "graph_parquet", "path": str(tmp_path / "part-00000.parquet"), "nodes_per_shard": 10_000}
    found, rejected = done(source, projection={"components": 4}, reference={"points": 10})
    assert rejected == []
    assert found.graph_id.tolist() == ids
    assert np.isfinite(found.X).all()
    # A sum over many nodes of random labels is close to the mean of all; those of ten nodes are not.
    lengths = np.linalg.norm(found.X - found.X.mean(axis=0), axis=1)
    assert lengths[777] < np.quantile(lengths, 0.05)


def test_nodes_of_any_name_and_graphs_of_one_id_and_features_that_are_missing(done, tmp_path):
    nodes = [{"id": "zweiter", "x": 0.5}, {"id": 7, "x": 1}, {"id": -3, "x": 2.5}, {"id": "7", "x": 0}]
    edges = [{"source": -3, "target": "zweiter"}, {"source": "7", "target": 7}]
    whole = {"nodes": nodes, "edges": edges, "graph": {"y": "ja"}}
    folder = tmp_path / "in" / AWKWARD
    for name, graph in {
        "1/a.json": whole,
        "1/b.json": whole | {"nodes": [*nodes[:3], {"id": "7"}]},
        "1/c.json": whole | {"nodes": [*nodes[:3], {"id": "7", "x": [1, 2]}]},
        "1/d.json": whole | {"nodes": [*nodes[:3], {"id": "7", "x": "much"}]},
        "1/e.json": whole | {"edges": [*edges, {"source": 7, "target": "gone"}]},
        "2/a.json": whole | {"nodes": nodes[::-1], "graph": {"y": 2}},
        "2/f.json": whole | {"graph": {}},
        f"2/{LONG}.json": whole | {"nodes": [{"id": node["id"], "x": 9} for node in nodes]},
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(graph))
    # What is not ours, and a folder that leads back into itself.
    (folder / "README.txt").write_text("about these graphs")
    (folder / "1" / "again").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    source = {"kind": "networkx", "path": str(folder), "label": "y", "node_attributes": ["x"]}
    found, rejected = done(source, reference={"points": 2}, diffusion={"layers": 1})
    assert found.graph_id.tolist() == ["a", "a", "f", LONG]
    assert len(set(found.rows.column("source_file").to_pylist())) == 4
    # The order and the names of nodes do not matter.
    assert np.array_equal(found.X[0], found.X[1])
    assert [name for name, _ in rejected] == ["b", "c", "d", "e"]
    assert [reason for _, reason in rejected] == [
        "node '7' has no attribute 'x'",
        "node '7': the attribute 'x' is [1, 2]; a number is needed",
        "node '7': the attribute 'x' is 'much'; a number is needed",
        "an edge has the end 'gone', which is none of the 4 nodes",
    ]
    assert found.rows.column("label").to_pylist() == [1, 0, None, 1]


# --- Molecules ---


GOOD = {
    "a salt": "[Na+].CC(=O)[O-]",
    "a mixture": "CCO.c1ccccc1.O",
    "an ion": "[Na+]",
    "a wildcard": "*CC[*:1]",
    "explicit hydrogens": "[H]C([H])([H])[H]",
    "isotopes": "[13CH4].[2H]O[2H]",
    "a peptide of 301 atoms": "NCC(=O)" * 75 + "O",
    "one atom": "C",
}
BAD = ["C1CC", "not a molecule", "c1ccc1(", "", "[Xx]", "C(C)(C)(C)(C)(C)C"]


def test_molecules_of_every_kind_in_a_table_of_every_oddity(done, tmp_path):
    """A byte order mark, CRLF, quotes around commas, line ends and quotes, ids that repeat, labels of all types."""
    pytest.importorskip("rdkit")
    labels = ["1", "", "nan", "ja", "0.5", "NA", "-3", "1"]
    rows = [
        f'"{name}, or ""{name}""\r\non two lines",{smiles},{label}'
        for (name, smiles), label in zip(GOOD.items(), labels, strict=True)
    ]
    rows[3:3] = [f"twice,{smiles},1" for smiles in BAD]
    path = tmp_path / AWKWARD / f"{LONG}.csv"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(["name,smiles,y", *rows, "twice,CC,ja", "twice,CC,ja"]).encode())
    source = {"kind": "smiles", "path": str(path), "id_column": "name", "targets": ["y"]}
    found, rejected = done(source, task="classification", reference={"points": 4}, projection={"components": 3})
    ids = [f'{name}, or "{name}"\r\non two lines' for name in GOOD] + ["twice", "twice"]
    assert found.graph_id.tolist() == ids
    assert [name for name, _ in rejected] == ["twice"] * len(BAD)
    assert all("SMILES" in reason for _, reason in rejected)
    assert np.array_equal(found.X[-1], found.X[-2])
    assert found.rows.column("source_row").to_pylist() == [0, 1, 2, *range(9, 16)]


def test_parquet_of_other_programs(done, tmp_path):
    """Large strings, dictionaries, groups without rows; a second file has no rows at all."""
    pytest.importorskip("rdkit")
    schema = pa.schema(
        [("smiles", pa.large_string()), ("kind", pa.dictionary(pa.int8(), pa.string())), ("y", pa.list_(pa.float32()))]
    )
    rows = pa.table(
        {"smiles": ["CCO", None, "CC", "CCCC"], "kind": ["a", "b", None, "a"], "y": [[1.0], [2.0], None, []]}, schema
    )
    for name, groups in {"a": [0, 2, 0, 2], "b": [0]}.items():
        with pq.ParquetWriter(tmp_path / f"{name}.parquet", schema) as writer:
            start = 0
            for size in groups:
                writer.write_table(rows.slice(start, size))
                start += size
    source = {"kind": "smiles", "path": str(tmp_path / "*.parquet"), "extra_columns": ["kind"]}
    found, rejected = done(source, reference={"points": 2}, projection={"components": 2})
    assert found.graph_id.tolist() == ["0", "2", "3"]
    assert found.rows.column("kind").to_pylist() == ["a", None, "a"]
    assert [name for name, _ in rejected] == ["1"]
