import io
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wegl_dask import embeddings
from wegl_dask.checksums import sealed
from wegl_dask.embeddings import EmbeddingFormat, EmbeddingRows
from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.reading import find_parts, read_embeddings
from wegl_dask.records import json_bytes
from wegl_dask.run_rows import RunRows
from wegl_dask.sources.base import LabelSchema
from wegl_dask.storage import RunFolder

N, D = 3, 2


def write_run(folder, label_parts, labels, *, splits=None, extra=None, form=None, finished=True):
    """Write one part for each list of labels; graph i of the run has the vector i, i + 0.5, i + 1, ..."""
    form = form or EmbeddingFormat(N, D, labels, {"smiles": "string"} if extra else {}, metadata={"seed": 7})
    folder.write("job.toml", b"seed = 7\n")
    first = 0
    for index, values in enumerate(label_parts):
        graphs = range(first, first + len(values))
        rows = pa.table(
            {
                "graph_id": pa.array([f"g{i}" for i in graphs], pa.string()),
                "source_file": pa.array(["a.csv"] * len(values), pa.string()),
                "source_row": pa.array(graphs, pa.int64()),
                "label": pa.array(values, labels.arrow_type),
                "split": pa.array([splits[i] if splits else None for i in graphs], pa.string()),
                **({"smiles": pa.array([extra[i] for i in graphs], pa.string())} if extra else {}),
            }
        )
        block = EmbeddingRows(
            rows=rows,
            num_nodes=np.array(graphs, dtype=np.int64) + 10,
            transport_cost=np.array(graphs) / 4,
            solver=["exact"] * len(values),
            regularisation=np.full(len(values), np.nan),
            vectors=vectors(graphs),
        )
        with folder.recording("embed", index, "x") as part:
            part.write("data", lambda file, block=block: form.write(file, [block]))
        first += len(values)
    with folder.recording("reference", 0, "x") as part:
        part.write_model({"N": N}, {"reference": np.arange(N * D).reshape(N, D) / 8})
    if finished:
        folder.mark_success()


def vectors(graphs):
    return np.array(graphs, dtype=np.float64).reshape(-1, 1) + np.arange(N * D) / 2


TARGET = LabelSchema("target")


def test_a_run_is_read_as_arrays(run_folder):
    write_run(run_folder, [[1.5, 2.5, None], [], [4.5]], TARGET, splits=["train", "test", "train", None])
    for path in (run_folder.url, run_folder.location("data")):
        found = read_embeddings(path, storage_options=run_folder.storage_options)
        assert found.X.dtype == np.float32
        assert np.array_equal(found.X, vectors(range(4)).astype(np.float32))
        assert found.y.dtype == np.float64
        assert np.array_equal(found.y, [1.5, 2.5, np.nan, 4.5], equal_nan=True)
        assert found.split.tolist() == ["train", "test", "train", None]
        assert found.graph_id.tolist() == ["g0", "g1", "g2", "g3"]
        assert found.num_nodes.tolist() == [10, 11, 12, 13]
        assert found.num_nodes.dtype == np.int32
        assert found.transport_cost.tolist() == [0, 0.25, 0.5, 0.75]
        assert (found.n_points, found.dimension, found.labels) == (N, D, TARGET)
        assert found.reference.tolist() == [[0, 0.125], [0.25, 0.375], [0.5, 0.625]]
        assert found.metadata == {"seed": 7}


@pytest.mark.parametrize(
    ("labels", "values", "expected", "dtype"),
    [
        (LabelSchema("class", ("a", "b", "c")), [2, 0, 1], [2, 0, 1], np.int64),
        (LabelSchema("class", ("a", "b", "c")), [2, None, 1], [2, np.nan, 1], np.float64),
        (LabelSchema("class", ("a", "b", "c")), [None, None, None], [np.nan] * 3, np.float64),
        (TARGET, [0.5, 1, 2], [0.5, 1, 2], np.float64),
        (
            LabelSchema("tasks", (), ("s", "t")),
            [[1.0, 2.0], None, [np.nan, 4.0]],
            [[1, 2], [np.nan, np.nan], [np.nan, 4]],
            np.float64,
        ),
    ],
)
def test_labels_of_every_kind(labels, values, expected, dtype):
    folder = RunFolder(f"memory://labels/{labels.kind}")
    folder.claim("", overwrite=True)
    write_run(folder, [values[:2], values[2:]], labels)
    found = read_embeddings(folder.url)
    assert found.y.dtype == dtype
    assert np.array_equal(found.y, np.array(expected), equal_nan=True)
    assert found.labels == labels


