"""Text files of one molecule a row: cut into shards by their bytes, and read back row by row."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from wegl_dask.errors import SourceError
from wegl_dask.sources.base import Cut
from wegl_dask.sources.columns import Row
from wegl_dask.sources.delimited import Dialect, RowParser
from wegl_dask.sources.paths import compression_of
from wegl_dask.sources.records import Cutter, RecordBlock, RecordRange, RecordReader, read_blocks

NODES_PER_BYTE = 0.55
"""Atoms that a byte of SMILES stands for, about."""

_SAMPLED_ROWS = 1000

Choose = Callable[[Sequence[str]], tuple[str, ...]]
"""From the columns of a file to those wanted of them, the SMILES first. Raises `SourceError`."""

Visit = Callable[[Iterator[Row]], None]
"""What a scan does with the wanted columns of all rows, some rows at a time."""


@dataclass(frozen=True)
class TextTable:
    """A file of delimited text."""

    name: str
    dialect: Dialect

    def columns(self) -> tuple[str, ...]:
        """Open the file, and read the names of its columns."""
        blocks = read_blocks(self.name, self.dialect.records)
        first = next((block for block in blocks if block.filled.any()), None)
        if self.dialect.columns is not None:
            return self.dialect.columns
        if first is None:
            raise self._has_no_header()
        return self.dialect.header(first.without_first()[0], self.name)

    def scan(self, choose: Choose, nodes_per_shard: int, visit: Visit | None) -> list[list[dict[str, Any]]]:
        """Cut the file.

        Returns
        -------
        list of list of dict
            The cuts of each unit: ``n_rows``, ``fingerprint``, and ``where`` for `rows`.
        """
        parser = None if self.dialect.columns is None else self._parser(self.dialect.columns, choose)
        cutter = None
        for block in read_blocks(self.name, self.dialect.records):
            rest = block
            if parser is None:
                if not block.filled.any():
                    continue
                header, rest = block.without_first()
                parser = self._parser(self.dialect.header(header, self.name), choose)
            if cutter is None:
                cutter = Cutter(nodes_per_shard * _bytes_per_node(rest, parser))
            cutter.add(rest)
            if visit is not None:
                visit(zip(count(), map(parser, rest.rows()), strict=False))
        if parser is None:
            raise self._has_no_header()
        ranges = [] if cutter is None else cutter.finish()
        cuts = [
            {
                "n_rows": part.n_rows,
                "fingerprint": part.fingerprint,
                "where": {"range": list(part), "width": parser.width, "positions": list(parser.positions)},
            }
            for part in ranges
        ]
        return [cuts] if compression_of(self.name) and cuts else [[cut] for cut in cuts]

    def rows(self, cuts: Sequence[Cut]) -> Iterator[tuple[Cut, Iterator[Row]]]:
        """Read the wanted columns of cuts of one unit, in order; the rows of each have to be taken before the next."""
        with RecordReader(self.name, self.dialect.records) as reader:
            for cut in cuts:
                parser = RowParser(self.dialect, cut.where["width"], tuple(cut.where["positions"]))
                part = RecordRange(*cut.where["range"])
                yield cut, zip(count(part.first_row), map(parser, reader.rows(part)), strict=False)

    def _has_no_header(self) -> SourceError:
        return SourceError(f"{self.name} is empty; a header is needed, or source.columns")

    def _parser(self, columns: Sequence[str], choose: Choose) -> RowParser:
        positions = tuple(columns.index(name) for name in choose(columns))
        return RowParser(self.dialect, len(columns), positions)


def _bytes_per_node(block: RecordBlock, parser: RowParser) -> float:
    """Guess how many bytes of the file stand for one atom, from its first rows."""
    n_bytes, n_characters = 1, 1
    for record in islice(block.rows(), _SAMPLED_ROWS):
        values = parser(record)
        if not isinstance(values, str):
            n_bytes += len(record)
            n_characters += len(values[0] or "")
    return n_bytes / n_characters / NODES_PER_BYTE
