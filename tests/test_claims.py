import pytest

from wegl_dask import claims
from wegl_dask.checksums import sealed
from wegl_dask.claims import changed_keys
from wegl_dask.errors import JobFileError
from wegl_dask.records import json_bytes
from wegl_dask.spec import JobSpec, documented_keys

JOB = """
name = "a"
seed = 1

[source]
kind = "tud"
root = "data"
name = "MUTAG"
max_rejected_fraction = 0.1

[transport]
solver = "exact"

[output]
path = "runs/a"

[cluster]
workers = 4
"""


def test_a_new_folder_becomes_the_jobs(run_folder):
    found = run_folder.claim(JOB)
    assert (found.resumed, found.other_versions) == (False, ())
    assert run_folder.job_toml() == JOB
    assert sorted(run_folder.listing()) == ["job.toml", "records"]


def test_the_same_job_goes_on(run_folder):
    run_folder.claim(JOB)
    assert run_folder.claim(JOB).resumed


def plan(run_folder):
    with run_folder.recording("plan", 0, "input"):
        pass


def test_a_folder_in_which_another_job_has_made_nothing_is_the_next_ones(run_folder):
    run_folder.claim(JOB)
    with run_folder.recording("scan", 0, "input"):
        pass
    run_folder.write("notes.txt", b"somebody's")
    other = JOB.replace("seed = 1", "seed = 2")
    assert not run_folder.claim(other).resumed
    assert run_folder.job_toml() == other
    assert run_folder.record("scan", 0) is None
    assert run_folder.read("notes.txt") == b"somebody's"
    plan(run_folder)
    with pytest.raises(JobFileError, match="different job"):
        run_folder.claim(JOB)


def test_of_very_many_keys_that_differ_some_are_named(run_folder):
    run_folder.claim(JOB)
    plan(run_folder)
    with pytest.raises(JobFileError, match=r"\(source\.a: not set -> 1; .*source\.f: not set -> 1 and 2 more\)"):
        run_folder.claim(JOB.replace("[source]", "[source]\n" + "".join(f"{key} = 1\n" for key in "abcdefgh")))


def test_another_job_is_refused_with_the_keys_that_differ(run_folder):
    run_folder.claim(JOB)
    plan(run_folder)
    other = (
        JOB.replace("seed = 1", "seed = 2")
        .replace('solver = "exact"', "auto_size = 5")
        .replace('path = "runs', 'path = "x')
    )
    with pytest.raises(JobFileError) as caught:
        run_folder.claim(other)
    message = str(caught.value)
    assert (
        'different job (seed: 1 -> 2; transport.auto_size: not set -> 5; transport.solver: "exact" -> not set)'
        in message
    )
    assert "--overwrite" in message
    assert caught.value.exit_code == 2
    assert run_folder.job_toml() == JOB


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("workers = 4", 'kind = "scheduler"\naddress = "tls://host:8786"'),
        ('path = "runs/a"', 'path = "elsewhere"'),
        ('path = "runs/a"', 'path = "runs/a"\nperformance_report = true'),
        ("max_rejected_fraction = 0.1", "max_rejected_fraction = 1.0\ndownload = false"),
        ('name = "a"', 'name = "b"'),
    ],
)
def test_keys_without_effect_may_change_and_are_written_down(run_folder, old, new):
    run_folder.claim(JOB)
    changed = JOB.replace(old, new)
    assert changed != JOB
    assert run_folder.claim(changed).resumed
    assert run_folder.job_toml() == changed
    assert changed_keys(JOB, changed) == []


def test_a_table_that_is_not_known_is_a_change():
    assert changed_keys(JOB, JOB.replace("[cluster]", "[clusters]")) == ["clusters.workers: not set -> 4"]


def test_keys_without_effect_are_keys_of_the_job_file():
    known = {key for key, *_ in documented_keys()}
    known |= {key.rpartition(".")[0] for key in known}
    assert set(claims.KEYS_WITHOUT_EFFECT) <= known


