import io
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wegl_dask.embeddings import EmbeddingFormat, EmbeddingRows
from wegl_dask.errors import WeglError
from wegl_dask.graphs import GraphSchema
from wegl_dask.progress import Progress
from wegl_dask.sources.base import REJECTED_SCHEMA, Cut, LabelSchema, SourcePlan, Unit
from wegl_dask.storage import RunFolder
from wegl_dask.verify import _SeenRows, verify_run

JOB = 'seed = 7\n[source]\nkind = "tud"\nroot = "data"\nname = "MUTAG"\n[output]\npath = "out"\n'
FORM = EmbeddingFormat(3, 2, LabelSchema("target"), metadata={"seed": 7})
ROWS_PER_SHARD = 10
UNREADABLE, UNSOLVED = (3, 14), (17,)
"""Rows of the input that are rejected when they are read, and when they are embedded."""

NO_PLAN = "records: no record of the plan of 3 shards, of which the first is shard 0"


def keys(rows):
    return pa.table(
        {
            "graph_id": pa.array([f"g{i}" for i in rows], pa.string()),
            "source_file": pa.array(["a.csv"] * len(rows), pa.string()),
            "source_row": pa.array(rows, pa.int64()),
        }
    )


def parquet(table):
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def rejects(rows):
    table = keys(rows).append_column("reason", pa.array(["because"] * len(rows), pa.string()))
    return parquet(table.cast(REJECTED_SCHEMA))


def embeddings(rows, form=FORM, value=0.5):
    table = keys(rows)
    table = table.append_column("label", pa.array([0.5] * len(rows), pa.float64()))
    table = table.append_column("split", pa.nulls(len(rows), pa.string()))
    n = len(rows)
    block = EmbeddingRows(table, np.ones(n), np.ones(n), ["exact"] * n, np.full(n, np.nan), np.full((n, 6), value))
    file = io.BytesIO()
    form.write(file, [block])
    return file.getvalue()


def write_run(folder, *, n_shards=3):
    """A finished run: every shard has ten rows of the input."""
    folder.claim(JOB)
    shards = [range(i * ROWS_PER_SHARD, (i + 1) * ROWS_PER_SHARD) for i in range(n_shards)]
    cuts = tuple(Cut(i, ROWS_PER_SHARD, {}, "x") for i in range(n_shards))
    with folder.recording("plan", 0, "x") as part:
        part.note(plan=SourcePlan(GraphSchema(), LabelSchema("target"), {}, (Unit("a.csv", cuts),)).to_json())
    for index, rows in enumerate(shards):
        write_shard(folder, index, rows)
        write_part(folder, index, rows)
    finish(folder)


def write_shard(folder, index, rows):
    graphs = [row for row in rows if row not in UNREADABLE]
    with folder.recording("ingest", index, "x") as part:
        part.write("graphs", parquet(keys(graphs)), rows=len(graphs))
        if rejected := [row for row in rows if row in UNREADABLE]:
            part.write("rejected", rejects(rejected), rows=len(rejected))


def write_part(folder, index, rows, **options):
    kept = [row for row in rows if row not in UNREADABLE + UNSOLVED]
    with folder.recording("embed", index, "x") as part:
        part.write("data", embeddings(kept, **options), rows=len(kept))
        if rejected := [row for row in rows if row in UNSOLVED]:
            part.write("rejected", rejects(rejected), rows=len(rejected), tag="embed")


def finish(folder):
    folder.write_manifest(
        [record for record in folder.records() if record.stage != "plan"],
        stage_seconds={},
        work={},
        versions={},
        summary={},
    )
    folder.mark_success()


def found(folder, *, deep=False):
    return [str(problem) for problem in verify_run(folder, deep=deep)]


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(str(tmp_path))
    write_run(folder)
    return folder


@pytest.mark.parametrize("deep", [False, True])
def test_nothing_is_found_in_a_whole_run(run_folder, deep):
    write_run(run_folder)
    assert found(run_folder, deep=deep) == []


def test_it_shows_how_many_records_it_has_been_through(run):
    shown = io.StringIO()
    verify_run(run, progress=partial(Progress, stream=shown))
    n_records = len(run.records())
    assert n_records > 3
    assert shown.getvalue().startswith(f"verify: {n_records} of {n_records} parts")


@pytest.fixture
def run_without_graphs(run):
    """A run that is not to keep its graph shards."""
    run.write("job.toml", f"{JOB}keep_graphs = false\n".encode())
    run.remove_graphs()
    return run


