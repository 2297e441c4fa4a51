import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]

NUMERICAL_MODULES = ["graphs", "features", "diffusion", "projection", "points", "transport", "geometry"]

HEAVY = {"dask", "distributed", "dask_ml", "torch", "torch_geometric", "rdkit", "ogb", "networkx", "pandas"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Names in a wheel built from this tree, with files that must and must not be shipped planted among its jobs."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("wegl_dask", "jobs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "README.md").write_text("Stands in for the README, which is not what is tested.\n")
    for planted in ("jobs/planted.toml", "jobs/paper/planted.toml", "jobs/planted.py", "jobs/benchmarks/planted.py"):
        (tree / planted).parent.mkdir(exist_ok=True)
        (tree / planted).touch()
    [built] = WheelBuilder(str(tree)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def test_a_wheel_holds_every_module(wheel):
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "wegl_dask").rglob("*.py")}
    assert len(modules) > 10
    assert modules <= wheel


def test_a_wheel_holds_the_job_files_inside_the_package(wheel):
    jobs = {f"wegl_dask/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "jobs").rglob("*.toml")}
    planted = {"wegl_dask/jobs/planted.toml", "wegl_dask/jobs/paper/planted.toml"}
    assert {name for name in wheel if name.startswith("wegl_dask/jobs/")} == jobs | planted


def test_a_wheel_holds_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"wegl_dask"}


def modules_after(statement):
    code = f"{statement}; import sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(run.stdout.split())


@pytest.mark.parametrize("name", [name for name in NUMERICAL_MODULES if (ROOT / "wegl_dask" / f"{name}.py").exists()])
def test_a_numerical_module_imports_neither_dask_nor_an_extra(name):
    assert not modules_after(f"import wegl_dask.{name}") & HEAVY


def test_the_package_and_the_command_import_no_library_that_takes_long():
    assert not modules_after("import wegl_dask, wegl_dask.cli") & (
        HEAVY | {"numpy", "scipy", "sklearn", "pyarrow", "ot"}
    )


def test_the_module_that_workers_run_imports_no_extra():
    # Dask is there before it in a worker.
    assert not modules_after("import wegl_dask.tasks") & (HEAVY - {"dask", "distributed"})


def pins(name):
    """Version by name of package in a file of constraints, which holds nothing but such pins, sorted."""
    lines = (ROOT / "deploy" / name).read_text().splitlines()
    found = [line for line in lines if line and not line.startswith("#")]
    assert all(line.count("==") == 1 and not set(line) & set(" @/+;") for line in found)
    assert found == sorted(found, key=str.upper)
    return {
        package.lower().replace("_", "-"): version for package, _, version in (line.partition("==") for line in found)
    }


def lower_bounds():
    """The lowest version that is allowed, by name of package, of all that the project and its extras ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    found = [re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?(?:>=([\d.]+)(?:,<[\d.]+)?)?", line).groups() for line in lines]
    return {package.lower(): version for package, version in found if package != "wegl-dask"}


def test_the_constraints_pin_every_requirement_to_one_version():
    assert lower_bounds().keys() <= pins("constraints.txt").keys()


def test_the_lowest_versions_that_are_allowed_are_those_that_are_tried():
    bounds, tried = lower_bounds(), pins("constraints-lowest.txt")
    # Of torch, an earlier one without the libraries of CUDA is not to be had.
    del bounds["torch"]
    assert None not in bounds.values()
    assert {package: tried[package] for package, bound in bounds.items() if not is_of(tried[package], bound)} == {}


def is_of(version, series):
    """Whether a version is of a series, as 2024.9.1 is of 2024.9, and 1.0 of 1.0.0."""
    numbers, first = ([int(number) for number in text.split(".")] for text in (version, series))
    return [*numbers, *[0] * len(first)][: len(first)] == first


def test_a_package_whose_private_modules_are_imported_has_an_upper_bound():
    private = set()
    for path in (ROOT / "wegl_dask").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) and not node.level else ""
            if any(part.startswith("_") and not part.endswith("__") for part in module.split(".")):
                private.add(module.split(".")[0])
    # POT's solver is loaded by itself, without the package around it.
    distributions = {"ot": "POT", "sklearn": "scikit-learn"}
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    for package in (private | {"ot"}) - {"wegl_dask"}:
        [found] = [line for line in requirements if line.startswith(distributions.get(package, package))]
        assert ",<" in found
    assert "sklearn" in private
