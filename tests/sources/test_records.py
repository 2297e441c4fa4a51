import csv
import hashlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wegl_dask.errors import SourceError
from wegl_dask.sources import records
from wegl_dask.sources.records import Cutter, Lines, RecordReader, SdfRecords, read_blocks

CSV = Lines(b",")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "rows.csv"


@pytest.fixture
def write(path):
    """Write a file and give its name."""

    def write_bytes(data):
        path.write_bytes(data)
        return str(path)

    return write_bytes


def all_rows(name, record_format):
    return [row for block in read_blocks(name, record_format) for row in block.rows()]


def cut(name, record_format, bytes_per_cut):
    cutter = Cutter(bytes_per_cut)
    for block in read_blocks(name, record_format):
        cutter.add(block)
    return cutter.finish()


def read_back(name, record_format, ranges):
    with RecordReader(name, record_format) as reader:
        return [list(reader.rows(part)) for part in ranges]


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", []),
        (b"\n", []),
        (b"\r\n\n\r\n", []),
        (b"a", [b"a"]),
        (b"a\nb\n", [b"a\n", b"b\n"]),
        (b"a\r\nb", [b"a\r\n", b"b"]),
        (b"a\n\n\r\nb\n\n", [b"a\n", b"b\n"]),
        (b" \n\t\n", [b" \n", b"\t\n"]),
        (b"\xef\xbb\xbfa\nb\n", [b"a\n", b"b\n"]),
        (b'"a\nb",c\nd\n', [b'"a\nb",c\n', b"d\n"]),
        (b'x,"a ""quoted"" \n text"\r\nd\n', [b'x,"a ""quoted"" \n text"\r\n', b"d\n"]),
        (b'"""\n""",1\n"",2\n', [b'"""\n""",1\n', b'"",2\n']),
        (b'5" tube,1\n6" tube,2\n', [b'5" tube,1\n', b'6" tube,2\n']),
        (b'a"b,"c\nd"\ne\n', [b'a"b,"c\nd"\n', b"e\n"]),
        (b'"a"b"\nc\n', [b'"a"b"\n', b"c\n"]),
        (b'"a"', [b'"a"']),
        (b'\xef\xbb\xbf"a\nb"\nc\n', [b'"a\nb"\n', b"c\n"]),
    ],
)
def test_rows_of_delimited_text_end_at_line_ends_outside_of_quotes(write, data, rows):
    assert all_rows(write(data), CSV) == rows


def test_quotes_mean_nothing_without_a_delimiter(write):
    assert all_rows(write(b'"a\nb"\n'), Lines()) == [b'"a\n', b'b"\n']


@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", []),
        (b"one\n$$$$\ntwo\n$$$$\n", [b"one\n$$$$\n", b"two\n$$$$\n"]),
        (b"one\r\n$$$$\r\ntwo", [b"one\r\n$$$$\r\n", b"two"]),
        (b"$$$$\n$$$$\na\n$$$$ and more\nb\n", [b"$$$$\n", b"$$$$\n", b"a\n$$$$ and more\n", b"b\n"]),
        (b"a $$$$\n$$$\n\n$$$$", [b"a $$$$\n$$$\n\n$$$$"]),
        (b"\n\n  \n$$$$\n\n \r\n", [b"\n\n  \n$$$$\n"]),
    ],
)
def test_records_of_sdf_end_with_a_line_of_dollars(write, data, rows):
    assert all_rows(write(data), SdfRecords()) == rows


def test_a_quote_that_is_never_closed_is_one_error_that_says_where(write):
    name = write(b'smiles,name\nC,x\nCC,"open\nCCC,y\n')
    with pytest.raises(SourceError, match=r"rows\.csv: the quote at byte 19 \(row 2\) is never closed"):
        all_rows(name, CSV)


def test_a_record_without_an_end_is_one_error_before_it_fills_the_memory(write, monkeypatch):
    monkeypatch.setattr(records, "BLOCK_BYTES", 64)
    monkeypatch.setattr(records, "LONGEST_RECORD", 1 << 20)
    name = write(b"C\n" + b"x" * (1 << 21) + b"\nC\n")
    with pytest.raises(SourceError, match=r"rows\.csv: the record at byte 2 has no end within 1 MB"):
        all_rows(name, CSV)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_utf_16_is_refused(write, encoding):
    mark = "" if encoding == "utf-16" else "\ufeff"
    with pytest.raises(SourceError, match=r"rows\.csv is UTF-16 text; convert it to UTF-8"):
        all_rows(write(f"{mark}smiles\nC\n".encode(encoding)), CSV)


