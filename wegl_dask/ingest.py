"""The stages scan, plan and ingest: from the source to canonical graph shards."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

from wegl_dask import tasks
from wegl_dask.checksums import fingerprint
from wegl_dask.claims import remove_all
from wegl_dask.embeddings import require_free_names
from wegl_dask.errors import JobFileError, OtherInputError, SettingsError, SourceError, TooManyRejectedError
from wegl_dask.features import default_edge_features, default_features, used_attributes
from wegl_dask.folders import Folder
from wegl_dask.given_model import GivenModel
from wegl_dask.graphs import GraphSchema, UsedAttributes
from wegl_dask.job_checks import most_entries
from wegl_dask.known_rows import KnownRows
from wegl_dask.model_files import MODEL_JSON
from wegl_dask.points import NodeSettings
from wegl_dask.progress import shortened
from wegl_dask.records import PART_FOLDERS, PartRecord, part_path, record_path
from wegl_dask.row_ranges import first_repeated
from wegl_dask.run import Run
from wegl_dask.sources import open_source, reading_packages, require_reading_packages
from wegl_dask.sources.base import Cut, SourcePlan
from wegl_dask.sources.paths import folder_around
from wegl_dask.spec import GraphParquetTable, JobSpec, MoleculeTable, NetworkxTable, SmilesTable
from wegl_dask.storage import MANIFEST_NAME, RunFolder
from wegl_dask.tasks import shard_fingerprints
from wegl_dask.version import NUMERICS_VERSION
from wegl_dask.worker_checks import own_versions

SHARDS_WANTED = 32
SMALLEST_SHARD, LARGEST_SHARD = 16_384, 131_072
"""Nodes in a shard, where the job does not say: the collection in `SHARDS_WANTED` pieces, within these bounds."""

MOST_TASKS_A_UNIT = 16
"""Among which a unit of molecules is divided at most: each reads over what comes before its own, from an object store too."""

CutKey = tuple[str, str, str]
"""The piece of a cut, the hash of its content, and its place in the piece."""

_WRITTEN = (*(part_path(folder, 0) for folder in PART_FOLDERS), record_path("ingest", 0), MODEL_JSON, MANIFEST_NAME)
"""Files of a run, one of each kind that a source could read."""


@dataclass(frozen=True)
class ShardCensus:
    """What is known of all graph shards together, from their records.

    Attributes
    ----------
    plan : SourcePlan
    records : dict of int to PartRecord
        Of the stage ingest, by shard.
    """

    plan: SourcePlan
    records: Mapping[int, PartRecord]

    def total(self, key: str) -> int:
        """Sum a count over all shards."""
        return sum(int(record.extra[key]) for record in self.records.values())

    @property
    def n_rows(self) -> int:
        """Number of input rows, without those that were known before an append."""
        return sum(cut.n_rows for unit in self.plan.units for cut in unit.cuts) - self.total("known")

    @property
    def n_rejected(self) -> int:
        """Number of rows rejected."""
        return sum(record.rows("rejected") for record in self.records.values())

    @property
    def reasons(self) -> Counter[str]:
        """How many rows were rejected for which reason."""
        counts: Counter[str] = Counter()
        for record in self.records.values():
            counts.update(record.extra["reasons"])
        return counts

    @property
    def degrees(self) -> list[int]:
        """The degrees that occur, in ascending order."""
        return sorted({degree for record in self.records.values() for degree in record.extra["degrees"]})

    @property
    def categories(self) -> list[list[int]]:
        """For every categorical node feature, the categories that occur, in ascending order."""
        columns = range(len(self.plan.schema.node_category_counts))
        return [
            sorted({value for record in self.records.values() for value in record.extra["categories"][column]})
            for column in columns
        ]

    def graph_fingerprint(self, shard: int) -> str:
        """SHA-256 of the shard's graphs."""
        (file,) = (file for file in self.records[shard].files if file.folder == "graphs")
        return file.sha256


