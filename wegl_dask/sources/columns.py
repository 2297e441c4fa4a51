"""Rows of text, as files of molecules have them, become graphs with their ids, labels and columns passed through."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa

from wegl_dask.errors import SourceError
from wegl_dask.graphs import GraphBatch
from wegl_dask.molecules import MOLECULE_SCHEMA
from wegl_dask.row_ranges import row_ranges
from wegl_dask.sorted_texts import SortedTexts
from wegl_dask.sources.base import REJECTED_SCHEMA, Cut, SourcePlan, SourceShard, Unit
from wegl_dask.sources.text_labels import LabelError, LabelReader, LabelSurvey, label_schema
from wegl_dask.spec import MoleculeTable

Values = Sequence[str | None]

Row = tuple[int, Values | str]
"""The number of a row in its file, and its values in the order of `Roles.names`, or the reason why it has none."""

Featurizer = Callable[[Sequence[str]], tuple[GraphBatch, dict[int, str]]]
"""From the texts of molecules to the graphs, and by the index of the text the reasons for those that are none."""


@dataclass(frozen=True)
class Roles:
    """Which column is what.

    Attributes
    ----------
    molecule : str
    row_id, split : str, optional
    targets, extra : tuple of str
    """

    molecule: str
    row_id: str | None
    split: str | None
    targets: tuple[str, ...]
    extra: tuple[str, ...]

    @classmethod
    def of_table(cls, table: MoleculeTable, molecule: str) -> "Roles":
        """Take the roles from the job file, whose names were checked when it was read."""
        return cls(molecule, table.id_column, table.split_column, tuple(table.targets), tuple(table.extra_columns))

    @property
    def names(self) -> tuple[str, ...]:
        """Columns in the order of a row's values; a column with two roles is there twice."""
        optional = tuple(name for name in (self.row_id, self.split) if name is not None)
        return (self.molecule, *optional, *self.targets, *self.extra)

    def key_of(self, name: str) -> str:
        """Say which key of the job file names a column."""
        keys = {
            "source.id_column": (self.row_id,),
            "source.split_column": (self.split,),
            "source.targets": self.targets,
            "source.extra_columns": self.extra,
        }
        return next((key for key, names in keys.items() if name in names), "source.smiles_column")

    def apart(self, values: Values) -> tuple[str | None, str | None, Values, Values]:
        """Take a row's values apart: id, split, targets, passed through."""
        split_at = 1 + (self.row_id is not None)
        targets_at = split_at + (self.split is not None)
        extra_at = targets_at + len(self.targets)
        row_id = None if self.row_id is None else values[1]
        split = None if self.split is None else values[split_at]
        return row_id, split, values[targets_at:extra_at], values[extra_at:]


def arranged(rows: Iterator[Row], columns: Sequence[str], wanted: Sequence[str]) -> Iterator[Row]:
    """Bring rows that have `columns` to the columns `wanted`."""
    if tuple(columns) == tuple(wanted):
        return rows
    order = [columns.index(name) for name in wanted]
    return (
        (number, values if isinstance(values, str) else [values[position] for position in order])
        for number, values in rows
    )


def plan_molecules(scans: Sequence[dict[str, Any]], table: MoleculeTable, task: str) -> SourcePlan:
    """Put scans of files together: number the shards, and decide what the labels are.

    Parameters
    ----------
    scans : sequence of dict
        For each file its name, ``piece``; the cuts of each of its ``units``: dicts of ``n_rows``, ``fingerprint`` and
        ``where``; and ``survey``, of the labels, or None.
    table : MoleculeTable
    task : str
    """
    survey = LabelSurvey.merged(scan["survey"] for scan in scans if scan["survey"] is not None)
    shards = count()
    return SourcePlan(
        schema=MOLECULE_SCHEMA,
        labels=label_schema(task, table.targets, survey),
        extra_columns=dict.fromkeys(table.extra_columns, "string"),
        units=tuple(
            Unit(scan["piece"], tuple(Cut(shard=next(shards), **cut) for cut in cuts))
            for scan in scans
            for cuts in scan["units"]
        ),
        has_split=table.split_column is not None,
    )


def build_shard(
    shard: int,
    rows: Iterable[Row],
    *,
    plan: SourcePlan,
    roles: Roles,
    source_file: str,
    featurize: Featurizer,
    known_ids: SortedTexts | None,
) -> SourceShard:
    """Turn rows into graphs with their columns, and into the reasons for the rows that are none.

    Parameters
    ----------
    shard : int
        Index of the shard.
    rows : iterable of Row
        Read once, all before the first molecule.
    plan : SourcePlan
        For the labels and the columns passed through.
    roles : Roles
    source_file : str
        Name of the file, for the output.
    featurize : callable
        See `Featurizer`.
    known_ids : SortedTexts, optional
        Molecules whose ids are among them are passed over.
    """
    read_label = LabelReader(plan.labels, roles.targets)
    schema = plan.row_schema()
    columns: list[list[Any]] = [[] for _ in schema.names]
    rejected: list[tuple[int, str, str]] = []
    unnamed: list[int] = []

    def molecules() -> Iterator[str]:
        for number, values in rows:
            if isinstance(values, str):
                unnamed.append(number)
                rejected.append((number, str(number), values))
                continue
            row_id, split, targets, extra = roles.apart(values)
            # White space alone tells rows apart no better than nothing does.
            is_named = bool(row_id and not row_id.isspace())
            if not is_named:
                unnamed.append(number)
            graph_id = str(row_id if is_named else number)
            try:
                label = read_label(targets)
            except LabelError as error:
                rejected.append((number, graph_id, str(error)))
                continue
            for column, value in zip(
                columns, (graph_id, source_file, number, label, (split or "").strip() or None, *extra), strict=True
            ):
                column.append(value)
            yield values[0] or ""

    # Not in turns: a row takes a buffer of kilobytes, before which malloc sorts all that RDKit's last molecule has freed.
    read = list(molecules())
    n_read = len(read)
    if known_ids is not None:
        is_known = known_ids.positions(pa.array(columns[0], pa.string())) >= 0
        new = np.flatnonzero(~is_known | np.isin(columns[2], unnamed)).tolist()
        read, *columns = [[values[position] for position in new] for values in (read, *columns)]
    graphs, refused = featurize(read)
    graph_ids, numbers = columns[0], columns[2]
    rejected.extend((numbers[index], graph_ids[index], reason) for index, reason in refused.items())
    rejected.sort()
    kept = pa.array(np.isin(np.arange(len(numbers)), list(refused), invert=True))
    return SourceShard(
        shard,
        graphs,
        pa.table(columns, schema=schema).filter(kept),
        pa.table(
            [
                [graph_id for _, graph_id, _ in rejected],
                [source_file] * len(rejected),
                [number for number, _, _ in rejected],
                [reason for _, _, reason in rejected],
            ],
            schema=REJECTED_SCHEMA,
        ),
        row_ranges([pa.table({"source_file": [source_file] * len(unnamed), "source_row": unnamed})]),
        n_read - len(read),
    )


def missing_column(where: str, key: str, name: str, there: Iterable[str]) -> SourceError:
    """Make the error for a column that a key of the job file names and the input does not have."""
    return SourceError(f"{where} has no column {name!r}, which {key} names; it has {_listed([*there])}")


def _listed(names: Sequence[str], shown: int = 20) -> str:
    """List names on one line, whatever is in them."""
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(name if name.isprintable() else repr(name) for name in names[:shown]) + more or "none"
