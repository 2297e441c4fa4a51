import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import median

import pytest

from wegl_dask.ingest import LARGEST_SHARD
from wegl_dask.job_checks import NODES_A_POINT
from wegl_dask.memory import PLANNED_SHARD_BYTES
from wegl_dask.planning import TASK_SECONDS

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


def texts(value):
    """Every text in a structure of lists and dictionaries, keys included."""
    match value:
        case str():
            yield value
        case dict():
            yield from value
            yield from texts([*value.values()])
        case list():
            for item in value:
                yield from texts(item)


def test_every_result_names_its_command_and_what_it_was_run_on():
    for path in sorted((FOLDER / "results").rglob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        assert result["command"].startswith(f"python jobs/benchmarks/{path.stem}.py"), path
        assert not any(word.startswith("/") for text in texts(result) for word in text.split()), path
        assert {"cores", "load_average", "python", "versions"} <= result["conditions"].keys(), path


def test_the_readme_of_the_package_states_what_was_measured():
    text = (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")
    section = " ".join(text.partition("## Speed\n")[2].partition("## Development\n")[0].split())
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (FOLDER / "results").glob("*.json")}
    for name, ratio in kept["molhiv"]["times_slower_than_wegl_dask"].items():
        seconds = median(kept["molhiv"]["sides"][name]["seconds"])
        assert f"| {seconds:.1f} | {ratio:.1f} |".replace("| 1.0 |", "| 1 |") in section, name
    other = json.loads((FOLDER / "results" / "xeon" / "molhiv.json").read_text(encoding="utf-8"))
    seconds = median(other["sides"]["wegl-dask"]["seconds"])
    ratios = other["times_slower_than_wegl_dask"]
    assert f"takes {seconds:.1f} s" in section
    assert f"the others {ratios['baseline.py']:.1f} and {ratios['published']:.1f} times" in section
    one, many = kept["scale"]["sizes"]["1 copies"], kept["scale"]["sizes"]["25 copies"]
    assert f"{many['graphs']:,} graphs, 25 copies of it, take {many['seconds']:.0f} s" in section
    assert (
        f"the larger has {many['worker_peak_mb']:.0f} MB, and {one['worker_peak_mb']:.0f} MB with one copy" in section
    )
    published = 1e6 * median(kept["molhiv"]["sides"]["published"]["seconds"]) / one["graphs"]
    assert f"In such a long run a graph takes {many['microseconds_a_graph']:.0f} us; the published code" in section
    assert (
        f"takes {published:,.0f} us for each of the one copy, {published / many['microseconds_a_graph']:.0f} times"
        in section
    )
    most = kept["scale"]["sizes"]["100 copies"]
    assert f"{most['graphs']:,} graphs take {most['seconds']:.0f} s and {most['worker_peak_mb']:.0f} MB" in section
    assert f"takes {kept['latency']['median_milliseconds']:.2f} ms" in section


def test_references_from_samples_are_as_good_as_those_from_all_nodes():
    """As the package's README says; a reference that is farther from the nodes is so by less than seeds differ."""
    text = " ".join((FOLDER.parents[1] / "README.md").read_text(encoding="utf-8").split())
    assert f"centres of {NODES_A_POINT:,} for each point are as near to all nodes as centres of all" in text
    found = json.loads((FOLDER / "results" / "sampling.json").read_text(encoding="utf-8"))["data_sets"]
    for one in found.values():
        of_all, of_sample = one["samples"]["all"], one["samples"].get(str(NODES_A_POINT))
        # Of a data set with fewer nodes all are taken.
        assert (of_sample is None) == (one["nodes"] <= NODES_A_POINT * one["reference_points"])
        if of_sample is not None:
            deviation = max(of_all["standard_deviation"], of_sample["standard_deviation"])
            assert of_sample["mean_squared_distance"] < of_all["mean_squared_distance"] + deviation
    assert any(str(NODES_A_POINT) in one["samples"] for one in found.values())


def test_the_section_on_neighbours_states_what_was_measured():
    text = " ".join((FOLDER.parents[1] / "README.md").read_text(encoding="utf-8").split())
    found = {name: json.loads((FOLDER / "results" / f"{name}.json").read_text()) for name in ("neighbours", "queries")}
    for kind, one in found["neighbours"]["references"].items():
        recalls = f"{one['recall_at_10']:.1%} | {one['recall_at_10_of_100_candidates']:.1%}".replace("%", " %")
        off, below = f"{one['mean_relative_error']:.1%}".replace("%", " %"), f"{100 * one['fraction_below']:.0f} %"
        assert f"| `{kind}` | {recalls} | {off} | {below} | {one['bound_mean_ratio']:.2f} |" in text
        assert one["bound_broken"] == 0
    small, large = (one["seconds"] for one in found["queries"]["searches"])
    assert (
        f"takes {1e3 * small['scan_1']:.0f} ms in memory, one among a million vectors {large['scan_1']:.1f} s. Of a thousand "
        f"queries at a time each takes {small['scan_1000']:.1f} ms and {large['scan_1000']:.0f} ms. By an approximate index "
        f"(`--search index`) all thousand take {small['index_1000']:.0f} s and {large['index_1000']:.0f} s"
    ) in text


def test_the_worked_example_follows_from_what_was_measured():
    text = (FOLDER.parents[1] / "README.md").read_text(encoding="utf-8")
    section = " ".join(text.partition("### A billion molecules")[2].partition("## Development\n")[0].split())
    kept = {name: json.loads((FOLDER / "results" / f"{name}.json").read_text()) for name in ("ingest", "scale")}
    many = kept["scale"]["sizes"]["25 copies"]
    read = kept["ingest"]["microseconds"]["whole source: read"]
    stages = [2e6 * many["stages"][stage] / many["graphs"] for stage in ("moments", "sample", "embed")]
    core_seconds = 1e9 * (read + sum(stages)) / 1e6
    assert f"takes {read:.0f} us of a core" in section
    assert "moments take {:.0f}, the sample {:.0f} and the embedding {:.0f}".format(*stages) in section
    assert f"{core_seconds / 3600:.0f} core hours, {core_seconds / 1000 / 60:.0f} minutes on 1,000 cores" in section
    width = 26 * 20  # N points of d components
    assert f"The vectors, {width} single precision numbers a molecule, take {1e9 * width * 4 / 1e12:.1f} TB" in section
    n_shards = round(25.5e9 / LARGEST_SHARD)
    assert f"{n_shards:,} shards of {LARGEST_SHARD:,} nodes" in section
    scheduling = json.loads((FOLDER / "results" / "scheduling.json").read_text())
    assert round(scheduling["median_milliseconds"], 1) == 1000 * TASK_SECONDS
    assert f"take {1000 * TASK_SECONDS:g} ms a task ([scheduling.py]" in section
    assert f"four stages of {n_shards:,} tasks are {4 * n_shards * TASK_SECONDS / 60:.0f} minutes" in section
    assert f"25,500 tasks a stage, {4 * 25_500 * TASK_SECONDS / 60:.0f} minutes for all four" in section
    one, most = (kept["scale"]["sizes"][f"{copies} copies"] for copies in (1, 100))
    a_shard = 1e6 * (most["client_peak_mb"] - one["client_peak_mb"]) / (most["shards"] - one["shards"])
    assert f"{a_shard / 1e3:.0f} kB a shard" in section
    assert f"{n_shards * a_shard / 1e9:.1f} GB for the smaller shards and {25_500 * a_shard / 1e9:.1f} GB" in section
    planned = n_shards * PLANNED_SHARD_BYTES / 1e9, 25_500 * PLANNED_SHARD_BYTES / 1e6
    assert f"2 kB a shard, {planned[0]:.2f} GB or {planned[1]:.0f} MB" in section


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


def test_the_benchmark_of_the_scheduler_runs(tmp_path, tables):
    found = run("scheduling.py", ["--parts", "40", "--workers", "1"], tmp_path / "scheduling.json")
    assert len(found["milliseconds"]) == 1
    assert found["median_milliseconds"] == found["milliseconds"][0] > 0
    assert "### scheduling" in tables.render(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("transport.py", ["--graphs", "30", "--sets", "PROTEINS"]),
        ("scale.py", ["--copies", "1", "--speedup-copies", "1"]),
        ("forecast.py", ["--sets", "PROTEINS"]),
        ("pairwise.py", ["--pairs", "10"]),
        ("latency.py", ["--graphs", "5"]),
        ("sampling.py", ["--graphs", "5000", "--only", "ogbg-molhiv", "--repeats", "2"]),
        ("molhiv.py", []),
    ],
)
def test_every_benchmark_runs_on_its_data(shared_data, tmp_path, program, arguments, tables):
    data = shared_data / "ogb" if program in {"scale.py", "molhiv.py"} else shared_data
    found = run(program, ["--data", str(data), *arguments], tmp_path / f"{Path(program).stem}.json")
    assert found["benchmark"] == Path(program).stem
    assert f"### {found['benchmark']}" in tables.render(tmp_path)
