"""The plans in a run folder: its job's, which is the first, and one of every append, finished or under way."""

import logging
from collections.abc import Sequence

from wegl_dask.checksums import unsealed
from wegl_dask.records import PartRecord
from wegl_dask.storage import MANIFEST_NAME, RunFolder

_log = logging.getLogger(__name__)


def planned_shards(plan: PartRecord) -> set[int]:
    """Find the shards of a plan, from its record."""
    return {cut["shard"] for unit in plan.extra["plan"]["units"] for cut in unit["cuts"]}


def appends_under_way(records: Sequence[PartRecord]) -> list[PartRecord]:
    """Find the plans of appends that have not come to their end, among the records of a run.

    One that has come to its end has no record of the rows that were known before it, or one that was written to make some
    of its parts anew. So a part that is lost later on does not make it one that was never finished.
    """
    begun = {record.index for record in records if record.stage == "known" and "remade" not in record.extra}
    return [record for record in records if record.stage == "plan" and record.index in begun]


def unplanned_shards(records: Sequence[PartRecord]) -> set[int]:
    """Find the shards that there are parts of and that are of no plan: the record of theirs was lost."""
    made = {record.index for record in records if record.stage in {"ingest", "embed"}}
    return made.difference(*(planned_shards(record) for record in records if record.stage == "plan"))


def restore_plans(folder: RunFolder) -> None:
    """Write the records of finished plans anew that are lost or damaged, and that the manifest has."""
    try:
        plans = [PartRecord.from_json(entry) for entry in unsealed(folder.read_if_there(MANIFEST_NAME) or b"")["plans"]]
    except (ValueError, KeyError, TypeError):
        # There is none, or it is damaged too: it is written anew when all else is there.
        return
    for plan in plans:
        if folder.record(plan.stage, plan.index) is None:
            folder.write(plan.path, plan.to_bytes())
            _log.warning("%s was lost or damaged; it was restored from %s", plan.path, MANIFEST_NAME)
