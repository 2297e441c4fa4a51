import io

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from wegl_dask import embeddings
from wegl_dask.embeddings import EmbeddingFormat, EmbeddingRows, require_free_names
from wegl_dask.errors import JobFileError
from wegl_dask.sources.base import LabelSchema

CLASSES = LabelSchema("class", ("inactive", "active"))


def make_rows(n, width, *, labels=CLASSES, label_values=None, seed=0, extra=None):
    rng = np.random.default_rng(seed)
    table = pa.table(
        {
            "graph_id": pa.array([f"molecule {i}" for i in range(n)]),
            "source_file": pa.array(["a.csv"] * n, pa.string()),
            "source_row": pa.array(range(n), pa.int64()),
            "label": pa.array(label_values or [i % 2 for i in range(n)], labels.arrow_type),
            "split": pa.array(["train", "test"] * (n // 2) + ["train"] * (n % 2), pa.string()),
            **(extra or {}),
        }
    )
    exact = np.arange(n) % 3 > 0
    return EmbeddingRows(
        rows=table,
        num_nodes=rng.integers(1, 30, n),
        transport_cost=rng.random(n),
        solver=np.where(exact, "exact", "sinkhorn").tolist(),
        regularisation=np.where(exact, np.nan, 0.5),
        vectors=rng.normal(size=(n, width)),
    )


def cut(block, *ends):
    starts = (0, *ends)
    return [
        EmbeddingRows(
            block.rows.slice(start, end - start),
            block.num_nodes[start:end],
            block.transport_cost[start:end],
            block.solver[start:end],
            block.regularisation[start:end],
            block.vectors[start:end],
        )
        for start, end in zip(starts, (*ends, block.rows.num_rows), strict=True)
    ]


def part_bytes(form, *blocks):
    file = io.BytesIO()
    assert form.write(file, blocks) == sum(block.rows.num_rows for block in blocks)
    return file.getvalue()


def test_columns_come_in_the_documented_order_with_the_documented_types():
    form = EmbeddingFormat(3, 2, CLASSES, {"smiles": "string"}, metadata={"seed": 7, "job_fingerprint": "abc"})
    found = pq.read_schema(io.BytesIO(part_bytes(form, make_rows(4, 6, extra={"smiles": ["C"] * 4}))))
    assert [(name, str(kind)) for name, kind in zip(found.names, found.types, strict=True)] == [
        ("graph_id", "string"),
        ("source_file", "string"),
        ("source_row", "int64"),
        ("label", "int64"),
        ("split", "string"),
        ("num_nodes", "int32"),
        ("transport_cost", "double"),
        ("solver", "string"),
        ("regularisation", "double"),
        ("smiles", "string"),
        ("embedding", "fixed_size_list<element: float not null>[6]"),
    ]
    assert found.metadata[b"seed"] == b"7"
    assert found.metadata[b"job_fingerprint"] == b'"abc"'
    assert found.metadata[b"n_points"] == b"3"
    assert found.metadata[b"dimension"] == b"2"
    assert found.metadata[b"class_names"] == b'["inactive", "active"]'


@pytest.mark.parametrize(("dtype", "encoding"), [("float32", "BYTE_STREAM_SPLIT"), ("float16", "PLAIN")])
@pytest.mark.parametrize("layout", ["list", "wide"])
def test_vectors_are_compressed_with_zstd_and_without_a_dictionary(layout, dtype, encoding):
    form = EmbeddingFormat(5, 4, CLASSES, dtype=dtype, layout=layout)
    footer = pq.read_metadata(io.BytesIO(part_bytes(form, make_rows(50, 20))))
    chunks = [footer.row_group(0).column(i) for i in range(footer.num_columns)]
    vector = [chunk for chunk in chunks if chunk.path_in_schema.startswith("e")]
    assert len(vector) == (20 if layout == "wide" else 1)
    assert {chunk.compression for chunk in chunks} == {"ZSTD"}
    for chunk in vector:
        assert encoding in chunk.encodings
        assert not chunk.has_dictionary_page
    assert all(c.has_dictionary_page for c in chunks if c.path_in_schema in ("graph_id", "split", "solver"))


@pytest.mark.parametrize("layout", ["list", "wide"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_reader_gets_the_same_numbers(tmp_path, layout, dtype):
    form = EmbeddingFormat(3, 2, CLASSES, {"smiles": "string"}, dtype=dtype, layout=layout)
    blocks = [make_rows(n, 6, seed=n, extra={"smiles": [f"C{i}" for i in range(n)]}) for n in (5, 8)]
    for index, block in enumerate(blocks):
        (tmp_path / f"part-{index:05d}.parquet").write_bytes(part_bytes(form, block))
    vectors = np.concatenate([block.vectors for block in blocks]).astype(dtype)
    cost = np.concatenate([block.transport_cost for block in blocks])
    exact = np.concatenate([np.arange(5) % 3 > 0, np.arange(8) % 3 > 0])
    files = f"{tmp_path}/*.parquet"
    tables = {
        "pyarrow": pyarrow.dataset.dataset(tmp_path).to_table(),
        "pandas": pa.Table.from_pandas(pd.read_parquet(tmp_path)),
        "polars": pl.read_parquet(files).to_arrow(),
        "duckdb": duckdb.sql(f"select * from '{files}' order by filename, source_row").to_arrow_table(),
    }
    names = ["embedding"] if layout == "list" else ["e0000", "e0001", "e0002", "e0003", "e0004", "e0005"]
    for reader, table in tables.items():
        columns = [np.array(table.column(name).to_pylist(), dtype=dtype).reshape(13, -1) for name in names]
        assert np.array_equal(np.concatenate(columns, axis=1), vectors), reader
        assert table.column("transport_cost").to_pylist() == cost.tolist(), reader
        assert table.column("label").to_pylist() == [0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 1], reader
        assert table.column("smiles").to_pylist()[5:7] == ["C0", "C1"], reader
        assert [value == "exact" for value in table.column("solver").to_pylist()] == exact.tolist(), reader
        nulls = [value is None for value in table.column("regularisation").to_pylist()]
        assert nulls == exact.tolist(), reader


def test_equal_rows_give_equal_bytes_however_they_are_cut_into_blocks(monkeypatch):
    form = EmbeddingFormat(3, 2, CLASSES, {"smiles": "string"}, metadata={"b": 1, "a": [2]})
    same = EmbeddingFormat(3, 2, CLASSES, {"smiles": "string"}, metadata={"a": [2], "b": 1})
    block = make_rows(40, 6, extra={"smiles": [f"C{i}" for i in range(40)]})
    monkeypatch.setattr(embeddings, "ROW_GROUP_BYTES", 6 * 4 * 16)
    whole = part_bytes(form, block)
    assert pq.read_metadata(io.BytesIO(whole)).num_row_groups == 3
    assert part_bytes(same, block) == whole
    for ends in ([1], [16], [17], [3, 3, 30], list(range(1, 40))):
        assert part_bytes(form, *cut(block, *ends)) == whole


def test_a_row_group_holds_64_megabytes_of_vectors():
    assert EmbeddingFormat(26, 20).row_group_rows == 64 * 2**20 // (26 * 20 * 4)
    assert EmbeddingFormat(4000, 8000).row_group_rows == 1


def test_a_part_without_rows_can_be_written_and_read():
    form = EmbeddingFormat(3, 2, CLASSES)
    assert pq.read_table(io.BytesIO(part_bytes(form))).num_rows == 0
    assert pq.read_table(io.BytesIO(part_bytes(form, make_rows(0, 6)))).num_rows == 0


def test_blocks_are_taken_one_at_a_time(monkeypatch):
    monkeypatch.setattr(embeddings, "ROW_GROUP_BYTES", 6 * 4 * 10)
    form = EmbeddingFormat(3, 2, CLASSES)
    file = io.BytesIO()
    sizes = []

    def blocks():
        for block in cut(make_rows(40, 6), 10, 20, 30):
            sizes.append(file.tell())
            yield block

    form.write(file, blocks())
    assert len(set(sizes)) == 4


@pytest.mark.parametrize("name", ["label", "embedding", "regularisation"])
def test_an_extra_column_with_the_name_of_another_is_refused(name):
    with pytest.raises(JobFileError, match=rf"{name} is the name of a column that every part has"):
        EmbeddingFormat(3, 2, CLASSES, {name: "string"})


def test_a_part_with_two_classes_of_one_name_is_none():
    schema = EmbeddingFormat(3, 2, LabelSchema("class", ("a", "b", "a"))).schema
    with pytest.raises(ValueError, match="the metadata entry class_names names 'a' twice"):
        EmbeddingFormat.from_schema(schema)


@pytest.mark.parametrize("layout", ["list", "wide"])
def test_names_that_every_part_has_are_refused_before_there_are_vectors(layout):
    require_free_names(["mass", "e00005", "e0006", "E0001"], layout, 6)
    for name in EmbeddingFormat(1, 1).schema.names[:-1]:
        with pytest.raises(JobFileError, match=rf'"{name}" is the name of a column that every part has'):
            require_free_names(["mass", name], layout, 6)


def test_an_extra_column_may_have_the_name_of_a_dimension_only_where_that_is_no_column():
    EmbeddingFormat(3, 2, CLASSES, {"e0005": "string"})
    EmbeddingFormat(3, 2, CLASSES, {"e0006": "string"}, layout="wide")
    with pytest.raises(JobFileError, match="e0005"):
        EmbeddingFormat(3, 2, CLASSES, {"e0005": "string"}, layout="wide")


def test_too_many_columns_are_refused_with_the_numbers():
    assert len(EmbeddingFormat(100, 100, layout="wide").schema.names) == 9 + 10_000
    with pytest.raises(JobFileError, match=r"10100 columns \(N = 101 times d = 100\); at most 10000"):
        EmbeddingFormat(101, 100, layout="wide")


def test_a_value_beyond_float16_is_refused_with_its_row():
    block = make_rows(4, 6)
    block.vectors[2, 5] = 70000.0
    with pytest.raises(JobFileError, match=r"a\.csv, row 2 \(id molecule 2\): entry 5 of the embedding is 70000"):
        part_bytes(EmbeddingFormat(3, 2, CLASSES, dtype="float16"), block)
    part_bytes(EmbeddingFormat(3, 2, CLASSES), block)


def test_vectors_of_another_width_are_refused():
    with pytest.raises(ValueError, match=r"shape \(4, 5\); \(4, 6\) is needed"):
        part_bytes(EmbeddingFormat(3, 2, CLASSES), make_rows(4, 5))


@pytest.mark.parametrize(
    "form",
    [
        EmbeddingFormat(3, 2, CLASSES, {"smiles": "string", "mass": "double"}, metadata={"model_fingerprint": "f"}),
        EmbeddingFormat(3, 2, LabelSchema("tasks", (), ("a", "b")), dtype="float16"),
        EmbeddingFormat(3, 2, LabelSchema("target"), {"k": "int64"}, layout="wide"),
        EmbeddingFormat(3, 2),
    ],
)
def test_the_format_is_found_again_in_the_file(form):
    schema = pq.read_metadata(io.BytesIO(part_bytes(form))).schema.to_arrow_schema()
    assert EmbeddingFormat.from_schema(schema) == form


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("a", pa.int64())]),
        EmbeddingFormat(3, 2).schema.remove(0),
        EmbeddingFormat(3, 2).schema.with_metadata(None),
        EmbeddingFormat(3, 2).schema.with_metadata({"label_kind": "not JSON"}),
        EmbeddingFormat(3, 2).schema.with_metadata(EmbeddingFormat(3, 3).schema.metadata),
        EmbeddingFormat(3, 2).schema.with_metadata(EmbeddingFormat(3, 2).schema.metadata | {b"dtype": b'"fnoat32"'}),
        EmbeddingFormat(3, 2).schema.with_metadata(
            EmbeddingFormat(3, 2).schema.metadata | {b"n_points": b"1" + b"0" * 12}
        ),
        EmbeddingFormat(3, 2).schema.with_metadata(
            EmbeddingFormat(3, 2).schema.metadata | {b"n_points": b"[" * 100_000}
        ),
    ],
)
def test_other_files_are_not_taken_for_parts(schema):
    with pytest.raises(ValueError):  # noqa: PT011 - the class is the contract
        EmbeddingFormat.from_schema(schema)


def test_parts_belong_together_when_all_but_versions_is_equal():
    form = EmbeddingFormat(3, 2, metadata={"model_fingerprint": "m", "versions": {"numpy": "2.0"}})
    assert form.fits(EmbeddingFormat(3, 2, metadata={"model_fingerprint": "m", "versions": {"numpy": "2.1"}}))
    assert not form.fits(EmbeddingFormat(3, 2, metadata={"model_fingerprint": "n", "versions": {"numpy": "2.0"}}))
    assert not form.fits(EmbeddingFormat(2, 3, metadata={"model_fingerprint": "m"}))
