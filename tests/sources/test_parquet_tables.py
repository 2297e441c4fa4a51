import datetime as dt
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wegl_dask.errors import SourceError
from wegl_dask.sources.base import LabelSchema
from wegl_dask.sources.smiles import SmilesSource
from wegl_dask.spec import SmilesTable

pytest.importorskip("rdkit")

SMILES = ["CO", None, "C1CC", "CC"]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "a.parquet")


@pytest.fixture
def read(read_source, path):
    def read_file(task="auto", nodes_per_shard=10_000, **keys):
        return read_source(SmilesTable(kind="smiles", path=path, **keys), task, nodes_per_shard)

    return read_file


@pytest.mark.parametrize(
    "column",
    [
        pa.array(SMILES, pa.string()),
        pa.array(SMILES, pa.large_string()),
        pa.array(SMILES, pa.string()).dictionary_encode(),
        pa.array([None if smiles is None else smiles.encode() for smiles in SMILES], pa.binary()),
        pa.array([None if smiles is None else smiles.encode() for smiles in SMILES], pa.large_binary()),
    ],
    ids=lambda column: str(column.type),
)
def test_smiles_may_be_of_any_type_of_text(read, path, column):
    pq.write_table(pa.table({"smiles": column}), path)
    found = read()
    assert found.rows["source_row"] == [0, 3]
    assert (found.graphs.node_categories[:, 0] + 1).tolist() == [6, 8, 6, 6]
    assert [row["reason"] for row in found.rejected] == [
        "the SMILES is empty",
        "RDKit cannot parse the SMILES 'C1CC': it is no SMILES",
    ]


@pytest.mark.parametrize(
    ("values", "expected", "labels"),
    [
        (pa.array([1, 0, None]), LabelSchema("class", ("0", "1")), [1, 0, None]),
        (pa.array([True, False, None]), LabelSchema("class", ("0", "1")), [1, 0, None]),
        (pa.array([1.0, 0.0, np.nan]), LabelSchema("class", ("0", "1")), [1, 0, None]),
        (pa.array([1 / 3, 1e300, None]), LabelSchema("target"), [1 / 3, 1e300, None]),
        (pa.array([2**53 + 1, -7, None]), LabelSchema("target"), [float(2**53 + 1), -7.0, None]),
        (pa.array(["b", "a", ""]).dictionary_encode(), LabelSchema("class", ("a", "b")), [1, 0, None]),
        (pa.nulls(3), LabelSchema("none"), [None, None, None]),
    ],
)
def test_labels_may_be_of_any_type_of_value(read, path, values, expected, labels):
    pq.write_table(pa.table({"smiles": ["C", "CO", "CC"], "y": values}), path)
    found = read(targets=["y"])
    assert found.plan.labels == expected
    assert found.rows["label"] == labels


def test_ids_and_extra_columns_are_written_as_text(read, path):
    day = dt.date(2026, 1, 31)
    pq.write_table(pa.table({"n": [7, 8], "smiles": ["C", "CO"], "day": [day, None], "mass": [16.5, 32.0]}), path)
    found = read(id_column="n", extra_columns=["day", "mass"])
    assert found.rows["graph_id"] == ["7", "8"]
    assert found.rows["day"] == ["2026-01-31", None]
    assert found.rows["mass"] == ["16.5", "32"]


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_a_number_that_is_nan_is_no_id_and_no_text(kind, read, path):
    numbers = pa.array([7.0, np.nan, None], kind)
    pq.write_table(pa.table({"n": numbers, "smiles": ["C", "CO", "CN"], "name": ["nan", "a", "b"]}), path)
    found = read(id_column="n", extra_columns=["n", "name"])
    assert found.rows["graph_id"] == ["7", "1", "2"]
    assert found.shards[0].unnamed == {str(path): [[1, 3]]}
    assert found.rows["n"] == ["7", None, None]
    assert found.rows["name"] == ["nan", "a", "b"]


def test_text_that_is_not_utf_8_is_rejected(read, path):
    pq.write_table(pa.table({"smiles": pa.array([b"C", b"C\xff", b"CO"])}), path)
    found = read()
    assert found.rows["source_row"] == [0, 2]
    assert found.rejected[0]["reason"].startswith("the row holds bytes that are no UTF-8 text: 'utf-8' codec")


def test_invalid_text_in_a_text_column_is_rejected(read, path):
    # Arrow checks neither when it casts without `safe` nor when it reads.
    binary = pa.array([b"C", b"C\xff", b"CO"])
    pq.write_table(pa.table({"smiles": pa.Array.from_buffers(pa.string(), 3, binary.buffers())}), path)
    assert read().rows["source_row"] == [0, 2]


def test_a_column_of_lists_is_one_error(path):
    pq.write_table(pa.table({"smiles": [["C"], ["CO"]]}), path)
    source = SmilesSource(SmilesTable(kind="smiles", path=path), "auto")
    with pytest.raises(
        SourceError, match=r"a\.parquet: column 'smiles' is of type list<.*>; texts or numbers are needed"
    ):
        source.scan(path, 1000)


