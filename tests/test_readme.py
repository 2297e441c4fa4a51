"""The README: its code runs, its output is what the code prints, its tables are those of the code.

``python tests/test_readme.py`` writes the table of keys anew.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from wegl_dask import locks
from wegl_dask.claims import PERFORMANCE_REPORT_NAME
from wegl_dask.cli import main
from wegl_dask.errors import JobFileError, TooManyRejectedError, WeglError
from wegl_dask.reading import read_embeddings
from wegl_dask.sources import open_source, smiles
from wegl_dask.sources.text_labels import MISSING
from wegl_dask.spec import JobSpec, SmilesTable, documented_keys, source_kinds
from wegl_dask.stopping import SIGNALS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
KEYS = re.compile(r"(<!-- keys: .*? -->\n).*(<!-- end of keys -->)", flags=re.DOTALL)
NEEDS_DATA = "TUDataset("
"""What a block of code contains that needs a data set from elsewhere."""
NUMBER = re.compile(r"\d[\d,]*\.?\d*")


def blocks(language):
    """Find the fenced blocks of a language: their text and where each starts."""
    text = README.read_text(encoding="utf-8")
    return [
        (match[1], match.start())
        for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    ]


def tables(text):
    """Split Markdown tables into rows of cells, without their heads."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if not set(row) <= set("|-: ")]


def words():
    """The README without its line ends."""
    return " ".join(README.read_text(encoding="utf-8").split())


def section(title):
    return README.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def key_tables():
    """Render the keys of the job file, a table for each of its tables."""
    keys = documented_keys()
    lines = []
    for table in dict.fromkeys(key.table for key in keys):
        lines += [
            f"**`[{table}]`**" if table else "**At the top**",
            "",
            "| key | value | default | |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{key.leaf}` | {key.kind.replace(' | ', ', ')} | {default(key)} | {key.meaning} |"
            for key in keys
            if key.table == table
        ]
        lines.append("")
    return "\n".join(lines)


def default(key):
    return key.default if key.default in {"required", "not set"} else f"`{key.default}`"


def without_times(text):
    """Leave out of a command's output what differs between two runs.

    These are times, speeds, sizes by the versions in them, and what a slow machine says before a stage is done.
    """
    text = re.sub(r"[\d,.]+ graphs/s", "# graphs/s", text)
    text = re.sub(r"(\d+ min )?[\d.]+ s\b", "# s", text)
    text = re.sub(r"[\d.]+ MB", "# MB", text)
    return [line for line in text.strip().splitlines() if line and not line.endswith((" so far", " left"))]


def test_the_output_of_the_first_command_is_what_it_prints(quickstart):
    shown, _ = blocks("text")[0]
    assert without_times(shown) == without_times(quickstart.stderr + quickstart.stdout)


def test_the_commands_at_the_top_are_those_of_this_package():
    first, tests, *_ = (text for text, _ in blocks("sh"))
    assert "'.[molecules]' && .venv/bin/wegl-dask run jobs/quickstart.toml" in first
    assert "'.[test]' && .venv/bin/pytest" in tests


def test_the_extras_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (sentence,) = re.findall(r"What is optional comes with extras:.*?`reproduce runtime`\)\.", words())
    named = set(re.findall(r"`([a-z0-9]+)`", sentence))
    assert named | {"test"} == set(project["optional-dependencies"])
    assert f"Python {project['requires-python'].removeprefix('>=')} or newer" in words()


