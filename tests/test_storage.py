import json
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from wegl_dask.errors import WeglError
from wegl_dask.records import PartRecord, Work, part_index, part_path, record_path
from wegl_dask.storage import RunFolder


def write_part(folder, index, *, stage="embed", made_from="input", content=b"PAR1 embeddings", rows=3):
    with folder.recording(stage, index, made_from) as part:
        part.write("data", content, rows=rows)
    return part.record


def test_a_part_and_its_record(run_folder):
    with run_folder.recording("ingest", 7, "abc") as part:
        part.write("graphs", lambda file: file.write(b"graphs") and 5)
        part.write("rejected", b"rejected", rows=2)
        part.note(nodes=40, reasons={"no nodes": 2})
    assert run_folder.listing("graphs") == {"part-00007.parquet": 6}
    record = json.loads(run_folder.read("records/ingest-00007.json"))
    # The hashes are those that sha256sum prints.
    seconds = record.pop("seconds")
    assert 0 <= seconds < 60
    assert re.fullmatch("[0-9a-f]{32}", record.pop("checksum"))
    assert record == {
        "stage": "ingest",
        "index": 7,
        "input": "abc",
        "files": [
            {
                "path": "graphs/part-00007.parquet",
                "rows": 5,
                "bytes": 6,
                "sha256": "1c8949fa334cb74536df46bf61b76e3cabcbec3b2553427f61114fc637a73114",
            },
            {
                "path": "rejected/part-00007.parquet",
                "rows": 2,
                "bytes": 8,
                "sha256": "20cd938a2ea64f612b3523bc9219130c6fc66cd09b394ea38437488c0b8898b2",
            },
        ],
        "nodes": 40,
        "reasons": {"no nodes": 2},
    }
    assert run_folder.records() == [part.record]
    assert part.record.rows("graphs") == 5
    assert part.record.rows("data") == 0


def test_records_survive_json():
    record = PartRecord("embed", 3, "abc", (), 0.25, {"b": [1, 2], "a": {"c": None}})
    assert PartRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert list(record.to_json()) == ["stage", "index", "input", "files", "seconds", "a", "b"]


def test_a_record_that_was_altered_in_any_place_is_none(tmp_path):
    folder = RunFolder(str(tmp_path))
    record = write_part(folder, 3)
    path = tmp_path / record.path
    whole = path.read_bytes()
    assert folder.record("embed", 3) == record
    for place in range(len(whole) - 1):
        altered = bytearray(whole)
        altered[place] ^= 1
        path.write_bytes(altered)
        assert folder.record("embed", 3) is None


def test_a_part_is_finished_when_its_record_names_the_expected_input(run_folder):
    for index in range(3):
        write_part(run_folder, index, made_from=f"input {index}")
    write_part(run_folder, 0, stage="other", made_from="input 0")
    expected = {0: "input 0", 1: "input 1 has changed", 2: "input 2", 3: "input 3"}
    found = run_folder.finished("embed", expected)
    assert list(found) == [0, 2]
    assert found[2].stage == "embed"
    assert found[2].index == 2
    assert run_folder.finished("moments", expected) == {}
    assert RunFolder("memory://nowhere").finished("embed", expected) == {}


def test_parts_that_are_deleted_cut_or_altered_are_found(run_folder):
    for index in range(4):
        write_part(run_folder, index)
    run_folder.remove(part_path("data", 0))
    run_folder.write(part_path("data", 1), b"PAR1 embedding")
    run_folder.write(part_path("data", 2), b"PAR1 embeddinGs")
    expected = dict.fromkeys(range(4), "input")
    found = run_folder.finished("embed", expected)
    assert list(found) == [2, 3]
    assert [run_folder.part_is_intact(record) for record in found.values()] == [False, True]
    assert run_folder.parts_are_intact([*found.values()]) == [False, True]
    assert not run_folder.part_is_intact(PartRecord.from_json(found[3].to_json() | {"files": [missing_file()]}))


def missing_file():
    return {"path": "data/part-00009.parquet", "rows": 1, "bytes": 1, "sha256": ""}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"stage": "embed"}',
        b'{"stage": "embed", "index": 1, "input": "input", "files": [], "seconds": 1}',
        b'{"stage": "embed", "index": "0", "input": "input", "files": [{}], "seconds": 1}',
        b'{"stage": "embed", "index": -1, "input": "input", "files": [], "seconds": 1}',
    ],
)
def test_a_damaged_record_counts_as_none(tmp_path, content):
    folder = RunFolder(str(tmp_path))
    write_part(folder, 0)
    folder.write(record_path("embed", 0), content)
    assert folder.records() == []
    assert folder.finished("embed", {0: "input"}) == {}


