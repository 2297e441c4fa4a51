"""Text files of comma separated numbers, read by line and a block at a time, however large they are."""

import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as arrow_csv

from wegl_dask.checksums import fingerprint
from wegl_dask.errors import SourceError
from wegl_dask.sources.paths import explained

BLOCK_BYTES = 1 << 20
"""Text that is parsed at a time; also how exactly a place in a file can be gone to without parsing what is before."""

Numbers = npt.NDArray[Any]
"""Rows of a file, (lines, columns): int64 or float64."""

NumberType = Literal["int64", "float64"]

_MISSING = ["", '""', "nan", "NaN", "NAN", "NA", "null", "None"]
_SHOWN_CHARACTERS = 60


class BadLineError(SourceError):
    """A line of a text file is not what it must be."""


def changed_since_scan(name: str, found: str) -> SourceError:
    """Say that the file `name`, of which something else was `found`, is not what the plan was made from."""
    return SourceError(
        f"{name} {found}: it was changed after it was scanned; restore it, or start the job afresh with --overwrite"
    )


class LineSpan(NamedTuple):
    """Lines ``start:stop`` of a file, counted from 0, and the block that the first of them is in."""

    start: int
    stop: int
    block_line: int
    block_byte: int


@dataclass
class BlockIndex:
    """What a pass through a file leaves behind: where its blocks begin, a hash of each, and how the file looks.

    Attributes
    ----------
    n_lines, n_columns : int
        `n_columns` is 0 for a file without lines.
    first_lines, first_bytes : list of int
        Line and byte at which each block begins.
    hashes : list of str
    """

    n_lines: int = 0
    n_columns: int = 0
    first_lines: list[int] = field(default_factory=list)
    first_bytes: list[int] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)

    def span(self, start: int, stop: int) -> LineSpan:
        """Lines ``start:stop`` as `NumberReader.go_to` takes them."""
        if start >= stop:
            return LineSpan(0, 0, 0, 0)
        block = self._block_of(start)
        return LineSpan(start, stop, self.first_lines[block], self.first_bytes[block])

    def fingerprint(self, span: LineSpan) -> str:
        """Hash the blocks that `span` touches: it changes when any byte of the span does."""
        if span.start >= span.stop:
            return fingerprint()
        return fingerprint(*self.hashes[self._block_of(span.start) : self._block_of(span.stop - 1) + 1])

    def _block_of(self, line: int) -> int:
        return int(np.searchsorted(self.first_lines, line, side="right")) - 1


def scan_numbers(
    stream: BinaryIO, name: str, number: NumberType, index: BlockIndex, *, blank_is_missing: bool = False
) -> Iterator[tuple[int, Numbers]]:
    """Read a file from its beginning, block by block, and note in `index` what was seen.

    Parameters
    ----------
    stream : binary file
    name : str
        What messages call the file.
    number : {"int64", "float64"}
        In a file of float64 an empty field or ``nan`` is NaN; in one of int64 it is an error.
    index : BlockIndex
        Filled in as the blocks come.
    blank_is_missing : bool, default False
        Take an empty line for a missing value. Otherwise empty lines are left out at the end of the file and are
        errors elsewhere.

    Yields
    ------
    first_line : int
        Line that the first row is from, counted from 0.
    values : int64 or float64, (lines of the block, columns)

    Raises
    ------
    BadLineError
        If a line is not what the first line promises.
    SourceError
        If the file cannot be read.
    """
    for block in _text_blocks(stream, name, keep_blank_end=blank_is_missing):
        if not index.first_lines:
            index.n_columns = _count_columns(block.text)
        values = _parse(block, name, number, index.n_columns)
        index.first_lines.append(block.first_line)
        index.first_bytes.append(block.first_byte)
        index.hashes.append(fingerprint(block.text))
        index.n_lines = block.first_line + len(values)
        yield block.first_line, values


