"""Delimited text: how a record becomes a row of columns, or the reason why it does not."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass

from wegl_dask.errors import JobFileError, SourceError
from wegl_dask.sources.records import Lines

_ASCII = b"\t\n\r" + bytes(range(0x20, 0x7F))


@dataclass(frozen=True)
class Dialect:
    """How the rows of a text file are written.

    Attributes
    ----------
    delimiter : str, optional
        The character between two columns; without it white space is, the last column holds the rest of the line, and
        quotes mean nothing.
    encoding : str
    columns : tuple of str, optional
        Column names; without them the first row is a header.
    optional : int, default 0
        So many of the last columns may be missing from a row.
    """

    delimiter: str | None
    encoding: str
    columns: tuple[str, ...] | None
    optional: int = 0

    def __post_init__(self) -> None:
        try:
            alike = _ASCII.decode(self.encoding) == _ASCII.decode()
        except UnicodeDecodeError:
            alike = False
        except LookupError as error:
            raise JobFileError(
                f"source.encoding = {self.encoding!r} is no encoding of text that Python knows"
            ) from error
        if not alike:
            raise JobFileError(
                f"source.encoding = {self.encoding!r}: files are cut between bytes, so an encoding is needed that "
                "contains ASCII; convert the file to UTF-8"
            )
        if self.delimiter is not None and (not self.delimiter.isascii() or self.delimiter in '"\r\n\0'):
            raise JobFileError(
                f"delimiter = {self.delimiter!r}: it must be an ASCII character, and no quote or line end"
            )

    @property
    def records(self) -> Lines:
        """Where the records of such a file end."""
        return Lines(None if self.delimiter is None else self.delimiter.encode())

    def header(self, record: bytes, name: str) -> tuple[str, ...]:
        """Read the column names from the first record of the file `name`."""
        fields = self.fields(record)
        if isinstance(fields, str):
            raise SourceError(f"{name}: the header cannot be read: {fields}")
        return tuple(field.strip() for field in fields)

    def fields(self, record: bytes) -> list[str] | str:
        """Split a record into its fields; a text is the reason why that fails."""
        try:
            text = record.decode(self.encoding)
        except UnicodeDecodeError as error:
            what = f"byte 0x{error.object[error.start]:02x} at position {error.start} of the row"
            return f"{what} is not {self.encoding}; set source.encoding to the encoding of the file"
        if self.delimiter is None:
            return text.strip().split(None, len(self.columns or ()) - 1)
        try:
            return next(csv.reader((text,), delimiter=self.delimiter))
        except csv.Error as error:
            return f"the row is not delimited text: {error}"


@dataclass(frozen=True)
class RowParser:
    """Takes the wanted columns out of records.

    Attributes
    ----------
    dialect : Dialect
    width : int
        Number of columns of the file.
    positions : tuple of int
        The wanted columns, counted from 0.
    """

    dialect: Dialect
    width: int
    positions: tuple[int, ...]

    def __call__(self, record: bytes) -> list[str | None] | str:
        """Return the texts of the wanted columns, or the reason why there are none."""
        fields = self.dialect.fields(record)
        if isinstance(fields, str):
            return fields
        missing = self.width - len(fields)
        if not 0 <= missing <= self.dialect.optional:
            return f"the row has {len(fields)} columns; the file has {self.width}"
        row: Sequence[str | None] = [*fields, *[None] * missing] if missing else fields
        return [row[position] for position in self.positions]