def test_the_code_runs_in_its_order_and_prints_what_is_shown(quickstart, monkeypatch, tmp_path):
    for package in ("duckdb", "pandas", "polars"):
        pytest.importorskip(package)
    shutil.copytree(quickstart.folder / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    ((command, start),) = ((text, start) for text, start in blocks("sh") if text.startswith("wegl-dask train"))
    trained = CliRunner().invoke(main, shlex.split(command)[1:])
    assert trained.exit_code == 0, trained.output
    compare(*("\n".join(without_times(text)) for text in (trained.stdout, text_after(start))), command)
    folder = tmp_path / "runs" / "quickstart" / "train" / "ridge"
    listed = set(re.findall(r"^- `(\S+)`,", section("Training"), re.MULTILINE)) - {"split", "cv"}
    assert listed == {path.name for path in folder.iterdir()}
    assert pq.read_schema(folder / "predictions.parquet").names == ["graph_id", "fold", "y", "score"]
    names = {}
    for code, start in blocks("python"):
        if NEEDS_DATA not in code:
            run(code, start, names)


def run(code, start, names):
    """Run a block, and compare what it prints with the block of text after it."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, f"README.md at {start}", "exec"), names)
    compare(printed.getvalue(), text_after(start), code)


def text_after(start):
    """The block of text that follows a block."""
    return README.read_text(encoding="utf-8")[start:].partition("```text\n")[2].partition("```")[0]


def compare(printed, shown, code):
    """Compare what was printed with what is shown; the numbers by 2 per cent."""
    assert NUMBER.sub("#", printed) == NUMBER.sub("#", shown), code
    found, expected = ([float(n.replace(",", "")) for n in NUMBER.findall(t)] for t in (printed, shown))
    assert found == pytest.approx(expected, rel=0.02), code


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_pipeline_on_mutag_prints_what_is_shown(shared_data, monkeypatch, tmp_path):
    pytest.importorskip("torch_geometric")
    # Where the files of the data set lie already it is not downloaded.
    shutil.copytree(shared_data / "TUDataset" / "MUTAG" / "raw", tmp_path / "data" / "MUTAG" / "raw")
    monkeypatch.chdir(tmp_path)
    ((code, start),) = ((code, start) for code, start in blocks("python") if NEEDS_DATA in code)
    run(code, start, {})


@pytest.mark.slow
def test_new_graphs_are_transformed_and_appended_by_the_commands_that_are_shown(quickstart, monkeypatch, tmp_path):
    shutil.copytree(quickstart.folder / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    Path("new.smi").write_text("CC1=CC(=O)C=CC1=O one\nCCO two\n")
    ((commands, _),) = ((text, start) for text, start in blocks("sh") if text.startswith("wegl-dask transform"))
    for command in commands.splitlines():
        result = CliRunner().invoke(main, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
    assert [read_embeddings(f"runs/{name}").X.shape for name in ("new", "quickstart")] == [(2, 320), (4993, 320)]


def test_the_commands_that_look_at_a_run_are_as_shown(quickstart, monkeypatch, tmp_path):
    for package in ("bokeh", "faiss"):
        pytest.importorskip(package)
    shutil.copytree(quickstart.folder / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    looks = r"wegl-dask (?:neighbours|similar|approximation|report) runs/quickstart[^`\n]*"
    printed = {}
    for command in re.findall(looks, README.read_text(encoding="utf-8")):
        result = CliRunner().invoke(main, shlex.split(command)[1:])
        assert result.exit_code == 0, result.output
        printed[command.split()[1]] = result.stdout
    assert set(printed) == {"neighbours", "similar", "approximation", "report"}
    assert (tmp_path / "runs" / "quickstart" / "report.html").is_file()
    # 117, as the block of Python beside it prints, and the head.
    assert len(printed["similar"].splitlines()) == 118, printed["similar"]
    assert len(printed["neighbours"].splitlines()) == 4, printed["neighbours"]


def test_every_kind_of_source_has_a_table_that_can_be_read():
    kinds = []
    for text, _ in blocks("toml"):
        if text.startswith("[source]"):
            spec = JobSpec.from_toml(f'{text}[output]\npath = "out"\n')
            kinds.append(spec.source.kind)
    assert sorted(kinds) == sorted(source_kinds())


def test_the_endings_of_files_of_smiles_are_all_named():
    paragraph = words().partition("**Molecules as SMILES**, in ")[2].partition("Several files")[0]
    named = set(re.findall(r"`(\.\w+)`", paragraph))
    assert named == {ending for name in smiles.ENDINGS for ending in (f".{part}" for part in name.split(".") if part)}


def test_the_texts_that_are_gaps_are_those_that_it_names(tmp_path):
    (sentence,) = re.findall(r"In text files an empty field,([^;]*) are gaps", README.read_text(encoding="utf-8"))
    assert {"", *re.findall("`(.*?)`", sentence)} == MISSING
    for text, n_classes in (*((gap, 2) for gap in MISSING), ("N/A", 3)):
        path = tmp_path / "m.csv"
        path.write_text(f"smiles,y\nC,0\nCC,1\nCCC,{text}\n")
        source = open_source(SmilesTable(kind="smiles", path=str(path), targets=["y"]), "auto")
        plan = source.plan([source.scan(piece, 1000) for piece in source.pieces()])
        assert len(plan.labels.class_names) == n_classes


def test_the_tables_of_the_cluster_can_be_read():
    tables = [text for text, _ in blocks("toml") if text.startswith("[cluster]")]
    source = '[source]\nkind = "tud"\nroot = "data"\nname = "MUTAG"\n[output]\npath = "out"\n'
    assert {JobSpec.from_toml(text + source).cluster.kind for text in tables} == {"local", "scheduler", "slurm"}


def test_the_table_of_keys_is_that_of_the_code():
    found = KEYS.search(README.read_text(encoding="utf-8"))
    assert found[0] == f"{found[1]}\n{key_tables()}\n{found[2]}", "run  python tests/test_readme.py"


def test_no_cell_of_the_table_of_keys_is_cut_by_a_bar():
    assert {len(row) for row in tables(section("All keys of the job file"))} == {4}


def test_the_commands_are_all_there():
    rows = tables(section("The command"))
    named = {word for row in rows if row[0].startswith("`wegl-dask ") for word in [row[0].split()[1].strip("`")]}
    assert named == set(main.commands)


def takers(option, group=main):
    return {name for name, command in group.commands.items() if any(option in each.opts for each in command.params)}


def test_the_commands_that_take_an_option_are_those_that_are_named():
    def named(pattern):
        (found,) = re.findall(pattern, words())
        return set(re.findall(r"`(\w+)`", found))

    assert named(r"([^.]*) take `--set TABLE") | named(r"; (`train`) takes it") == takers("--set")
    assert named(r"([^.]*) take `--overwrite`") == takers("--overwrite")
    assert named(r"([^.]*) take `--log-json`") == takers("--log-json")
    assert named(r"with an option of ([^.]*)\.") == takers("--scheduler")
    (of_several,) = re.findall(r"`reproduce (\w+)` is table 1 and `reproduce (\w+)` .*? both take `--address`", words())
    assert {"tud", *of_several} == takers("--address", main.commands["reproduce"])


def test_the_exit_codes_are_those_of_the_errors():
    rows = tables(section("The command"))
    codes = {int(row[0]) for row in rows if row[0].isdigit()}
    errors = {error.exit_code for error in (WeglError, JobFileError, TooManyRejectedError)}
    assert codes == {0, *errors, *(128 + number for number in SIGNALS)}
    assert all(f"{code} " in " ".join((main.help or "").split()) for code in sorted(codes))


def test_the_files_of_the_run_folder_are_there(quickstart):
    (listing,) = (text for text, _ in blocks("text") if text.startswith("job.toml"))
    for line in listing.splitlines():
        pattern = re.sub(r"\d{5}", "*", line.split()[0])
        assert any((quickstart.folder / "runs/quickstart").glob(pattern)), line


def test_the_columns_of_a_part_are_those_that_are_listed(quickstart):
    schema = pq.read_schema(quickstart.folder / "runs/quickstart/data/part-00000.parquet")
    listed = {}
    for names, types, _ in (row for row in tables(section("The run folder")) if row[0].startswith("`")):
        columns = [name.strip("`") for name in names.split(", ")]
        listed |= zip(columns, types.split(", ") if len(columns) > 1 else [types], strict=True)
    assert list(listed) == schema.names
    for name, shown in listed.items():
        found = str(schema.field(name).type)
        assert found in shown or (name == "embedding" and found.startswith("fixed_size_list<element: float")), name


def test_the_metadata_of_a_part_are_those_that_are_listed(quickstart):
    metadata = pq.read_schema(quickstart.folder / "runs/quickstart/data/part-00000.parquet").metadata
    assert (metadata[b"n_points"], metadata[b"dimension"], metadata[b"seed"]) == (b"16", b"20", b"0")
    assert (metadata[b"label_kind"], metadata[b"class_names"], metadata[b"task_names"]) == (b'"target"', b"[]", b"[]")
    assert {b"versions", b"model"} <= metadata.keys()
    assert "has N (`n_points`), d (`dimension`), the seed, the kind of the labels" in words()


def test_the_page_of_dasks_report_has_the_name_that_is_said():
    assert f"`output.performance_report` adds `{PERFORMANCE_REPORT_NAME}`" in words()


def test_locks_on_an_object_store_count_as_long_as_is_said():
    assert (
        "counts as running for another minute; for the rest of an hour, both commands watch for 15 seconds" in words()
    )
    assert "on an object store a minute after its death" in words()
    assert (locks.DEAD_AFTER, locks.CLOCKS_DIFFER, locks.WATCHED * locks.RENEWED_EVERY) == (60, 3600, 15)


def test_of_every_source_that_has_labels_it_says_what_counts_as_a_class():
    rows = [row for row in tables(section("Sources")) if row[0].startswith("`") and row[0] != "`source.kind`"]
    kinds = [kind for row in rows for kind in re.findall(r"`(\w+)`", row[0])]
    # Shards have what their labels are with them.
    assert sorted(kinds) == sorted(set(source_kinds()) - {"graph_parquet"})


def test_names_of_the_code_are_where_their_links_lead():
    links = re.findall(r"\[`(\w+)`\]\((\S+\.py)\)", words())
    assert len(links) > 10
    for name, target in links:
        code = (ROOT / target).read_text(encoding="utf-8")
        assert re.search(rf"^\s*(def|class) {name}\b", code, re.MULTILINE), name


def test_no_path_of_a_machine_is_named():
    text = README.read_text(encoding="utf-8")
    assert not re.search(r"(?<![\w.])/(home|root|work|tmp|usr|opt)/", text)
    assert os.fspath(ROOT) not in text


if __name__ == "__main__":
    old = README.read_text(encoding="utf-8")
    README.write_text(KEYS.sub(lambda match: f"{match[1]}\n{key_tables()}\n{match[2]}", old), encoding="utf-8")