def test_a_failed_part_has_no_record_and_an_older_record_is_gone(run_folder):
    write_part(run_folder, 0)

    def remake():
        with run_folder.recording("embed", 0, "input") as part:
            part.write("data", b"another", rows=1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        remake()
    assert run_folder.finished("embed", {0: "input"}) == {}


def test_several_stages_write_to_one_folder_under_different_names(run_folder):
    with run_folder.recording("embed", 1, "x") as part:
        part.write("rejected", b"1", rows=1, tag="embed")
    assert list(run_folder.listing("rejected")) == ["part-00001-embed.parquet"]


def test_names_that_would_not_be_found_again_are_refused(tmp_path):
    folder = RunFolder(str(tmp_path))
    for name in ("Embed", "embed-1", ""):
        with pytest.raises(ValueError, match="is no record"), folder.recording(name, 0, ""):
            pass
    with folder.recording("embed", 0, "") as part:
        for where, tag in (("records", ""), ("../data", ""), ("data", "A b")):
            with pytest.raises(ValueError, match="is no part"):
                part.write(where, b"", rows=0, tag=tag)
        with pytest.raises(ValueError, match="is no scratch file"):
            part.write_arrays("../x", {})
        with pytest.raises(ValueError, match="give the number of rows"):
            part.write("data", b"")
        with pytest.raises(ValueError, match="the record has seconds already"):
            part.note(seconds=3)


def test_part_names_grow_beyond_five_digits():
    assert part_path("data", 123_456) == "data/part-123456.parquet"
    assert part_index("part-123456.parquet") == 123_456
    assert part_index("part-00012-embed.parquet") == 12
    assert part_index("part-1.parquet") is None
    assert part_index(".tmp-part-00001.parquet-abc") is None


def test_only_the_named_parts_are_kept(run_folder):
    kept = [write_part(run_folder, index) for index in range(2)]
    write_part(run_folder, 2)
    with run_folder.recording("embed", 1, "input") as part:
        part.write("data", b"again", rows=1)
        part.write("rejected", b"1", rows=1, tag="embed")
    kept[1] = part.record
    run_folder.write("data/part-00077.parquet", b"never recorded")
    run_folder.write("data/README.txt", b"somebody's")
    run_folder.write("records/run.json", b"{}")
    run_folder.keep_only(kept)
    assert sorted(run_folder.listing("data")) == ["README.txt", "part-00000.parquet", "part-00001.parquet"]
    assert sorted(run_folder.listing("rejected")) == ["part-00001-embed.parquet"]
    assert sorted(run_folder.listing("records")) == ["embed-00000.json", "embed-00001.json", "run.json"]


def test_scratch_arrays_go_with_their_records(run_folder):
    arrays = {"mean": np.linspace(0, 1, 5), "count": np.array(7)}
    with run_folder.recording("moments", 3, "x") as part:
        file = part.write_arrays("moments", arrays)
    write_part(run_folder, 3)
    found = run_folder.read_arrays(file)
    assert {name: array.tolist() for name, array in found.items()} == {k: v.tolist() for k, v in arrays.items()}
    assert run_folder.part_is_intact(run_folder.finished("moments", {3: "x"})[3])
    run_folder.remove_scratch()
    assert run_folder.listing("scratch") == {}
    assert [record.stage for record in run_folder.records()] == ["embed"]


def test_graphs_can_be_removed_and_nothing_else_goes(run_folder):
    with run_folder.recording("ingest", 0, "x") as part:
        part.write("graphs", b"1", rows=1)
    run_folder.write("graphs/notes.txt", b"somebody's")
    run_folder.remove_graphs()
    assert run_folder.listing("graphs") == {"notes.txt": 10}


def test_temporary_files_of_killed_processes_are_cleaned(tmp_path):
    folder = RunFolder(str(tmp_path))
    write_part(folder, 0)
    for name in (".tmp-job.toml-1", "data/.tmp-part-00001.parquet-2", "records/.tmp-embed-00001.json-3"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "data" / ".hidden").write_bytes(b"somebody's")
    folder.write("train/ridge/.tmp-model.skops-4", b"half")
    folder.clean_temporary()
    assert sorted(folder.listing("data")) == [".hidden", "part-00000.parquet"]
    assert list(folder.listing("records")) == ["embed-00000.json"]
    assert ".tmp-job.toml-1" not in folder.listing()
    # A training may be writing it, which holds a lock of its own.
    assert list(folder.listing("train/ridge")) == [".tmp-model.skops-4"]
    folder.clean_temporary("train/ridge")
    assert not folder.listing("train/ridge")


def test_success_is_marked_and_unmarked(run_folder):
    assert not run_folder.has_succeeded()
    run_folder.mark_success()
    assert run_folder.has_succeeded()
    assert run_folder.listing() == {"_SUCCESS": 0}
    run_folder.unmark_success()
    run_folder.unmark_success()
    assert not run_folder.has_succeeded()


def test_the_manifest_merges_the_records(run_folder):
    records = [write_part(run_folder, index, rows=index + 1) for index in range(3)]
    with run_folder.recording("ingest", 0, "x") as part:
        part.write("graphs", b"123", rows=7)
        part.write("rejected", b"1", rows=1)
    run_folder.write_manifest(
        [*reversed(records), part.record],
        stage_seconds={"ingest": 1.5, "moments": 0.5, "embed": 2.5},
        work={"ingest": Work(9, 9.0), "moments": Work(4, 0.75), "merge": Work(1, 0.25)},
        versions={"numpy": "2.0", "dask": "2026.8"},
        summary={"rows": 8},
        plans=[part.record],
    )
    manifest = run_folder.read_manifest()
    assert list(manifest) == ["numerics_version", "versions", "stages", "summary", "plans", "records"]
    assert manifest["plans"] == [part.record.to_json()]
    assert list(manifest["stages"]) == ["ingest", "moments", "embed", "merge"]
    assert list(manifest["versions"]) == ["dask", "numpy"]
    embed = manifest["stages"]["embed"]
    assert (embed["parts"], embed["rows"], embed["bytes"], embed["seconds"]) == (3, {"data": 6}, 45, 2.5)
    assert embed["part_seconds"] == pytest.approx(sum(record.seconds for record in records))
    ingest = manifest["stages"]["ingest"]
    assert (ingest["parts"], ingest["rows"]) == (1, {"graphs": 7, "rejected": 1})
    nothing_kept = {"bytes": 0, "rows": {}}
    assert manifest["stages"]["moments"] == {"seconds": 0.5, "parts": 4, "part_seconds": 0.75} | nothing_kept
    assert manifest["stages"]["merge"] == {"seconds": None, "parts": 1, "part_seconds": 0.25} | nothing_kept
    assert [(r["stage"], r["index"]) for r in manifest["records"]] == [
        ("embed", 0),
        ("embed", 1),
        ("embed", 2),
        ("ingest", 0),
    ]
    run_folder.write("manifest.json", b"{")
    with pytest.raises(WeglError, match=r"manifest\.json is damaged"):
        run_folder.read_manifest()


def test_the_job_file_is_asked_for_by_name(run_folder):
    with pytest.raises(WeglError, match=r"is not a run folder: it has no job\.toml"):
        run_folder.job_toml()


KILLED = """
import sys
from wegl_dask.storage import RunFolder

def stop():
    print("here", flush=True)
    sys.stdin.read()

folder = RunFolder(sys.argv[1])
with folder.recording("embed", 0, "input") as part:
    if sys.argv[2] == "in the middle of a write":
        part.write("data", lambda file: (file.write(b"x" * 1_000_000), stop()))
    part.write("data", b"whole", rows=1)
    if sys.argv[2] == "between part and record":
        stop()
"""


@pytest.mark.parametrize(
    ("moment", "visible"), [("in the middle of a write", []), ("between part and record", ["part-00000.parquet"])]
)
def test_a_killed_writer_leaves_no_part_that_counts_as_finished(tmp_path, moment, visible):
    folder = RunFolder(str(tmp_path))
    command = [sys.executable, "-c", KILLED, str(tmp_path), moment]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGKILL)
    assert [name for name in folder.listing("data") if not name.startswith(".tmp-")] == visible
    assert folder.finished("embed", {0: "input"}) == {}
    folder.clean_temporary()
    assert list(folder.listing("data")) == visible
    write_part(folder, 0)
    assert folder.part_is_intact(folder.finished("embed", {0: "input"})[0])


