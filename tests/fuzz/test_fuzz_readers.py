"""A minute of fuzzing, by the program beside this file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "fuzz_readers.py"


@pytest.mark.slow
def test_a_minute_of_spoilt_input_ends_in_rows_or_in_errors_for_the_user(tmp_path):
    pytest.importorskip("rdkit")
    pytest.importorskip("torch_geometric")
    command = [sys.executable, PROGRAM, "--seconds", "60", "--seed", "12345", "--state", tmp_path / "state.json"]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    failures = json.loads((tmp_path / "state.json").read_text())["failures"]
    assert failures == []
    assert done.returncode == 0, done.stderr
