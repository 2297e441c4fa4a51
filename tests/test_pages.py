"""What the pages of the repository name is there: files, headings, keys of the job file, commands and their options."""

import re
import shlex
from pathlib import Path

import pytest

from wegl_dask.cli import main
from wegl_dask.spec import JobSpec, documented_keys

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT)) for part in (".", "deploy/**", "jobs/**") for path in ROOT.glob(f"{part}/*.md")
)
SOURCE = '[source]\nkind = "tud"\nroot = "data"\nname = "MUTAG"\n[output]\npath = "out"\n'


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", read(page), re.DOTALL | re.MULTILINE)


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_pages_are_found():
    assert {"README.md", "deploy/README.md", "deploy/slurm/README.md", "jobs/benchmarks/README.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)]+)\)", read(page)):
        if target.startswith("https://"):
            continue
        path, _, heading = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        assert not heading or heading in anchors(file.read_text(encoding="utf-8")), target


@pytest.mark.parametrize("page", PAGES)
def test_keys_are_those_of_the_job_file(page):
    known = {key.key for key in documented_keys()}
    tables = {key.partition(".")[0] for key in known if "." in key}
    files = r"(toml|json|py|md|npz|smi|skops|parquet)"
    for name in re.findall(r"[`\s=]([a-z]+\.[a-z_.]+)(?=`| = |=)", read(page)):
        if name.partition(".")[0] in tables and not re.search(rf"\.{files}$", name):
            assert name in known, name


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_their_options_are_those_of_the_package(page):
    lines = re.findall(r"`wegl-dask ([^`]+)`", read(page))
    for block in blocks(page, "sh"):
        lines += re.findall(r"wegl-dask ([a-z][^\n&'\"]*)", block.replace("\\\n", " "))
    for line in lines:
        words = shlex.split(line, comments=True)
        command = main
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        if command is main:
            assert words[0] in {"COMMAND", "--version", "--help"}, line
            continue
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        named = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert named <= options, line


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")])
def test_tables_of_a_job_file_are_read(page):
    for text in blocks(page, "toml"):
        table = re.match(r"\[(\w+)\]", text)[1]
        rest = SOURCE.partition("[output]")[2] if table == "source" else SOURCE
        JobSpec.from_toml(f"{text}\n{'[output]' if table == 'source' else ''}{rest}")
