"""Measure what balanced classes do for a random forest on ogbg-molhiv: ROC-AUC with and without them, seed by seed.

The runs are those that ``wegl-dask reproduce molhiv -o runs/molhiv`` leaves in ``runs/molhiv/runs``; the candidate is the
one that it chose (see `results/molhiv.md`). For example::

    python jobs/paper/checks/balanced_forests.py runs/molhiv/runs/virtual-node-concat-3-300-0 --leaf 2 --split 2 --trees 100
"""

import argparse
import json
from pathlib import Path
from statistics import fmean, stdev

from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score

import wegl_dask


def main() -> None:
    """Fit forests to "train", with and without balanced classes, and measure them on "valid" and "test"."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("run", type=Path, help="folder of a run on ogbg-molhiv")
    options.add_argument("--leaf", type=int, default=1, help="min_samples_leaf (default: 1)")
    options.add_argument("--split", type=int, default=2, help="min_samples_split (default: 2)")
    options.add_argument("--trees", type=int, default=100, help="n_estimators (default: 100)")
    options.add_argument("--seeds", type=int, default=5, help="forests of each kind (default: 5)")
    options.add_argument("--json", type=Path, help="file to write the results to")
    arguments = options.parse_args()
    embeddings = wegl_dask.read_embeddings(arguments.run)
    if embeddings.y is None:
        raise SystemExit(f"the graphs of {arguments.run} have no labels: give a run on ogbg-molhiv")
    X, y = embeddings.X, embeddings.y.ravel()
    train, *others = (embeddings.split == part for part in ("train", "valid", "test"))
    forest = {
        "min_samples_leaf": arguments.leaf,
        "min_samples_split": arguments.split,
        "n_estimators": arguments.trees,
    }
    result = {"run": arguments.run.name, "forest": forest, "areas": {}}
    for class_weight in ("balanced", None):
        areas = []
        for seed in range(arguments.seeds):
            model = RandomForestClassifier(**forest, class_weight=class_weight, random_state=seed, n_jobs=-1)
            model.fit(X[train], y[train])
            areas.append(
                [round(100 * roc_auc_score(y[rows], model.predict_proba(X[rows])[:, 1]), 2) for rows in others]
            )
        for part, values in zip(("valid", "test"), zip(*areas, strict=True), strict=True):
            result["areas"].setdefault(str(class_weight), {})[part] = list(values)
            print(f"class_weight {class_weight}, {part}: {fmean(values):.1f} ± {stdev(values):.1f}", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
