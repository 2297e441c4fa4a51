"""Killed runs go on, damaged parts are made again, other jobs and other input are refused: always the same bytes."""

import re
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from wegl_dask.errors import JobFileError, SourceError
from wegl_dask.storage import RunFolder
from wegl_dask.verify import verify_run

SUBFOLDERS = ("data", "graphs", "rejected", "model")

ALL_PARTS = 4 * 12 + 3
"""Of a job in 12 shards: ingest, moments, sample and embed a shard; one merge, one projection, one reference."""


@pytest.fixture
def finished(run, mutag_job):
    """A finished run on MUTAG with rejects in most of its shards: its folder and how to run the same job again."""
    job = mutag_job("finished", source={"max_nodes": 24})
    run(job)
    return Path(job["output"]["path"])


@pytest.fixture
def again(run, mutag_job):
    def again(out, **tables):
        return run(mutag_job(out.name, **{"source": {"max_nodes": 24}, **tables}))

    return again


# --- Nothing to do ---


def test_a_finished_run_is_left_as_it_is(finished, again, written_at):
    def everything():
        return {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}

    before = everything()
    summary = again(finished)
    assert everything() == before
    assert summary.parts_made == 0
    assert (summary.rows + summary.rejected, summary.shards) == (188, 12)


# --- Killed runs ---


@pytest.fixture
def held(dask_client, tmp_path, wait_until):
    """Hold the workers back in a stage when some of its parts are there, until they are let go."""
    gate = tmp_path / "gate"

    def hold(stage, n_parts):
        gate_file = str(gate)

        def install():
            import time
            from pathlib import Path

            from wegl_dask.storage import RunFolder

            recording = RunFolder.recording

            def held_recording(folder, at_stage, at_index, input_fingerprint):
                deadline = time.monotonic() + 60
                records = Path(folder.url, "records")
                while (
                    at_stage == stage and len([*records.glob(f"{stage}-*")]) >= n_parts and not Path(gate_file).exists()
                ):
                    if time.monotonic() > deadline:
                        raise TimeoutError("nobody opened the gate")
                    time.sleep(0.01)
                return recording(folder, at_stage, at_index, input_fingerprint)

            RunFolder.recording = held_recording
            RunFolder.unpatched_recording = recording

        dask_client.run(install)

    def release():
        gate.touch()

        def idle(dask_worker):
            return not dask_worker.state.executing_count and not dask_worker.state.tasks

        wait_until(lambda: all(dask_client.run(idle).values()), "the workers to be idle")

    yield hold, release
    gate.touch()

    def restore():
        from wegl_dask.storage import RunFolder

        if "unpatched_recording" in vars(RunFolder):
            RunFolder.recording = RunFolder.unpatched_recording
            del RunFolder.unpatched_recording

    dask_client.run(restore)


@pytest.mark.parametrize(
    ("stage", "n_parts", "reached"),
    [
        ("scan", 0, "run"),
        ("ingest", 5, "ingest-*"),
        ("moments", 5, "moments-*"),
        ("merge", 0, "moments-00011"),
        ("projection", 0, "merge-00000"),
        ("sample", 5, "sample-*"),
        ("reference", 0, "sample-00011"),
        ("embed", 5, "embed-*"),
    ],
)
def test_a_run_killed_in_any_stage_goes_on_to_the_same_bytes(
    stage, n_parts, reached, finished, again, held, command, job_file, mutag_job, contents, written_at, wait_until
):
    out = finished.parent / "killed"
    job = job_file(mutag_job(out.name, source={"max_nodes": 24}))
    hold, release = held
    hold(stage, n_parts)
    with command.start("run", job):
        records = out / "records"
        wait_until(lambda: len([*records.glob(f"{reached}.json")]) >= max(n_parts, 1), reached)
    assert not (out / "_SUCCESS").exists()
    # What the workers had begun they finish; the next run is to find it.
    release()
    made = written_at(out)
    n_made = sum(not re.match(r"records/(scan|plan|seen)", path) for path in made if path.startswith("records"))
    summary = again(out)
    assert summary.parts_made == ALL_PARTS - n_made
    lasting = {path for path in made if re.match(r"data|graphs|model|rejected|records/(ingest|reference|embed)", path)}
    assert {path: written_at(out)[path] for path in lasting} == {path: made[path] for path in lasting}
    assert all(contents(out, subfolder) == contents(finished, subfolder) for subfolder in SUBFOLDERS)
    assert verify_run(RunFolder(str(out)), deep=True) == []
