"""The messages that the pages of deploy/ explain are those that the package says."""

import ast
import re
from pathlib import Path

import pytest
from distributed import worker_memory

from wegl_dask.worker_environment import DASK_SETTINGS, as_variable

ROOT = Path(__file__).parents[2]

# What others say, and is passed on.
QUOTED = re.compile(
    r"sbatch: error: .*|TLS expects.*|\[Errno \d+\] .*|Connection refused|Timed out trying to connect.*|PENDING.*"
)


@pytest.fixture(scope="module")
def said():
    """All texts of the package, and of Dask where it speaks of memory, each with a line end for what is filled in."""
    texts = []
    for path in (*(ROOT / "wegl_dask").rglob("*.py"), Path(worker_memory.__file__)):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(re.sub(r"%\w", "\n", node.value))
            elif isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\n" for part in node.values)
                texts.append("".join(parts))
    return "\n\n".join(texts)


@pytest.mark.parametrize("place", ["scheduler/README.md", "slurm/wegl.sbatch"])
def test_what_an_operator_starts_opens_no_port_without_certificates_to_other_machines(place):
    text = (ROOT / "deploy" / place).read_text(encoding="utf-8").replace("\\\n", " ")
    for name, value in re.findall(r"^(\w+)=\((.*)\)$", text, re.MULTILINE):
        text = text.replace(f'"${{{name}[@]}}"', value)
    lines = [line for line in text.splitlines() if re.search(r"\bdask[ _](scheduler|worker)\b.*--", line)]
    assert len(lines) == 2
    for line in lines:
        assert re.search(r"--dashboard-address 127\.0\.0\.1:\d+", line), line


@pytest.mark.parametrize("place", ["scheduler/README.md", "slurm/wegl.sbatch"])
def test_what_an_operator_starts_has_the_settings_of_dask_that_workers_have(place):
    text = (ROOT / "deploy" / place).read_text(encoding="utf-8")
    exported = {pair for line in re.findall(r"^export (.*)$", text, re.MULTILINE) for pair in line.split()}
    assert exported >= {f"{as_variable(setting)}={value}" for setting, value in DASK_SETTINGS.items()}


@pytest.mark.parametrize("page", ["", "kubernetes", "scheduler", "slurm"])
def test_every_message_that_is_explained_is_said_by_the_package(page, said):
    rows = re.findall(r"^\| (.*?) \| .* \|$", (ROOT / "deploy" / page / "README.md").read_text(), re.MULTILINE)
    messages = [message for row in rows[1:] for message in re.findall(r"`([^`]{20,})`", row)]
    assert len(messages) >= 8
    for message in messages:
        # What stands for something else: in capitals, with digits, in quotes, left out, or the name of a command.
        pieces = re.split(r"\.\.\.|\S*(?:[A-Z]{2,}|\b[A-Z]\b|\d|\"|://|sbatch|jobqueue)\S*", QUOTED.sub("", message))
        fixed = [piece.strip(" .,:;`") for piece in pieces]
        missing = [piece for piece in fixed if len(piece.split()) > 2 and piece not in said]
        assert not missing, message


def test_the_page_on_kubernetes_has_the_numbers_of_the_manifests():
    folder = ROOT / "deploy" / "kubernetes"
    page = " ".join((folder / "README.md").read_text(encoding="utf-8").split())
    client = (folder / "plain" / "client.yaml").read_text(encoding="utf-8")
    for said, file, set_there in (
        ("The Job starts it again, up to ten times", client, "backoffLimit: 10\n"),
        ("The Job is removed a day after its end", client, f"ttlSecondsAfterFinished: {24 * 60 * 60}\n"),
        ("exit code 2) and too many rejected rows (3) end it at once", client, "operator: In, values: [2, 3]}"),
        (
            "failed when it has cost more than three workers",
            (folder / "shared" / "settings.env").read_text(encoding="utf-8"),
            "ALLOWED_FAILURES=3\n",
        ),
    ):
        assert said in page
        assert set_there in file
