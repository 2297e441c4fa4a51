"""Reading a whole source as a job does: scans and plan as JSON values between the steps."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest


@pytest.fixture(scope="session")
def read_source():
    """Scan, plan and read a source; gives its plan, its shards, and the rows, rejects and graphs of all of them."""
    from wegl_dask.graphs import concatenate
    from wegl_dask.sources import open_source
    from wegl_dask.sources.base import REJECTED_SCHEMA, SourcePlan

    def as_json(values):
        return json.loads(json.dumps(values))

    def read(table, task="auto", nodes_per_shard=10_000):
        source = open_source(table, task)
        scans = [as_json(source.scan(piece, nodes_per_shard)) for piece in source.pieces()]
        planned = source.plan(scans)
        plan = SourcePlan.from_json(as_json(planned.to_json()))
        assert plan == planned
        shards = [shard for unit in plan.units for shard in source.read(plan, unit)]
        cuts = [cut for unit in plan.units for cut in unit.cuts]
        assert [shard.shard for shard in shards] == [cut.shard for cut in cuts] == list(range(len(cuts)))
        for shard, cut in zip(shards, cuts, strict=True):
            assert shard.rows.schema.equals(plan.row_schema())
            assert shard.rejected.schema.equals(REJECTED_SCHEMA)
            assert shard.graphs.n_graphs == shard.rows.num_rows
            assert shard.rows.num_rows + shard.rejected.num_rows == cut.n_rows
        return SimpleNamespace(
            source=source,
            plan=plan,
            cuts=cuts,
            shards=shards,
            graphs=concatenate([shard.graphs for shard in shards]),
            rows=pa.concat_tables(shard.rows for shard in shards).to_pydict(),
            rejected=pa.concat_tables(shard.rejected for shard in shards).to_pylist(),
        )

    return read
