"""Parts of a run that was appended to are made anew by its job, those of the appends too: always the same bytes."""

import itertools
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from wegl_dask import appended
from wegl_dask.cli import main
from wegl_dask.errors import OtherInputError, SourceError, WeglError
from wegl_dask.plans import planned_shards
from wegl_dask.storage import RunFolder
from wegl_dask.verify import verify_run

WAYS = ("new files", "another source", "without graphs", "shards")
"""How the rows came that were appended: see `Appended`."""

PARTS = ("data", "graphs", "rejected", "records/ingest", "records/embed")

DAMAGED = [
    *[("new files", [part]) for part in PARTS],
    *[pytest.param("without graphs", [part], marks=pytest.mark.slow) for part in PARTS if part != "graphs"],
    *[(way, [*PARTS]) for way in ("another source", "shards")],
    ("without graphs", [part for part in PARTS if part != "graphs"]),
]
"""Which files are damaged, of which run."""


@dataclass(frozen=True)
class Appended:
    """A run that was appended to, twice.

    Attributes
    ----------
    job : dict
        "new files": on a folder, in which files have come, and rows at the end of one; "without graphs": likewise, its
        graphs are not kept; "another source": on a file, and rows of another were appended, by id; "shards": on a folder
        with graph shards.
    out : Path
    inputs : Path
        The folder of the source.
    files : tuple of str
        Files in it that parts of the run, and of the first append, were made from.
    """

    job: dict
    out: Path
    inputs: Path
    files: tuple[str, str]

    def at(self, out):
        """The job with another output folder, to which the run is copied."""
        return {**self.job, "output": {**self.job["output"], "path": str(shutil.copytree(self.out, out))}}


def write_rows(path, rows, mode="w"):
    with path.open(mode) as file:
        file.write("smiles,id\n" if mode == "w" else "")
        file.writelines(row + "\n" for row in rows)


@pytest.fixture(scope="module")
def appended_by(run, append, molecules, tmp_path_factory):
    """Make a run that was appended to in one of `WAYS`; once."""
    rows = molecules.read_text().splitlines()[1:]
    made = {}

    def of_molecules(way, folder):
        inputs, out = folder / "in", folder / "out"
        inputs.mkdir()
        path = inputs / "b.csv" if way == "another source" else inputs
        job = {
            "source": {
                "kind": "smiles",
                "path": str(path),
                "id_column": "id",
                "nodes_per_shard": 400,
                "max_nodes": 14,
                "max_rejected_fraction": 1.0,
            },
            "projection": {"components": 6},
            "output": {"path": str(out), "keep_graphs": way != "without graphs"},
        }
        write_rows(inputs / "b.csv", rows[:120])
        run(job)
        if way == "another source":
            write_rows(inputs / "c.csv", rows[100:220])
            append(out, f"source.path={inputs}/c.csv", key="id")
            write_rows(inputs / "d.csv", rows[200:240])
            append(out, f"source.path={inputs}/d.csv", key="id")
        else:
            write_rows(inputs / "c.csv", rows[120:220])
            write_rows(inputs / "b.csv", rows[220:240], "a")
            append(out)
            write_rows(inputs / "a.csv", rows[240:260])
            append(out)
        return Appended(job, out, inputs, ("b.csv", "c.csv"))

    def of_shards(folder):
        shards = sorted((appended_by("new files").out / "graphs").iterdir())
        inputs, out = folder / "in", folder / "out"
        inputs.mkdir()
        job = {
            "source": {
                "kind": "graph_parquet",
                "path": str(inputs),
                "nodes_per_shard": 10_000,
                "max_nodes": 12,
                "max_rejected_fraction": 1.0,
            },
            "projection": {"components": 6},
            "output": {"path": str(out)},
        }
        for came in (shards[2:6], shards[6:], shards[:2]):
            for shard in came:
                shutil.copy(shard, inputs)
            append(out) if out.exists() else run(job)
        return Appended(job, out, inputs, (shards[2].name, shards[6].name))

    def appended_by(way):
        if way not in made:
            folder = tmp_path_factory.mktemp("appended")
            made[way] = of_shards(folder) if way == "shards" else of_molecules(way, folder)
        return made[way]

    return appended_by


@pytest.fixture
def call():
    """Run ``wegl-dask`` in this process: its exit code, and all that it says."""

    def call(*arguments):
        result = CliRunner().invoke(main, [*map(str, arguments)])
        return result.exit_code, result.output

    return call


@pytest.fixture
def restored():
    """Keep input files, to be put back at the end of the test."""
    kept = {}

    def keep(*paths):
        kept.update({path: path.read_bytes() for path in paths})

    yield keep
    for path, content in kept.items():
        path.write_bytes(content)


