"""How far a run is, from what it left in its folder."""

import fcntl
import json
import os
import socket
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from wegl_dask.cli import main
from wegl_dask.errors import WeglError
from wegl_dask.folders import Folder
from wegl_dask.graphs import GraphSchema
from wegl_dask.locks import locked
from wegl_dask.sources.base import Cut, LabelSchema, SourcePlan, Unit
from wegl_dask.status import Speed, index_ranges, read_status
from wegl_dask.storage import RunFolder


@pytest.fixture
def folder(tmp_path):
    """A run of four shards of ten rows that was stopped: all are ingested, 0 and 2 are embedded."""
    folder = RunFolder(str(tmp_path / "run"))
    folder.write("job.toml", b"")
    cuts = [Cut(shard, 10, {}, "") for shard in range(4)]
    plan = SourcePlan(GraphSchema(), LabelSchema(), {}, (Unit("a", tuple(cuts)),))
    with folder.recording("plan", 0, "") as part:
        part.note(plan=plan.to_json())
    for shard in range(4):
        with folder.recording("ingest", shard, "") as part:
            part.write("graphs", b"graphs", rows=9)
            part.write("rejected", b"rejected", rows=1)
            part.note(reasons={"the graph has no nodes": 1})
    for shard in (0, 2):
        with folder.recording("embed", shard, "") as part:
            part.write("data", b"12345", rows=8)
            part.write("rejected", b"rejected", rows=1, tag="embed")
            part.note(reasons={"the graph has no nodes": 1} if shard else {"exact solver: unbounded": 1})
    return folder


def holder(**found):
    return json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": "now"} | found).encode()


@pytest.fixture
def lock():
    """Lock a folder as a run does, until the test ends."""
    with ExitStack() as held:

        def take(folder, content):
            folder.write(".lock", content)
            if folder.is_local:
                fcntl.flock(held.enter_context(Path(folder.url, ".lock").open()), fcntl.LOCK_EX)

        yield take


def test_files_that_are_recorded_and_not_there_are_named(folder):
    assert read_status(folder).absent == ()
    folder.remove("data/part-00002.parquet")
    folder.remove("graphs/part-00001.parquet")
    assert read_status(folder).absent == ("data/part-00002.parquet", "graphs/part-00001.parquet")
    shown = CliRunner().invoke(main, ["status", folder.url]).output
    assert "\nrecorded and not there: data/part-00002.parquet and 1 more file: run the job again\n" in shown
    folder.write("job.toml", b"[output]\nkeep_graphs = false\n")
    assert read_status(folder).absent == ("data/part-00002.parquet",)


@pytest.mark.parametrize(("fraction", "is_refused"), [("0.14", True), ("0.15", False), ("1", False), ("0", True)])
def test_more_rejects_than_the_job_allows_stop_it_again(folder, fraction, is_refused):
    folder.write("job.toml", f"[source]\nmax_rejected_fraction = {fraction}\n".encode())
    assert sum(read_status(folder).rejected.values()) == 6  # of 40 rows, which is 0.15
    assert read_status(folder).is_refused == is_refused


def test_a_damaged_job_file_has_no_status(folder):
    folder.write("job.toml", b"[source")
    with pytest.raises(WeglError, match=r"job\.toml is damaged"):
        read_status(folder)


def test_parts_are_counted_by_stage_with_those_that_are_missing(folder):
    status = read_status(folder)
    assert status.planned_rows == 40
    stages = {stage.name: (stage.parts, stage.missing, stage.graphs) for stage in status.stages}
    assert stages == {"ingest": (4, (), 36), "embed": (2, (1, 3), 16)}
    assert status.n_bytes == 10


def test_rejected_rows_are_counted_by_reason_over_all_stages(folder):
    assert read_status(folder).rejected == {"the graph has no nodes": 5, "exact solver: unbounded": 1}


def test_a_run_that_has_not_looked_at_its_input_yet_has_no_stages(tmp_path):
    folder = RunFolder(str(tmp_path))
    folder.write("job.toml", b"")
    status = read_status(folder)
    assert status.planned_rows is None
    assert status.stages == ()
    assert status.state == "stopped"


def test_stages_that_do_not_follow_the_shards_have_no_missing_parts(folder):
    with folder.recording("moments", 1, ""):
        pass
    (moments,) = (stage for stage in read_status(folder).stages if stage.name == "moments")
    assert (moments.parts, moments.missing) == (1, None)


def test_a_run_without_a_lock_has_stopped_and_with_its_mark_is_finished(folder):
    assert read_status(folder).state == "stopped"
    folder.mark_success()
    assert read_status(folder).state == "finished"


def test_a_run_is_running_while_the_process_that_locked_the_folder_is_alive(folder):
    with folder.lock():
        status = read_status(folder)
    assert status.state == "running"
    assert status.holder.startswith(f"process {os.getpid()} on {socket.gethostname()}, since 20")
    assert read_status(folder).state == "stopped"


@pytest.mark.parametrize("content", [holder(), holder(host="elsewhere"), holder(pid=1), b"?"], ids=range(4))
def test_a_lock_that_a_killed_process_left_behind_does_not_count(folder, content):
    # Another process may have its number by now, and a container that is started again has the same.
    folder.write(".lock", content)
    assert read_status(folder).state == "stopped"


