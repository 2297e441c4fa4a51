from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from wegl_dask.errors import SourceError
from wegl_dask.sources import lookup, paths
from wegl_dask.sources.base import LabelSchema
from wegl_dask.sources.lookup import open_lookup
from wegl_dask.sources.smiles import SmilesSource
from wegl_dask.spec import LookupTable, SmilesTable

pytest.importorskip("rdkit")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder that is the working directory."""
    monkeypatch.chdir(tmp_path)


def write(name, content):
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return name


def source(path="a.smi", task="auto", *, lookup=None, **keys):
    lookup = LookupTable(**({"path": "l.csv"} | (lookup or {})))
    return SmilesSource(SmilesTable(kind="smiles", path=path, lookup=lookup, **keys), task)


@pytest.fixture
def read(read_source):
    def read_files(*args, **keys):
        made = source(*args, **keys)
        return read_source(made.table, made.task)

    return read_files


def test_targets_split_and_extra_columns_may_come_from_the_lookup_table(read):
    write("a.smi", "C one\nCO two\nCC three\n")
    write("l.csv", "y,smiles,part,note\n1.5,CO,train,x\n2.5,C,test,\n9,CCC,test,unused\n")
    found = read(targets=["y"], split_column="part", extra_columns=["note"])
    assert found.rows["graph_id"] == ["one", "two", "three"]
    assert found.rows["label"] == [2.5, 1.5, None]
    assert found.rows["split"] == ["test", "train", None]
    assert found.rows["note"] == ["", "x", None]


def test_rows_are_matched_by_the_column_named(read):
    write("a.smi", "C one\nCO two\n")
    write("l.csv", "id;y\ntwo;2.5\n")
    found = read(lookup={"on": "id", "delimiter": ";"}, targets=["y"])
    assert found.rows["label"] == [None, 2.5]


def test_rows_without_a_key_match_nothing(read):
    write("a.csv", "id,smiles\n1,CCO\n,CCC\n,CCN\n2,CO\n")
    write("l.csv", "id,y\n1,0.5\n,7.5\n,8.5\n2,1.5\n")
    found = read("a.csv", lookup={"on": "id"}, targets=["y"])
    assert found.rows["label"] == [0.5, None, None, 1.5]


def test_a_lookup_table_may_have_comments_quotes_and_no_header(read):
    write("a.smi", "C\nCO\n")
    write("l.csv", '# from somewhere, "quoted"\n"C","1.5"\n#CO,7\nCO,2.5\n')
    found = read(lookup={"columns": ["smiles", "y"], "comment": "#"}, targets=["y"])
    assert found.rows["label"] == [1.5, 2.5]


def test_the_same_values_twice_are_no_contradiction(read):
    write("a.smi", "C\n")
    write("l.csv", "smiles,y,other\nC,1.5,a\nC,1.5,b\n")
    assert read(targets=["y"]).rows["label"] == [1.5]


def test_classes_are_those_of_the_matched_rows_of_all_files(read):
    write("a.smi", "C\nCO\n")
    write("b.smi", "CC\n")
    write("l.csv", "smiles,y\nC,no\nCO,yes\nCC,maybe\nCCC,never\n")
    found = read(["a.smi", "b.smi"], targets=["y"])
    assert found.plan.labels == LabelSchema("class", ("maybe", "no", "yes"))
    assert found.rows["label"] == [1, 2, 0]


def test_rows_of_parquet_files_are_matched_too(read):
    pq.write_table(pa.table({"smiles": ["C", "CO"], "n": [7, 8]}), "a.parquet")
    write("l.csv", "n,y\n8,1.5\n")
    assert read("a.parquet", lookup={"on": "n"}, targets=["y"]).rows["label"] == [None, 1.5]


@pytest.mark.parametrize(
    ("content", "keys", "message"),
    [
        (
            b"smiles,y\nC,1\nCO,2\nC,3\n",
            {},
            r"^lookup table l\.csv, row 2: smiles = 'C' has y = '3', and '1' in an earlier row; leave one of them$",
        ),
        (b"smiles,y\nC,1\nCO\n", {}, r"^lookup table l\.csv, row 1: the row has 1 columns; the file has 2$"),
        (b"smiles,y\nC,\xff\n", {}, r"^lookup table l\.csv, row 0: byte 0xff at position 2 of the row is not utf-8"),
        (
            b"x,y\nC,1\n",
            {},
            r"^lookup table l\.csv has no column 'smiles', which source\.lookup\.on names; it has x, y$",
        ),
        (b"", {}, r"^lookup table l\.csv is empty"),
        (b"smiles,z\nC,1\n", {}, r"^a\.smi, with the lookup table l\.csv of smiles, z, has no column 'y'"),
        (
            b"smiles,id,y\nC,1,1\n",
            {"extra_columns": ["id"]},
            r"^a\.smi and lookup table l\.csv both have a column 'id'",
        ),
        (b"smiles,y\nC,1\n", {"columns": ["smiles", "y"]}, r"^a\.smi and lookup table l\.csv both have a column 'y'"),
        (
            b"n,y\nC,1\n",
            {"lookup": {"on": "n"}},
            r"^a\.smi, with the lookup .* has no column 'n', which source\.lookup\.on",
        ),
        (b'smiles,y\n"C,1\n', {}, r"^l\.csv: the quote at byte 9 \(row 1\) is never closed"),
        (None, {}, r"^l\.csv cannot be read: No such file or directory"),
    ],
)
def test_a_lookup_table_that_cannot_be_used_is_one_clear_error(content, keys, message):
    write("a.smi", "C 1\n")
    if content is not None:
        write("l.csv", content)
    with pytest.raises(SourceError, match=message):
        source(targets=["y"], **keys).scan("a.smi", 1000)


def test_the_bytes_of_the_lookup_table_are_part_of_the_fingerprint():
    write("a.smi", "C\n")
    made = source(targets=["y"])

    def fingerprints():
        plan = made.plan([made.scan("a.smi", 1000)])
        return [cut.fingerprint for unit in plan.units for cut in unit.cuts]

    write("l.csv", "smiles,y\nC,1\n")
    first = fingerprints()
    assert fingerprints() == first
    write("l.csv", "smiles,y\nC,2\n")
    assert fingerprints() != first


def test_a_lookup_table_is_hashed_once_while_it_is_as_it_was(monkeypatch):
    write("l.csv", "smiles,y\nC,1\n")
    opened = []
    real = lookup.open_stream
    monkeypatch.setattr(lookup, "open_stream", lambda name: opened.append(name) or real(name))

    def hashed():
        return open_lookup(LookupTable(path="l.csv"), "utf-8", ["smiles", "y"]).fingerprint

    first = [hashed() for _ in range(5)]
    assert len(set(first)) == 1
    assert len(opened) == 1
    # Of the same size, and written in the same second.
    write("l.csv", "smiles,y\nC,2\n")
    assert hashed() != first[0]


@pytest.mark.parametrize("protocol", ["memory", "http"])
def test_of_a_store_that_says_when_a_file_was_written_it_is_asked(protocol, monkeypatch):
    store = fsspec.filesystem("memory")
    store.pipe("/lookup-state/l.csv", b"one")
    name = f"{protocol}://lookup-state/l.csv"
    if protocol == "http":
        # A server need not say.
        silent = MemoryFileSystem()
        monkeypatch.setattr(silent, "info", lambda path: {"name": path, "size": 3})
        monkeypatch.setattr(paths, "filesystem_of", lambda url: (silent, url))
    first, second = paths.state_of(name), paths.state_of(name)
    assert (first == second) == (protocol == "memory")


def test_a_lookup_table_that_changes_after_the_scan_is_one_error():
    write("a.smi", "C\n")
    write("l.csv", "smiles,y\nC,1\n")
    made = source(targets=["y"])
    plan = made.plan([made.scan("a.smi", 1000)])
    write("l.csv", "smiles,y\nC,2\n")
    with pytest.raises(
        SourceError, match=r"the lookup table l\.csv holds other rows: it was changed after it was scanned"
    ):
        list(made.read(plan, plan.units[0]))


def test_only_the_columns_asked_for_are_held_in_memory():
    write("l.csv", "smiles,a,b\nC,1,2\n")
    lookup = open_lookup(LookupTable(path="l.csv"), "utf-8", ["smiles", "b"])
    assert lookup.names == ("b",)
    assert dict(lookup.values) == {"C": ("2",)}
