"""Rows of a run by number: ids, vectors and the points of their graphs."""

import shutil
import tracemalloc
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wegl_dask.embeddings import EmbeddingFormat
from wegl_dask.errors import WeglError
from wegl_dask.reading import read_embeddings
from wegl_dask.run_rows import RunRows


def assert_points(found, rows, data):
    """The points of some rows are those of the same graphs, embedded without a run folder."""
    assert len(found.offsets) == len(rows) + 1
    for position, graph in enumerate(rows):
        own = slice(found.offsets[position], found.offsets[position + 1])
        expected = slice(data.canonical.offsets[graph], data.canonical.offsets[graph + 1])
        np.testing.assert_allclose(found.points[own], data.canonical.points[expected], atol=1e-5)
        np.testing.assert_allclose(found.weights[own], data.canonical.weights[expected])


def test_rows_are_numbered_in_the_order_of_the_parts(embedded_run):
    path = embedded_run("mutag")
    rows, whole = RunRows.open(path), read_embeddings(path)
    assert rows.n_rows == 188
    assert rows.part_starts.tolist() == [0, 62, 125, 188]
    blocks = list(rows.blocks(("graph_id",)))
    assert [block.start for block in blocks] == [0, 62, 125]
    assert np.array_equal(np.concatenate([block.vectors for block in blocks]), whole.X)
    assert np.concatenate([block.rows.column(0).to_numpy() for block in blocks]).tolist() == whole.graph_id.tolist()


def test_rows_are_read_in_the_order_asked_for_and_as_often(embedded_run):
    path = embedded_run("mutag")
    rows, whole = RunRows.open(path), read_embeddings(path)
    asked = np.array([130, 3, 3, 187, 0, 62, 61])
    assert np.array_equal(rows.take(asked), whole.X[asked])
    assert rows.values(asked, ("graph_id", "num_nodes")).to_pydict() == {
        "graph_id": whole.graph_id[asked].tolist(),
        "num_nodes": whole.num_nodes[asked].tolist(),
    }
    assert rows.take(np.array([], dtype=np.int64)).shape == (0, whole.X.shape[1])
    assert rows.values(np.array([], dtype=np.int64), ("graph_id",)).to_pydict() == {"graph_id": []}


def test_vectors_are_in_memory_once(monkeypatch):
    form = EmbeddingFormat(n_points=50, dimension=4)
    vectors = np.arange(6000 * 200, dtype=np.float32).reshape(6000, 200)
    parts = [
        pa.table({"embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors[at : at + 1000].ravel()), 200)})
        for at in range(0, 6000, 1000)
    ]

    def tables(rows, columns, groups):
        del rows, columns
        return ((1000 * group, parts[group]) for group in groups)

    monkeypatch.setattr(RunRows, "tables", tables)
    rows = RunRows(None, None, [], form, np.arange(0, 7000, 1000), [(part, 0) for part in range(6)])
    asked = np.random.default_rng(0).permutation(6000)
    tracemalloc.start()
    try:
        found = rows.take(asked)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.array_equal(found, vectors[asked])
    # They, what is read of one part, and places.
    assert peak < 1.5 * vectors.nbytes


def test_ids_are_found_in_their_order_with_all_the_rows_they_stand_for(write_embedded_run):
    rows = RunRows.open(write_embedded_run("mutag", ids=["a", "b", *(["a"] * 2), *map(str, range(183)), "a"]))
    assert rows.find(["5", "a", "b", "5"]).tolist() == [9, 0, 2, 3, 187, 1, 9]
    with pytest.raises(WeglError, match=r"no graph of .*run has the id 'x'; ids are .* such as 'a', 'b', 'a'$"):
        rows.find(["b", "x"])


@pytest.mark.parametrize("layout", ["list", "wide"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_vectors_have_the_type_they_are_stored_in(write_embedded_run, embedded, layout, dtype):
    rows = RunRows.open(write_embedded_run("mutag", dtype=dtype, layout=layout))
    found = rows.take(np.array([7, 100]))
    assert found.dtype == dtype
    assert np.array_equal(found, embedded("mutag").result.phi[[7, 100]].astype(np.float32).astype(dtype))


@pytest.mark.parametrize("name", ["mutag", "molhiv_500"])
def test_points_are_those_that_were_embedded(embedded_run, embedded, name):
    rows = RunRows.open(embedded_run(name))
    asked = np.array([0, 1, 60, 62, 125, 187])
    assert_points(rows.points(asked), asked, embedded(name))


def test_points_are_found_where_graphs_of_a_shard_were_not_embedded(write_embedded_run, embedded):
    path = Path(write_embedded_run("mutag"))
    part = path / "data" / "part-00001.parquet"
    table = pq.read_table(part)
    kept = [row for row in range(table.num_rows) if row not in (0, 10)]
    pq.write_table(table.take(pa.array(kept)).replace_schema_metadata(table.schema.metadata), part)
    rows = RunRows.open(path)
    assert rows.n_rows == 186
    # Graphs 62 and 72 have no row.
    assert_points(rows.points(np.array([61, 62, 71, 125, 185])), [61, 63, 73, 127, 187], embedded("mutag"))


def test_a_graph_shard_that_is_missing_or_damaged_is_made_again_by_the_job(write_embedded_run):
    path = Path(write_embedded_run("mutag"))
    shard = path / "graphs" / "part-00001.parquet"
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(WeglError, match=rf"cannot read the graph shard {shard}: .*: run the job again"):
        RunRows.open(path).points(np.array([61, 62]))
    shard.unlink()
    with pytest.raises(
        WeglError, match=rf"there is no graph shard {shard}: run the job again, it makes the shard again"
    ):
        RunRows.open(path).points(np.array([61, 62]))


def test_a_run_on_an_object_store_is_read_as_one_on_a_disk(embedded_run, embedded):
    path = embedded_run("mutag")
    url = "memory://run-rows/mutag"
    fsspec.filesystem("memory").put(path, "/run-rows/mutag", recursive=True)
    rows = RunRows.open(url)
    assert np.array_equal(rows.take(np.array([100])), RunRows.open(path).take(np.array([100])))
    assert_points(rows.points(np.array([2, 150])), [2, 150], embedded("mutag"))


def test_a_shard_of_other_graphs_is_named(embedded_run, tmp_path):
    shutil.copytree(embedded_run("mutag"), tmp_path / "run")
    shard = tmp_path / "run" / "graphs" / "part-00000.parquet"
    pq.write_table(pq.read_table(shard)[1:], shard)
    rows = RunRows.open(tmp_path / "run")
    with pytest.raises(WeglError, match=r"graphs/part-00000\.parquet does not hold the graph of row 0 of mutag"):
        rows.points(np.array([0, 1]))


def test_what_is_missing_is_named(embedded_run, tmp_path):
    shutil.copytree(embedded_run("mutag"), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "graphs")
    with pytest.raises(WeglError, match=r"has no folder graphs/, .* run the job again with output.keep_graphs = true"):
        RunRows.open(tmp_path / "run").points(np.array([1]))
    with pytest.raises(WeglError, match=r"has no column smiles; there are graph_id, .*, regularisation$"):
        RunRows.open(tmp_path / "run").require_columns(["graph_id", "smiles"])
    (tmp_path / "run" / "job.toml").unlink()
    with pytest.raises(WeglError, match="is no run folder"):
        RunRows.open(tmp_path / "run" / "data")