def test_a_lock_that_is_held_on_another_host_counts(folder, lock):
    lock(folder, holder(host="elsewhere"))
    status = read_status(folder)
    assert (status.state, status.holder) == ("running", f"process {os.getpid()} on elsewhere, since now")


def test_a_lock_that_cannot_be_read_is_somebodys(folder, lock):
    lock(folder, b"?")
    assert read_status(folder).holder == "a process that its lock does not name"


@pytest.mark.parametrize(("age", "state"), [(1, "running"), (3600, "stopped")])
def test_on_an_object_store_a_lock_counts_as_long_as_it_is_renewed(age, state, lock, monkeypatch):
    folder = RunFolder(f"memory://status/{age}")
    folder.write("job.toml", b"")
    lock(folder, holder(host="elsewhere"))
    renewed = datetime.fromtimestamp(datetime.now(UTC).timestamp() - age, UTC)
    monkeypatch.setattr(RunFolder, "modified", lambda _self, _name: renewed)
    assert read_status(folder).state == state


STARTED = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def write_at(folder, moments, *, seconds=0.0):
    """Set when the records of parts were written, in seconds after the start of the run, and how long the parts took."""
    for (stage, shard), after in moments.items():
        record = replace(folder.record(stage, shard), seconds=seconds)
        folder.write(record.path, record.to_bytes())
        moment = STARTED.timestamp() + after
        os.utime(f"{folder.url}/{record.path}", (moment, moment))


def speeds(folder):
    return {stage.name: stage.speed for stage in read_status(folder).stages}


def test_the_stage_that_a_run_is_at_has_a_speed_and_a_time_left(folder, lock):
    lock(folder, holder(since=STARTED.isoformat()))
    write_at(folder, {("ingest", shard): shard + 1 for shard in range(4)})
    write_at(folder, {("embed", 2): 20, ("embed", 0): 30}, seconds=10)
    # Two parts of 8 graphs in 20 s; two are missing.
    assert speeds(folder) == {"ingest": None, "embed": Speed(graphs_per_second=0.8, seconds_left=20.0)}


def test_parts_that_end_together_took_as_long_as_one(folder, lock):
    lock(folder, holder(since=STARTED.isoformat()))
    write_at(folder, {("embed", 0): 60, ("embed", 2): 60.5}, seconds=40)
    assert speeds(folder)["embed"] == Speed(graphs_per_second=16 / 40.5, seconds_left=40.5)


def test_parts_of_an_earlier_run_do_not_count_for_the_speed(folder, lock):
    lock(folder, holder(since=STARTED.isoformat()))
    with folder.recording("embed", 1, "") as part:
        part.write("data", b"12345", rows=9)
    write_at(folder, {("embed", 0): -36000, ("embed", 1): 12, ("embed", 2): 17}, seconds=5)
    assert speeds(folder)["embed"] == Speed(graphs_per_second=17 / 10, seconds_left=5.0)
    # A part that an earlier run began, and a task of it has ended, was at work in this one no longer than it lasts.
    write_at(folder, {("embed", 1): 12, ("embed", 2): 17}, seconds=3600)
    assert speeds(folder)["embed"] == Speed(graphs_per_second=1, seconds_left=8.5)


@pytest.mark.parametrize("since", ["now", "2026-01-31T12:00:00", None])
def test_without_a_start_or_a_part_or_a_run_there_is_no_speed(folder, lock, since):
    write_at(folder, {("embed", 0): 10, ("embed", 2): 20}, seconds=5)
    assert speeds(folder)["embed"] is None
    lock(folder, holder(since=since))
    assert speeds(folder)["embed"] is None
    lock(folder, holder(since=STARTED.isoformat()))
    write_at(folder, {("embed", 0): -10, ("embed", 2): -20}, seconds=5)
    assert speeds(folder)["embed"] is None


def trainings(folder):
    return {training.model: (training.state, training.holder) for training in read_status(folder).trainings}


@pytest.mark.parametrize("url", ["{}/run", "memory://status-of-trainings"])
def test_trainings_are_running_stopped_or_finished(url, tmp_path):
    folder = RunFolder(url.format(tmp_path))
    folder.write("job.toml", b"")
    assert trainings(folder) == {}
    folder.write("train/ridge/metrics.json", b"{}")
    folder.write("train/mlp/metrics.json", b"{}")
    folder.write(f"train/mlp/fits-{'0' * 32}.npz", b"")
    folder.write("train/notes.txt", b"no model")
    with locked(Folder(folder.location("train/automl"))):
        found = trainings(folder)
    _, holder = found.pop("automl")
    assert holder.startswith(f"process {os.getpid()} on {socket.gethostname()}, since 20")
    assert found == {"mlp": ("stopped", ""), "ridge": ("finished", "")}
    # The lock of one that was killed before a fit of it had ended.
    folder.write("train/automl/.lock", b"?")
    if folder.is_local:
        assert trainings(folder) == {**found, "automl": ("stopped", "")}


def test_nothing_is_changed_in_the_folder(folder, lock, tmp_path):
    lock(folder, holder())
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    read_status(folder)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(WeglError, match=r"is not a run folder: it has no job\.toml"):
        read_status(RunFolder(str(tmp_path)))


@pytest.mark.parametrize(
    ("indices", "text"), [([], ""), ([7], "7"), ([0, 1], "0-1"), ([0, 2, 3, 4, 9, 10], "0, 2-4, 9-10")]
)
def test_indices_are_written_in_ranges(indices, text):
    assert index_ranges(indices) == text