def alter(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE = (alter, truncate, Path.unlink)


def shards_of(out):
    """The shards of the job, and those that were appended."""
    first, *others = RunFolder(str(out)).records("plan")
    return {"first": planned_shards(first), "appended": {shard for plan in others for shard in planned_shards(plan)}}


def files_of(out, which, part):
    """The files of one kind that belong to shards of the job, or of appends."""
    folder, _, stage = part.partition("/")
    return [
        path
        for path in sorted((out / folder).iterdir())
        if path.name.startswith(stage or "part") and index_of(path) in shards_of(out)[which]
    ]


def index_of(path):
    return int(re.search(r"\d{5}", path.name)[0])


def index_of_file(out, which, inputs, name):
    """A shard of the job, or of its first append, that was made from an input file."""
    first, second, *_ = RunFolder(str(out)).records("plan")
    units = {"first": first, "appended": second}[which].extra["plan"]["units"]
    return next(cut["shard"] for unit in units if unit["piece"] == str(inputs / name) for cut in unit["cuts"])


@pytest.fixture
def is_whole(same_bytes):
    """Whether a run has the bytes of another, and is found to be as it was written."""

    def is_whole(out, other):
        return same_bytes(out, other) and verify_run(RunFolder(str(out)), deep=True) == []

    return is_whole


# --- Damage ---


@pytest.mark.parametrize("which", ["first", "appended"])
@pytest.mark.parametrize(("way", "parts"), DAMAGED)
def test_damaged_parts_are_made_anew_by_the_job_and_no_others(
    way, parts, which, appended_by, run, call, written_at, is_whole, tmp_path
):
    before, out = appended_by(way), tmp_path / "out"
    job = before.at(out)
    files = [files_of(out, which, part) for part in parts]
    paths = {each[i] for each in files for i in (0, 1, -1)}
    assert len(paths) == len(DAMAGE) * len(parts)
    times = written_at(out)
    for path, damage in zip(sorted(paths), itertools.cycle(DAMAGE), strict=False):
        damage(path)
    code, said = call("verify", out)
    assert (code, "run the job again, which makes anew what is missing or damaged" in said) == (1, True)
    summary = run(job)
    assert is_whole(out, before.out)
    # Where graphs are not kept, those of a part that is to be embedded anew have to be read again.
    shards = {index_of(path) for path in paths}
    assert len(shards) <= summary.parts_made <= 2 * len(shards)
    assert any("made anew; what else has changed in the source was not looked at" in note for note in summary.notes)
    remade = {name for name, time in written_at(out).items() if times.get(name) != time}
    assert {index_of(Path(name)) for name in remade} == shards
    assert call("verify", out)[0] == 0
    assert (run(job).parts_made, call("status", out)[1].partition("\n")[0]) == (0, f"{out}: finished")


@pytest.mark.parametrize(
    ("way", "lost"),
    [
        *[("new files", [name]) for name in ("manifest.json", "_SUCCESS")],
        *[(way, ["manifest.json", "_SUCCESS"]) for way in WAYS],
    ],
)
def test_parts_of_a_run_without_manifest_or_mark_are_made_anew_too(
    way, lost, appended_by, run, call, is_whole, tmp_path
):
    before, out = appended_by(way), tmp_path / "out"
    job = before.at(out)
    for name in lost:
        (out / name).unlink()
    for which in ("first", "appended"):
        files_of(out, which, "data")[0].unlink()
        alter(files_of(out, which, "rejected")[-1])
        files_of(out, which, "records/embed")[1].unlink()
    assert "run the job again" in call("verify", out)[1]
    assert "append again" not in call("status", out)[1]
    run(job)
    assert is_whole(out, before.out)
    assert not any(path.name.startswith("known") for path in (out / "records").iterdir())


@pytest.mark.parametrize("way", ["new files", "without graphs"])
def test_a_folder_that_was_removed_is_made_anew(way, appended_by, run, is_whole, tmp_path):
    before, out = appended_by(way), tmp_path / "out"
    job = before.at(out)
    shutil.rmtree(out / "data")
    run(job)
    assert is_whole(out, before.out)
    shutil.rmtree(out / "model")
    run(job)
    assert is_whole(out, before.out)


@pytest.mark.parametrize(("index", "damage"), [*enumerate(DAMAGE)])
def test_the_record_of_a_plan_is_restored_from_the_manifest(
    index, damage, appended_by, run, append, call, is_whole, caplog, tmp_path
):
    before, out = appended_by("another source"), tmp_path / "out"
    job = before.at(out)
    damage(out / "records" / f"plan-{index:05d}.json")
    assert "run the job again" in call("verify", out)[1]
    assert run(job).parts_made == 0
    assert f"records/plan-{index:05d}.json was lost or damaged; it was restored from manifest.json" in caplog.text
    assert is_whole(out, before.out)
    damage(out / "records" / f"plan-{index:05d}.json")
    append(out)
    assert is_whole(out, before.out)


# --- The source ---


def test_a_run_that_is_whole_takes_what_was_appended_for_no_change(appended_by, run, written_at, tmp_path):
    for way in WAYS:
        job = appended_by(way).at(tmp_path / way)
        before = written_at(tmp_path / way)
        summary = run(job)
        assert (summary.parts_made, written_at(tmp_path / way)) == (0, before)
        assert any("in all, with what was appended" in note for note in summary.notes)


@pytest.mark.parametrize("is_appended", [False, True])
def test_files_that_have_come_since_do_not_hinder_a_repair_and_are_for_an_append(
    is_appended, run, append, call, molecules, same_bytes, tmp_path
):
    rows, inputs, out = molecules.read_text().splitlines()[1:], tmp_path / "in", tmp_path / "out"
    inputs.mkdir()
    source = {"kind": "smiles", "path": str(inputs), "id_column": "id"}
    job = {"source": source, "reference": {"points": 5}, "output": {"path": str(out)}}
    write_rows(inputs / "b.csv", rows[:60])
    run(job)
    if is_appended:
        write_rows(inputs / "c.csv", rows[60:80])
        append(out)
    shutil.copytree(out, tmp_path / "whole")
    write_rows(inputs / "a.csv", rows[80:90])
    with pytest.raises(OtherInputError, match=r"has changed since .* began \(\S*/a\.csv\)\. .* by  wegl-dask append"):
        run(job)
    assert call("verify", out)[0] == 0
    truncate(out / "data" / "part-00000.parquet")
    with pytest.raises(WeglError, match=r"part-00000\.parquet, or .* was altered .*: run the run's job again"):
        append(out)
    assert run(job).parts_made == 1
    assert same_bytes(out, tmp_path / "whole")
    assert call("verify", out)[0] == 0
    summary = append(out)
    assert summary.rows + summary.rejected == 10


@pytest.mark.parametrize("which", ["first", "appended"])
@pytest.mark.parametrize("way", WAYS)
def test_a_part_whose_own_file_has_changed_is_refused_with_its_name_and_others_do_not_matter(
    way, which, appended_by, run, restored, is_whole, contents, tmp_path
):
    before, out = appended_by(way), tmp_path / "out"
    job = before.at(out)
    own, other = before.files if which == "first" else before.files[::-1]
    paths = {name: before.inputs / name for name in (own, other)}
    restored(*paths.values())
    is_read = "data" if way == "without graphs" else "graphs"
    damaged = out / is_read / f"part-{index_of_file(out, which, before.inputs, own):05d}.parquet"
    damaged.unlink()
    whole, data = paths[own].read_bytes(), contents(out)
    # Of text the first row, which the part was made from; a graph shard cannot be read any more.
    header, row, rest = whole.split(b"\n", 2)
    changed = whole[: len(whole) // 2] if way == "shards" else b"\n".join([header, row.replace(b"C", b"N"), rest])
    for content in (changed, None):
        paths[own].unlink() if content is None else paths[own].write_bytes(content)
        with pytest.raises(SourceError, match=rf"{re.escape(own)}.*(restore it|check the)"):
            run(job)
        assert {name: contents(out).get(name) for name in data} == data
    paths[own].write_bytes(whole)
    paths[other].unlink()
    run(job)
    assert is_whole(out, before.out)


def test_a_whole_run_of_which_a_file_has_changed_is_refused_still(appended_by, run, restored, written_at, tmp_path):
    before, out = appended_by("new files"), tmp_path / "out"
    job, times = before.at(out), written_at(out)
    for name in before.files:
        path = before.inputs / name
        restored(path)
        whole = path.read_bytes()
        lines = whole.splitlines()
        path.write_bytes(b"\n".join([lines[0], *lines[2:]]) + b"\n")
        with pytest.raises(OtherInputError, match=rf"has changed since .*{re.escape(name)}"):
            run(job)
        path.unlink()
        if name == before.files[0]:
            with pytest.raises(OtherInputError, match=rf"has changed since .*{re.escape(name)}"):
                run(job)
        path.write_bytes(whole)
    # The copy's own path was written into job.toml.
    assert (out / "_SUCCESS").exists()
    assert {name: time for name, time in written_at(out).items() if times[name] != time} == {}


# --- Appends to a run with damage ---


@pytest.mark.parametrize("part", ["data", "records/ingest", "records/embed"])
def test_nothing_is_appended_where_an_appended_part_is_missing_and_nothing_is_lost(
    part, appended_by, append, run, is_whole, contents, tmp_path
):
    before, out = appended_by("another source"), tmp_path / "out"
    job = before.at(out)
    path = files_of(out, "appended", part)[0]
    path.unlink()
    data = contents(out)
    for source in ("b.csv", "d.csv"):
        with pytest.raises(WeglError, match="run the run's job again, which makes anew what is missing"):
            append(out, f"source.path={before.inputs}/{source}", key="id")
    assert contents(out) == data
    run(job)
    assert is_whole(out, before.out)


@pytest.mark.parametrize("way", ["new files", "without graphs"])
def test_a_repair_that_was_killed_goes_on(way, appended_by, run, append, call, is_whole, monkeypatch, tmp_path):
    before, out = appended_by(way), tmp_path / "out"
    job = before.at(out)
    for part in ("data", "records/ingest"):
        files_of(out, "appended", part)[0].unlink()

    def kill(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(appended, "embed", kill)
        with pytest.raises(KeyboardInterrupt):
            run(job)
    assert "run the job again to go on" in call("status", out)[1]
    with pytest.raises(WeglError, match="run the run's job again"):
        append(out)
    run(job)
    assert is_whole(out, before.out)


def test_a_damaged_run_with_an_append_that_was_killed_is_made_whole_by_the_job(
    appended_by, run, append, call, molecules, is_whole, monkeypatch, tmp_path
):
    before, out = appended_by("another source"), tmp_path / "out"
    job = before.at(out)
    write_rows(tmp_path / "e.csv", molecules.read_text().splitlines()[300:320])
    source = f"source.path={tmp_path}/e.csv"

    def kill(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("wegl_dask.appending.embed", kill)
        with pytest.raises(KeyboardInterrupt):
            append(out, source)
    for command in ("status", "verify"):
        assert f"append again, by  wegl-dask append {out}" in call(command, out)[1]
    alter(files_of(out, "first", "data")[0])
    assert "run the job again" in call("verify", out)[1]
    with pytest.raises(WeglError, match="run the run's job again"):
        append(out, source)
    summary = run(job)
    command = f"wegl-dask append {out} --set {source}"
    assert f"an append that was not finished was undone: append again, by  {command}" in summary.notes
    assert is_whole(out, before.out)
    summary = append(out, source)
    assert summary.rows + summary.rejected == 20


def test_status_says_that_parts_of_a_finished_run_are_missing(appended_by, call, tmp_path):
    before, out = appended_by("new files"), tmp_path / "out"
    before.at(out)
    files_of(out, "appended", "records/embed")[0].unlink()
    assert "finished; parts of it are missing: run the job again, which makes them anew" in call("status", out)[1]


def test_a_transform_that_was_appended_to_is_made_anew_with_the_model_that_it_names(
    appended_by, run, append, molecules, is_whole, tmp_path
):
    rows, model, out = molecules.read_text().splitlines()[1:], appended_by("new files").out, tmp_path / "out"
    write_rows(tmp_path / "x.csv", rows[300:340])
    source = {"kind": "smiles", "path": str(tmp_path / "*.csv"), "id_column": "id", "nodes_per_shard": 400}
    job = {"source": source, "model": {"path": str(model)}, "output": {"path": str(out)}}
    run(job)
    write_rows(tmp_path / "y.csv", rows[340:380])
    append(out)
    shutil.copytree(out, tmp_path / "whole")
    for which in ("first", "appended"):
        for part, damage in zip(("graphs", "data"), DAMAGE, strict=False):
            damage(files_of(out, which, part)[0])
    (out / "model" / "arrays.npz").unlink()
    run(job)
    assert is_whole(out, tmp_path / "whole")


def test_appended_parts_whose_plan_is_lost_for_good_are_removed_with_a_word_and_appended_again(
    appended_by, run, append, is_whole, tmp_path
):
    before, out = appended_by("new files"), tmp_path / "out"
    job = before.at(out)
    (out / "records" / "plan-00002.json").unlink()
    (out / "manifest.json").unlink()
    with pytest.raises(
        WeglError, match=r"the record of a plan of the run in .* is lost, that of data/part-.*: run the run"
    ):
        append(out)
    said = "part without the record of a plan removed: if it was an append's, append again, by  wegl-dask append"
    assert f"1 {said} {out}" in run(job).notes
    append(out)
    assert is_whole(out, before.out)
