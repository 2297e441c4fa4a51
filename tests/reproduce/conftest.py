from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from wegl_dask.reading import Embeddings
from wegl_dask.sources.base import LabelSchema


@pytest.fixture
def made_up():
    """A data set whose embeddings are drawn by what the job file says: `signal` says how well they tell the classes.

    `embed` and `remove` stand for those of `DataSet`; `asked` lists the changes that embeddings were asked for with, and
    `removed` the names of those removed.
    """

    def make(signal, *, n=90):
        y = np.arange(n) % 2
        asked = []

        def embed(name, changes):
            del name
            asked.append(changes)
            X = np.random.default_rng(changes["seed"]).standard_normal((n, 3)).astype(np.float32)
            X[:, 0] += signal(changes) * y
            rows = {"graph_id": [str(i) for i in range(n)], "label": y, "split": ["train", "valid", "test"] * (n // 3)}
            return Embeddings(X, pa.table(rows), 1, 3, LabelSchema("class", ("0", "1")), {}, None)

        removed = []
        return SimpleNamespace(embed=embed, asked=asked, remove=removed.append, removed=removed)

    return make
