"""The image, on paper: what its instructions install, and what compose.yaml makes of it."""

import fnmatch
import json
import os
import re
import struct
import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path, PurePosixPath

import jsonschema
import pytest
import yaml
from dask.utils import parse_bytes
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from wegl_dask.worker_environment import WORKER_ENVIRONMENT

ROOT = Path(__file__).parents[2]

LIMIT = 700_000_000
"""Bytes of the packages that are installed in the image; what Python compiles of them comes on top."""


@pytest.fixture(scope="module")
def stages(deploy):
    """Instructions of each stage of the Dockerfile, on one line each."""
    text = re.sub(r"^#.*\n", "", (deploy / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    _, build, final = re.split(r"^FROM ", text, flags=re.MULTILINE)
    return [list(filter(None, stage.splitlines())) for stage in (build, final)]


@pytest.fixture(scope="module")
def requirements(stages, deploy):
    """Requirements of the package with the extras that the image installs."""
    [extras] = re.findall(r"'\.\[(.+?)\]'", " ".join(stages[0]))
    assert {"molecules", "cluster", "gs", "az"} == set(extras.split(","))
    project = tomllib.loads((deploy.parent / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    found, waiting = list(project["dependencies"]), extras.split(",")
    while waiting:
        for line in optional[waiting.pop()]:
            if line.startswith("wegl-dask["):
                waiting += line[len("wegl-dask[") : -1].split(",")
            else:
                found.append(line)
    return found


def closure(requirements):
    """Distributions that requirements bring, as installed here, by name."""
    found, waiting = {}, [Requirement(line) for line in requirements]
    seen = set()
    while waiting:
        wanted = waiting.pop()
        key = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if key in seen:
            continue
        seen.add(key)
        found[key[0]] = metadata.distribution(wanted.name)
        for line in found[key[0]].requires or []:
            further = Requirement(line)
            extras = (*wanted.extras, "")
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(further)
    return found


def debug_bytes(path):
    """Bytes of an ELF file's sections for debuggers, which `strip --strip-debug` takes away."""
    data = path.read_bytes()
    table, size, count, names = struct.unpack_from("<Q10xHHH", data, 0x28)[0], *struct.unpack_from("<HHH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", data, table + i * size) for i in range(count)]
    start = sections[names][4]
    return sum(
        length
        for name, _, _, _, _, length in sections
        if data[start + name : data.index(b"\0", start + name)].startswith(b".debug")
    )


def test_the_packages_of_the_image_take_less_than_700_mb(stages, requirements, deploy):
    script = stages[0][-1]
    removed = re.findall(r"uninstall --quiet --yes ([a-z -]+?) &&", script)[0].split()
    installed = closure(requirements)
    assert set(removed) <= set(installed)
    assert {"numpy", "dask", "rdkit", "s3fs", "gcsfs", "adlfs", "bokeh"} <= set(installed)
    assert not {"torch", "pip"} & set(installed)
    stripped = re.findall(r"strip --strip-debug (.+?)(?:$| &&)", script)[0].split()
    deleted = re.findall(r"&& rm (.+?) +&&", script)[0].split()
    total = 0
    for name in set(installed) - set(removed):
        for file in installed[name].files or []:
            path = PurePosixPath(file)
            if "tests" in path.parts or path.is_relative_to("pyarrow/include") or path.is_relative_to("pyarrow/src"):
                continue
            if any(fnmatch.fnmatch(str(file), pattern) for pattern in deleted):
                continue
            total += file.size or 0
            if any(fnmatch.fnmatch(str(file), pattern) for pattern in stripped):
                total -= debug_bytes(file.locate())
    assert 500_000_000 < total < LIMIT, f"{total / 1e6:.0f} MB"
    assert f"take less than {LIMIT / 1e6:.0f} MB" in " ".join((deploy / "README.md").read_text().split())


def test_what_the_image_leaves_out_is_not_imported_by_what_a_job_imports(stages):
    removed = re.findall(r"uninstall --quiet --yes ([a-z -]+?) &&", " ".join(stages[0]))[0].split()
    block = f"import sys; sys.modules.update(dict.fromkeys({[name.replace('-', '_') for name in removed]}))"
    code = f"{block}; import dask.array, dask_ml.wrappers, ot.lp, wegl_dask.pipeline, wegl_dask.tasks"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONPATH": str(ROOT)})


def test_every_package_is_pinned_and_comes_as_a_wheel(stages):
    [install] = [line for line in stages[0] if "pip" in line and " install " in line and ".[molecules" in line]
    assert "--constraint constraints.txt" in install
    assert "--only-binary=:all:" in install


def test_the_last_stage_has_no_compiler_and_takes_one_folder_from_the_first(stages):
    assert [line for line in stages[1] if line.startswith("COPY")] == ["COPY --from=build /opt/wegl /opt/wegl"]
    assert not [line for line in stages[1] if re.search(r"apt-get|\bpip\b|gcc|build-essential", line)]


def test_the_image_is_not_root_and_says_what_it_is(stages, deploy):
    last = stages[1]
    assert "USER 10001:10001" in last
    text = " ".join(last)
    version = tomllib.loads((deploy.parent / "pyproject.toml").read_text())["project"]["version"]
    assert f'org.opencontainers.image.version="{version}"' in text
    assert 'org.opencontainers.image.licenses="BSD-3-Clause"' in text
    assert "HEALTHCHECK " in text
    assert not [line for line in last if line.startswith("ENTRYPOINT")]


def test_the_environment_is_that_of_a_worker(stages):
    pairs = [pair for line in stages[1] if line.startswith("ENV ") for pair in line.removeprefix("ENV ").split()]
    environment = dict(pair.split("=", 1) for pair in pairs)
    assert environment.items() >= WORKER_ENVIRONMENT.items()


def test_the_context_holds_what_is_copied_and_no_more(stages, deploy):
    kept = {
        line.removeprefix("!")
        for line in (deploy / "Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {word for line in stages[0] if line.startswith("COPY ") for word in line.split()[1:-1]}
    assert copied == kept
    assert all((deploy.parent / name).exists() for name in kept)


# --- compose.yaml ---


@pytest.fixture(scope="module")
def compose(deploy):
    return yaml.safe_load((deploy / "compose.yaml").read_text())


def test_the_compose_file_is_valid(compose):
    pytest.importorskip("check_jsonschema")
    schema = resources.files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    validator = jsonschema.Draft202012Validator(json.loads(schema.read_text()))
    validator.validate(compose)
    mistaken = compose | {"services": {"job": compose["services"]["job"] | {"comand": ["x"]}}}
    with pytest.raises(jsonschema.ValidationError, match="comand"):
        validator.validate(mistaken)


def test_its_containers_may_do_nothing_and_are_not_reached_from_outside(compose, deploy):
    assert set(compose["services"]) == {"scheduler", "worker", "job"}
    for service in compose["services"].values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert [(deploy / name).exists() for name in service["env_file"]] == [True]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert {"./tls:/tls:ro", "/scratch"} <= set(service["volumes"])
    assert compose["networks"]["dask"] == {"internal": True}


def test_dask_stops_a_worker_before_the_kernel_does(compose):
    worker = compose["services"]["worker"]
    [limit] = [part.partition("=")[2] for part in worker["command"] if part.startswith("--memory-limit=")]
    # Compose's units are powers of 1024.
    assert parse_bytes(limit) <= 0.9 * parse_bytes(worker["mem_limit"].replace("gb", "GiB"))
