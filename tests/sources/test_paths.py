import contextlib
import os
import sys
from pathlib import Path

import fsspec
import pytest

from wegl_dask.errors import MissingDependencyError, SourceError
from wegl_dask.sources.paths import compression_of, ending_of, expand, folder_around, local_path, size_of

ENDINGS = (".csv", ".csv.gz")
ODD_NAMES = ["two words.csv", "Läufe.csv", "100%.csv", "a=1,b.csv", "#3.csv", "[x].csv", "a*.csv", "what?.csv", "~.csv"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder that is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(*names):
    for name in names:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(b"smiles\nC\n")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_an_existing_file_is_taken_literally_whatever_its_name(here, name):
    write(name, "x.csv", "ab.csv", "whatx.csv")
    assert expand(name, ENDINGS) == [name]
    assert expand(str(here / name), ENDINGS) == [str(here / name)]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_folders_and_globs_find_files_with_odd_names(name):
    write(f"in/{name}/{name}")
    found = [f"in/{name}/{name}"]
    assert expand("in", ENDINGS) == found
    assert expand("in/*/*.csv", ENDINGS) == found
    assert expand(f"in/{name}/*.csv", ENDINGS) == found


def test_a_folder_stands_for_the_files_below_it_with_our_endings_in_order():
    write(
        "d/b.csv",
        "d/a/z.CSV",
        "d/a/y.csv.gz",
        "d/c.txt",
        "d/.hidden.csv",
        "d/_meta.csv",
        "d/_old/x.csv",
        "d/.git/x.csv",
    )
    assert expand("d", ENDINGS) == ["d/a/y.csv.gz", "d/a/z.CSV", "d/b.csv"]


def test_a_glob_matches_files_and_folders():
    write("d/a1.csv", "d/a2.csv", "d/b.csv", "d/a3/x/y.csv", "d/a4.txt", "d/_a.csv")
    assert expand("d/a*", ENDINGS) == ["d/a1.csv", "d/a2.csv", "d/a3/x/y.csv"]
    assert expand("d/**/*.csv", ENDINGS) == ["d/a1.csv", "d/a2.csv", "d/a3/x/y.csv", "d/b.csv"]
    assert expand("d/[ab][1-9].csv", ENDINGS) == ["d/a1.csv", "d/a2.csv"]
    assert expand("d/_*.csv", ENDINGS) == ["d/_a.csv"]


def test_a_list_keeps_its_order_and_names_each_file_once():
    write("b.csv", "a.csv", "d/c.csv")
    assert expand(["b.csv", "d", "*.csv", "b.csv"], ENDINGS) == ["b.csv", "d/c.csv", "a.csv"]


def test_a_file_named_in_full_may_have_another_ending():
    write("molecules.dat")
    assert expand("molecules.dat", ENDINGS) == ["molecules.dat"]


def test_the_home_folder_is_expanded(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    write("data.csv")
    assert expand("~/data.csv", ENDINGS) == [str(here / "data.csv")]


WRITTEN = ("data/part-0.parquet", "manifest.json")


def test_a_folder_is_found_to_lie_in_another(here):
    write("in/a/b.csv")
    (here / "link").symlink_to(here / "in" / "a")
    for inside in ("in", "in/out", "in/a/new/out", "link/out"):
        assert folder_around("in", str(here / inside), WRITTEN) == "in"
        for name in (str(here / "in"), f"file://{here}/in"):
            assert folder_around(["x", name], str(here / inside), WRITTEN) == name
    for outside in ("out", "in-2/out", "s3://in/out"):
        names = ["in", "in/*.csv", "in/a/b.csv", "package://rdkit/Data", f"file://{here}/in"]
        assert folder_around(names, outside, WRITTEN) is None
    assert folder_around("s3://in/a", "s3://in/a/out/", WRITTEN) == "s3://in/a"
    assert folder_around("s3://in/a", "s3://in/a-out", WRITTEN) is None


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
@pytest.mark.parametrize(
    ("glob", "out"),
    [
        *(("d/*", f"d/{out}") for out in ("out", ".", "out/run", "_out", ".out")),
        *(("d/*.csv", f"d/{out}") for out in ("out", ".", "b.csv")),
        *(("d/o*", f"d/{out}") for out in ("out", "other", "run")),
        *(("d/**/*.csv", f"d/{out}") for out in ("out", "a/out", ".")),
        *(("d/**/*.json", f"d/{out}") for out in ("out", "a/out", ".", "_out")),
        *(("d/**", f"d/{out}") for out in ("out", "a/out")),
        *(("d/*/*.parquet", f"d/{out}") for out in (".", "out")),
        *(("d/[no]ut/*", f"d/{out}") for out in ("out", "xut")),
        *(("d/_*/*", f"d/{out}") for out in ("_out", "out")),
        ("e/*", "d"),
        ("d/*/sub/*", "d/out"),
    ],
)
def test_a_glob_is_found_by_which_what_a_run_writes_would_be_read(here, scheme, glob, out):
    """Against what `expand` finds once it is there."""
    base = {"": str(here), "file://": f"file://{here}", "memory://": f"memory://{here}"}[scheme]
    out = out.removesuffix("/.")
    filesystem, root = fsspec.core.url_to_fs(base)
    for file in ("d/a.csv", "d/a/b.csv", "e/c.csv", "d/nut/x.json", "d/q/sub/x.csv"):
        filesystem.makedirs(f"{root}/{file}".rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(f"{root}/{file}", b"x")
    foreseen = folder_around(f"{base}/{glob}", f"{base}/{out}".removeprefix("file://"), WRITTEN)
    for file in WRITTEN:
        filesystem.makedirs(f"{root}/{out}/{file}".rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(f"{root}/{out}/{file}", b"x")
    found = []
    with contextlib.suppress(SourceError):
        found = expand(f"{base}/{glob}", (".csv", ".json", ".parquet"))
    assert (foreseen is not None) == any(file.endswith(WRITTEN) for file in found)


def test_links_are_followed_and_a_loop_of_links_ends(here):
    write("elsewhere/x.csv", "d/y.csv")
    Path("d/linked").symlink_to(here / "elsewhere")
    Path("d/loop").symlink_to(here / "d")
    Path("d/file.csv").symlink_to(here / "d" / "y.csv")
    Path("elsewhere/back").symlink_to(here / "d")
    expected = ["d/file.csv", "d/linked/x.csv", "d/y.csv"]
    assert expand("d", ENDINGS) == expected
    assert set(expand("d/**/*.csv", ENDINGS)) <= {*expected, "d/loop/y.csv"}


def test_a_name_that_is_not_utf_8_is_refused(here):
    name = os.fsencode(here) + b"/M\xfcll.csv"
    with open(name, "wb"):  # noqa: PTH123  of bytes
        pass
    for path in (str(here), str(here / "*.csv"), os.fsdecode(name)):
        with pytest.raises(
            SourceError, match=r"the name of the file '.*M\\udcfcll\.csv' is not UTF-8.*: rename the file"
        ):
            expand(path, ENDINGS)


def test_pipes_in_a_folder_are_passed_over():
    write("d/a.csv")
    os.mkfifo("d/pipe.csv")
    assert expand("d", ENDINGS) == ["d/a.csv"]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing.csv", r"^missing\.csv does not exist; correct source\.path$"),
        ("empty", r"^the folder empty holds no file with an ending of \.csv, \.csv\.gz; correct source\.path$"),
        ("other", r"^the folder other holds no file with an ending of \.csv, \.csv\.gz, but 1 with another; correct"),
        ("other/*", r"^the glob other/\* holds no file with an ending of \.csv, \.csv\.gz, but 1 with another"),
        ("missing/*.csv", r"^the glob missing/\*\.csv holds no file"),
        ("broken.csv", r"^broken\.csv is a broken link"),
        ("pipe.csv", r"^pipe\.csv is neither a file nor a folder"),
        ("x" * 300, r"^x+ cannot be read: File name too long; check the path and its access$"),
        ("a\0b", r"does not exist"),
        ([], r"^source\.path is an empty list"),
        ("package://no_such_package/x.csv", r"there is no installed package 'no_such_package'"),
        ("package:///x.csv", r"there is no installed package ''"),
        ("package://wegl_dask/missing.csv", r"^package://wegl_dask/missing\.csv does not exist"),
        ("nosuch://x.csv", r"^nosuch://x\.csv is not a path or URL that can be read: Protocol not known"),
        ("memory://missing.csv", r"^memory://missing\.csv does not exist"),
    ],
)
def test_what_is_not_there_is_one_clear_error(path, message):
    Path("empty").mkdir()
    write("other/readme.txt")
    Path("broken.csv").symlink_to("nowhere")
    os.mkfifo("pipe.csv")
    with pytest.raises(SourceError, match=message):
        expand(path, ENDINGS)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_folder_without_access_is_one_clear_error():
    write("d/a.csv")
    Path("d").chmod(0)
    try:
        with pytest.raises(SourceError, match=r"^d cannot be read: Permission denied"):
            expand("d", ENDINGS)
    finally:
        Path("d").chmod(0o700)


def test_a_missing_file_system_is_a_missing_dependency(monkeypatch):
    def refuse(url):
        raise ImportError(f"Install s3fs to access {url}")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(MissingDependencyError, match=r"s3fs is needed"):
        expand("s3://bucket/a.csv", ENDINGS)


def test_files_of_an_installed_package_keep_their_name():
    name = "package://wegl_dask/sources/paths.py"
    assert expand(name, (".py",)) == [name]
    assert name in expand("package://wegl_dask/sources", (".py",))
    assert expand("package://wegl_dask/sources/path?.py", (".py",)) == [name]
    assert local_path(name).samefile(sys.modules[expand.__module__].__file__)


def test_a_package_is_not_imported_to_find_its_files(here, monkeypatch):
    write("lib/fragile/data/x.csv")
    Path("lib/fragile/__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(here / "lib")
    assert expand("package://fragile/data", ENDINGS) == ["package://fragile/data/x.csv"]


def test_urls_are_files_folders_and_globs_too():
    store = fsspec.filesystem("memory")
    for name in ("/m/a.csv", "/m/b c.csv", "/m/d/e.csv", "/m/_f.csv", "/m/g.txt"):
        store.pipe(name, b"x")
    everything = ["memory:///m/a.csv", "memory:///m/b c.csv", "memory:///m/d/e.csv"]
    assert expand("memory://m/a.csv", ENDINGS) == ["memory://m/a.csv"]
    assert expand("memory://m", ENDINGS) == everything
    assert expand("memory://m/*.csv", ENDINGS) == everything[:2]
    assert expand("memory://m/**/*.csv", ENDINGS) == everything
    assert expand("simplecache::memory://m/*.csv", ENDINGS) == [
        f"simplecache::memory://m/{n}.csv" for n in ("a", "b c")
    ]
    store.rm("/m", recursive=True)


@pytest.mark.usefixtures("here")
def test_on_a_store_the_same_files_are_passed_over_as_on_a_disk():
    store = fsspec.filesystem("memory")
    names = ("a.csv", "_temporary/0/a.csv", ".ipynb_checkpoints/a.csv", "d/_log/b.csv", "d/b.csv", "_d/c.csv")
    for name in names:
        store.pipe(f"/m/_n/{name}", b"x")
        write(f"m/_n/{name}")
    for pattern, expected in {
        "m/_n": ["a.csv", "d/b.csv"],
        "m/_n/*": ["a.csv"],
        "m/_n/**/*.csv": ["a.csv", "d/b.csv"],
        "m/_n/_*/*.csv": ["_d/c.csv"],
        "m/_n/*/*.csv": ["d/b.csv"],
        "m/_n/d/_*/*.csv": ["d/_log/b.csv"],
    }.items():
        there = [f"m/_n/{name}" for name in expected]
        assert [name.removeprefix("memory:///") for name in expand(f"memory://{pattern}", ENDINGS)] == there, pattern
        if pattern != "m/_n/*":  # which takes folders too, on a disk
            assert expand(pattern, ENDINGS) == there
    for pattern in ("m", "m/*"):
        for name in (pattern, f"memory://{pattern}"):
            with pytest.raises(SourceError, match="holds no file"):
                expand(name, ENDINGS)
    store.rm("/m", recursive=True)


def test_endings_are_told_apart_from_compressions():
    assert [ending_of(name) for name in ("d.x/A.CSV.GZ", "b.smi", "c.sdf.zst", "d", "e.gz")] == [
        ".csv",
        ".smi",
        ".sdf",
        "",
        "",
    ]
    assert [compression_of(name) for name in ("A.CSV.GZ", "b.smi", "c.sdf.zst")] == [".gz", "", ".zst"]


def test_sizes_are_those_of_the_stored_files():
    Path("a.csv").write_bytes(b"12345")
    fsspec.filesystem("memory").pipe("/size.csv", b"123")
    assert size_of("a.csv") == 5
    assert size_of("memory://size.csv") == 3
    with pytest.raises(SourceError, match=r"^missing\.csv cannot be read: No such file or directory"):
        size_of("missing.csv")
