"""Molecules in SDF files: a mol block a record, and properties after it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

from wegl_dask.errors import SourceError
from wegl_dask.labelled_graphs import is_text
from wegl_dask.molecules import graphs_from_mol_blocks, require_rdkit
from wegl_dask.sorted_texts import SortedTexts
from wegl_dask.sources.base import SourcePlan, SourceShard, Unit
from wegl_dask.sources.columns import Roles, Values, build_shard, missing_column, plan_molecules
from wegl_dask.sources.paths import COMPRESSIONS, compression_of, ending_of, expand, size_of
from wegl_dask.sources.records import Cutter, RecordRange, RecordReader, SdfRecords, read_blocks
from wegl_dask.sources.text_labels import LabelSurvey, survey_is_needed
from wegl_dask.spec import SdfTable

TITLE = "_Name"
"""The property that stands for the first line of the mol block, as in RDKit."""

BYTES_PER_NODE = 120
"""Bytes of a record that an atom takes, with its bonds and its part of the properties, about."""

_END = "$$$$"
"""What the line begins with that ends a record."""

_TEXTS = (".sdf", ".sd")
_ENDINGS = (*_TEXTS, *(text + compression for text in _TEXTS for compression in COMPRESSIONS))
_COMPRESSION_RATIO = 5
_MOL_BLOCK = "mol block"


@dataclass(frozen=True)
class SdfSource:
    """The source ``kind = "sdf"``.

    A last record without the line ``$$$$`` is rejected if properties are asked for: they may be cut off.

    Attributes
    ----------
    table : SdfTable
        The job's table ``[source]``.
    task : str
        What the labels are, see `wegl_dask.sources.text_labels.label_schema`.
    """

    table: SdfTable
    task: str

    def estimated_nodes(self) -> int:
        """Guess the number of atoms from the sizes of the files."""
        sizes = ((size_of(piece), compression_of(piece)) for piece in self.pieces())
        return sum(size * (_COMPRESSION_RATIO if packed else 1) // BYTES_PER_NODE for size, packed in sizes)

    def pieces(self) -> Sequence[str]:
        """Name the files."""
        pieces = expand(self.table.path, _ENDINGS)
        for piece in pieces:
            if ending_of(piece) not in _TEXTS:
                raise SourceError(f"{piece} ends in {ending_of(piece)!r}; SDF is read from {', '.join(_TEXTS)}")
        return pieces

    def scan(self, piece: str, nodes_per_shard: int) -> dict[str, Any]:
        """Cut one file, see which properties it has, and look at its labels if they may be classes."""
        require_rdkit()
        roles = self._roles()
        survey = LabelSurvey() if survey_is_needed(self.task, roles.targets) else None
        cutter = Cutter(nodes_per_shard * BYTES_PER_NODE)
        unseen = set(roles.names[1:]) - {TITLE}
        for block in read_blocks(piece, SdfRecords()):
            cutter.add(block)
            unseen = {name for name in unseen if b"<%s>" % name.encode() not in block.data}
            if survey is not None:
                for record in map(_text, block.rows()):
                    label = _properties(record).get(roles.targets[0])
                    # A record of another label is rejected when it is read, and so is one that may be cut off.
                    if not _may_be_cut_off(record, roles.targets) and (label is None or is_text(label)):
                        survey.add(label)
        cuts = [
            {"n_rows": part.n_rows, "fingerprint": part.fingerprint, "where": {"range": list(part)}}
            for part in cutter.finish()
        ]
        return {
            "piece": piece,
            "units": [cuts] if compression_of(piece) and cuts else [[cut] for cut in cuts],
            "survey": None if survey is None else survey.to_json(),
            "unseen": sorted(unseen),
        }

    def plan(self, scans: Sequence[dict[str, Any]]) -> SourcePlan:
        """Put the files together; see `plan_molecules`.

        Raises
        ------
        SourceError
            If no record of any file has a property that the job file names.
        """
        filled = [scan for scan in scans if scan["units"]]
        missing = set.intersection(*(set(scan["unseen"]) for scan in filled)) if filled else set()
        if missing:
            first = filled[0]["piece"]
            record = next(next(read_blocks(first, SdfRecords())).rows())
            raise missing_column(
                f"{first} and the rest of source.path" if len(scans) > 1 else first,
                self._roles().key_of(min(missing)),
                min(missing),
                _properties(_text(record)),
            )
        return plan_molecules(scans, self.table, self.task)

    def read(self, plan: SourcePlan, unit: Unit, *, known_ids: SortedTexts | None = None) -> Iterator[SourceShard]:
        """Read the cuts of one unit, and featurise them."""
        roles = self._roles()
        with RecordReader(unit.piece, SdfRecords()) as reader:
            for cut in unit.cuts:
                part = RecordRange(*cut.where["range"])
                values = (_values(_text(record), roles.names[1:]) for record in reader.rows(part))
                yield build_shard(
                    cut.shard,
                    zip(count(part.first_row), values, strict=False),
                    plan=plan,
                    roles=roles,
                    source_file=unit.piece,
                    featurize=partial(graphs_from_mol_blocks, largest_fragment=self.table.largest_fragment),
                    known_ids=known_ids,
                )

    def _roles(self) -> Roles:
        return Roles.of_table(self.table, _MOL_BLOCK)


def _text(record: bytes) -> str:
    """Decode a record; bytes that are not UTF-8 matter only in the properties that are asked for."""
    return record.decode(errors="surrogateescape")


def _values(record: str, names: Sequence[str]) -> Values | str:
    """Return the record, whose mol block RDKit finds itself, and the named properties; or why there are none."""
    if _may_be_cut_off(record, names):
        return (
            f"the record does not end with a line {_END}, so that its properties may be cut off: restore the file, or add "
            "that line if they are whole"
        )
    properties = _properties(record) if names else {}
    values = [properties.get(name) for name in names]
    for name, value in zip(names, values, strict=True):
        if value is not None and not is_text(value):
            return f"property {name!r} holds bytes that are no UTF-8 text"
    return [record, *values]


def _may_be_cut_off(record: str, names: Sequence[str]) -> bool:
    """Whether properties that are asked for may be missing of the last record of a file, or text of them.

    The title stands in front, and the mol block has an end of its own.
    """
    return any(name != TITLE for name in names) and not record.rstrip().rpartition("\n")[2].startswith(_END)


def _properties(record: str) -> dict[str, str]:
    """Read the properties: a line ``> <NAME>``, then its text up to an empty line; and the title."""
    mol_block, _, tail = record.partition("\nM  END")
    properties = {TITLE: mol_block.partition("\n")[0].strip()}
    name: str | None = None
    text: list[str] = []
    for line in tail.replace("\r\n", "\n").split("\n"):
        if name is None:
            if line.startswith(">") and "<" in line:
                name, text = line.partition("<")[2].rpartition(">")[0], []
        elif line and not line.startswith(_END):
            text.append(line)
        else:
            properties[name] = "\n".join(text)
            name = None
    if name is not None:
        properties[name] = "\n".join(text)
    return properties