class NumberReader:
    """Reads ranges of lines of one file; going forwards, nothing is decompressed or parsed twice.

    Parameters
    ----------
    stream : binary file
        It must be seekable, decompressing streams included.
    name : str
        What messages call the file.
    number : {"int64", "float64"}
        As in `scan_numbers`, like `blank_is_missing`.
    n_columns : int
        Columns that the file must have.
    blank_is_missing : bool, default False
    """

    def __init__(
        self, stream: BinaryIO, name: str, number: NumberType, n_columns: int, *, blank_is_missing: bool = False
    ) -> None:
        self._stream = stream
        self._name = name
        self._number: NumberType = number
        self._n_columns = n_columns
        self._keep_blank_end = blank_is_missing
        self._line = 0
        self._rows: Numbers = np.empty((0, n_columns), dtype=number)
        self._hash = ""
        self._hashes: list[str] = []
        self._enter_block(0, 0)

    def go_to(self, span: LineSpan) -> None:
        """Make the first line of `span` the next one that is read; an empty span is nowhere."""
        if span.start >= span.stop:
            self._hashes = []
            return
        if not self._line <= span.start <= self._line + len(self._rows):
            if span.block_line != self._next_block_line:
                with reading(self._name):
                    self._stream.seek(span.block_byte)
                self._enter_block(span.block_line, span.block_byte)
            self._line = self._next_block_line
            self._rows = self._next_rows()
        self._rows = self._rows[span.start - self._line :]
        self._line = span.start
        # The block that is held may end where the span begins.
        self._hashes = [self._hash] if len(self._rows) else []

    def fingerprint(self) -> str:
        """Hash the blocks that were read from since `go_to`, as `BlockIndex.fingerprint` does for what has been scanned."""
        return fingerprint(*self._hashes)

    def read(self, n_lines: int) -> Numbers:
        """Read the next `n_lines` lines: (n_lines, columns).

        Raises
        ------
        BadLineError
            If a line is malformed.
        SourceError
            If the file ends before, or cannot be read.
        """
        pieces = [self._rows[:n_lines]]
        self._rows = self._rows[n_lines:]
        self._line += n_lines
        wanted = n_lines - len(pieces[0])
        while wanted:
            rows = self._next_rows()
            pieces.append(rows[:wanted])
            self._rows = rows[wanted:]
            wanted -= len(pieces[-1])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _enter_block(self, line: int, byte: int) -> None:
        self._blocks = _text_blocks(self._stream, self._name, line, byte, keep_blank_end=self._keep_blank_end)
        self._next_block_line = line

    def _next_rows(self) -> Numbers:
        block = next(self._blocks, None)
        if block is None:
            raise changed_since_scan(self._name, f"ends after line {self._next_block_line}")
        rows = _parse(block, self._name, self._number, self._n_columns)
        self._hash = fingerprint(block.text)
        self._hashes.append(self._hash)
        self._next_block_line = block.first_line + len(rows)
        return rows


class _TextBlock(NamedTuple):
    """Whole lines of a file, each with its line end."""

    text: bytes
    first_line: int
    first_byte: int


def _text_blocks(
    stream: BinaryIO, name: str, line: int = 0, byte: int = 0, *, keep_blank_end: bool = False
) -> Iterator[_TextBlock]:
    """Cut what is left of `stream` into blocks of whole lines; from the start of a block on, they are always the same."""
    rest = b""
    while True:
        wanted = BLOCK_BYTES - len(rest)
        with reading(name):
            # A line longer than a block makes the block longer.
            more = stream.read(wanted if wanted > 0 else BLOCK_BYTES)
        text = rest + more
        if more:
            stop = text.rfind(b"\n") + 1
            if not keep_blank_end:
                # Empty lines may be the end of the file: they wait for what follows.
                filled = len(text[:stop].rstrip())
                stop = text.find(b"\n", filled) + 1 if filled else 0
            block, rest = text[:stop], text[stop:]
        else:
            block = text if keep_blank_end else text.rstrip()
            if block and not block.endswith(b"\n"):
                block += b"\n"
        if block:
            yield _TextBlock(block, line, byte)
            line += block.count(b"\n")
            byte += len(block)
        if not more:
            return


def _count_columns(text: bytes) -> int:
    """Count the columns of the first line that is not blank."""
    filled = text.lstrip()
    return filled.count(b",", 0, filled.find(b"\n")) + 1


def _parse(block: _TextBlock, name: str, number: NumberType, n_columns: int) -> Numbers:
    """Turn the lines of a block into rows of numbers, (lines, n_columns)."""
    column_names = [str(column) for column in range(n_columns)]
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(block.text),
            read_options=arrow_csv.ReadOptions(
                use_threads=False, column_names=column_names, block_size=len(block.text) + 1
            ),
            parse_options=arrow_csv.ParseOptions(quote_char=False, ignore_empty_lines=False),
            convert_options=arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(column_names, number),
                null_values=_MISSING if number == "float64" else [],
                check_utf8=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise BadLineError(_describe_bad_line(block, name, number, n_columns, str(error))) from error
    if table.num_rows != block.text.count(b"\n"):
        raise SourceError(f"{name} has line ends other than LF or CR LF; convert it to one of these")
    values = np.empty((table.num_rows, n_columns), dtype=number)
    for column, numbers in enumerate(table.columns):
        values[:, column] = numbers.to_numpy()
    return values


def _describe_bad_line(block: _TextBlock, name: str, number: NumberType, n_columns: int, complaint: str) -> str:
    what = "whole number" if number == "int64" else "number"
    allowed = (
        f"{n_columns} {what}s separated by commas, as in the first line that is not blank"
        if n_columns > 1
        else f"one {what}"
    )
    found = re.search(r"Row #(\d+)", complaint)
    if found is None:
        return f"{name} is not a text file of numbers ({complaint}); each of its lines must hold {allowed}"
    row = int(found[1]) - 1
    line = block.text.split(b"\n", row + 1)[row].decode(errors="replace").strip()
    shown = line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}..."
    return (
        f"line {block.first_line + row + 1} of {name} is {shown!r}; each line must hold {allowed}: "
        "correct or restore the file"
    )


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn what goes wrong with reading the file `name`, compressed or not, into a `SourceError`."""
    try:
        with explained(name):
            yield
    except (EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise SourceError(f"{name} is damaged or cut off: {error}; fetch it again") from error
