"""What appends have added to a run: parts of it that are missing or altered are made anew, from the plan of their append."""

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wegl_dask.claims import JOB_NAME, flattened
from wegl_dask.embed import embed, not_embedded
from wegl_dask.given_model import GivenModel
from wegl_dask.ingest import ShardCensus, ingest, made_before, settled
from wegl_dask.known_rows import KnownRows
from wegl_dask.plans import appends_under_way, planned_shards
from wegl_dask.records import PartRecord
from wegl_dask.run import Run
from wegl_dask.sources.base import SourcePlan
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder
from wegl_dask.toml import read_toml


def finished_plans(records: Sequence[PartRecord]) -> tuple[list[PartRecord], list[PartRecord]]:
    """Find the plans that are finished, and the records of their shards.

    Parameters
    ----------
    records : sequence of PartRecord
        Of all stages.

    Returns
    -------
    plans : list of PartRecord
        In their order.
    parts : list of PartRecord
        Of the stages ingest and embed, shard by shard.
    """
    ingested, embedded = (
        {record.index: record for record in records if record.stage == stage} for stage in ("ingest", "embed")
    )
    plans, parts = [], []
    for plan in (record for record in records if record.stage == "plan"):
        shards = planned_shards(plan)
        if shards <= embedded.keys() & ingested.keys():
            plans.append(plan)
            for shard in sorted(shards):
                parts += [ingested[shard], embedded[shard]]
    return plans, parts


def missing_shards(records: Sequence[PartRecord]) -> set[int]:
    """Find the shards of appends that have come to their end that have lost a record of the stage ingest or embed."""
    begun = {plan.index for plan in appends_under_way(records)}
    ingested, embedded = ({each.index for each in records if each.stage == stage} for stage in ("ingest", "embed"))
    ended = (plan for plan in records if plan.stage == "plan" and plan.index not in {0, *begun})
    return {shard for plan in ended for shard in planned_shards(plan)} - (ingested & embedded)


def killed_appends(records: Sequence[PartRecord]) -> list[PartRecord]:
    """Find the plans of appends that were killed before all of their parts were made."""
    whole = {plan.index for plan in finished_plans(records)[0]}
    return [plan for plan in appends_under_way(records) if plan.index not in whole]


def complete_appends(run: Run, model: PartRecord, parts: Iterable[PartRecord]) -> list[PartRecord]:
    """Make anew what is missing or altered of what was appended to a run, append by append.

    An append that was killed is left alone: it is for another append to go on with it.

    Parameters
    ----------
    run : Run
    model : PartRecord
        Of the stage reference.
    parts : iterable of PartRecord
        Of the run's own plan, of the stages ingest and embed.

    Returns
    -------
    list of PartRecord
        Of all parts that were appended, of the stages ingest and embed.

    Raises
    ------
    SourceError
        If an input file that is needed for that cannot be read, or has changed.
    """
    if len(run.folder.records("plan")) <= 1:
        return []
    records = run.folder.records()
    killed = {plan.index for plan in killed_appends(records)}
    appends = [record for record in records if record.stage == "plan" and record.index not in {0, *killed}]
    if not appends:
        return []
    found = _find_ingested(run, appends, model, records)
    before = _by_shard(parts)
    appended: list[PartRecord] = []
    for plan in appends:
        made = _complete(run, plan, model, before, found)
        appended += made
        before += made
    return appended


def _complete(
    run: Run, plan: PartRecord, model: PartRecord, before: Sequence[PartRecord], found: Mapping[int, PartRecord]
) -> list[PartRecord]:
    """Complete one append, of whose graph shards those `found` are whole: the records of its parts.

    Those `before` it are whole.
    """
    own = replace(run, spec=append_of(run.spec, plan.extra["appended"]), parts_made=0)
    shards = planned_shards(plan)
    made = {shard: found[shard] for shard in sorted(shards & found.keys())}
    census = ShardCensus(SourcePlan.from_json(plan.extra["plan"]), made)
    if shards - made.keys():
        known, rows = KnownRows.before(plan.index, plan.extra["appended"]["key"], [model, *before])
        known.keep(run.folder, rows, remade=True)
        used = GivenModel.read(run.folder.url).model.points.nodes.used
        census = ingest(own, census.plan, plan_index=plan.index, known=known, used=used, made=made)
    embedded = embed(own, census, model)
    run.parts_made += own.parts_made
    return _by_shard([*census.records.values(), *embedded.values()])


def _find_ingested(
    run: Run, appends: Sequence[PartRecord], model: PartRecord, records: Sequence[PartRecord]
) -> dict[int, PartRecord]:
    """Find the graph shards of all appends that are whole, with their graphs where those are kept or needed.

    What they were made from is that of their append, whatever would be found to be known before it now.
    """
    shards = {shard for plan in appends for shard in planned_shards(plan)}
    recorded = {
        record.index: record.input_fingerprint
        for record in records
        if record.stage == "ingest" and record.index in shards
    }
    if run.spec.output.keep_graphs:
        return run.finished("ingest", recorded)
    made = made_before(run, recorded)
    # Of a census of shards of several plans only the records are asked for here, so any of the plans will do.
    needed = not_embedded(run, ShardCensus(SourcePlan.from_json(appends[-1].extra["plan"]), made), model)
    return {shard: record for shard, record in made.items() if shard not in needed} | run.finished(
        "ingest", {shard: recorded[shard] for shard in needed}
    )


def append_command(folder: RunFolder, appended: Mapping[str, Any]) -> str:
    """Write down the command of an append, from what the record of its plan says of it."""
    job = JobSpec.from_toml(folder.job_toml(), where=folder.location(JOB_NAME))
    before = dict(flattened(job.source.model_dump(mode="json", exclude_none=True)))
    now = dict(flattened(appended["source"]))
    words = ["wegl-dask", "append", folder.location(), *["--by-id"] * (appended["key"] == "id")]
    if before.keys() - now.keys():
        # What the run's job sets and the append's does not cannot be taken back by an option.
        words += ["--source", "JOB"]
    changed = {f"source.{key}": value for key, value in now.items() if before.get(key) != value}
    if appended["task"] != settled(job, folder).task:
        changed["task"] = appended["task"]
    for key, value in changed.items():
        words += ["--set", f"{key}={_as_override(value)}"]
    return shlex.join(words)


def _as_override(value: Any) -> str:
    """Write a value so that ``--set`` reads it: as TOML, or plainly, if it is a text that would not be taken for TOML."""
    if isinstance(value, str):
        try:
            read_toml(f"value = {value}")
        except ValueError:
            return value
    return json.dumps(value)


def append_of(spec: JobSpec, appended: Mapping[str, Any]) -> JobSpec:
    """Put the job of an append together, from that of the run."""
    own = JobSpec.from_values(
        {"source": appended["source"], "task": appended.get("task", spec.task), "output": {"path": spec.output.path}},
        where="the append's job",
    )
    return spec.model_copy(update={"source": own.source, "task": own.task})


def _by_shard(records: Iterable[PartRecord]) -> list[PartRecord]:
    """Sort the records of parts, those of the stage ingest first within a shard."""
    return sorted(records, key=lambda record: (record.index, record.stage != "ingest"))
