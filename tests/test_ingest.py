from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pytest

from wegl_dask.errors import TooManyRejectedError
from wegl_dask.graphs import GraphSchema
from wegl_dask.ingest import (
    LARGEST_SHARD,
    MOST_TASKS_A_UNIT,
    SMALLEST_SHARD,
    ShardCensus,
    check_rejected,
    divided,
    most_tasks,
    shard_size,
)
from wegl_dask.progress import unshown
from wegl_dask.records import PartFile, PartRecord
from wegl_dask.row_ranges import first_repeated, row_ranges
from wegl_dask.run import Run
from wegl_dask.sources.base import Cut, LabelSchema, SourcePlan, Unit
from wegl_dask.spec import JobSpec


def job(**source):
    source = {"kind": "tud", "root": "data", "name": "MUTAG", **source}
    return JobSpec.from_values({"source": source, "output": {"path": "out"}})


def record(shard, *, rejected=0, **extra):
    files = [PartFile(f"graphs/part-{shard:05d}.parquet", extra.get("graphs", 0), 10, f"sha of {shard}")]
    if rejected:
        files.append(PartFile(f"rejected/part-{shard:05d}.parquet", rejected, 10, "another"))
    return PartRecord("ingest", shard, "made from", tuple(files), 0.1, {"known": 0, "reasons": {}, **extra})


@pytest.fixture
def census():
    cuts = tuple(Cut(shard, 5, {}, "hash") for shard in range(2))
    plan = SourcePlan(GraphSchema(node_category_counts=(9, 3)), LabelSchema(), {}, (Unit("file", cuts),))
    one = {"graphs": 4, "degrees": [1, 3], "categories": [[2, 8], [0]], "reasons": {"too large": 1}}
    two = {
        "graphs": 3,
        "degrees": [0, 3, 7],
        "categories": [[0, 2], [0, 1]],
        "reasons": {"too large": 1, "no nodes": 1},
    }
    return ShardCensus(plan, {0: record(0, rejected=1, **one), 1: record(1, rejected=2, **two)})


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ([], None),
        ([{"a": [[0, 4]]}, {"b": [[0, 4]]}, {"a": [[4, 5], [7, 9]]}, {"a": [[5, 7]]}], None),
        ([{"a": [[0, 4]]}, {"a": [[3, 5]]}], ("a", 3)),
        ([{"a": [[0, 9]]}, {"a": [[2, 3]]}], ("a", 2)),
        ([{"a": [[5, 6]]}, {"a": [[0, 9]]}], ("a", 5)),
        # As `row_ranges` has rows that occur twice in one table.
        ([row_ranges([pa.table({"source_file": ["a"] * 4, "source_row": [6, 2, 3, 2]})])], ("a", 2)),
    ],
)
def test_a_row_that_occurs_twice_is_found_wherever_it_does(parts, found):
    assert first_repeated(parts) == found


@pytest.mark.parametrize(
    ("nodes", "size"),
    [(0, SMALLEST_SHARD), (32 * SMALLEST_SHARD, SMALLEST_SHARD), (32 * 50_000, 50_000), (10**12, LARGEST_SHARD)],
)
def test_a_collection_is_cut_in_32_unless_the_shards_would_be_too_small_or_too_large(nodes, size):
    assert shard_size(nodes) == size


@pytest.mark.parametrize(
    ("n_units", "n_workers", "most"),
    [(1, 1, 1), (1, 8, 8), (3, 8, 3), (8, 8, 1), (100, 8, 1), (1, 1000, MOST_TASKS_A_UNIT), (1, 0, 1), (0, 8, 1)],
)
def test_units_of_molecules_are_divided_where_there_are_fewer_than_workers(n_units, n_workers, most):
    for kind in ("smiles", "sdf"):
        source = {"kind": kind, "path": "a"}
        spec = JobSpec.from_values({"source": source, "output": {"path": "out"}})
        assert most_tasks(spec, n_units, n_workers) == most
    assert most_tasks(job(), n_units, n_workers) == 1


@pytest.mark.parametrize(
    ("cluster", "n_there", "expected"),
    [
        ({"kind": "slurm", "jobs": 3, "cores": 4}, 1, 12),
        ({"kind": "slurm"}, 2, 2),
        ({"kind": "scheduler", "address": "tcp://host:8786"}, 0, 0),
        ({"workers": 2}, 2, 2),
    ],
)
def test_workers_that_slurm_has_yet_to_start_are_counted_on(cluster, n_there, expected):
    spec = JobSpec.from_values(job().model_dump(exclude_unset=True) | {"cluster": cluster})
    client = SimpleNamespace(nthreads=lambda: dict.fromkeys(range(n_there), 1))
    assert Run(spec, None, None, client, resumed=False, progress=unshown).n_workers == expected


@pytest.mark.parametrize(("n_shards", "most"), [(0, 3), (1, 3), (3, 3), (7, 3), (40, 16)])
def test_shards_are_divided_in_their_order_about_evenly(n_shards, most):
    parts = divided(range(5, 5 + n_shards), most)
    assert [shard for part in parts for shard in part] == list(range(5, 5 + n_shards))
    assert len(parts) == min(n_shards, most)
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_census_sums_up_its_shards(census):
    assert (census.n_rows, census.n_rejected, census.total("graphs")) == (10, 3, 7)
    assert census.degrees == [0, 1, 3, 7]
    assert census.categories == [[0, 2, 8], [0, 1]]
    assert census.reasons == {"too large": 2, "no nodes": 1}
    assert census.graph_fingerprint(1) == "sha of 1"


def test_as_many_rejects_as_are_allowed_are_allowed():
    check_rejected(job(max_rejected_fraction=0.25), 8, Counter(bad=2))
    check_rejected(job(max_rejected_fraction=0.0), 8, Counter())


def test_more_rejects_than_allowed_are_refused_with_their_number_and_the_commonest_reasons():
    reasons = Counter({"a": 1, "b": 4, "c": 2, "d": 3})
    with pytest.raises(TooManyRejectedError) as caught:
        check_rejected(job(max_rejected_fraction=0.25), 36, reasons)
    assert str(caught.value) == (
        "10 of 36 rows were rejected, and source.max_rejected_fraction = 0.25 allows 9: 4 x b; 3 x d; 2 x c"
    )
    assert caught.value.exit_code == 3
