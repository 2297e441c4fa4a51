import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "jobs" / "benchmarks"
PROGRAMS = sorted(path.name for path in FOLDER.glob("[!_]*.py"))


@pytest.fixture(scope="module")
def tables():
    spec = spec_from_file_location("benchmark_tables", FOLDER / "tables.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_tables_are_those_of_the_results_that_are_kept(tables):
    shown = (FOLDER / "README.md").read_text(encoding="utf-8").partition(tables.BEGIN)[2].partition(tables.END)[0]
    assert shown.strip() == tables.render().strip()


def test_every_program_is_in_the_list():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in PROGRAMS if f"]({name})" not in text] == ["tables.py"]


def test_every_result_names_its_command_and_what_it_was_run_on():
    for path in sorted((FOLDER / "results").glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        assert result["command"].startswith(f"python jobs/benchmarks/{path.stem}.py"), path
        assert not any(word.startswith("/") for word in result["command"].split()), path
        assert {"cores", "load_average", "python", "versions"} <= result["conditions"].keys(), path


def run(program, arguments, path):
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parents[1]), "PYTHONWARNINGS": "default"}
    command = [sys.executable, str(FOLDER / program), *arguments, "--repeats", "1", "--json", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(path.read_text(encoding="utf-8"))


def test_the_benchmark_of_smiles_runs(tmp_path):
    found = run("ingest.py", ["--molecules", "50"], tmp_path / "ingest.json")
    assert found["molecules"] == 50
    assert found["ratio_to_parser"]["RDKit's parser alone"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("transport.py", ["--graphs", "30", "--sets", "PROTEINS"]),
        ("scale.py", ["--copies", "1", "--speedup-copies", "1"]),
        ("forecast.py", ["--sets", "PROTEINS"]),
        ("pairwise.py", ["--pairs", "10"]),
        ("latency.py", ["--graphs", "5"]),
        ("molhiv.py", []),
    ],
)
def test_every_benchmark_runs_on_its_data(shared_data, tmp_path, program, arguments, tables):
    data = shared_data / "ogb" if program in {"scale.py", "molhiv.py"} else shared_data
    found = run(program, ["--data", str(data), *arguments], tmp_path / f"{Path(program).stem}.json")
    assert found["benchmark"] == Path(program).stem
    assert f"### {found['benchmark']}" in tables.render(tmp_path)
