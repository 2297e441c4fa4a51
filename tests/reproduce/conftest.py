import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from wegl_dask.folders import Folder
from wegl_dask.reading import Embeddings
from wegl_dask.sources.base import LabelSchema


@pytest.fixture
def made_up():
    """A data set whose embeddings are drawn by what the job file says: `signal` says how well they tell the classes.

    `embed` and `remove` stand for those of `DataSet`; `asked` lists the changes that embeddings were asked for with, and
    `removed` the names of those removed. With `other_test` the graphs of "test" have the other class.
    """

    def make(signal, *, n=90, fingerprint="made up", other_test=False):
        y = np.arange(n) % 2
        split = np.array(["train", "valid", "test"] * (n // 3))
        labels = np.where(other_test & (split == "test"), 1 - y, y)
        asked = []

        def embed(name, changes):
            del name
            asked.append(changes)
            X = np.random.default_rng(changes["seed"]).standard_normal((n, 3)).astype(np.float32)
            X[:, 0] += signal(changes) * y
            rows = {"graph_id": [str(i) for i in range(n)], "label": labels, "split": split}
            return Embeddings(X, pa.table(rows), 1, 3, LabelSchema("class", ("0", "1")), {}, None)

        removed = []
        return SimpleNamespace(
            embed=embed, asked=asked, remove=removed.append, removed=removed, fingerprint=fingerprint
        )

    return make


@pytest.fixture
def write_tud():
    """Write a small data set of the TU collection: stars and cycles of four to six nodes, the classes in turn.

    With ``swapped`` the first graph has the other class.
    """

    def write(root, name, *, n=24, swapped=False):
        folder = root / name
        folder.mkdir(parents=True)
        graphs, edges, node_labels, labels = [], [], [], []
        for i in range(n):
            first, size = len(graphs) + 1, 4 + i % 3
            graphs += [i + 1] * size
            node_labels += [(i + j) % 2 for j in range(size)]
            nodes = [*range(first, first + size)]
            pairs = zip(nodes, [*nodes[1:], first], strict=True) if i % 2 else ((first, node) for node in nodes[1:])
            edges += [pair for a, b in pairs for pair in ((a, b), (b, a))]
            labels.append(1 - i % 2 if swapped and i == 0 else i % 2)
        files = {
            "A": [f"{a}, {b}" for a, b in edges],
            "graph_indicator": graphs,
            "graph_labels": labels,
            "node_labels": node_labels,
            "edge_labels": [0] * len(edges),
        }
        for kind, lines in files.items():
            (folder / f"{name}_{kind}.txt").write_text("".join(f"{line}\n" for line in lines))
        return root

    return write


@pytest.fixture
def committed(tmp_path):
    """Put a file of results that the repository holds into a folder: the folder, and what is under a key, or all of it."""

    def put(name, key=None):
        content = (Path(__file__).parents[2] / "jobs" / "paper" / "results" / name).read_bytes()
        folder = Folder(str(tmp_path))
        folder.write(name, content)
        values = json.loads(content)
        return folder, values if key is None else values[key]

    return put
