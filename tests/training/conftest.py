import io

import numpy as np
import pyarrow as pa
import pytest
from threadpoolctl import threadpool_limits

from wegl_dask.embeddings import EmbeddingFormat, EmbeddingRows
from wegl_dask.sources.base import LabelSchema
from wegl_dask.spec import JobSpec
from wegl_dask.storage import RunFolder
from wegl_dask.training.problem import Problem
from wegl_dask.training.spreading import Workers


@pytest.fixture(autouse=True)
def one_core():
    """As fits are done; and threads that wait for one another on a busy machine make a test slow."""
    with threadpool_limits(1):
        yield


@pytest.fixture
def one_worker():
    return Workers(1)


@pytest.fixture
def make_problem():
    """Make a problem whose labels follow from the first columns, with noise."""

    def make(kind, *, n=60, width=6, n_classes=3, n_tasks=1, unknown=0, split=False, seed=0):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(n, width)).astype(np.float32)
        signal = X[:, :n_tasks] * 2 + rng.normal(size=(n, n_tasks))
        match kind:
            case "binary":
                Y = (signal > 0).astype(np.float64)
            case "multiclass":
                Y = np.digitize(signal, np.quantile(signal, np.arange(1, n_classes) / n_classes)).astype(np.float64)
            case _:
                Y = signal * 10 + 100
        Y.reshape(-1)[rng.choice(Y.size, unknown, replace=False)] = np.nan
        classes = {"binary": ("no", "yes"), "multiclass": tuple("abcdefgh"[:n_classes]), "regression": ()}[kind]
        parts = np.array(["train"] * (n // 2) + ["valid"] * (n // 4) + ["test"] * (n - n // 2 - n // 4), dtype=object)
        return Problem(
            kind=kind,
            X=X,
            Y=Y,
            class_names=classes if n_tasks == 1 else (),
            task_names=tuple(f"t{i}" for i in range(n_tasks)) if n_tasks > 1 else (),
            graph_id=np.array([f"g{i}" for i in range(n)], dtype=object),
            split=rng.permutation(parts) if split else None,
        )

    return make


@pytest.fixture
def write_problem(tmp_path):
    """Write a problem as the finished run folder of a job; the folder."""

    def write(problem, name="run", job=""):
        folder = RunFolder(str(tmp_path / name))
        text = f'{job}[source]\nkind = "tud"\nroot = "data"\nname = "MUTAG"\n[output]\npath = "{folder.url}"\n'
        folder.claim(JobSpec.from_toml(text).to_toml())
        labels = LabelSchema("target")
        if problem.task_names:
            labels = LabelSchema("tasks", task_names=problem.task_names)
        elif problem.kind != "regression":
            labels = LabelSchema("class", problem.class_names)
        values = [
            [None if np.isnan(value) else (int(value) if problem.class_names else value) for value in row]
            for row in problem.Y
        ]
        n = len(problem.X)
        rows = pa.table(
            {
                "graph_id": pa.array(problem.graph_id, pa.string()),
                "source_file": pa.array(["a.csv"] * n, pa.string()),
                "source_row": pa.array(range(n), pa.int64()),
                "label": pa.array(values if problem.task_names else [row[0] for row in values], labels.arrow_type),
                "split": pa.array([None] * n if problem.split is None else problem.split, pa.string()),
            }
        )
        block = EmbeddingRows(
            rows=rows,
            num_nodes=np.full(n, 3),
            transport_cost=np.linspace(0, 1, n),
            solver=["exact"] * n,
            regularisation=np.full(n, np.nan),
            vectors=problem.X,
        )
        form = EmbeddingFormat(problem.X.shape[1] // 2, 2, labels)
        content = io.BytesIO()
        form.write(content, [block])
        with folder.recording("embed", 0, "x") as part:
            part.write("data", content.getvalue(), rows=n)
        folder.write_model({"N": problem.X.shape[1] // 2}, {"reference": np.zeros((problem.X.shape[1] // 2, 2))})
        folder.mark_success()
        return folder

    return write