def test_a_run_that_keeps_no_graph_shards_is_whole_without_them(run_without_graphs):
    assert found(run_without_graphs, deep=True) == []


def test_graph_shards_that_are_all_gone_are_missed(run):
    run.remove_graphs()
    assert found(run) == [f"graphs/part-0000{shard}.parquet: missing" for shard in range(3)]


def test_a_run_whose_job_file_is_damaged_is_refused(run):
    run.write("job.toml", b"seed =")
    with pytest.raises(WeglError, match=r"job\.toml is damaged"):
        found(run)


@pytest.mark.parametrize("content", [b"", b"seed = 7\n"])
def test_a_job_file_that_holds_no_job_is_reported(content, run):
    run.write("job.toml", content)
    (problem,) = found(run)
    assert problem.startswith("job.toml: not that of a run (job: source.kind is missing")


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(WeglError, match="is not a run folder"):
        verify_run(RunFolder(str(tmp_path)))


def test_an_unfinished_run_is_reported(run):
    run.unmark_success()
    assert found(run) == ["_SUCCESS: missing: the run has not finished"]


def test_a_missing_part_is_reported(run):
    run.remove("data/part-00001.parquet")
    run.remove("graphs/part-00002.parquet")
    assert found(run, deep=True) == ["data/part-00001.parquet: missing", "graphs/part-00002.parquet: missing"]


@pytest.mark.parametrize("stage", ["ingest", "embed"])
@pytest.mark.parametrize("content", [None, b"{}"])
def test_a_record_that_is_missing_or_damaged_is_one_problem(run, stage, content):
    path = f"records/{stage}-00002.json"
    if content is None:
        run.remove(path)
    else:
        run.write(path, content)
    assert found(run) == [f"{path}: missing or damaged, but listed in manifest.json"]


def test_a_record_that_the_manifest_has_not_either_is_missed_by_its_files(run):
    run.remove("records/embed-00002.json")
    finish(run)
    assert found(run) == [
        "data/part-00002.parquet: no record of the part: the shard was not embedded",
        "data/part-00002.parquet: not of this run: no record lists it",
    ]


def test_a_missing_plan_is_reported(run):
    run.remove("records/plan-00000.json")
    assert found(run) == [NO_PLAN]


def test_a_shard_that_was_never_made_is_reported(run):
    for path in ("records/embed-00002.json", "records/ingest-00002.json"):
        run.remove(path)
    for path in ("graphs", "data"):
        run.remove(f"{path}/part-00002.parquet")
    finish(run)
    assert found(run) == ["graphs/part-00002.parquet: no record of the shard"]


