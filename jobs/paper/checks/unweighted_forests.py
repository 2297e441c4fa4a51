"""Measure what balanced classes do for random forests in table 3: the best accuracy with and without, draw by draw.

The runs are those that ``wegl-dask reproduce tud -o runs/tud`` leaves in ``runs/tud/runs``, one a number of layers. Of all of
them, and all numbers of trees with leaves of one graph and splits of two, the best mean over the folds is taken, as in the
paper. Seed 0 is that of `results/tud.md`, and none of the draws. For example::

    python jobs/paper/checks/unweighted_forests.py runs/tud/runs/PTC_MR-average-[3-8] --draws 10
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

import wegl_dask
from wegl_dask.reproduce.numbers import mean_and_deviation
from wegl_dask.training.crossvalidation import cross_validate
from wegl_dask.training.metrics import choose_metric
from wegl_dask.training.problem import Problem
from wegl_dask.training.spreading import Workers
from wegl_dask.training.trees import RandomForest


class UnweightedForest(RandomForest):
    """A random forest to which all graphs are the same, whatever their class."""

    def make(self, candidate: Any, seed: int) -> Any:
        """Make the forest of a candidate."""
        return super().make(candidate, seed).set_params(class_weight=None)


def main() -> None:
    """Measure both kinds of forests by the same folds."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("runs", type=Path, nargs="+", help="folders of runs on one data set")
    options.add_argument("--draws", type=int, default=10, help="draws of the folds (default: 10)")
    options.add_argument("--json", type=Path, help="file to write the results to, after each draw")
    arguments = options.parse_args()
    problems = [Problem.of(wegl_dask.read_embeddings(run)) for run in arguments.runs]
    kinds = {"balanced": RandomForest, "not balanced": UnweightedForest}
    result: dict[str, Any] = {"runs": [run.name for run in arguments.runs], "best": {kind: [] for kind in kinds}}
    for seed in range(1, arguments.draws + 1):
        for kind, forest in kinds.items():
            accuracies = [_best(problem, forest(problem.kind, len(problem.class_names)), seed) for problem in problems]
            result["best"][kind].append(round(100 * max(accuracies), 2))
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for kind, accuracies in result["best"].items():
        print(f"{kind}: {mean_and_deviation(np.array(accuracies))}, at most {max(accuracies):.1f}")


def _best(problem: Problem, forest: RandomForest, seed: int) -> float:
    """Take the best mean over ten folds of the forests that share their first trees."""
    found = cross_validate(
        problem,
        forest,
        choose_metric(problem.kind, "cv", "accuracy"),
        Workers(CPU_COUNT),
        n_folds=10,
        seed=seed,
        inner_folds=0,
        groups=forest.groups()[:1],
    )
    return float(found.outer.mean(axis=0).max())


if __name__ == "__main__":
    main()