def test_row_groups_are_gathered_and_empty_ones_passed_over(read, path):
    table = pa.table({"smiles": ["C" * (1 + row % 5) for row in range(100)]})
    with pq.ParquetWriter(path, table.schema) as writer:
        for start, stop in ((0, 0), (0, 30), (30, 40), (40, 40), (40, 50), (50, 100)):
            writer.write_table(table.slice(start, stop - start), row_group_size=max(stop - start, 1))
    # A row counts as 25 nodes.
    found = read(nodes_per_shard=40 * 25)
    assert [cut.n_rows for cut in found.cuts] == [40, 10, 50]
    assert found.rows["source_row"] == list(range(100))
    assert found.graphs.node_counts.tolist() == [1 + row % 5 for row in range(100)]


def test_a_large_row_group_is_one_unit_of_several_cuts(read, path):
    pq.write_table(pa.table({"smiles": ["C" * (1 + row % 5) for row in range(10_000)]}), path)
    found = read(nodes_per_shard=3_000 * 25)
    assert [[cut.n_rows for cut in unit.cuts] for unit in found.plan.units] == [[3333, 3333, 3334]]
    assert found.graphs.node_counts.tolist() == [1 + row % 5 for row in range(10_000)]
    last = found.plan.units[0]
    again = list(found.source.read(found.plan, type(last)(last.piece, last.cuts[2:])))
    assert again[0].rows.equals(found.shards[2].rows)


def test_a_file_without_rows_has_no_cuts(path):
    pq.write_table(pa.table({"smiles": pa.array([], pa.string())}), path)
    source = SmilesSource(SmilesTable(kind="smiles", path=path), "auto")
    assert source.plan([source.scan(path, 1000)]).units == ()


def test_the_fingerprint_is_of_the_wanted_columns_alone(path):
    def fingerprint(smiles, other):
        pq.write_table(pa.table({"other": other, "smiles": smiles}), path)
        (unit,) = SmilesSource(SmilesTable(kind="smiles", path=path), "auto").scan(path, 1000)["units"]
        return unit[0]["fingerprint"]

    first = fingerprint(["C", "CO"], [1, 2])
    assert fingerprint(["C", "CO"], [1, 2]) == first
    assert fingerprint(["C", "CO"], [1, 3]) == first
    assert fingerprint(["C", "CN"], [1, 2]) != first


def test_a_damaged_row_group_is_one_error_that_names_the_file(read, path):
    pq.write_table(pa.table({"smiles": [f"{'C' * (row % 50)}O" for row in range(1000)]}), path, compression="zstd")
    data = bytearray(Path(path).read_bytes())
    data[40:200] = bytes(160)
    Path(path).write_bytes(data)
    with pytest.raises(SourceError, match=r"a\.parquet cannot be read as Parquet: "):
        read()


def test_a_footer_that_names_a_column_by_bytes_that_are_no_text_is_one_error(read, path):
    """The names in the schema and those in the row groups are stored one by one."""
    pq.write_table(pa.table({"smiles": ["C"] * 10}), path, store_schema=False)
    data = Path(path).read_bytes()
    place = data.rindex(b"smiles")
    assert data.count(b"smiles") == 2
    Path(path).write_bytes(data[:place] + b"smi\xedes" + data[place + 6 :])
    with pytest.raises(SourceError, match=r"a\.parquet cannot be read as Parquet: .*can't decode byte 0xed"):
        read()


@pytest.mark.parametrize("changed", [{"smiles": ["C"] * 10}, {"smiles": ["C"] * 99 + ["O"]}, {"other": ["C"] * 100}])
def test_a_file_that_has_changed_since_the_scan_is_one_error(path, changed):
    source = SmilesSource(SmilesTable(kind="smiles", path=path), "auto")
    pq.write_table(pa.table({"smiles": ["C"] * 100}), path, row_group_size=10)
    plan = source.plan([source.scan(path, 250)])
    pq.write_table(pa.table(changed), path, row_group_size=10)
    with pytest.raises(SourceError, match=r"a\.parquet holds other rows: it was changed after it was scanned"):
        list(source.read(plan, plan.units[-1]))


def test_ids_may_be_of_types_that_extend_others(read, path):
    wanted = [UUID(int=number) for number in range(3)]
    fixed = pa.array([b"one", b"two", None], pa.binary(3))
    table = {
        "smiles": ["CO", "CC", "CN"],
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([each.bytes for each in wanted], pa.binary(16))),
        "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", "[]", None])),
        "fixed": fixed,
    }
    pq.write_table(pa.table(table), path)
    found = read(id_column="uuid", extra_columns=["json", "fixed"])
    assert found.rows["graph_id"] == [str(each) for each in wanted]
    assert found.rows["json"] == ["{}", "[]", None]
    assert found.rows["fixed"] == ["one", "two", None]


def test_bytes_of_one_length_that_are_no_text_reject_their_row(read, path):
    pq.write_table(pa.table({"smiles": ["CO", "CC"], "id": pa.array([b"\xff\xff", b"ab"], pa.binary(2))}), path)
    found = read(id_column="id")
    assert found.rows["graph_id"] == ["ab"]
    assert "no UTF-8 text" in found.rejected[0]["reason"]