def plan_source(run: Run, given: GivenModel | None = None) -> SourcePlan:
    """Scan the source and cut it into shards; refuse a source that has changed since the run began.

    The source of a run that has been finished is not scanned; see `require_same_source`.

    Parameters
    ----------
    run : Run
    given : GivenModel, optional
        The model that the graphs are to be embedded with, if it is not fitted to them.

    Raises
    ------
    SourceError
        If the source cannot be read or holds nothing, or is not what an earlier run on the same folder read, as far as
        that can be told where its plan is lost, or does not have what the model needs.
    JobFileError
        If the job asks for something that the source does not have.
    """
    earlier = run.folder.record("plan", 0)
    if earlier is not None:
        if not run.finished_before:
            require_same_source(run, given)
        return SourcePlan.from_json(earlier.extra["plan"])
    plan, nodes_per_shard = _scan_for(run, given)
    with run.timed("scan"):
        _refuse_other_shards(run, plan, None if given is None else given.model.points.nodes.used)
        write_plan(run, 0, plan, nodes_per_shard=nodes_per_shard)
    return plan


def require_same_source(run: Run, given: GivenModel | None) -> None:
    """Scan the source, and refuse one that has changed since the run began in another way than was appended.

    Raises
    ------
    SourceError
        If it has, or cannot be read.
    """
    first, *appended = run.folder.records("plan")
    # What has been appended since may look like labels of another kind.
    run = replace(run, spec=settled(run.spec, run.folder))
    plan, _ = _scan_for(run, given, first.extra["nodes_per_shard"])
    earlier = SourcePlan.from_json(first.extra["plan"])
    if plan == earlier:
        return
    later = [SourcePlan.from_json(each.extra["plan"]) for each in appended]
    now, before = cut_keys(plan), cut_keys(earlier)
    known = before.union(*map(cut_keys, later))
    # Of a file that has got rows at its end, the first plan has a cut that is in the last one no more.
    pieces = {piece for piece, *_ in now}
    gone = {cut for cut in before if not appended or cut[0] not in pieces}
    changed = sorted({piece for piece, *_ in (now - known) | (gone - now)})
    if changed or not appended:
        where = ", ".join(changed[:3]) or "its schema"
        if isinstance(run.spec.source, SmilesTable) and run.spec.source.lookup is not None:
            # Where that is another one, so is every piece, since all are joined to it.
            other = _lookups(plan).difference(_lookups(earlier), *map(_lookups, later))
            where = f"the lookup table {run.spec.source.lookup.path}" if other else where
        raise OtherInputError(f"the input has changed since the run in this folder began ({where})")


def settled(spec: JobSpec, folder: RunFolder) -> JobSpec:
    """Fill in what the labels of a run are, where its job left that to the texts in a column: later ones may look otherwise."""
    plan = folder.record("plan", 0)
    if plan is None or spec.task != "auto" or not isinstance(spec.source, MoleculeTable) or not spec.source.targets:
        return spec
    kind = SourcePlan.from_json(plan.extra["plan"]).labels.kind
    tasks: dict[str, Literal["classification", "regression"]] = {"class": "classification", "target": "regression"}
    return spec.model_copy(update={"task": tasks.get(kind, "auto")})


def _scan_for(run: Run, given: GivenModel | None, nodes_per_shard: int | None = None) -> tuple[SourcePlan, int]:
    """Scan the source for a run with a given model, or one that is to be fitted; see `scan_source`."""
    plan, nodes_per_shard = scan_source(run, nodes_per_shard)
    with run.timed("scan"):
        check_columns(run.spec, plan, given)
        if given is None:
            check_plan(run.spec, plan)
        else:
            plan = plan.numbered_as(given.schema, given.origin.numbering)
    return plan, nodes_per_shard


def refuse_output_among_input(spec: JobSpec) -> None:
    """Refuse a run folder from which what the run has written would be read as input.

    Raises
    ------
    JobFileError
        If the run folder lies in a folder that the source reads, or that a glob of it matches.
    """
    source = spec.source
    if not isinstance(source, SmilesTable | NetworkxTable | GraphParquetTable):
        return
    out = Folder(spec.output.path).url
    if around := folder_around(source.path, out, _WRITTEN):
        raise JobFileError(
            f"output.path = {spec.output.path!r} is in what source.path = {around!r} stands for, from which what the run "
            "writes would be read as input: choose an output.path elsewhere, or name the input's files by a glob with their "
            "ending, such as *.csv"
        )


def require_source(spec: JobSpec) -> None:
    """Refuse a source of which a file, or the package that reads it, is missing; a data set may be downloaded.

    Raises
    ------
    MissingDependencyError
        If a package is not installed.
    SourceError
        If a file, a folder or a data set is not there.
    """
    require_reading_packages(spec.source)
    open_source(spec.source, spec.task).pieces()