# Lone carriage returns are left out: the csv module takes them for line ends.
PIECES = st.sampled_from(['"', '""', ",", ',"', '",', "\n", "\r\n", '\n"', '"\n', "a", "b ", "é"])
TEXTS = st.lists(PIECES, max_size=12).map("".join)
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 40))
"""Bytes of a cut, and of a block."""


@settings(max_examples=200)
@given(
    rows=st.lists(st.lists(TEXTS, min_size=2, max_size=3), min_size=1, max_size=12),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    sizes=SIZES,
)
def test_whatever_the_csv_module_writes_is_cut_into_the_same_rows(tmp_path_factory, rows, quoting, line_end, sizes):
    text = io.StringIO(newline="")
    csv.writer(text, quoting=quoting, lineterminator=line_end).writerows(rows)
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_bytes(text.getvalue().encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "BLOCK_BYTES", sizes[1])
        ranges = cut(str(path), CSV, sizes[0])
        found = read_back(str(path), CSV, ranges)
    assert [next(csv.reader([row.decode()])) for part in found for row in part] == rows
    assert [part.n_rows for part in ranges] == [len(part) for part in found]
    assert [part.first_row for part in ranges] == np.cumsum([0, *(part.n_rows for part in ranges[:-1])]).tolist()


@settings(max_examples=300)
@given(text=TEXTS)
def test_any_text_is_cut_where_the_csv_module_sees_rows(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("csv") / "rows.csv"
    path.write_bytes(text.encode())
    ends_in_quotes = list(csv.reader(io.StringIO(f"{text}\nend", newline="")))[-1] != ["end"]
    if ends_in_quotes:
        with pytest.raises(SourceError, match="is never closed"):
            all_rows(str(path), CSV)
    else:
        expected = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
        assert [next(csv.reader([row.decode()])) for row in all_rows(str(path), CSV)] == expected


@settings(max_examples=100)
@given(
    texts=st.lists(st.text(st.sampled_from("ab\n$ "), max_size=12).filter(lambda text: "\n$$$$" not in f"\n{text}")),
    sizes=SIZES,
)
def test_sdf_records_are_cut_back_into_themselves(tmp_path_factory, texts, sizes):
    expected = [f"{text}\n$$$$\n".encode() for text in texts]
    path = tmp_path_factory.mktemp("sdf") / "a.sdf"
    path.write_bytes(b"".join(expected))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "BLOCK_BYTES", sizes[1])
        found = read_back(str(path), SdfRecords(), cut(str(path), SdfRecords(), sizes[0]))
    assert [row for part in found for row in part] == expected


def test_a_cut_has_the_hash_of_its_bytes_and_about_the_size_asked_for(write):
    data = b"".join(b"%04d\n" % number for number in range(1000))
    ranges = cut(write(data), CSV, 100)
    assert [part.n_rows for part in ranges] == [20] * 50
    assert [part.start for part in ranges] == list(range(0, 5000, 100))
    assert ranges[7].fingerprint == hashlib.blake2b(data[700:800], digest_size=16).hexdigest()


def test_cuts_without_rows_are_left_out(write):
    ranges = cut(write(b"\n" * 50 + b"a\n" + b"\n" * 50), CSV, 3)
    assert [part.n_rows for part in ranges] == [1]


def test_ranges_of_a_compressed_file_are_read_in_one_pass_with_gaps(tmp_path):
    import gzip

    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"".join(b"%04d\n" % number for number in range(1000))))
    ranges = cut(str(path), CSV, 100)
    found = read_back(str(path), CSV, [ranges[3], ranges[40]])
    assert [part[0] for part in found] == [b"0060\n", b"0800\n"]


@pytest.mark.parametrize("changed", [b"0000\n0001\n0003\n", b"0000\n", b"0000\n0001\n002\n\n"])
def test_a_file_that_has_changed_since_the_scan_is_one_error(write, changed):
    ranges = cut(write(b"0000\n0001\n0002\n"), CSV, 100)
    name = write(changed)
    with pytest.raises(SourceError, match=r"rows\.csv holds other rows: it was changed after it was scanned"):
        read_back(name, CSV, ranges)


def test_a_compressed_file_that_has_become_shorter_is_one_error(tmp_path):
    import gzip

    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b"0000\n" * 100))
    ranges = cut(str(path), CSV, 100)
    path.write_bytes(gzip.compress(b"0000\n"))
    with pytest.raises(SourceError, match=r"rows\.csv\.gz has become shorter: it was changed after it was scanned"):
        read_back(str(path), CSV, ranges[-1:])
