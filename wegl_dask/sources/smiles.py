"""Molecules as SMILES, in delimited text and Parquet files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from wegl_dask.checksums import fingerprint
from wegl_dask.errors import SourceError
from wegl_dask.molecules import graphs_from_smiles, require_rdkit
from wegl_dask.sorted_texts import SortedTexts
from wegl_dask.sources._text import changed_since_scan
from wegl_dask.sources.base import SourcePlan, SourceShard, Unit
from wegl_dask.sources.columns import Roles, Row, arranged, build_shard, missing_column, plan_molecules
from wegl_dask.sources.delimited import Dialect
from wegl_dask.sources.lookup import Lookup, open_lookup
from wegl_dask.sources.parquet_tables import NODES_PER_ROW, ParquetTable
from wegl_dask.sources.paths import COMPRESSIONS, compression_of, ending_of, expand, size_of
from wegl_dask.sources.text_labels import MISSING, LabelError, LabelReader, LabelSurvey, survey_is_needed
from wegl_dask.sources.text_tables import NODES_PER_BYTE, TextTable
from wegl_dask.spec import SmilesTable

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_LISTS = (".smi", ".smiles", ".txt")
_TEXTS = (*_DELIMITERS, *_LISTS)
ENDINGS = (*_TEXTS, *(text + compression for text in _TEXTS for compression in COMPRESSIONS), ".parquet")

_COMPRESSION_RATIO = 4
"""Bytes of text in a byte of a compressed file, about."""


class Counts(NamedTuple):
    """What the rows of a source hold.

    Attributes
    ----------
    nodes : int
        Number of atoms, by the lengths of the SMILES.
    known_labels : dict of str to int
        Number of rows that have a label, by target.
    refused_labels : int
        Number of rows that will be rejected for a label,
    refused_why : str
        and where the first of them is, and why; "" where there is none.
    """

    nodes: int
    known_labels: dict[str, int]
    refused_labels: int
    refused_why: str


@dataclass(frozen=True)
class SmilesSource:
    """The source ``kind = "smiles"``.

    Attributes
    ----------
    table : SmilesTable
        The job's table ``[source]``.
    task : str
        What the labels are, see `wegl_dask.sources.text_labels.label_schema`.
    """

    table: SmilesTable
    task: str

    def estimated_nodes(self) -> int:
        """Guess the number of atoms from sizes, as if the text files held SMILES alone."""
        total = 0.0
        for piece in self.pieces():
            if ending_of(piece) == ".parquet":
                total += ParquetTable(piece).n_rows() * NODES_PER_ROW
            else:
                total += size_of(piece) * (_COMPRESSION_RATIO if compression_of(piece) else 1) * NODES_PER_BYTE
        return int(total)

    def pieces(self) -> Sequence[str]:
        """Name the files."""
        pieces = expand(self.table.path, ENDINGS)
        for piece in pieces:
            self._file(piece)
        return pieces

    def check(self, piece: str) -> None:
        """Look for the columns that the job file names at the beginning of one file."""
        roles = self._roles(piece)
        _columns_from_file(piece, self._file(piece).columns(), roles, self._lookup(roles))

    def scan(self, piece: str, nodes_per_shard: int) -> dict[str, Any]:
        """Cut one file, and look at its labels if they may be classes."""
        require_rdkit()
        roles = self._roles(piece)
        lookup = self._lookup(roles)
        survey = LabelSurvey() if survey_is_needed(self.task, roles.targets) else None
        columns: tuple[str, ...] = ()

        def choose(there: Sequence[str]) -> tuple[str, ...]:
            nonlocal columns
            columns = _columns_from_file(piece, there, roles, lookup)
            return columns

        def visit(rows: Iterator[Row]) -> None:
            for _, values in _joined(rows, columns, lookup, roles.targets):
                if survey is not None and not isinstance(values, str):
                    survey.add(values[0])

        units = self._file(piece).scan(choose, nodes_per_shard, None if survey is None else visit)
        for cut in (cut for unit in units for cut in unit):
            cut["where"]["columns"] = list(columns)
            if lookup is not None:
                cut["where"]["lookup"] = lookup.fingerprint
                cut["fingerprint"] = fingerprint(cut["fingerprint"], lookup.fingerprint)
        return {"piece": piece, "units": units, "survey": None if survey is None else survey.to_json()}

    def plan(self, scans: Sequence[dict[str, Any]]) -> SourcePlan:
        """Put the files together; see `plan_molecules`."""
        return plan_molecules(scans, self.table, self.task)

    def count(self, plan: SourcePlan) -> Counts:
        """Read the rows of a plan through, without featurising them.

        A row whose labels are to be rejected has none.
        """
        characters, labels = 0, dict.fromkeys(self.table.targets, 0)
        refused, why = 0, ""
        for unit in plan.units:
            roles = self._roles(unit.piece)
            read_label = LabelReader(plan.labels, roles.targets)
            lookup = self._lookup(roles)
            for cut, rows in self._file(unit.piece).rows(unit.cuts):
                for number, values in _joined(rows, cut.where["columns"], lookup, (roles.molecule, *roles.targets)):
                    # Text is the reason why there is no row.
                    if isinstance(values, str):
                        continue
                    characters += len(values[0] or "")
                    try:
                        read_label(values[1:])
                    except LabelError as error:
                        refused, why = refused + 1, why or f"row {number} of {unit.piece}: {error}"
                        continue
                    for name, label in zip(roles.targets, values[1:], strict=True):
                        labels[name] += (label or "").strip() not in MISSING
        return Counts(int(characters * NODES_PER_BYTE), labels, refused, why)

    def read(self, plan: SourcePlan, unit: Unit, *, known_ids: SortedTexts | None = None) -> Iterator[SourceShard]:
        """Read the cuts of one unit, and featurise them."""
        roles = self._roles(unit.piece)
        lookup = self._lookup(roles)
        for cut, rows in self._file(unit.piece).rows(unit.cuts):
            if lookup is not None and cut.where["lookup"] != lookup.fingerprint:
                raise changed_since_scan(f"the {lookup.name}", "holds other rows")
            yield build_shard(
                cut.shard,
                _joined(rows, cut.where["columns"], lookup, roles.names),
                plan=plan,
                roles=roles,
                source_file=unit.piece,
                featurize=partial(graphs_from_smiles, largest_fragment=self.table.largest_fragment),
                known_ids=known_ids,
            )

    def _roles(self, piece: str) -> Roles:
        roles = Roles.of_table(self.table, self.table.smiles_column)
        if self._is_plain_list(piece) and roles.row_id is None:
            return replace(roles, row_id="id")
        return roles

    def _is_plain_list(self, piece: str) -> bool:
        """Say whether a file holds SMILES and an id a line, as nothing else is said about it."""
        return self.table.columns is None and ending_of(piece) in _LISTS

    def _file(self, piece: str) -> TextTable | ParquetTable:
        ending = ending_of(piece)
        if ending == ".parquet":
            if compression_of(piece):
                raise SourceError(f"{piece} is Parquet that was compressed once more: decompress it to a .parquet file")
            return ParquetTable(piece)
        if ending not in _TEXTS:
            raise SourceError(f"{piece} ends in {ending!r}; SMILES are read from {', '.join((*_TEXTS, '.parquet'))}")
        columns = None if self.table.columns is None else tuple(self.table.columns)
        is_list = self._is_plain_list(piece)
        dialect = Dialect(
            self.table.delimiter or _DELIMITERS.get(ending),
            self.table.encoding,
            ("smiles", "id") if is_list else columns,
            optional=int(is_list),
        )
        return TextTable(piece, dialect)

    def _lookup(self, roles: Roles) -> Lookup | None:
        return None if self.table.lookup is None else open_lookup(self.table.lookup, self.table.encoding, roles.names)


def _columns_from_file(piece: str, there: Sequence[str], roles: Roles, lookup: Lookup | None) -> tuple[str, ...]:
    """Choose the columns to read from a file; the others have to be in the lookup table."""
    elsewhere = () if lookup is None else lookup.names
    chosen = [roles.molecule, *(name for name in roles.names if name not in elsewhere)]
    if lookup is not None:
        chosen.append(lookup.on)
        both = sorted(set(elsewhere).intersection(there))
        if both:
            raise SourceError(f"{piece} and {lookup.name} both have a column {both[0]!r}; rename one of them")
    for name in chosen:
        if name not in there:
            where = piece if lookup is None else f"{piece}, with the {lookup.name} of {', '.join(lookup.columns)},"
            key = roles.key_of(name) if name in roles.names else "source.lookup.on"
            raise missing_column(where, key, name, there)
        if there.count(name) > 1:
            raise SourceError(f"{piece} has two columns {name!r}; rename one of them")
    return tuple(dict.fromkeys(chosen))


def _joined(rows: Iterator[Row], columns: Sequence[str], lookup: Lookup | None, wanted: Sequence[str]) -> Iterator[Row]:
    """Bring the rows of a file to the wanted columns."""
    if lookup is not None:
        rows = lookup.extend(rows, columns.index(lookup.on))
        columns = (*columns, *lookup.names)
    return arranged(rows, columns, wanted)
