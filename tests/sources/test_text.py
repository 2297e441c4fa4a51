import gzip
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wegl_dask.errors import SourceError
from wegl_dask.sources import _text
from wegl_dask.sources._text import BadLineError, BlockIndex, NumberReader, scan_numbers


def scan(text, number="int64", **options):
    index = BlockIndex()
    blocks = list(scan_numbers(io.BytesIO(text), "numbers.txt", number, index, **options))
    assert [line for line, _ in blocks] == index.first_lines
    return index, [row for _, values in blocks for row in values.tolist()]


class CountingStream(io.BytesIO):
    """Counts the bytes that are read."""

    n_read = 0

    def read(self, size=-1):
        data = super().read(size)
        self.n_read += len(data)
        return data


@given(data=st.data(), block=st.integers(1, 60), n_lines=st.integers(1, 60), compressed=st.booleans())
def test_any_ranges_of_lines_in_any_order_are_the_lines_of_the_file(data, block, n_lines, compressed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_text, "BLOCK_BYTES", block)
        rows = np.array([[line, 10 ** (line % 7)] for line in range(n_lines)])
        text = "".join(f"{a}, {b}\n" for a, b in rows).encode()
        index, scanned = scan(text)
        assert scanned == rows.tolist()
        stream = gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(text))) if compressed else io.BytesIO(text)
        with stream:
            reader = NumberReader(stream, "numbers.txt", "int64", 2)
            for _ in range(data.draw(st.integers(1, 5))):
                start, stop = sorted(data.draw(st.tuples(*[st.integers(0, n_lines)] * 2)))
                middle = data.draw(st.integers(start, stop))
                reader.go_to(index.span(start, stop))
                if start < stop:
                    assert reader.read(middle - start).tolist() == rows[start:middle].tolist()
                    assert reader.read(stop - middle).tolist() == rows[middle:stop].tolist()


def test_reading_forwards_reads_every_byte_once(monkeypatch):
    monkeypatch.setattr(_text, "BLOCK_BYTES", 1000)
    text = b"".join(b"%d\n" % line for line in range(5000))
    index, _ = scan(text)
    stream = CountingStream(text)
    reader = NumberReader(stream, "numbers.txt", "int64", 1)
    for start in range(0, 5000, 50):
        reader.go_to(index.span(start, start + 50))
        assert reader.read(50)[0] == start
    assert stream.n_read == len(text)


def test_a_range_in_the_middle_reads_its_blocks_alone(monkeypatch):
    monkeypatch.setattr(_text, "BLOCK_BYTES", 1000)
    text = b"".join(b"%d\n" % line for line in range(50_000))
    index, _ = scan(text)
    stream = CountingStream(text)
    reader = NumberReader(stream, "numbers.txt", "int64", 1)
    reader.go_to(index.span(30_000, 30_010))
    assert reader.read(10)[:, 0].tolist() == list(range(30_000, 30_010))
    assert stream.n_read <= 2000


def test_fingerprint_of_a_range_changes_with_its_bytes_and_not_with_those_far_away(monkeypatch):
    monkeypatch.setattr(_text, "BLOCK_BYTES", 100)
    lines = [f"{line:03}\n" for line in range(1000)]
    index, _ = scan("".join(lines).encode())
    for changed, differs in ((500, True), (509, True), (400, False), (700, False)):
        other = [*lines[:changed], "999\n", *lines[changed + 1 :]]
        other_index, _ = scan("".join(other).encode())
        span, other_span = index.span(500, 510), other_index.span(500, 510)
        assert span == other_span
        assert (index.fingerprint(span) != other_index.fingerprint(span)) is differs


def test_missing_values_are_nan():
    _, rows = scan(b'1.5,2\n,nan\n"",NaN\n inf,-1e400\n', "float64")
    np.testing.assert_array_equal(rows, [[1.5, 2], [np.nan, np.nan], [np.nan, np.nan], [np.inf, -np.inf]])


def test_empty_lines_can_be_missing_values_even_at_the_end():
    index, rows = scan(b'\n1\n\n""\n\n', "float64", blank_is_missing=True)
    np.testing.assert_array_equal(rows, [[np.nan], [1], [np.nan], [np.nan], [np.nan]])
    assert index.n_lines == 5


def test_line_longer_than_a_block_is_read(monkeypatch):
    monkeypatch.setattr(_text, "BLOCK_BYTES", 8)
    row = list(range(100))
    line = ",".join(map(str, row))
    _, rows = scan(f"{line}\n{line}\n{line}".encode())
    assert rows == [row] * 3


def test_file_without_lines_has_no_columns():
    for text in (b"", b"\n", b"\n \n\n"):
        index, rows = scan(text)
        assert (index.n_lines, index.n_columns, rows) == (0, 0, [])


def test_bad_line_is_named_in_whichever_block_it_is(monkeypatch):
    monkeypatch.setattr(_text, "BLOCK_BYTES", 32)
    lines = [str(line) for line in range(100)]
    for bad in (0, 7, 50, 99):
        text = "\n".join([*lines[:bad], "x" * 100, *lines[bad + 1 :]])
        with pytest.raises(
            BadLineError, match=rf"line {bad + 1} of numbers\.txt is 'x{{60}}\.\.\.'; .*one whole number"
        ):
            scan(text.encode())


@pytest.mark.parametrize("blank", [b"\n", b" \r\n", b"\n\n"])
def test_a_blank_first_line_is_named_and_not_those_after_it(blank):
    with pytest.raises(
        BadLineError, match=r"^line 1 of numbers\.txt is ''; each line must hold 2 whole numbers .*not blank: "
    ):
        scan(blank + b"1, 2\n2, 1\n")


def test_truncated_and_damaged_compression_is_one_error():
    content = gzip.compress(b"".join(b"%d\n" % line for line in range(10_000)))
    damaged = bytearray(content)
    damaged[500:520] = bytes(20)
    for stored in (content[:-200], bytes(damaged), b"no gzip at all"):
        with pytest.raises(SourceError, match=r"numbers\.gz"), gzip.GzipFile(fileobj=io.BytesIO(stored)) as stream:
            list(scan_numbers(stream, "numbers.gz", "int64", BlockIndex()))