def scan_source(run: Run, nodes_per_shard: int | None = None) -> tuple[SourcePlan, int]:
    """Scan the source on the workers: how it is cut, and the number of nodes a shard that it was cut by.

    Raises
    ------
    SourceError
        If the source cannot be read or holds nothing.
    """
    source = open_source(run.spec.source, run.spec.task)
    with run.timed("scan"):
        nodes_per_shard = nodes_per_shard or run.spec.source.nodes_per_shard or shard_size(source.estimated_nodes())
        pieces = source.pieces()
        descriptors = [tasks.ScanTask(i, piece) for i, piece in enumerate(pieces)]
        records = run.compute("scan", partial(tasks.scan_piece, run.folder, source, nodes_per_shard), descriptors)
        plan = source.plan([record.extra["scan"] for record in records.values()])
        remove_all(run.folder, [record.path for record in records.values()])
        if not plan.units:
            raise SourceError(f"the source holds no graphs: {', '.join(map(str, pieces[:3]))}")
    # As workers and later runs will read it.
    return SourcePlan.from_json(json.loads(json.dumps(plan.to_json()))), nodes_per_shard


def write_plan(run: Run, index: int, plan: SourcePlan, **notes: Any) -> None:
    """Keep a plan in the run folder, for the workers and for later runs: 0 is the job's, those after it are appends'."""
    with run.folder.recording("plan", index, plan_fingerprint(plan)) as part:
        part.note(plan=plan.to_json(), **notes)


def check_columns(spec: JobSpec, plan: SourcePlan, given: GivenModel | None) -> None:
    """Refuse columns passed through whose names the output needs; see `require_free_names`."""
    n_entries = most_entries(spec) if given is None else given.model.n_points * given.model.dimension
    require_free_names(plan.extra_columns, spec.output.layout, n_entries)


def check_plan(spec: JobSpec, plan: SourcePlan) -> None:
    """Refuse what the job asks for and the source does not have; see `plan_source`."""
    if spec.projection.fit_on == "train" and not plan.has_split:
        raise JobFileError(
            'projection.fit_on = "train" needs graphs with a split, and the source names none: '
            'name its column, or set projection.fit_on = "all"'
        )
    # As if there were all degrees: which there are is known when the graphs have been read.
    node_settings(spec, plan.schema, max_degree=spec.nodes.degree_clip)
    tables = {"attributes": plan.schema.edge_attribute_width, "labels": sum(plan.schema.edge_category_counts)}
    wanted = spec.edges.features
    if wanted in tables and not tables[wanted]:
        raise JobFileError(f'edges.features = "{wanted}", and the edges of this source have no {wanted}')
    if wanted == "weight" and plan.schema.edge_attribute_width != 1:
        raise JobFileError(
            f'edges.features = "weight" needs one attribute an edge; this source has {plan.schema.edge_attribute_width}'
        )


def node_settings(spec: JobSpec, schema: GraphSchema, *, max_degree: int) -> NodeSettings:
    """Say what the node embeddings of a job are made of, what it leaves to the graphs filled in.

    Raises
    ------
    JobFileError
        If a feature is asked for that the graphs lack, or more principal components than there are columns.
    """
    settings = NodeSettings(
        schema=schema,
        features=tuple(spec.nodes.features or default_features(schema)),
        max_degree=max_degree,
        degree_clip=spec.nodes.degree_clip,
        embedding_width=spec.nodes.atom_embedding_width,
        seed=spec.seed,
        edge_features=spec.edges.features or default_edge_features(schema),
        virtual_node=spec.nodes.virtual_node,
        layers=spec.diffusion.layers,
        pooling=spec.diffusion.pooling,
        device=spec.cluster.device,
    )
    try:
        width = settings.build().width
    except SettingsError as error:
        raise JobFileError(str(error)) from error
    if spec.projection.components is not None and spec.projection.components > width:
        raise JobFileError(
            f"projection.components = {spec.projection.components}, and the node embeddings have {width} columns: "
            f"set it to {width} at most"
        )
    return settings


