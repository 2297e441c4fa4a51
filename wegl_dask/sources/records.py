"""Text files as records: their ends found in one sequential pass, the file cut there, the cuts read back."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from wegl_dask.errors import SourceError
from wegl_dask.graphs import IntArray
from wegl_dask.sources._text import changed_since_scan
from wegl_dask.sources.streams import open_stream

BLOCK_BYTES = 1 << 23
"""Text that is looked at in one go."""

LONGEST_RECORD = 1 << 26
"""Bytes after which a record without an end is an error, before it fills the memory."""

_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")

BoolArray = npt.NDArray[np.bool_]


class RecordFormat(Protocol):
    """Where the records of a text file end."""

    def ends(self, data: bytes) -> IntArray:
        """Find where the whole records of `data`, which begins with a record, end: increasing, in bytes."""

    def filled(self, data: bytes, ends: IntArray) -> BoolArray:
        """Say of each record whether it is a row; blank lines are none."""

    def open_quote(self, data: bytes) -> int | None:
        """Find the quote that is still open at the end of `data`, which begins with a record."""


@dataclass(frozen=True)
class Lines:
    """A record a line; with a delimiter, a field that begins with a quote may hold line ends.

    Quotes are read as Python's `csv` module reads them: one opens only at the start of a field, and a doubled one
    within a quoted field is part of its text.

    Attributes
    ----------
    delimiter : bytes, optional
        The one byte between two fields; without it quotes mean nothing.
    """

    delimiter: bytes | None = None

    def ends(self, data: bytes) -> IntArray:
        """See `RecordFormat.ends`."""
        array = np.frombuffer(data, dtype=np.uint8)
        newlines = np.flatnonzero(array == _NEWLINE)
        if self.delimiter is not None:
            newlines = newlines[~_are_quoted(newlines, array, self.delimiter)]
        return newlines + 1

    def filled(self, data: bytes, ends: IntArray) -> BoolArray:
        """See `RecordFormat.filled`."""
        array = np.frombuffer(data, dtype=np.uint8)
        starts = np.concatenate([[0], ends[:-1]])[: len(ends)]
        lengths = ends - starts - (array[ends - 1] == _NEWLINE)
        filled: BoolArray = (lengths > 1) | ((lengths == 1) & (array[starts] != _RETURN))
        return filled

    def open_quote(self, data: bytes) -> int | None:
        """See `RecordFormat.open_quote`."""
        if self.delimiter is None:
            return None
        opened, closed = _quoted_spans(data, self.delimiter)
        return int(opened[-1]) if len(closed) and closed[-1] == len(data) else None


@dataclass(frozen=True)
class SdfRecords:
    """Records that end with a line that begins with ``$$$$``; the last one may do without."""

    def ends(self, data: bytes) -> IntArray:
        """See `RecordFormat.ends`."""
        result = []
        mark = self._mark(data, 0)
        while mark >= 0 and (end := data.find(b"\n", mark) + 1):
            result.append(end)
            mark = self._mark(data, end)
        return np.array(result, dtype=np.int64)

    def filled(self, data: bytes, ends: IntArray) -> BoolArray:
        """See `RecordFormat.filled`. White space after the last record is no row."""
        result = np.ones(len(ends), dtype=np.bool_)
        if len(ends):
            start = int(ends[-2]) if len(ends) > 1 else 0
            result[-1] = not data[start : int(ends[-1])].isspace()
        return result

    def open_quote(self, data: bytes) -> None:
        """See `RecordFormat.open_quote`: there are no quotes in these files."""
        del data

    def _mark(self, data: bytes, start: int) -> int:
        """Find the next line that begins with ``$$$$``, from the start of a line on; -1 if there is none."""
        if data.startswith(b"$$$$", start):
            return start
        line_end = data.find(b"\n$$$$", start)
        return line_end + 1 if line_end >= 0 else -1


class RecordBlock(NamedTuple):
    """Whole records of a file: the byte they begin at, their text, where each ends in it, and which of them are rows."""

    offset: int
    data: bytes
    ends: IntArray
    filled: BoolArray

    def rows(self) -> Iterator[bytes]:
        """Return the records that are rows, line ends included."""
        start = 0
        for end, filled in zip(self.ends.tolist(), self.filled.tolist(), strict=True):
            if filled:
                yield self.data[start:end]
            start = end

    def without_first(self) -> tuple[bytes, "RecordBlock"]:
        """Split off the first row, such as a header; there has to be one."""
        record = int(np.argmax(self.filled))
        start = int(self.ends[record - 1]) if record else 0
        stop = int(self.ends[record])
        rest = slice(record + 1, None)
        block = RecordBlock(self.offset + stop, self.data[stop:], self.ends[rest] - stop, self.filled[rest])
        return self.data[start:stop], block


class RecordRange(NamedTuple):
    """A range of whole records: bytes ``start:stop`` of the (decompressed) file.

    `first_row` is the number of rows before it, `fingerprint` the hash of its bytes.
    """

    start: int
    stop: int
    first_row: int
    n_rows: int
    fingerprint: str


def read_blocks(name: str, records: RecordFormat) -> Iterator[RecordBlock]:
    """Read a whole text file, some megabytes of whole records at a time. A UTF-8 byte order mark is passed over.

    Raises
    ------
    SourceError
        If the file cannot be read, is UTF-16, leaves a quote open, or holds a record of more than `LONGEST_RECORD`
        bytes.
    """
    n_rows = 0
    with open_stream(name) as stream:
        data = stream.read(BLOCK_BYTES)
        if data.startswith(_UTF_16_MARKS):
            raise SourceError(f"{name} is UTF-16 text; convert it to UTF-8")
        offset = len(_BYTE_ORDER_MARK) if data.startswith(_BYTE_ORDER_MARK) else 0
        data = data[offset:]
        while data:
            following = stream.read(BLOCK_BYTES)
            ends = records.ends(data)
            stop = int(ends[-1]) if len(ends) else 0
            if not following and stop < len(data):
                quote = records.open_quote(data[stop:])
                if quote is not None:
                    raise SourceError(
                        f"{name}: the quote at byte {offset + stop + quote} (row {n_rows + len(ends)}) is never closed; "
                        "close it, or if it is part of a text put that in quotes and write it twice"
                    )
                stop = len(data)
                ends = np.append(ends, stop)
            elif len(data) - stop > LONGEST_RECORD:
                raise SourceError(
                    f"{name}: the record at byte {offset + stop} has no end within {LONGEST_RECORD >> 20} MB; is a quote "
                    "left open, or is it another kind of file?"
                )
            if stop:
                block = RecordBlock(offset, data[:stop], ends, records.filled(data, ends))
                n_rows += int(np.count_nonzero(block.filled))
                yield block
            data = data[stop:] + following
            offset += stop


class Cutter:
    """Cuts a file, given block by block, into ranges of about as many bytes each."""

    def __init__(self, bytes_per_cut: float) -> None:
        self.ranges: list[RecordRange] = []
        self._bytes_per_cut = bytes_per_cut
        self._start = -1
        self._first_row = self._n_rows = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, block: RecordBlock) -> None:
        """Go through the next block of the file."""
        if self._start < 0:
            self._start = block.offset
        view = memoryview(block.data)
        rows_until = np.cumsum(block.filled)
        n_ends = n_bytes = n_rows = 0
        while n_ends < len(block.ends):
            wanted = self._start + self._bytes_per_cut - block.offset
            last = min(int(np.searchsorted(block.ends, wanted)), len(block.ends) - 1)
            stop = int(block.ends[last])
            self._digest.update(view[n_bytes:stop])
            self._n_rows += int(rows_until[last]) - n_rows
            n_ends, n_bytes, n_rows = last + 1, stop, int(rows_until[last])
            if stop >= wanted:
                self._cut(block.offset + stop)
        self._stop = block.offset + n_bytes

    def finish(self) -> list[RecordRange]:
        """End the last range and return all of them; none is without rows."""
        if self._n_rows:
            self._cut(self._stop)
        return self.ranges

    def _cut(self, stop: int) -> None:
        if self._n_rows:
            hashed = self._digest.hexdigest()
            self.ranges.append(RecordRange(self._start, stop, self._first_row, self._n_rows, hashed))
        self._start = stop
        self._first_row += self._n_rows
        self._n_rows = 0
        self._digest = hashlib.blake2b(digest_size=16)


class RecordReader:
    """Reads ranges of a text file, in their order, as `Cutter` cut it. Use it in a ``with`` statement.

    A file that cannot seek is read from its start, and what is between the ranges is passed over.
    """

    def __init__(self, name: str, records: RecordFormat) -> None:
        self._name = name
        self._records = records
        self._position = 0

    def __enter__(self) -> Self:
        self._stream = open_stream(self._name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.close()

    def rows(self, wanted: RecordRange) -> Iterator[bytes]:
        """Read the rows of a range one by one.

        Raises
        ------
        SourceError
            After the last row, if the bytes are not those that the range was cut from.
        """
        self._go_to(wanted.start)
        digest = hashlib.blake2b(digest_size=16)
        rest = b""
        while block := self._stream.read(min(BLOCK_BYTES, wanted.stop - self._position)):
            self._position += len(block)
            digest.update(block)
            data = rest + block
            ends = self._records.ends(data)
            if self._position == wanted.stop and (not len(ends) or ends[-1] < len(data)):
                ends = np.append(ends, len(data))
            stop = int(ends[-1]) if len(ends) else 0
            yield from RecordBlock(0, data, ends, self._records.filled(data, ends)).rows()
            rest = data[stop:]
        if digest.hexdigest() != wanted.fingerprint:
            raise changed_since_scan(self._name, "holds other rows")

    def _go_to(self, position: int) -> None:
        if self._stream.seekable():
            self._stream.seek(position)
            self._position = position
        while self._position < position:
            passed = len(self._stream.read(min(BLOCK_BYTES, position - self._position)))
            if not passed:
                raise changed_since_scan(self._name, "has become shorter")
            self._position += passed


def _are_quoted(positions: IntArray, array: npt.NDArray[np.uint8], delimiter: bytes) -> BoolArray:
    """Say which positions are inside quotes."""
    quotes = np.flatnonzero(array == _QUOTE)
    openers = quotes[::2]
    before = array[openers - 1]
    starts_field = (before == ord(delimiter)) | (before == _NEWLINE) | (before == _QUOTE) | (openers == 0)
    if starts_field.all():
        # Then every second quote opens: a doubled quote is read as closing and opening again.
        inside: BoolArray = np.searchsorted(quotes, positions) % 2 == 1
    else:
        opened, closed = _quoted_spans(array.tobytes(), delimiter)
        inside = np.searchsorted(opened, positions) > np.searchsorted(closed, positions)
    return inside


def _quoted_spans(data: bytes, delimiter: bytes) -> tuple[IntArray, IntArray]:
    """Walk from quote to quote; slow, for files with quotes inside of fields that are not quoted."""
    opened, closed = [], []
    position = data.find(b'"')
    while position >= 0:
        if position and data[position - 1] not in delimiter + b"\n":
            position = data.find(b'"', position + 1)
            continue
        opened.append(position)
        close = data.find(b'"', position + 1)
        while close >= 0 and data[close + 1 : close + 2] == b'"':
            close = data.find(b'"', close + 2)
        closed.append(close if close >= 0 else len(data))
        position = data.find(b'"', close + 1) if close >= 0 else -1
    return np.array(opened, dtype=np.int64), np.array(closed, dtype=np.int64)