def test_thousands_of_records_are_found_by_a_few_listings(tmp_path, monkeypatch):
    folder, listed = RunFolder(str(tmp_path)), []
    listing = RunFolder.listing
    monkeypatch.setattr(RunFolder, "listing", lambda self, name="": (listed.append(name), listing(self, name))[1])
    (tmp_path / "records").mkdir()
    (tmp_path / "data").mkdir()
    for index in range(3000):
        record = PartRecord("embed", index, f"input {index}", (), 0.1)
        (tmp_path / record.path).write_bytes(record.to_bytes())
    assert len(folder.finished("embed", {index: f"input {index}" for index in range(3000)})) == 3000
    assert len(listed) <= 3, listed


def test_intermediate_results_and_their_records_do_not_wait_for_the_disk(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr("wegl_dask.folders.os.fsync", flushed.append)
    folder = RunFolder(str(tmp_path))
    with folder.recording("moments", 0, "input") as part:
        part.write_arrays("moments", {"count": np.array(1)})
    assert flushed == []
    with folder.recording("embed", 0, "input") as part:
        part.write("data", b"content", rows=1)
    # A file and its folder, twice: the part, then its record.
    assert len(flushed) == 4


# --- Listings that lag behind ---


def test_parts_that_no_listing_shows_yet_are_found_by_their_names(run_folder, monkeypatch):
    for index in (0, 1):
        with run_folder.recording("embed", index, f"input {index}") as part:
            part.write("data", bytes([index]), rows=1)
    monkeypatch.setattr(RunFolder, "listing", lambda _self, _name="": {})
    expected = {0: "input 0", 1: "another", 2: "not written"}
    assert run_folder.finished("embed", expected) == {}
    assert list(run_folder.finished("embed", expected, by_name=True)) == [0]
    assert list(run_folder.written_records("embed", [1, 0])) == [1, 0]
    run_folder.write("data/part-00000.parquet", b"of another size")
    assert run_folder.finished("embed", expected, by_name=True) == {}
    with pytest.raises(WeglError, match=r"the record of part 2 of the stage embed is not there"):
        run_folder.written_records("embed", [0, 2])