def ingest(
    run: Run,
    plan: SourcePlan,
    shards: set[int] | None = None,
    *,
    plan_index: int = 0,
    known: KnownRows | None = None,
    used: UsedAttributes | None = None,
    made: Mapping[int, PartRecord] | None = None,
) -> ShardCensus:
    """Make the graph shards that are missing.

    Parameters
    ----------
    run : Run
    plan : SourcePlan
    shards : set of int, optional
        Shards whose graphs are needed; all of them by default. Of the others it is enough that they were made.
    plan_index : int, default 0
        What `write_plan` called it.
    known : KnownRows, optional
        Rows to leave out.
    used : UsedAttributes, optional
        By the model that the graphs are to be embedded with; if there is none yet, the job's features say.
    made : mapping of int to PartRecord, optional
        The shards that are not to be made, with their records; by default those are looked for that are there.

    Raises
    ------
    TooManyRejectedError
        If more rows were rejected than the job allows.
    """
    spec = run.spec
    with run.timed("ingest"):
        used = used or _used(spec, plan)
        how = _how(spec, used, known)
        expected = _fingerprints(plan, how)
        records = dict(made) if made is not None else _find_made(run, expected, shards)
        missing = [tuple(cut.shard for cut in unit.cuts if cut.shard not in records) for unit in plan.units]
        most = most_tasks(spec, sum(map(bool, missing)), run.n_workers)
        descriptors = [
            tasks.IngestTask(number, shortened(unit.piece, tasks.LONGEST_NAME), own)
            for number, (unit, shards_of_unit) in enumerate(zip(plan.units, missing, strict=True))
            for own in divided(shards_of_unit, most)
        ]
        records |= run.make(
            "ingest",
            partial(
                tasks.ingest_unit,
                run.folder,
                open_source(spec.source, spec.task),
                plan_index=plan_index,
                plan_fingerprint=plan_fingerprint(plan),
                how=how,
                max_nodes=spec.source.max_nodes,
                directed=spec.edges.direction == "directed",
                used=used,
                fail=spec.source.on_error == "fail",
                known=known,
            ),
            descriptors,
        )
    census = ShardCensus(plan, {shard: records[shard] for shard in sorted(expected)})
    _check_counts(spec, census)
    if known is None and not census.total("graphs") and census.n_rows:
        raise SourceError(f"none of the {census.n_rows} rows of the source is a graph that can be embedded")
    return census


def most_tasks(spec: JobSpec, n_units: int, n_workers: int) -> int:
    """Say among how many tasks to divide the shards of a unit: one, unless workers would have nothing to do.

    Each task has to read over what comes before its shards in a compressed file or a row group. Of molecules that is a
    hundredth of the work that is to be done on them, and of other graphs most of it.
    """
    if not isinstance(spec.source, MoleculeTable) or not n_units:
        return 1
    return min(max(1, math.ceil(n_workers / n_units)), MOST_TASKS_A_UNIT)