@pytest.mark.parametrize(
    "path", ["data/part-00000.parquet", "graphs/part-00001.parquet", "rejected/part-00001-embed.parquet"]
)
@pytest.mark.parametrize("deep", [False, True])
def test_cut_and_altered_files_are_reported(run, path, deep):
    whole = run.read(path)
    run.write(path, whole[:-1])
    assert found(run, deep=deep) == [f"{path}: {len(whole) - 1} bytes; {len(whole)} were written"]
    altered = bytearray(whole)
    altered[len(whole) // 2] ^= 1
    run.write(path, bytes(altered))
    assert found(run) == [f"{path}: altered: its SHA-256 is not that of what was written"]


def test_files_that_do_not_belong_are_reported(run):
    run.write("data/part-00003.parquet", run.read("data/part-00002.parquet"))
    run.write("data/notes.txt", b"dear")
    run.write("rejected/.tmp-part-00001.parquet-7", b"half")
    assert found(run) == [
        "rejected/.tmp-part-00001.parquet-7: left by a process that was killed; the next run removes it",
        "data/notes.txt: not of this run: no record lists it",
        "data/part-00003.parquet: not of this run: no record lists it",
    ]


def test_a_damaged_manifest_is_reported(run):
    for content in (b"", b"{}", b'{"records": [{}]}'):
        run.write("manifest.json", content)
        (problem,) = found(run)
        assert problem.startswith("manifest.json: damaged: ")
        assert "WeglError" not in problem


@pytest.mark.parametrize(("name", "others"), [("plan-00000", [NO_PLAN]), ("run", [])])
def test_a_damaged_record_of_no_part_is_reported(name, others, run):
    path = f"records/{name}.json"
    run.write(path, run.read(path).replace(b'"', b"'", 1))
    problem, *more = found(run)
    assert problem.startswith(path)
    assert "damaged: " in problem
    assert more == others


@pytest.mark.parametrize(
    "columns", [["graph_id", "source_file"], ["graph_id", "source_file", "source_row", "graph_id"]]
)
def test_a_shard_without_ids_or_with_two_is_reported_as_altered(columns, run):
    rows = keys(range(10, 20))
    rows = pa.Table.from_arrays([rows.column(name) for name in columns], names=columns)
    run.write("graphs/part-00001.parquet", parquet(rows))
    problems = found(run, deep=True)
    assert problems
    assert all(problem.startswith("graphs/part-00001.parquet: ") for problem in problems)


def test_wrong_numbers_of_rows_are_reported(run):
    with run.recording("embed", 0, "x") as part:
        part.write("data", embeddings([0, 1, 2]), rows=4)
    write_shard(run, 1, range(10, 18))
    assert found(run) == [
        "data/part-00000.parquet: 4 rows and 0 rejected for 9 graphs of the shard",
        "graphs/part-00001.parquet: 7 graphs and 1 rejected for 10 rows of the input",
        "data/part-00001.parquet: 8 rows and 1 rejected for 7 graphs of the shard",
        "data/part-00000.parquet: 3 rows; its record says 4",
    ]


def test_other_columns_are_reported(run):
    write_part(run, 1, range(10, 20), form=EmbeddingFormat(2, 3, LabelSchema("target"), metadata={"seed": 7}))
    write_part(run, 2, range(20, 30), form=EmbeddingFormat(3, 2, LabelSchema("target"), metadata={"seed": 8}))
    with run.recording("ingest", 0, "x") as part:
        part.write("graphs", parquet(keys([0, 1, 2, 4, 5, 6, 7, 8, 9])), rows=9)
        part.write("rejected", parquet(keys([3])), rows=1)
    assert found(run) == [
        "data/part-00001.parquet: of another job or model than the parts before it",
        "data/part-00002.parquet: of another job or model than the parts before it",
        f"rejected/part-00000.parquet: has columns {REJECTED_SCHEMA.names[:3]}; {REJECTED_SCHEMA.names} are needed",
    ]


def test_what_is_no_parquet_is_reported(run):
    with run.recording("embed", 0, "x") as part:
        part.write("data", b"not Parquet", rows=9)
    (problem,) = found(run)
    assert problem.startswith("data/part-00000.parquet: not a Parquet file: ")
    with run.recording("embed", 0, "x") as part:
        part.write("data", parquet(keys(range(9))), rows=9)
    (problem,) = found(run)
    assert problem.startswith("data/part-00000.parquet: not the columns of an embedding part")


def test_rows_out_of_order_are_found_by_a_deep_check(run):
    rows = [0, 1, 2, 4, 6, 5, 7, 8, 9]
    with run.recording("embed", 0, "x") as part:
        part.write("data", embeddings(rows), rows=9)
    assert found(run) == []
    (problem,) = found(run, deep=True)
    assert problem == (
        "data/part-00000.parquet: its 9 rows are not the 9 embedded graphs of graphs/part-00000.parquet, in order; row 4 "
        "is ('g6', 'a.csv', 6) instead of ('g5', 'a.csv', 5)"
    )


def test_a_row_that_occurs_twice_is_found_by_a_deep_check(run_without_graphs):
    run = run_without_graphs
    with run.recording("embed", 2, "x") as part:
        part.write("data", embeddings([*range(20, 29), 14]), rows=10)
    assert found(run) == []
    # Row 14 of the input was rejected when it was read, by the stage whose records come later.
    assert found(run, deep=True) == ["rejected/part-00001.parquet: row 14 of a.csv occurs a second time"]


def test_nan_in_a_vector_is_found_by_a_deep_check(run):
    write_part(run, 1, range(10, 20), value=np.nan)
    assert found(run) == []
    assert found(run, deep=True) == ["data/part-00001.parquet: NaN or infinity in column embedding, row group 0"]


@given(parts=st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 12)), max_size=8), max_size=6))
def test_repeated_rows_are_found_as_by_a_set(parts):
    rows = _SeenRows()
    seen = set()
    for part in parts:
        table = pa.table({"source_file": [name for name, _ in part], "source_row": [row for _, row in part]})
        table = table.cast(pa.schema([("source_file", pa.string()), ("source_row", pa.int64())]))
        repeated = {key for key in part if part.count(key) > 1 or key in seen}
        problems = [problem.what for problem in rows.add("p", table)]
        for name in "ab":
            first = min((row for other, row in repeated if other == name), default=None)
            expected = [] if first is None else [f"row {first} of {name} occurs a second time"]
            assert [what for what in problems if f"of {name} " in what] == expected
        if repeated:
            return
        seen |= set(part)
