"""What every kind of input has in common: it is scanned once, cut into shards, and read shard by shard.

A source goes through three steps. `Source.pieces` names what can be scanned independently (the files, mostly);
`Source.scan` looks at one piece on a worker, without featurising, and says how it is cut and what its labels look
like; `Source.plan` puts the scans together and numbers the shards. Then `Source.read` reads one unit of the plan.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, Protocol

import pyarrow as pa

from wegl_dask.errors import SourceError
from wegl_dask.graphs import GraphBatch, GraphSchema
from wegl_dask.plain_graphs import describe_widths, schema_widths
from wegl_dask.row_ranges import RowRanges
from wegl_dask.sorted_texts import SortedTexts

LabelKind = Literal["none", "class", "target", "tasks"]

NUMBERING_KEYS = ("vocabularies", "attribute_names", "node_label_minima", "edge_label_minima")
"""Keys of `SourcePlan.details` that say how values of the source become categories."""

REJECTED_SCHEMA = pa.schema(
    [
        ("graph_id", pa.string()),
        ("source_file", pa.string()),
        ("source_row", pa.int64()),
        ("reason", pa.string()),
    ]
)


@dataclass(frozen=True)
class LabelSchema:
    """What the labels of a collection are.

    Attributes
    ----------
    kind : {"none", "class", "target", "tasks"}
        No labels; one class index a graph (int64); one real target (float64); several of either (list of float64,
        NaN where a task's label is unknown).
    class_names : tuple of str
        The classes as the source writes them, in the order of their index; empty unless `kind` is "class".
    task_names : tuple of str
        One name a task; empty unless `kind` is "tasks".
    """

    kind: LabelKind = "none"
    class_names: tuple[str, ...] = ()
    task_names: tuple[str, ...] = ()

    def repeated_name(self) -> tuple[str, str] | None:
        """Find a name that two classes or two tasks have, and which of these it is; None where all are different."""
        for key, names in (("class_names", self.class_names), ("task_names", self.task_names)):
            for name, count in Counter(names).items():
                if count > 1:
                    return key, name
        return None

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of the column ``label``; null values stand for unknown labels."""
        return {
            "none": pa.float64(),
            "class": pa.int64(),
            "target": pa.float64(),
            "tasks": pa.list_(pa.float64()),
        }[self.kind]


@dataclass(frozen=True)
class Cut:
    """One shard-to-be: a range of a source, in coordinates that only the source understands.

    Attributes
    ----------
    shard : int
        Index of the shard in the whole collection; it names the part files.
    n_rows : int
        Input rows in the range, whether they become graphs or not.
    where : dict
        JSON values: what `Source.read` needs to find the range.
    fingerprint : str
        Hash of the input that the range was cut from; it changes when the input does.
    """

    shard: int
    n_rows: int
    where: dict[str, Any]
    fingerprint: str


@dataclass(frozen=True)
class Unit:
    """The cuts that one task reads in one pass, in shard order.

    One cut, or all cuts of a stream that cannot be entered in the middle, such as a compressed file.
    """

    piece: str
    cuts: tuple[Cut, ...]


@dataclass(frozen=True)
class SourcePlan:
    """How a collection is cut, and what is known of it as a whole."""

    schema: GraphSchema
    labels: LabelSchema
    extra_columns: dict[str, str]
    """Columns passed through to the output: name to Arrow type, as ``str(type)``."""
    units: tuple[Unit, ...]
    has_split: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    """JSON values: what only `Source.read` needs to know of the whole, such as the texts of a vocabulary."""

    @property
    def numbering(self) -> dict[str, Any]:
        """Which of the source's own values each category stands for, as JSON values; empty where they are numbers."""
        return {key: self.details[key] for key in NUMBERING_KEYS if key in self.details}

    def numbered_as(self, schema: GraphSchema, numbering: Mapping[str, Any]) -> "SourcePlan":
        """Read the categories as another collection numbers them, with its vocabularies.

        Parameters
        ----------
        schema : GraphSchema
            Of the other collection.
        numbering : mapping
            Its `numbering`.

        Raises
        ------
        SourceError
            If the graphs have other features, or it cannot be told which category is which.
        """
        own, other = schema_widths(self.schema), schema_widths(schema)
        if own != other:
            raise SourceError(
                f"the graphs of the source have {describe_widths(own)}; the model was fitted to graphs with "
                f"{describe_widths(other)}: read the same features"
            )
        if not schema.node_category_counts and not schema.edge_category_counts:
            return self
        if set(self.numbering) != set(numbering):
            raise SourceError(
                f"the source {_describe(self.numbering)}, and what the model was fitted to {_describe(numbering)}: it cannot "
                "be told which category is which. Read the graphs from the kind of source that the model is of"
            )
        names = "attribute_names"
        if self.numbering.get(names) != numbering.get(names):
            raise SourceError(
                f"the source reads the attributes {self.numbering[names]}, and the model was fitted to {numbering[names]}: "
                "name the same"
            )
        if "schema_of_files" in self.details and self.numbering != numbering:
            raise SourceError(
                f"the graph shards have the vocabularies {self.numbering}, and the model was fitted to {dict(numbering)}: read "
                "the graphs from where the shards were made of"
            )
        return replace(self, schema=schema, details={**self.details, **numbering})

    def to_json(self) -> dict[str, Any]:
        """Render as JSON values; `from_json` reads them back."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "SourcePlan":
        """Read back what `to_json` wrote."""
        schema, labels = values["schema"], values["labels"]
        return cls(
            schema=GraphSchema(
                node_category_counts=tuple(schema["node_category_counts"]),
                edge_category_counts=tuple(schema["edge_category_counts"]),
                node_attribute_width=schema["node_attribute_width"],
                edge_attribute_width=schema["edge_attribute_width"],
            ),
            labels=LabelSchema(labels["kind"], tuple(labels["class_names"]), tuple(labels["task_names"])),
            extra_columns=values["extra_columns"],
            units=tuple(Unit(unit["piece"], tuple(Cut(**cut) for cut in unit["cuts"])) for unit in values["units"]),
            has_split=values["has_split"],
            details=values["details"],
        )

    def row_schema(self) -> pa.Schema:
        """Columns of `SourceShard.rows`."""
        return pa.schema(
            [
                ("graph_id", pa.string()),
                ("source_file", pa.string()),
                ("source_row", pa.int64()),
                ("label", self.labels.arrow_type),
                ("split", pa.string()),
                *((name, pa.type_for_alias(alias)) for name, alias in self.extra_columns.items()),
            ]
        )


@dataclass(frozen=True)
class StoredShard:
    """A graph shard as a file has it.

    Attributes
    ----------
    content : bytes
        The file.
    table : pyarrow.Table
        All that it holds.
    """

    content: bytes
    table: pa.Table


@dataclass(frozen=True)
class SourceShard:
    """One shard as read: the graphs, unchecked, and the rows that never became a graph.

    Attributes
    ----------
    shard : int
    graphs : GraphBatch
        As the source has them: edges may be listed once or twice, loops and parallel edges are still there.
    rows : pyarrow.Table
        One row a graph of `graphs`, in the same order, with the columns of `SourcePlan.row_schema`.
    rejected : pyarrow.Table
        The rows that could not be turned into a graph, with the columns of `REJECTED_SCHEMA`.
    unnamed : dict of str to list
        Ranges of the rows, of either, to which the source gives no id: theirs is their number.
    n_passed_over : int
        Further rows, which have ids that are known.
    stored : StoredShard or None
        The file that it was read from, where that is a graph shard and all of it was read.
    """

    shard: int
    graphs: GraphBatch
    rows: pa.Table
    rejected: pa.Table
    unnamed: RowRanges = field(default_factory=dict)
    n_passed_over: int = 0
    stored: StoredShard | None = None


class Source(Protocol):
    """An input collection. Implementations are small frozen dataclasses that can be pickled."""

    def estimated_nodes(self) -> int:
        """Guess the total number of nodes from cheap signs such as file sizes; it only decides the shard size."""

    def pieces(self) -> Sequence[str]:
        """Name what can be scanned independently, in the order of the output."""

    def scan(self, piece: str, nodes_per_shard: int) -> dict[str, Any]:
        """Look at one piece and return what `plan` needs of it, as JSON values. Runs on a worker."""

    def plan(self, scans: Sequence[dict[str, Any]]) -> SourcePlan:
        """Put the scans of all pieces together, in their order, and number the shards."""

    def read(self, plan: SourcePlan, unit: Unit, *, known_ids: SortedTexts | None = None) -> Iterator[SourceShard]:
        """Read the cuts of one unit, in order. `plan.units` need not be filled in. Runs on a worker.

        Rows whose ids are among `known_ids` may be passed over, where it takes long to make graphs of them.
        """


def _describe(numbering: Mapping[str, Any]) -> str:
    return (
        f"numbers categories by its own {', '.join(sorted(numbering))}" if numbering else "has numbers for categories"
    )
