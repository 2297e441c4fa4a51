"""Killed runs go on, damaged parts are made again, other jobs and other input are refused: always the same bytes."""

import json
import re
import shutil
from pathlib import Path

import psutil
import pytest

from wegl_dask import ingest
from wegl_dask.checksums import sealed, unsealed
from wegl_dask.errors import JobFileError, SourceError
from wegl_dask.pipeline import ingest_job, run_job
from wegl_dask.storage import RunFolder
from wegl_dask.verify import verify_run
from wegl_dask.worker_checks import VersionsError

ALL_PARTS = 4 * 12 + 3
"""Of a job in 12 shards: ingest, moments, sample and embed a shard; one merge, one projection, one reference."""


@pytest.fixture(scope="module")
def job_of(shared_data):
    """A job on MUTAG in 12 shards, most of which have rejects; tables given by keyword are merged in."""

    def job(out, **tables):
        source = {"kind": "tud", "root": str(shared_data / "TUDataset"), "name": "MUTAG"}
        values = {"source": source | {"nodes_per_shard": 300, "max_nodes": 24}, "output": {"path": str(out)}}
        return values | {name: {**values.get(name, {}), **table} for name, table in tables.items()}

    return job


@pytest.fixture(scope="module")
def undisturbed(run, job_of, tmp_path_factory):
    """A run that nothing happened to: its folder, to be looked at."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    run(job_of(out))
    return out


@pytest.fixture(scope="module")
def without_graphs(run, job_of, tmp_path_factory):
    """Likewise, with its graphs removed at the end."""
    out = tmp_path_factory.mktemp("without_graphs") / "out"
    run(job_of(out, output={"keep_graphs": False}))
    return out


@pytest.fixture
def finished(undisturbed, tmp_path):
    """A finished run that a test may damage."""
    return Path(shutil.copytree(undisturbed, tmp_path / "out"))


@pytest.fixture
def changes(written_at):
    """List the parts, model files and records that were written or removed since this was asked for."""

    def watch(out):
        before = written_at(out)

        def changed():
            after = written_at(out)
            return {path for path in before | after if before.get(path) != after.get(path)}

        return changed

    return watch


# --- Nothing to do ---


def test_a_finished_run_is_left_as_it_is(finished, run, job_of):
    def everything():
        return {path: path.stat().st_mtime_ns for path in finished.rglob("*") if path.is_file()}

    # The copy gets its own path written into job.toml, once.
    run(job_of(finished))
    before = everything()
    summary = run(job_of(finished))
    assert everything() == before
    assert summary.parts_made == 0
    assert (summary.rows + summary.rejected, summary.shards) == (188, 12)


# --- Killed runs ---


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
    stage,
    n_parts,
    reached,
    undisturbed,
    run,
    job_of,
    held,
    command,
    job_file,
    same_bytes,
    changes,
    wait_until,
    tmp_path,
):
    out = tmp_path / "killed"
    hold, release = held
    hold(stage, n_parts)
    with command.start("run", job_file(job_of(out))):
        records = out / "records"
        wait_until(lambda: len([*records.glob(f"{reached}.json")]) >= max(n_parts, 1), reached)
    assert not (out / "_SUCCESS").exists()
    # What the workers had begun they finish; the next run is to find it.
    release()
    made = [path.name for path in records.iterdir() if not re.match("run|scan|plan|seen", path.name)]
    changed = changes(out)
    assert run(job_of(out)).parts_made == ALL_PARTS - len(made)
    lasting = {name for name in made if re.match("ingest|reference|embed", name)}
    assert not lasting & {path.rpartition("/")[2] for path in changed()}
    assert same_bytes(out, undisturbed)
    assert verify_run(RunFolder(str(out)), deep=True) == []


def test_a_local_cluster_dies_with_a_killed_command_and_the_run_goes_on(
    undisturbed, command, run, job_file, job_of, same_bytes, wait_until, tmp_path
):
    out = tmp_path / "killed"
    job = job_file(job_of(out, cluster={"workers": 1, "memory_limit": "1GB"}))
    with command.start("run", job, shared=False) as process:
        wait_until(lambda: [*(out / "records").glob("ingest-*")], "the first part")
        family = psutil.Process(process.pid).children(recursive=True)
    assert family
    _, alive = psutil.wait_procs(family, timeout=30)
    assert alive == []
    run(job_of(out))
    assert same_bytes(out, undisturbed)
    assert [*out.rglob(".*")] == []


# --- Damage ---


def alter(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def empty(path):
    path.write_bytes(b"")


DAMAGE = (alter, truncate, empty, Path.unlink)


@pytest.mark.parametrize("subfolder", ["data", "graphs", "rejected"])
def test_damaged_parts_are_made_again_and_no_others(subfolder, finished, undisturbed, run, job_of, changes, same_bytes):
    paths = sorted((finished / subfolder).iterdir())[1 : 1 + len(DAMAGE)]
    changed = changes(finished)
    for path, damage in zip(paths, DAMAGE, strict=True):
        damage(path)
    assert run(job_of(finished)).parts_made == len(DAMAGE)
    assert same_bytes(finished, undisturbed)
    stage, subfolders = ("embed", {"data"}) if subfolder == "data" else ("ingest", {"graphs", "rejected"})
    damaged = {index_of(path.name) for path in paths}
    assert {index_of(path) for path in changed()} == damaged
    assert {path.partition("/")[0] for path in changed()} == {"records", *subfolders}
    assert {path for path in changed() if path.startswith("records/")} == {
        f"records/{stage}-{index}.json" for index in damaged
    }
    assert (finished / "_SUCCESS").exists()


@pytest.mark.parametrize(
    ("name", "damage"), [("model.json", alter), ("model.json", Path.unlink), ("arrays.npz", truncate)]
)
def test_a_damaged_model_is_fitted_again_and_the_embeddings_stay(
    name, damage, finished, undisturbed, run, job_of, changes, same_bytes
):
    changed = changes(finished)
    damage(finished / "model" / name)
    run(job_of(finished))
    assert same_bytes(finished, undisturbed)
    assert changed() == {"model/model.json", "model/arrays.npz", "records/reference-00000.json"}
    assert verify_run(RunFolder(str(finished))) == []


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damage", [halve, empty, Path.unlink])
def test_a_damaged_record_costs_its_part(damage, finished, undisturbed, run, job_of, same_bytes):
    damage(finished / "records" / "embed-00003.json")
    assert run(job_of(finished)).parts_made == 1
    assert same_bytes(finished, undisturbed)
    assert verify_run(RunFolder(str(finished))) == []


@pytest.mark.parametrize("damage", [halve, Path.unlink])
def test_a_damaged_manifest_is_written_again(damage, finished, run, job_of):
    damage(finished / "manifest.json")
    run(job_of(finished))
    assert verify_run(RunFolder(str(finished))) == []


@pytest.mark.parametrize("subfolder", ["data", "rejected"])
def test_without_graphs_a_damaged_part_costs_the_ingest_of_its_shard_alone(
    subfolder, without_graphs, undisturbed, run, job_of, changes, same_bytes, tmp_path
):
    out = Path(shutil.copytree(without_graphs, tmp_path / "out"))
    assert not (out / "graphs").exists()
    path = sorted((out / subfolder).iterdir())[4]
    changed = changes(out)
    alter(path)
    summary = run(job_of(out, output={"keep_graphs": False}))
    assert summary.parts_made == (2 if subfolder == "data" else 1)
    assert {index_of(path) for path in changed()} == {index_of(path.name)}
    assert same_bytes(out, undisturbed, ("data", "rejected", "model"))
    assert not (out / "graphs").exists()


def test_parts_of_no_shard_are_removed_and_strangers_left_alone(finished, undisturbed, run, job_of, same_bytes):
    shutil.copy(finished / "data" / "part-00000.parquet", finished / "data" / "part-00099.parquet")
    (finished / "data" / "notes.txt").write_text("mine")
    assert run(job_of(finished)).notes[-1] == "removed, being of no record of this run: data/part-00099.parquet"
    assert (finished / "data" / "notes.txt").read_text() == "mine"
    (finished / "data" / "notes.txt").unlink()
    assert same_bytes(finished, undisturbed)


# --- Another job, another input ---


def test_another_job_is_refused_with_the_keys_that_differ_and_overwrite_clears(
    finished, run, job_of, changes, contents
):
    changed = changes(finished)
    other = job_of(finished, diffusion={"layers": 2}, transport={"solver": "auto"})
    with pytest.raises(JobFileError, match=r'diffusion.layers: 4 -> 2; transport.solver: "exact" -> "auto"'):
        run(other)
    assert changed() == set()
    assert (finished / "_SUCCESS").exists()
    (finished / "data" / "part-00099.parquet").write_bytes(b"of an earlier run")
    assert run(other, overwrite=True).parts_made == ALL_PARTS
    assert len(contents(finished)) == 12
    assert verify_run(RunFolder(str(finished))) == []


def test_long_lived_workers_take_nothing_from_the_run_that_was_cleared(run, job_of, same_bytes, tmp_path):
    """The folder, the shards and the paths are the same, and so are the processes."""
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    run(job_of(out, diffusion={"layers": 4}))
    run(job_of(out, diffusion={"layers": 1}), overwrite=True)
    run(job_of(fresh, diffusion={"layers": 1}))
    assert same_bytes(out, fresh)


def test_keys_without_effect_may_change(finished, run, job_of):
    job = job_of(finished, cluster={"retries": 0}, source={"max_rejected_fraction": 0.9})
    assert run({**job, "name": "another name"}).parts_made == 0


@pytest.mark.parametrize("changed", [False, True])
def test_a_run_whose_plan_is_lost_goes_on_with_the_same_input_alone(
    changed, run, molecules_job, molecules, tmp_path, changes
):
    path, out = tmp_path / "input.csv", tmp_path / "out"
    lines = molecules.read_text().splitlines()
    path.write_text("\n".join(lines))
    job = molecules_job(source={"path": str(path)})
    run(job)
    # The manifest has it too, and would give it back.
    for name in ("records/plan-00000.json", "manifest.json"):
        (out / name).unlink()
    since = changes(out)
    if changed:
        path.write_text("\n".join([*lines[:200], "CCO,another", *lines[200:]]))
        with pytest.raises(
            SourceError, match=r"the plan of the run in .* is lost, and its shard \d+ was made from another"
        ):
            run(job)
        assert since() == set()
    else:
        assert run(job).parts_made == 0


def test_an_input_that_has_changed_is_refused_and_the_finished_run_stays(
    run, molecules_job, molecules, tmp_path, changes
):
    path, out = tmp_path / "input.csv", tmp_path / "out"
    lines = molecules.read_text().splitlines()
    path.write_text("\n".join(lines))
    job = molecules_job(source={"path": str(path)})
    run(job)
    changed = changes(out)
    path.write_text("\n".join([*lines[:200], "CCO,another", *lines[200:]]))
    with pytest.raises(SourceError, match=r"the input has changed since the run in this folder began .*input\.csv"):
        run(job)
    assert changed() == set()
    assert (out / "_SUCCESS").exists()
    run(job, overwrite=True)
    assert verify_run(RunFolder(str(out)), deep=True) == []


def test_a_run_of_another_version_goes_on_and_says_so_and_of_other_numerics_is_refused(
    finished, run, job_of, caplog, changes
):
    path = finished / "records" / "run.json"
    written_by = unsealed(path.read_bytes())
    (finished / "data" / "part-00002.parquet").unlink()
    path.write_text(json.dumps(sealed({**written_by, "numerics_version": 0, "package_versions": ["0.0.1"]})))
    changed = changes(finished)
    with pytest.raises(
        JobFileError, match=r"was written by wegl-dask 0\.0\.1, numerics version 0; this is .* other numbers"
    ):
        run(job_of(finished))
    assert changed() == set()
    path.write_text(json.dumps(sealed({**written_by, "package_versions": ["0.0.1", "0.0.2"]})))
    assert run(job_of(finished)).parts_made == 1
    assert "parts of this run were made by version 0.0.1, 0.0.2 of wegl-dask" in caplog.text


def test_another_rdkit_reads_all_molecules_again(run, molecules_job, monkeypatch, changes, tmp_path):
    shards = run(molecules_job()).shards
    assert run(molecules_job()).parts_made == 0
    monkeypatch.setattr(ingest, "own_versions", lambda _: {"rdkit": "2019.03.1"})
    changed = changes(tmp_path / "out")
    # It has made the same graphs of them, so their embeddings stay.
    assert run(molecules_job()).parts_made == shards
    assert {path.partition("/")[0] for path in changed()} == {"graphs", "rejected", "records"}


@pytest.mark.parametrize("command", [run_job, ingest_job])
def test_workers_with_another_rdkit_are_refused_for_molecules_alone(
    command, run, molecules_job, mutag_job, replaced_on_workers, tmp_path
):
    from rdkit import rdBase

    replaced_on_workers("rdkit.rdBase", "rdkitVersion", lambda _: "2019.03.1")
    run(mutag_job("mutag"), only=command)
    with pytest.raises(VersionsError, match=r"do not run what this client runs; install the same versions") as caught:
        run(molecules_job(), only=command)
    assert re.search(rf"\| rdkit +\| {rdBase.rdkitVersion} +\|.*\| 2019\.03\.1 \(2 of 2\) +\|", caught.value.table)
    assert not (tmp_path / "out").exists()


def test_workers_without_rdkit_are_refused_for_molecules(run, molecules_job, replaced_on_workers):
    replaced_on_workers(
        "importlib", "import_module", lambda original: lambda name: original(name.replace("rdkit", "rdkat"))
    )
    with pytest.raises(VersionsError) as caught:
        run(molecules_job())
    assert "not installed (2 of 2)" in caught.value.table


def index_of(name):
    return re.search(r"\d{5}", name)[0]
