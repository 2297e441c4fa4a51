"""A second table whose columns are joined to the rows of a source by the text of one column."""

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wegl_dask.errors import SourceError
from wegl_dask.sources.columns import Row, missing_column
from wegl_dask.sources.delimited import Dialect, RowParser
from wegl_dask.sources.paths import state_of
from wegl_dask.sources.records import read_blocks
from wegl_dask.sources.streams import open_stream
from wegl_dask.spec import LookupTable

_HASHED_BYTES = 1 << 20


@dataclass(frozen=True)
class Lookup:
    """The table, held in memory.

    Attributes
    ----------
    name : str
        What messages call it.
    on : str
        Column that is matched.
    columns : tuple of str
        All columns of the file, for messages.
    names : tuple of str
        The columns kept.
    values : mapping of str to tuple of str
        From the text of `on` to the texts of `names`.
    fingerprint : str
        Hash of the file.
    """

    name: str
    on: str
    columns: tuple[str, ...]
    names: tuple[str, ...]
    values: Mapping[str, tuple[str | None, ...]]
    fingerprint: str

    def extend(self, rows: Iterator[Row], key_at: int) -> Iterator[Row]:
        """Put the values of `names` after those of each row; without a match they are None."""
        unknown = (None,) * len(self.names)
        for number, values in rows:
            if isinstance(values, str):
                yield number, values
            else:
                yield number, (*values, *self.values.get(values[key_at] or "", unknown))


def open_lookup(table: LookupTable, encoding: str, wanted: Sequence[str]) -> Lookup:
    """Read a lookup table, or take the one at hand if the file has not changed.

    Parameters
    ----------
    table : LookupTable
    encoding : str
    wanted : sequence of str
        Columns worth keeping, of those that it has.

    Raises
    ------
    SourceError
        If it cannot be read, lacks the column to match by, has a row that is not as wide as the others, or has a text
        twice with different values.
    """
    return _read(table.model_dump_json(), encoding, tuple(wanted), _hash(table.path, state_of(table.path)))


@functools.lru_cache(maxsize=1)
def _hash(path: str, state: str) -> str:
    """Hash a file that is in a certain state: it is read for every piece and every unit of the source."""
    del state
    digest = hashlib.blake2b(digest_size=16)
    with open_stream(path) as stream:
        while data := stream.read(_HASHED_BYTES):
            digest.update(data)
    return digest.hexdigest()


@functools.lru_cache(maxsize=1)
def _read(table_json: str, encoding: str, wanted: tuple[str, ...], fingerprint: str) -> Lookup:
    table = LookupTable.model_validate_json(table_json)
    name = f"lookup table {table.path}"
    dialect = Dialect(table.delimiter, encoding, None if table.columns is None else tuple(table.columns))
    records = _records(table, dialect)
    columns = dialect.columns
    if columns is None:
        header = next(records, None)
        if header is None:
            raise SourceError(f"{name} is empty; a header is needed, or source.lookup.columns")
        columns = dialect.header(header, table.path)
    if table.on not in columns:
        raise missing_column(name, "source.lookup.on", table.on, columns)
    names = tuple(name for name in columns if name in wanted and name != table.on)
    parse = RowParser(dialect, len(columns), tuple(columns.index(name) for name in (table.on, *names)))
    values: dict[str, tuple[str | None, ...]] = {}
    for row, record in enumerate(records):
        fields = parse(record)
        if isinstance(fields, str):
            raise SourceError(f"{name}, row {row}: {fields}")
        key, found = fields[0], tuple(fields[1:])
        # What has no key is not known by it.
        if not key:
            continue
        known = values.setdefault(key, found)
        if known != found:
            raise SourceError(
                f"{name}, row {row}: {table.on} = {key!r} has {', '.join(names)} = {_shown(found)}, and "
                f"{_shown(known)} in an earlier row; leave one of them"
            )
    return Lookup(name, table.on, columns, names, values, fingerprint)


def _records(table: LookupTable, dialect: Dialect) -> Iterator[bytes]:
    comment = None if table.comment is None else table.comment.encode(dialect.encoding)
    for block in read_blocks(table.path, dialect.records):
        for record in block.rows():
            if comment is None or not record.startswith(comment):
                yield record


def _shown(values: Sequence[str | None]) -> str:
    return ", ".join(map(repr, values))
