"""The stages scan, plan and ingest: from the source to canonical graph shards."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from wegl_dask import tasks
from wegl_dask.errors import JobFileError, SourceError, TooManyRejectedError
from wegl_dask.records import PartRecord
from wegl_dask.run import Run
from wegl_dask.sources import open_source
from wegl_dask.sources.base import SourcePlan, fingerprint
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder
from wegl_dask.version import NUMERICS_VERSION

SHARDS_WANTED = 32
SMALLEST_SHARD, LARGEST_SHARD = 16_384, 131_072
"""Nodes in a shard, where the job does not say: the collection in `SHARDS_WANTED` pieces, within these bounds."""


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


def plan_source(run: Run) -> SourcePlan:
    """Scan the source and cut it into shards; refuse a source that has changed since the run began.

    Raises
    ------
    SourceError
        If the source cannot be read or holds nothing, or is not what an earlier run on the same folder read.
    JobFileError
        If the job asks for something that the source does not have.
    """
    source = open_source(run.spec.source, run.spec.task)
    with run.timed("scan"):
        nodes_per_shard = run.spec.source.nodes_per_shard or _shard_size(source.estimated_nodes())
        pieces = source.pieces()
        descriptors = [tasks.ScanTask(i, piece, fingerprint(piece)) for i, piece in enumerate(pieces)]
        scan = partial(tasks.scan_piece, run.folder, source, nodes_per_shard)
        earlier = _read_plan(run.folder)
        run.make("scan", scan, descriptors, n_parts=len(pieces), describe=lambda task: task.piece)
        scans = [record.extra["scan"] for record in run.folder.records("scan") if record.index < len(pieces)]
        plan = source.plan(scans)
        if not plan.units:
            raise SourceError(f"the source holds no graphs: {', '.join(map(str, pieces[:3]))}")
        check_plan(run.spec, plan)
        if earlier is not None and earlier != plan:
            raise SourceError(_what_changed(earlier, plan))
        if earlier is None:
            values = plan.to_json()
            with run.folder.recording("plan", 0, fingerprint(json.dumps(values, sort_keys=True))) as part:
                part.note(plan=values)
    return plan


def check_plan(spec: JobSpec, plan: SourcePlan) -> None:
    """Refuse what the job asks for and the source does not have; see `plan_source`."""
    if spec.projection.fit_on == "train" and not plan.has_split:
        raise JobFileError(
            'projection.fit_on = "train" needs graphs with a split, and the source names none: '
            'name its column, or set projection.fit_on = "all"'
        )
    tables = {"attributes": plan.schema.edge_attribute_width, "labels": len(plan.schema.edge_category_counts)}
    wanted = spec.edges.features
    if wanted in tables and not tables[wanted]:
        raise JobFileError(f'edges.features = "{wanted}", and the edges of this source have no {wanted}')
    if wanted == "weight" and plan.schema.edge_attribute_width != 1:
        raise JobFileError(
            f'edges.features = "weight" needs one attribute an edge; this source has {plan.schema.edge_attribute_width}'
        )


def ingest(run: Run, plan: SourcePlan, shards: set[int] | None = None) -> ShardCensus:
    """Make the graph shards that are missing.

    Parameters
    ----------
    run : Run
    plan : SourcePlan
    shards : set of int, optional
        Shards whose graphs are needed; all of them by default. For the others the record is enough.

    Raises
    ------
    TooManyRejectedError
        If more rows were rejected than the job allows.
    """
    spec = run.spec
    with run.timed("ingest"):
        expected = ingest_inputs(spec, plan)
        finished = run.finished("ingest", expected)
        known = known_shards(run, expected) if shards is not None else {}
        finished = {
            **{shard: known[shard] for shard in known if shards is not None and shard not in shards},
            **finished,
        }
        descriptors = []
        for number, unit in enumerate(plan.units):
            missing = tuple((cut.shard, expected[cut.shard]) for cut in unit.cuts if cut.shard not in finished)
            if missing:
                descriptors.append(tasks.IngestTask(number, missing))
        (plan_record,) = run.folder.records("plan")
        made = run.make(
            "ingest",
            partial(
                tasks.ingest_unit,
                run.folder,
                open_source(spec.source, spec.task),
                plan_fingerprint=plan_record.input_fingerprint,
                max_nodes=spec.source.max_nodes,
                directed=spec.edges.direction == "directed",
                fail=spec.source.on_error == "fail",
            ),
            descriptors,
            n_parts=sum(len(task.input_fingerprints) for task in descriptors),
            describe=lambda task: f"{plan.units[task.unit].piece}, shard {task.input_fingerprints[0][0]}",
        )
        records = finished | made
    census = ShardCensus(plan, {shard: records[shard] for shard in sorted(expected)})
    _check_counts(spec, census)
    return census


def ingest_inputs(spec: JobSpec, plan: SourcePlan) -> dict[int, str]:
    """Fingerprint what each graph shard is made from: its range of the source, and how that is read."""
    header = json.dumps(replace(plan, units=()).to_json(), sort_keys=True)
    source = spec.source.model_dump(exclude={"max_rejected_fraction", "download", "trust", "root", "path"})
    how = json.dumps([source, spec.edges.direction, NUMERICS_VERSION], sort_keys=True)
    return {
        cut.shard: fingerprint(cut.fingerprint, json.dumps(cut.where, sort_keys=True), header, how)
        for unit in plan.units
        for cut in unit.cuts
    }


def known_shards(run: Run, expected: Mapping[int, str]) -> dict[int, PartRecord]:
    """Find the shards that were made before, whether or not their graphs are still there; the rejects must be."""
    records = {
        record.index: replace(record, files=tuple(file for file in record.files if file.folder != "graphs"))
        for record in run.folder.records("ingest")
        if record.input_fingerprint == expected.get(record.index)
    }
    listing = run.folder.listing("rejected")
    whole = {
        index: record
        for index, record in records.items()
        if all(listing.get(file.name) == file.n_bytes for file in record.files)
    }
    intact = run.intact("ingest", whole) if run.resumed else whole
    return {record.index: record for record in run.folder.records("ingest") if record.index in intact}


def _shard_size(nodes: int) -> int:
    return min(max(nodes // SHARDS_WANTED, SMALLEST_SHARD), LARGEST_SHARD)


def _read_plan(folder: RunFolder) -> SourcePlan | None:
    records = folder.records("plan")
    return SourcePlan.from_json(records[0].extra["plan"]) if records else None


def _what_changed(earlier: SourcePlan, plan: SourcePlan) -> str:
    before = {cut.shard: (unit.piece, cut.fingerprint) for unit in earlier.units for cut in unit.cuts}
    now = {cut.shard: (unit.piece, cut.fingerprint) for unit in plan.units for cut in unit.cuts}
    changed = sorted(
        {(now.get(shard) or before[shard])[0] for shard in before | now if before.get(shard) != now.get(shard)}
    )
    where = ", ".join(changed[:3]) or "its schema"
    return (
        f"the input has changed since the run in this folder began ({where}): "
        "run into another folder, or with --overwrite to start anew"
    )


def _check_counts(spec: JobSpec, census: ShardCensus) -> None:
    rows = {cut.shard: cut.n_rows for unit in census.plan.units for cut in unit.cuts}
    for shard, record in census.records.items():
        found = record.rows("graphs") + record.rows("rejected")
        if found != rows[shard]:
            raise SourceError(
                f"shard {shard} was planned with {rows[shard]} rows and read with {found}: the input changed while it was read"
            )
    total, rejected = sum(rows.values()), census.n_rejected
    if rejected > spec.source.max_rejected_fraction * total:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in census.reasons.most_common(3))
        raise TooManyRejectedError(
            f"{rejected} of {total} rows were rejected, and source.max_rejected_fraction = "
            f"{spec.source.max_rejected_fraction} allows {int(spec.source.max_rejected_fraction * total)}: {reasons}"
        )
    if not census.total("graphs"):
        raise SourceError(f"none of the {total} rows of the source is a graph that can be embedded")