def test_no_labels_and_no_split_are_none(tmp_path):
    write_run(RunFolder(str(tmp_path)), [[None, None]], LabelSchema())
    found = read_embeddings(str(tmp_path))
    assert found.y is None
    assert found.split is None


def test_columns_can_be_chosen(tmp_path):
    write_run(RunFolder(str(tmp_path)), [[1.0, 2.0]], TARGET, extra=["C", "CC"])
    assert read_embeddings(str(tmp_path)).rows.column_names == [
        "graph_id",
        "source_file",
        "source_row",
        "label",
        "split",
        "num_nodes",
        "transport_cost",
        "solver",
        "regularisation",
        "smiles",
    ]
    found = read_embeddings(str(tmp_path), columns=["smiles", "graph_id"])
    assert found.rows.to_pydict() == {"graph_id": ["g0", "g1"], "smiles": ["C", "CC"]}
    assert read_embeddings(str(tmp_path), columns=iter(["smiles", "graph_id"])).rows.equals(found.rows)
    bare = read_embeddings(str(tmp_path), columns=[])
    assert bare.X.shape == (2, 6)
    for name in ("graph_id", "y", "split", "num_nodes", "transport_cost"):
        column = "label" if name == "y" else name
        with pytest.raises(WeglError, match=rf"the column {column} was not read: name it in read_embeddings"):
            getattr(bare, name)
    assert read_embeddings(str(tmp_path), columns="label").y.tolist() == [1.0, 2.0]
    with pytest.raises(WeglError, match=r"has no column smile; there are graph_id, .*, smiles"):
        read_embeddings(str(tmp_path), columns=["smile"])


