"""Appends night after night: no row is lost or embedded twice without a word, whatever comes and whatever was killed."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from rdkit import Chem

from wegl_dask import appending, read_embeddings, storage
from wegl_dask.appended import append_command
from wegl_dask.bags import StageError
from wegl_dask.errors import JobFileError, SourceError, TooManyRejectedError, WeglError
from wegl_dask.pipeline import ingest_job
from wegl_dask.shards import read_shard
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder
from wegl_dask.verify import verify_run

SMALL = {"projection": {"components": 2}, "reference": {"kind": "normal", "points": 3}}
"""For a handful of molecules."""


@pytest.fixture
def write_lines(tmp_path):
    """Write a CSV file of the folder in/, line by line."""

    def write(name, lines, header="smiles,id"):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / name).write_text("".join(f"{line}\n" for line in (header, *lines)))

    return write


@pytest.fixture
def write_molecules(tmp_path):
    """Write molecules to a file in the format of its ending: the job on it."""

    def write(name, rows):
        path = tmp_path / name
        source = {"kind": "smiles", "path": str(path), "id_column": "id"}
        match path.suffix:
            case ".csv":
                path.write_text("smiles,id\n" + "".join(f"{smiles},{name}\n" for smiles, name in rows))
            case ".smi":
                path.write_text("".join(f"{smiles} {name}\n" for smiles, name in rows))
            case ".parquet":
                pq.write_table(pa.table(dict(zip(("smiles", "id"), zip(*rows, strict=True), strict=True))), path)
            case ".sdf":
                source = {"kind": "sdf", "path": str(path), "id_column": "id"}
                path.write_text("".join(record(smiles, name) for smiles, name in rows))
        source["max_rejected_fraction"] = 0.5
        return {"source": source, "output": {"path": str(tmp_path / "out")}}

    return write


def record(smiles, name):
    """Write a record of an SDF file; of a molecule that RDKit cannot read, one that it cannot read either."""
    molecule = Chem.MolFromSmiles(smiles)
    block = "\n\n\nbroken\nM  END\n" if molecule is None else Chem.MolToMolBlock(molecule)
    return f"{block}> <id>\n{name}\n\n$$$$\n"


@pytest.fixture
def killed(append, monkeypatch):
    """Kill an append in one of its stages, or as the function `how` in the place of the stage does."""

    def append_and_die(out, *overrides, stage="embed", how=kill, key="row"):
        with monkeypatch.context() as patched:
            patched.setattr(appending, stage, how)
            with pytest.raises(KeyboardInterrupt):
                append(out, *overrides, key=key)

    return append_and_die


@pytest.fixture
def nights(run, rows, write_rows, folder_job, tmp_path):
    """A run on a.csv that has finished, and two files to append: the job, and what names them."""
    write_rows("a.csv", rows[:50])
    job = folder_job(source={"path": str(tmp_path / "in" / "a.csv")})
    run(job)
    for name, start in (("b.csv", 50), ("c.csv", 70)):
        write_rows(name, rows[start : start + 20])
    return job, *(f"source.path={tmp_path / 'in' / name}" for name in ("b.csv", "c.csv"))


def kill(*_, **__):
    """Take the place of a stage that the command is killed in."""
    raise KeyboardInterrupt


def ids(out):
    return sorted(read_embeddings(out).graph_id)


def test_an_append_that_was_killed_is_finished_before_another(
    killed, run, rows, write_rows, folder_job, append, contents, tmp_path
):
    write_rows("a.csv", rows[:50])
    job = folder_job(source={"path": str(tmp_path / "in" / "a.csv")})
    outs = [tmp_path / "out", tmp_path / "undisturbed"]
    for out in outs:
        run({**job, "output": {"path": str(out)}})
    write_rows("b.csv", rows[40:150])
    write_rows("c.csv", rows[150:170])
    b, c = (f"source.path={tmp_path / 'in' / name}" for name in ("b.csv", "c.csv"))
    append(outs[1], b, key="id")
    append(outs[1], c)
    original = appending.embed

    def kill_before_the_last_part(run, census, model):
        last = max(original(run, census, model))
        run.folder.remove(f"records/embed-{last:05d}.json")
        run.folder.remove(f"data/part-{last:05d}.parquet")
        raise KeyboardInterrupt

    killed(outs[0], b, key="id", how=kill_before_the_last_part)
    killed(outs[0], c, stage="ingest")
    summary = append(outs[0], c)
    assert summary.rows + summary.rejected == 20
    command = f"wegl-dask append {outs[0]} --by-id --set {b}"
    assert summary.notes[0].startswith(f"an append that was killed was finished first, {command}: ")
    for subfolder in ("data", "graphs", "rejected"):
        assert contents(outs[0], subfolder) == contents(outs[1], subfolder)
    assert verify_run(RunFolder(str(outs[0])), deep=True) == []


def test_an_append_that_was_stopped_is_corrected_by_one_of_the_same_file(
    killed, run, rows, write_rows, folder_job, append, tmp_path
):
    write_rows("a.csv", rows[:50])
    run(folder_job(source={"path": str(tmp_path / "in" / "a.csv")}))
    write_rows("b.csv", rows[:60])
    b = f"source.path={tmp_path / 'in' / 'b.csv'}"
    killed(tmp_path / "out", b)
    summary = append(tmp_path / "out", b, key="id")
    assert summary.rows + summary.rejected == 10
    assert len(set(ids(tmp_path / "out"))) == len(ids(tmp_path / "out"))
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []


def test_an_append_that_fails_does_not_stand_in_the_way_of_itself_corrected_or_of_others_when_given_up(
    nights, append, monkeypatch, tmp_path
):
    _, b, c = nights

    def fail(run, *_, **__):
        if run.spec.source.max_nodes is None and run.spec.source.path.endswith("b.csv"):
            raise StageError("shard 5: MemoryError")
        return embed(run, *_, **__)

    embed = appending.embed
    monkeypatch.setattr(appending, "embed", fail)
    with pytest.raises(StageError, match=r"^shard 5: MemoryError"):
        append(tmp_path / "out", b)
    with pytest.raises(
        StageError, match=r"finished first, .*b\.csv, and cannot be: shard 5: MemoryError\. To give it up, run"
    ):
        append(tmp_path / "out", c)
    assert append(tmp_path / "out", b, "source.max_nodes=1000").rows > 10
    assert append(tmp_path / "out", c).rows > 10
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []


def test_the_seconds_of_an_append_are_its_own(nights, killed, append, monkeypatch, tmp_path):
    _, b, c = nights
    killed(tmp_path / "out", b)
    seen = []
    scan = appending.scan_source

    def scanned(run, *arguments):
        seen.append(dict(run.stage_seconds))
        return scan(run, *arguments)

    monkeypatch.setattr(appending, "scan_source", scanned)
    append(tmp_path / "out", c)
    assert seen == [{}, {}]


def test_an_append_of_another_job_file_is_named_by_all_that_it_set(run, rows, write_rows, folder_job, tmp_path):
    write_rows("a.csv", rows[:50])
    job = folder_job(source={"path": str(tmp_path / "in" / "a.csv")})
    run(job)
    source = {
        "kind": "smiles",
        "path": str(tmp_path / "in" / "b.csv"),
        "extra_columns": [],
        "delimiter": ",",
        "id_column": "1",
    }
    folder = RunFolder(str(tmp_path / "out"))
    appended = {"source": source, "task": "none", "key": "id"}
    assert append_command(folder, appended).split()[2:] == [
        *(str(tmp_path / "out"), "--by-id", "--source", "JOB", "--set", f"source.path={tmp_path / 'in' / 'b.csv'}"),
        *("--set", "source.delimiter=,", "--set", "'source.id_column=\"1\"'", "--set", "task=none"),
    ]


def test_files_of_one_name_and_content_in_several_folders_do_not_stand_in_the_way(run, write_lines, append, tmp_path):
    job = {
        "source": {"kind": "smiles", "path": f"{tmp_path}/in/*/part.csv", "id_column": "id"},
        "output": {"path": str(tmp_path / "out")},
        **SMALL,
    }
    for day, lines in (("mon", ["CCO,1", "CCN,2", "CCC,3"]), ("tue", ["CCO,1", "CCN,2", "CCC,3"]), ("wed", ["CCF,4"])):
        (tmp_path / "in" / day).mkdir(parents=True)
        write_lines(f"{day}/part.csv", lines)
        if day == "tue":
            run(job)
            assert append(tmp_path / "out").notes == ("no row is new",)
    assert append(tmp_path / "out").rows == 1
    (tmp_path / "in" / "thu").mkdir()
    write_lines("thu/part.csv", ["CCF,4"])
    assert append(tmp_path / "out").rows == 1


def test_rows_without_labels_are_appended_to_labelled_ones(run, write_lines, append, tmp_path):
    job = {
        "source": {"kind": "smiles", "path": str(tmp_path / "in" / "a.csv"), "targets": ["y"]},
        "output": {"path": str(tmp_path / "out")},
        **SMALL,
    }
    write_lines("a.csv", ["CCO,1", "CCN,0", "CCC,1"], header="smiles,y")
    run(job)
    write_lines("b.csv", ["CCF,x", "CCCl,y"], header="smiles,z")
    summary = append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'b.csv'}", "source.targets=[]")
    assert summary.rows == 2
    labels = pq.read_table(tmp_path / "out" / "data", columns=["label"]).column("label").to_pylist()
    assert labels == [1, 0, 1, None, None]


def test_a_refused_append_that_is_killed_while_it_is_undone_is_gone(
    run, rows, write_rows, write_lines, folder_job, append, monkeypatch, tmp_path
):
    write_rows("a.csv", rows[:50])
    run(folder_job(source={"path": str(tmp_path / "in" / "a.csv")}))
    write_lines("b.csv", ["bad(,x1", "worse(,x2", "CCO,x3"])
    removed = []

    def kill_after_the_first(folder, names):
        removed.extend(names[:1])
        remove_all(folder, names[:1])
        if removed:
            raise KeyboardInterrupt

    remove_all = storage.remove_all
    with monkeypatch.context() as patched:
        patched.setattr(storage, "remove_all", kill_after_the_first)
        patched.setattr(RunFolder, "remove_scratch", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'b.csv'}")
    assert removed == ["records/plan-00001.json"]
    write_rows("c.csv", rows[50:60])
    summary = append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'c.csv'}")
    assert summary.rows + summary.rejected == 10
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []


def test_an_append_that_was_killed_and_cannot_be_finished_is_named_and_can_be_given_up(
    nights, killed, run, append, tmp_path
):
    job, b, c = nights
    killed(tmp_path / "out", b)
    (tmp_path / "in" / "b.csv").unlink()
    with pytest.raises(WeglError, match="has not finished: wegl-dask status  says what is to be started again"):
        read_embeddings(tmp_path / "out")
    with pytest.raises(SourceError) as error:
        append(tmp_path / "out", c)
    command = f"wegl-dask append {tmp_path / 'out'} --set {b}"
    assert str(error.value).startswith(
        f"an append that was killed has to be finished first, {command}, and cannot be: "
    )
    assert str(error.value).endswith("To give it up, run the run's job again")
    run(job)
    summary = append(tmp_path / "out", c)
    assert summary.rows + summary.rejected == 20


def test_an_append_that_was_killed_and_is_refused_is_named_and_undone(
    killed, run, rows, write_rows, write_lines, folder_job, append, tmp_path
):
    write_rows("a.csv", rows[:50])
    run(folder_job(source={"path": str(tmp_path / "in" / "a.csv")}))
    write_lines("b.csv", ["bad(,x1", "worse(,x2", "CCO,x3"])
    write_rows("c.csv", rows[50:60])
    b, c = (f"source.path={tmp_path / 'in' / name}" for name in ("b.csv", "c.csv"))

    killed(tmp_path / "out", b, stage="ingest")
    with pytest.raises(
        TooManyRejectedError, match=r"finished first, .*b\.csv, and cannot be: 2 of 3 rows .* It was undone"
    ):
        append(tmp_path / "out", c)
    assert verify_run(RunFolder(str(tmp_path / "out"))) == []
    summary = append(tmp_path / "out", c)
    assert summary.rows + summary.rejected == 10


@pytest.mark.parametrize("name", ["a.csv", "a.smi", "a.sdf", "a.parquet"])
def test_a_file_that_has_lost_rows_is_refused(name, run, rows, write_molecules, append, tmp_path):
    job = write_molecules(name, rows[:60])
    run(job)
    write_molecules(name, rows[:50])
    with pytest.raises(SourceError, match=f"{name} has 50 rows, and had 60 when they were embedded: restore it"):
        append(tmp_path / "out")
    write_molecules(name, rows[:60])
    assert append(tmp_path / "out").notes == ("no row is new",)
    write_molecules(name, rows[:70])
    summary = append(tmp_path / "out")
    assert summary.rows + summary.rejected == 10


def test_a_file_that_is_named_by_another_path_is_refused(run, rows, write_rows, folder_job, append, tmp_path):
    write_rows("a.csv", rows[:50])
    run(folder_job(source={"path": str(tmp_path / "in" / "a.csv")}))
    (tmp_path / "elsewhere").symlink_to(tmp_path / "in")
    for path in (tmp_path / "elsewhere" / "a.csv", f"{tmp_path}/in/../in/a.csv", f"file://{tmp_path}/elsewhere/*.csv"):
        with pytest.raises(
            SourceError, match=r"a\.csv holds rows that the run has from .*in/a\.csv: it is the same file"
        ):
            append(tmp_path / "out", f"source.path={path}")
        assert append(tmp_path / "out", f"source.path={path}", key="id").notes == ("no row is new",)


def test_a_row_in_the_place_of_a_rejected_one_is_refused(run, write_lines, folder_job, append, tmp_path):
    lines = ["CCO,1", "bad(,2", "CCC,3", "CCN"]
    write_lines("a.csv", lines)
    run(folder_job(source={"max_rejected_fraction": 0.9}, **SMALL))
    for changed in (["CCO,1", "CCN,9", *lines[2:]], ["CCO,1", "worse(,9", *lines[2:]], [*lines[:3], "CCCC,4"]):
        write_lines("a.csv", [*changed, "CCCl,5"])
        with pytest.raises(
            SourceError, match=r"row \d of .*a\.csv \(id \d\) has changed .* it had the id '\d', and was rejected"
        ):
            append(tmp_path / "out")
    # The same row is not tried again, whatever it is now.
    write_lines("a.csv", ["CCO,1", "CCN,2", *lines[2:], "CCCl,5"])
    append(tmp_path / "out")
    assert ids(tmp_path / "out") == ["1", "3", "5"]


@pytest.mark.parametrize("nothing", ["", " ", '" \t\u3000"'])
def test_rows_that_have_no_id_are_rejected_where_rows_are_known_by_it(
    run, write_lines, folder_job, append, tmp_path, nothing
):
    # Row 1 has no id, row 2 no columns: they are called by their numbers.
    write_lines("a.csv", ["CCO,10", f"CCN,{nothing}", "broken", "CCC,1000"])
    run(folder_job(source={"max_rejected_fraction": 0.9}, **SMALL))
    write_lines("b.csv", ["CCCl,1", "CCBr,2", f"CCF,{nothing}", "CCO,10", "also broken"])
    b = f"source.path={tmp_path / 'in' / 'b.csv'}"
    summary = append(tmp_path / "out", b, "source.max_rejected_fraction=0.9", key="id")
    assert (summary.rows, summary.rejected) == (2, 2)
    assert summary.reasons["the row has no id, and rows are told apart by their ids (--by-id)"] == 1
    assert ids(tmp_path / "out") == sorted(["10", "1", "1000", "1", "2"])
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []


def test_a_row_without_an_id_in_the_place_of_one_that_had_one_is_refused(
    run, write_lines, folder_job, append, tmp_path
):
    write_lines("a.csv", ["CCO,a", "CCN,", "CCC,c"])
    run(folder_job(source={"max_rejected_fraction": 0.9}, **SMALL))
    write_lines("a.csv", ["CCCl,", "CCO,a", "CCN,", "CCC,c"])
    with pytest.raises(
        SourceError, match=r"a\.csv, row 0 \(id 0\) is new, and a row of that file and number was embedded"
    ):
        append(tmp_path / "out", key="id")
    # One that had none is known in a file that grows.
    write_lines("a.csv", ["CCO,a", "CCN,", "CCC,c", "CCCl,d"])
    assert append(tmp_path / "out", key="id").rows == 1
    assert ids(tmp_path / "out") == ["1", "a", "c", "d"]


def test_rows_that_had_no_id_have_none_in_graph_shards_either(run, write_lines, append, tmp_path):
    lines = {"a": ["CCO", "CCN", "CCC"], "b": ["CCF", "CCCl", "CCBr", "CCI"]}
    for name, smiles in lines.items():
        write_lines(f"{name}.csv", smiles, header="smiles")
        source = {"kind": "smiles", "path": str(tmp_path / "in" / f"{name}.csv")}
        run({"source": source, "output": {"path": str(tmp_path / name)}}, only=ingest_job)
    source = {"kind": "graph_parquet", "path": str(tmp_path / "a" / "graphs"), "max_rejected_fraction": 1.0}
    run({"source": source, "output": {"path": str(tmp_path / "out")}, **SMALL})
    b = f"source.path={tmp_path}/b/graphs"
    summary = append(tmp_path / "out", b, key="id")
    assert (summary.rows, summary.rejected) == (0, 4)
    # Rows are not taken for others by their numbers, so that by their place they are new.
    assert len(ids(tmp_path / "out")) == 3
    for name in ("a", "b"):
        (path,) = (tmp_path / name / "graphs").iterdir()
        assert read_shard(path).unnamed == {str(tmp_path / "in" / f"{name}.csv"): [[0, len(lines[name])]]}


def test_ids_that_are_row_numbers_are_known_where_they_are_ids(run, write_lines, folder_job, append, tmp_path):
    write_lines("a.csv", [f"{'C' * (i + 1)},{i}" for i in range(5)])
    run(folder_job(**SMALL))
    write_lines("b.csv", [f"{'C' * (i + 1)}O,{i}" for i in range(3, 8)])
    summary = append(tmp_path / "out", f"source.path={tmp_path / 'in' / 'b.csv'}", key="id")
    assert ids(tmp_path / "out") == [str(i) for i in range(8)]
    assert summary.rows == 3


@pytest.mark.parametrize(
    ("first", "then", "kind"),
    [
        (["0", "1", "1"], ["1", "0"], "class"),
        (["0", "1", "1"], ["1", "1"], "class"),
        (["0.5", "1", "3"], ["1", "0"], "target"),
        (["0.5", "1", "3"], ["2.5", "n/a"], "target"),
        (["a", "b", "a"], ["b", "c"], "class"),
    ],
)
def test_labels_are_read_as_those_of_the_run_whatever_the_new_ones_look_like(
    first, then, kind, run, write_lines, append, tmp_path
):
    job = {
        "source": {
            "kind": "smiles",
            "path": str(tmp_path / "in" / "*.csv"),
            "targets": ["y"],
            "max_rejected_fraction": 0.5,
        },
        "output": {"path": str(tmp_path / "out")},
        **SMALL,
    }
    write_lines("a.csv", [f"{'C' * (i + 1)},{y}" for i, y in enumerate(first)], header="smiles,y")
    run(job)
    write_lines("b.csv", [f"{'C' * (i + 1)}O,{y}" for i, y in enumerate(then)], header="smiles,y")
    summary = append(tmp_path / "out")
    rejected = [y for y in then if y in {"n/a", "c"}]
    assert (summary.rows, summary.rejected) == (2 - len(rejected), len(rejected))
    read = {
        "class": lambda y: sorted(set(first)).index(y),
        "target": float,
    }[kind]
    labels = pq.read_table(tmp_path / "out" / "data", columns=["label"]).column("label").to_pylist()
    assert labels == [read(y) for y in [*first, *then] if y not in rejected]
    # The job itself reads the folder with all files once more, since a part of it is lost.
    (tmp_path / "out" / "_SUCCESS").unlink()
    (tmp_path / "out" / "records" / "embed-00000.json").unlink()
    run(job)
    assert pq.read_table(tmp_path / "out" / "data", columns=["label"]).column("label").to_pylist() == labels


def test_a_night_of_rows_that_cannot_be_embedded_can_be_got_past(
    run, rows, write_rows, write_lines, folder_job, append, tmp_path
):
    write_rows("a.csv", rows[:50])
    run(folder_job())
    write_lines("b.csv", ["bad(,x1", "worse(,x2"])
    with pytest.raises(TooManyRejectedError):
        append(tmp_path / "out")
    summary = append(tmp_path / "out", "source.max_rejected_fraction=1")
    assert (summary.rows, summary.rejected) == (0, 2)
    write_rows("c.csv", rows[50:60])
    assert append(tmp_path / "out").rows > 5
    assert verify_run(RunFolder(str(tmp_path / "out")), deep=True) == []


@pytest.mark.parametrize("kind", ["tud", "ogb", "pyg"])
def test_sources_whose_graphs_are_numbered_are_not_appended_by_id(kind, shared_data, tmp_path):
    tables = {
        "tud": {"root": str(shared_data / "TUDataset"), "name": "MUTAG"},
        "ogb": {"root": str(shared_data / "ogb"), "name": "ogbg-molhiv", "download": False},
        "pyg": {"path": "graphs.pt", "trust": True},
    }
    spec = JobSpec.from_values({"source": {"kind": kind, **tables[kind]}, "output": {"path": str(tmp_path / "out")}})
    with pytest.raises(JobFileError, match=f"graphs of a source of kind '{kind}' have no ids but their numbers"):
        appending.refuse_append_early(spec, key="id")


def test_a_lookup_table_that_grows_is_appended_and_one_that_has_changed_is_named(run, append, write_lines, tmp_path):
    smiles = ["CCO", "CCN", "c1ccccc1", "CC(=O)O", "C1CC1", "COC"]

    def write(n, labels):
        write_lines("a.csv", (f"{smiles[row % 6]},m{row}" for row in range(n)))
        (tmp_path / "assay.csv").write_text("id,y\n" + "".join(f"m{row},{labels[row]}\n" for row in range(n)))

    source = {"kind": "smiles", "path": str(tmp_path / "in" / "a.csv"), "id_column": "id", "targets": ["y"]}
    source["lookup"] = {"path": str(tmp_path / "assay.csv"), "on": "id"}
    job = {**SMALL, "source": source, "output": {"path": str(tmp_path / "out")}}
    labels = [row % 2 for row in range(30)]
    write(20, labels)
    run(job)
    write(30, labels)
    append(tmp_path / "out")
    assert read_embeddings(tmp_path / "out").y.tolist() == labels
    assert run(job).parts_made == 0

    labels[5] = 0
    write(30, labels)
    with pytest.raises(SourceError, match=r"run in this folder began \(the lookup table .*assay\.csv\)\."):
        run(job)
    with pytest.raises(SourceError, match=r"^row 5 of .*a\.csv \(id m5\) has changed .*: it had the label 1\."):
        append(tmp_path / "out")
    # With the table restored, the file that is joined to it is the one that has changed.
    labels[5] = 1
    write(30, labels)
    write_lines("a.csv", (f"{'CCC' if row == 5 else smiles[row % 6]},m{row}" for row in range(30)))
    with pytest.raises(SourceError, match=r"run in this folder began \([^ ]*a\.csv\)\."):
        run(job)


def test_what_has_changed_is_named_where_an_append_had_no_lookup_table(run, append, write_lines, tmp_path):
    write_lines("a.csv", [f"CC{'C' * row}O,m{row}" for row in range(6)])
    write_lines("assay.csv", [f"m{row},{row % 2}" for row in range(6)], header="id,y")
    source = {"kind": "smiles", "path": str(tmp_path / "in" / "a.csv"), "id_column": "id", "targets": ["y"]}
    lookup = {"path": str(tmp_path / "in" / "assay.csv"), "on": "id"}
    job = {**SMALL, "source": {**source, "lookup": lookup}, "output": {"path": str(tmp_path / "out")}}
    run(job)
    write_lines("b.csv", ["CCN,n0,1", "CCCN,n1,0"], header="smiles,id,y")
    other = {**source, "path": str(tmp_path / "in" / "b.csv")}
    assert append(tmp_path / "out", job_toml=tomli_w.dumps({"source": other})).rows == 2
    write_lines("assay.csv", [f"m{row},{(row + 1) % 2}" for row in range(6)], header="id,y")
    with pytest.raises(SourceError, match=r"run in this folder began \(the lookup table .*assay\.csv\)\."):
        run(job)