def test_a_folder_with_other_peoples_files_is_refused_even_to_overwrite(run_folder):
    for name in ("thesis.tex", "photos/cat.jpg", "data/part-00000.parquet"):
        run_folder.write(name, b"dear")
    for overwrite in (False, True):
        with pytest.raises(
            JobFileError, match=r"is not a run folder: it has no job\.toml, but it holds data, photos, thesis\.tex"
        ):
            run_folder.claim(JOB, overwrite=overwrite)
    assert run_folder.read("data/part-00000.parquet") == b"dear"


def test_hidden_files_do_not_matter(run_folder):
    run_folder.write(".DS_Store", b"1")
    run_folder.write(".lock", b"1")
    assert not run_folder.claim(JOB).resumed


def test_overwriting_removes_what_a_run_wrote_and_nothing_else(run_folder):
    run_folder.claim(JOB)
    with run_folder.recording("embed", 0, "x") as part:
        part.write("data", b"1", rows=1)
        part.write("graphs", b"1", rows=1)
        part.write("rejected", b"1", rows=1, tag="embed")
        part.write_arrays("moments", {})
        part.write_model({}, {})
    for name in ("manifest.json", "report.html", "_SUCCESS"):
        run_folder.write(name, b"")
    strangers = ["notes.txt", "data/notes.txt", "model/notes.txt", "my/part-00000.parquet"]
    for name in strangers:
        run_folder.write(name, b"dear")
    found = run_folder.claim(JOB.replace("seed = 1", "seed = 2"), overwrite=True)
    assert not found.resumed
    assert "seed = 2" in run_folder.job_toml()
    assert sorted(run_folder.listing()) == ["data", "job.toml", "model", "my", "notes.txt", "records"]
    assert list(run_folder.listing("data")) == ["notes.txt"]
    assert list(run_folder.listing("model")) == ["notes.txt"]
    assert list(run_folder.listing("records")) == ["run.json"]


def test_a_run_of_other_numerics_is_refused(run_folder, monkeypatch):
    run_folder.claim(JOB)
    monkeypatch.setattr(claims, "NUMERICS_VERSION", 99)
    with pytest.raises(
        JobFileError, match=r"numerics version \d+; this is .*, numerics version 99, which computes other numbers"
    ):
        run_folder.claim(JOB)
    assert not run_folder.claim(JOB, overwrite=True).resumed
    assert run_folder.claim(JOB).resumed


def test_a_run_of_another_version_goes_on_and_says_so(run_folder, monkeypatch):
    for version, others in (("1.0", ()), ("1.1", ("1.0",)), ("1.1", ("1.0",)), ("1.0", ("1.1",))):
        monkeypatch.setattr(claims, "__version__", version)
        assert run_folder.claim(JOB).other_versions == others


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", json_bytes(sealed({"numerics_version": 1, "package_versions": 3}))]
)
def test_a_damaged_list_of_versions_is_refused(run_folder, content):
    run_folder.claim(JOB)
    run_folder.write("records/run.json", content)
    with pytest.raises(JobFileError, match=r"run\.json is damaged"):
        run_folder.claim(JOB)


def test_a_damaged_job_file_is_refused_and_can_be_overwritten(run_folder):
    run_folder.claim(JOB)
    run_folder.write("job.toml", b"seed = \xff")
    with pytest.raises(JobFileError, match=r"job\.toml is damaged"):
        run_folder.claim(JOB)
    assert not run_folder.claim(JOB, overwrite=True).resumed


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("text", [f"# mine\n{JOB}", "seed = ", ""])
def test_a_job_file_that_no_run_has_written_is_never_replaced(run_folder, text, overwrite):
    run_folder.write("job.toml", text.encode())
    with pytest.raises(JobFileError, match=r"job\.toml was written by no run, .* move it out of output\.path"):
        run_folder.claim(JOB, overwrite=overwrite)
    assert run_folder.read("job.toml") == text.encode()


def test_the_job_file_that_a_killed_run_has_left_can_be_overwritten(run_folder):
    run_folder.write("job.toml", JobSpec.from_toml(JOB).to_toml().encode())
    assert not run_folder.claim(JobSpec.from_toml(JOB, ["seed=2"]).to_toml(), overwrite=True).resumed


def test_a_run_killed_before_its_first_part_is_no_dead_end(run_folder):
    run_folder.write("job.toml", JOB.encode())
    assert run_folder.claim(JOB).resumed