def divided(shards: Sequence[int], most: int) -> list[tuple[int, ...]]:
    """Divide shards into ranges of about the same length, so many at most.

    Examples
    --------
    >>> divided(range(5), 2), divided([7], 2), divided([], 2)
    ([(0, 1), (2, 3, 4)], [(7,)], [])
    """
    n = min(most, len(shards))
    edges = [len(shards) * i // n for i in range(n + 1)] if n else []
    return [tuple(shards[start:stop]) for start, stop in pairwise(edges)]


def shard_inputs(spec: JobSpec, plan: SourcePlan, known: KnownRows, used: UsedAttributes) -> dict[int, str]:
    """Find the input fingerprint of every shard that `ingest` would make of a plan, with the same arguments."""
    return _fingerprints(plan, _how(spec, used, known))


def check_rejected(spec: JobSpec, n_rows: int, reasons: Counter[str]) -> None:
    """Raise TooManyRejectedError if more of `n_rows` rows were rejected than the job allows."""
    rejected, allowed = reasons.total(), spec.source.max_rejected_fraction * n_rows
    if rejected > allowed:
        shown = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
        raise TooManyRejectedError(
            f"{rejected} of {n_rows} rows were rejected, and source.max_rejected_fraction = "
            f"{spec.source.max_rejected_fraction} allows {int(allowed)}: {shown}"
        )


def reading_versions(spec: JobSpec) -> dict[str, str]:
    """Find the versions of the optional packages, by name, that the graphs of a job's source follow from.

    They are those of this process; a worker that has others is refused.
    """
    packages = reading_packages(spec.source)
    versions = own_versions(packages)
    return {package: versions[package] for package in packages}


def shard_size(nodes: int) -> int:
    """Nodes in a shard of a collection of so many."""
    return min(max(nodes // SHARDS_WANTED, SMALLEST_SHARD), LARGEST_SHARD)


def _how(spec: JobSpec, used: UsedAttributes, known: KnownRows | None = None) -> str:
    """Render what decides how a range of the source is read: of the job file, and the rows that are left out."""
    source = spec.source.model_dump(exclude={"max_rejected_fraction", "download", "trust", "root", "path"})
    # A run that is resumed with another RDKit has all its molecules read by that one.
    versions = tuple(reading_versions(spec).values()) or (None,)
    how = json.dumps([source, spec.edges.direction, asdict(used), *versions, NUMERICS_VERSION], sort_keys=True)
    return how if known is None else json.dumps([how, known.key, known.fingerprint])


def _find_made(run: Run, expected: Mapping[int, str], shards: set[int] | None) -> dict[int, PartRecord]:
    """Find the shards that are not to be made, some with their graphs; see `ingest`."""
    needed = {shard: value for shard, value in expected.items() if shards is None or shard in shards}
    others = {shard: expected[shard] for shard in expected.keys() - needed.keys()}
    return made_before(run, others) | run.finished("ingest", needed)


def made_before(run: Run, expected: Mapping[int, str]) -> dict[int, PartRecord]:
    """Find the shards that were made before, whether or not their graphs are still there; the rejects must be."""
    listing = run.folder.listing("rejected")
    records = {
        record.index: record
        for record in run.folder.records("ingest")
        if record.input_fingerprint == expected.get(record.index)
        and all(listing.get(file.name) == file.n_bytes for file in record.files if file.folder == "rejected")
    }
    return run.intact("ingest", records, without="graphs")


def _refuse_other_shards(run: Run, plan: SourcePlan, used: UsedAttributes | None) -> None:
    """Refuse a plan that takes the place of one that is lost, unless the shards that are there were made by such a one."""
    records = run.folder.records("ingest")
    expected = _fingerprints(plan, _how(run.spec, used or _used(run.spec, plan))) if records else {}
    for record in records:
        if record.input_fingerprint != expected.get(record.index, record.input_fingerprint):
            raise OtherInputError(
                f"the record of the plan of the run in {run.folder.location()} is lost, and its shard {record.index} was made "
                "from another input, or by another version of a package"
            )


def _fingerprints(plan: SourcePlan, how: str) -> dict[int, str]:
    return shard_fingerprints(plan, [cut for unit in plan.units for cut in unit.cuts], how)


def _used(spec: JobSpec, plan: SourcePlan) -> UsedAttributes:
    return used_attributes(plan.schema, spec.nodes.features, spec.edges.features)


def plan_fingerprint(plan: SourcePlan) -> str:
    """Hash a plan, as its record has it."""
    return fingerprint(json.dumps(plan.to_json(), sort_keys=True))


def cut_key(piece: str, cut: Cut) -> CutKey:
    """Say what tells the cuts of a source from each other, whatever their shards are called."""
    return piece, cut.fingerprint, json.dumps(cut.where, sort_keys=True)


def cut_keys(plan: SourcePlan) -> set[CutKey]:
    """Collect the `cut_key` of every cut of a plan."""
    return {cut_key(unit.piece, cut) for unit in plan.units for cut in unit.cuts}


def _lookups(plan: SourcePlan) -> set[str]:
    """Collect the hashes of the lookup table that the cuts of a plan are joined to, if to any."""
    return {cut.where["lookup"] for unit in plan.units for cut in unit.cuts if "lookup" in cut.where}


def _check_counts(spec: JobSpec, census: ShardCensus) -> None:
    rows = {cut.shard: cut.n_rows for unit in census.plan.units for cut in unit.cuts}
    for shard, record in census.records.items():
        found = record.rows("graphs") + record.rows("rejected") + record.extra["known"]
        if found != rows[shard]:
            raise SourceError(
                f"shard {shard} was planned with {rows[shard]} rows and read with {found}: the input changed while it was read"
            )
    # Graph shards say themselves where their rows come from; by that a row is told from every other.
    repeated = first_repeated(record.extra["source_rows"] for record in census.records.values())
    if repeated is not None:
        raise SourceError(
            f"row {repeated[1]} of {repeated[0]} (source_row, source_file) occurs several times in the source, and a row may occur "
            "once: read shards that were made of the same input in separate jobs, or give them another source_file"
        )
    check_rejected(spec, census.n_rows, census.reasons)
