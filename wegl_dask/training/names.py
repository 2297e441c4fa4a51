"""The names that the job file and the command know: of models, protocols and metrics. Importing them costs nothing."""

import re
from typing import Literal, get_args

ModelName = Literal["random-forest", "gradient-boosting", "svm-linear", "svm-rbf", "mlp", "ridge", "automl"]
ProtocolName = Literal["split", "cv"]
MetricName = Literal["roc-auc", "average-precision", "accuracy", "rmse", "mae", "r2"]

MODEL_NAMES: tuple[ModelName, ...] = get_args(ModelName)

METRICS_FILE = "metrics.json"
PREDICTIONS_FILE = "predictions.parquet"
MODEL_FILE = "model.skops"
KEPT_NAME = re.compile(r"fits-[0-9a-f]{32}\.npz")
"""Scores of fits, while a training has not ended."""

TRAIN_FOLDER = "train"
"""Subfolder of a run that holds one folder a model."""


def training_folder(model: str) -> str:
    """Where a model's results are in the run folder: ``train/random-forest``."""
    return f"{TRAIN_FOLDER}/{model}"