@pytest.mark.parametrize("layout", ["list", "wide"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_format_is_read_as_float32(tmp_path, monkeypatch, layout, dtype):
    monkeypatch.setattr(embeddings, "ROW_GROUP_BYTES", 4 * N * D * 2)
    form = EmbeddingFormat(N, D, TARGET, dtype=dtype, layout=layout)
    write_run(RunFolder(str(tmp_path)), [[0.0] * 5, [0.0] * 4], TARGET, form=form)
    assert pq.read_metadata(tmp_path / "data" / "part-00000.parquet").num_row_groups == 3
    found = read_embeddings(str(tmp_path))
    assert found.X.dtype == np.float32
    assert np.array_equal(found.X, vectors(range(9)))


def test_parts_come_in_the_order_of_their_index_beyond_five_digits(tmp_path):
    write_run(RunFolder(str(tmp_path)), [[0.0], [1.0], [2.0]], TARGET)
    data = tmp_path / "data"
    data.joinpath("part-00001.parquet").rename(data / "part-100000.parquet")
    data.joinpath("part-00002.parquet").rename(data / "part-99999.parquet")
    assert read_embeddings(str(tmp_path), allow_unfinished=True).graph_id.tolist() == ["g0", "g2", "g1"]


def test_an_unfinished_run_is_read_only_on_request(run_folder):
    write_run(run_folder, [[1.0], [2.0]], TARGET, finished=False)
    options = {"storage_options": run_folder.storage_options}
    for path in (run_folder.url, run_folder.location("data")):
        with pytest.raises(WeglError, match=r"has not finished: run the job again, or .*allow_unfinished=True"):
            read_embeddings(path, **options)
    run_folder.remove("data/part-00000.parquet")
    assert read_embeddings(run_folder.url, **options, allow_unfinished=True).X.shape == (1, 6)


@pytest.mark.parametrize(
    ("removed", "message"),
    [
        (["part-00001.parquet"], "part-00001.parquet is missing: run"),
        (["part-00002.parquet"], "part-00002.parquet is missing: run"),
        (["part-00000.parquet", "part-00002.parquet"], "part-00000.parquet is missing, and 1 more parts are"),
    ],
)
def test_a_missing_part_is_named(tmp_path, removed, message):
    write_run(RunFolder(str(tmp_path)), [[1.0], [2.0], [3.0]], TARGET)
    for name in removed:
        (tmp_path / "data" / name).unlink()
    with pytest.raises(WeglError, match=message):
        read_embeddings(str(tmp_path))


def test_a_part_that_the_run_has_not_made_is_named(tmp_path):
    write_run(RunFolder(str(tmp_path)), [[1.0], [2.0]], TARGET)
    for index in (2, 7):
        shutil.copy(tmp_path / "data/part-00000.parquet", tmp_path / f"data/part-0000{index}.parquet")
    expected = "part-00002.parquet is of no record of this run, and 1 more parts are: move it away"
    for read in (read_embeddings, RunRows.open):
        with pytest.raises(WeglError, match=expected):
            read(str(tmp_path))


def test_a_part_in_the_place_of_another_is_named(tmp_path):
    folder = RunFolder(str(tmp_path))
    write_run(folder, [[1.0, 2.0], [3.0]], TARGET)
    records = folder.records("embed")
    folder.write_manifest(records, stage_seconds={}, work={}, versions={}, summary={})
    assert read_embeddings(tmp_path).graph_id.tolist() == ["g0", "g1", "g2"]
    shutil.copy(tmp_path / "data/part-00001.parquet", tmp_path / "data/part-00000.parquet")
    for read in (read_embeddings, RunRows.open):
        with pytest.raises(
            WeglError, match=r"part-00000\.parquet is not the part that was written, which has [\d,]+ bytes"
        ):
            read(str(tmp_path))
    for records in (None, [{}], [{"files": [{"path": "data/part-00000.parquet", "bytes": "many"}]}]):
        folder.write("manifest.json", json_bytes(sealed({"records": records})))
        with pytest.raises(WeglError, match=r"manifest\.json is damaged: .* in its records\. Run the job again"):
            read_embeddings(tmp_path)


def test_parts_copied_without_their_run_are_read_without_a_reference(tmp_path):
    write_run(RunFolder(str(tmp_path / "run")), [[1.0], [2.0], [3.0]], TARGET)
    (tmp_path / "run" / "data").rename(tmp_path / "copy")
    found = read_embeddings(str(tmp_path / "copy"))
    assert found.y.tolist() == [1, 2, 3]
    assert found.reference is None
    (tmp_path / "copy" / "part-00001.parquet").unlink()
    with pytest.raises(WeglError, match=r"part-00001\.parquet is missing"):
        read_embeddings(str(tmp_path / "copy"))


def test_nothing_to_read_is_named(tmp_path):
    with pytest.raises(WeglError, match=rf"there are no embeddings in {tmp_path}/nowhere: give a run folder"):
        read_embeddings(str(tmp_path / "nowhere"))
    RunFolder(str(tmp_path)).claim("")
    with pytest.raises(WeglError, match=rf"the run in {tmp_path} has not finished: run the job again$"):
        read_embeddings(str(tmp_path))
    with pytest.raises(WeglError, match=rf"there are no embeddings in {tmp_path}/data"):
        read_embeddings(str(tmp_path), allow_unfinished=True)


def test_damaged_and_foreign_parts_are_named(tmp_path):
    folder = RunFolder(str(tmp_path))
    write_run(folder, [[1.0], [2.0]], TARGET)
    second = tmp_path / "data" / "part-00001.parquet"
    whole = second.read_bytes()

    second.write_bytes(whole[:-50])
    with pytest.raises(WeglError, match=r"part-00001\.parquet is not a whole Parquet file"):
        read_embeddings(str(tmp_path))

    foreign = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), foreign)
    second.write_bytes(foreign.getvalue())
    with pytest.raises(WeglError, match=r"part-00001\.parquet is no embedding part of this package"):
        read_embeddings(str(tmp_path))

    other = RunFolder(str(tmp_path / "other"))
    write_run(other, [[1.0]], TARGET, form=EmbeddingFormat(N, D, TARGET, metadata={"seed": 8}))
    second.write_bytes(other.read("data/part-00000.parquet"))
    with pytest.raises(WeglError, match=r"part-00001\.parquet is of another job or model than part-00000\.parquet"):
        read_embeddings(str(tmp_path))


def test_an_altered_byte_of_a_vector_is_found(tmp_path):
    form = EmbeddingFormat(N, D, TARGET)
    write_run(RunFolder(str(tmp_path)), [[float(i) for i in range(2000)]], TARGET, form=form)
    part = tmp_path / "data" / "part-00000.parquet"
    column = pq.read_metadata(part).row_group(0).column(9)
    assert column.path_in_schema == "embedding.list.element"
    content = bytearray(part.read_bytes())
    content[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(WeglError, match=r"part-00000\.parquet is not a whole Parquet file"):
        read_embeddings(str(tmp_path))


def test_other_files_beside_the_parts_are_left_alone(tmp_path):
    write_run(RunFolder(str(tmp_path)), [[1.0]], TARGET)
    (tmp_path / "data" / "notes.txt").write_text("dear")
    (tmp_path / "data" / ".tmp-part-00001.parquet-3").write_text("half")
    assert read_embeddings(str(tmp_path)).X.shape == (1, 6)


def test_a_folder_at_the_root_is_not_part_of_a_run_in_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "job.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert find_parts(Folder("/no-such-folder"))[1] is None
