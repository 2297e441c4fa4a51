"""Measure what the paper's protocol owes to chance: table 2 or 3 of a data set again, with other draws of the folds.

Each draw is a ``wegl-dask reproduce tud --seed`` with the options that are given beside those below: the same embeddings,
other folds, and other seeds of the classifiers. Seed 0 is that of `results/tud.md`, and none of the draws. It prints the
cells, and the best cell of each draw, beside the paper's. For example::

    python jobs/paper/checks/fold_draws.py --data data/TUDataset --only PTC_MR --draws 20 --work runs/draws --shortlist 1
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from wegl_dask.reproduce.numbers import mean_and_deviation
from wegl_dask.reproduce.tud import METHODS, papers_number


def main() -> None:
    """Compute the table once a seed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", required=True, help="folder of the data sets")
    options.add_argument("--only", required=True, help="data set, such as PTC_MR")
    options.add_argument("--draws", type=int, default=10, help="draws of the folds (default: 10)")
    options.add_argument(
        "--work", type=Path, required=True, help="folder for embeddings, steps and tables, which is kept"
    )
    options.add_argument("--json", type=Path, help="file to write the results to, after each draw")
    arguments, how = options.parse_known_args()
    result: dict[str, Any] = {"data_set": arguments.only, "options": how, "cells": {}}
    for seed in range(1, arguments.draws + 1):
        command = ["reproduce", "tud", "--data", arguments.data, "--only", arguments.only, "-o", str(arguments.work)]
        subprocess.run([sys.executable, "-m", "wegl_dask", *command, "--seed", str(seed), *how], check=True)  # noqa: S603
        table = json.loads((arguments.work / "tud.json").read_text(encoding="utf-8"))
        # The folder may hold cells of other data sets and draws.
        drawn = [cell for cell in table["cells"] if (cell["data_set"], cell["how"]["seed"]) == (arguments.only, seed)]
        for cell in drawn:
            accuracies = result["cells"].setdefault(f"{cell['model']}, {cell['pooling']}", [])
            accuracies.append(round(fmean(cell["best"]), 2))
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(describe(result))


def describe(result: dict[str, Any]) -> str:
    """Render the draws of every cell, and of the best of them, as a table in Markdown."""
    cells = result["cells"]
    papers = {name: _of_paper(result["data_set"], name) for name in cells}
    best = "the best of them"
    rows = {**cells, best: [max(draw) for draw in zip(*cells.values(), strict=True)]}
    papers[best] = max(papers.values())
    lines = [
        "| cell | paper | mean ± deviation of the draws | lowest to highest | draws at or above the paper |",
        "|---|---|---|---|---|",
    ]
    for name, draws in rows.items():
        reached = sum(draw >= papers[name] for draw in draws)
        lines.append(
            f"| {name} | {papers[name]:.1f} | {mean_and_deviation(np.array(draws))} | "
            f"{min(draws):.1f} to {max(draws):.1f} | {reached} of {len(draws)} |"
        )
    return "\n".join(lines)


def _of_paper(data_set: str, cell: str) -> float:
    name, _, pooling = cell.partition(", ")
    found = next((papers_number(data_set, pooling, model) for model in METHODS if model == name), None)
    if found is None:
        raise SystemExit(f"the paper has no {cell} of {data_set}")
    return found.mean


if __name__ == "__main__":
    main()
