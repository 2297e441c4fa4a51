"""Shards of sources whose graphs come one by one, as Python objects."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from wegl_dask.plain_graphs import PlainGraph, join_graphs
from wegl_dask.sources.base import REJECTED_SCHEMA, SourcePlan, SourceShard


@dataclass(frozen=True)
class CollectedGraph:
    """One row of the input: a graph, or the reason why there is none.

    Attributes
    ----------
    graph_id, source_file : str
    source_row : int
    graph : PlainGraph or str
        With the widths of the plan's schema; a text is the reason why the row is rejected.
    label : int, float, list of float or None
    split : str or None
    """

    graph_id: str
    source_file: str
    source_row: int
    graph: PlainGraph | str
    label: Any = None
    split: str | None = None


def collected_shard(plan: SourcePlan, shard: int, rows: Iterable[CollectedGraph]) -> SourceShard:
    """Put the rows of one cut together."""
    kept: list[CollectedGraph] = []
    graphs: list[PlainGraph] = []
    rejected: list[dict[str, Any]] = []
    for row in rows:
        where = {"graph_id": row.graph_id, "source_file": row.source_file, "source_row": row.source_row}
        if isinstance(row.graph, PlainGraph):
            kept.append(row)
            graphs.append(row.graph)
        else:
            rejected.append({**where, "reason": row.graph})
    columns = {name: [getattr(row, name) for row in kept] for name in plan.row_schema().names}
    return SourceShard(
        shard=shard,
        graphs=join_graphs(graphs, plan.schema),
        rows=pa.table(columns, schema=plan.row_schema()),
        rejected=pa.Table.from_pylist(rejected, schema=REJECTED_SCHEMA),
    )
