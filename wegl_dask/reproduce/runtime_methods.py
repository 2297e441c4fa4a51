"""The three methods of figure 3: WEGL, the pairwise Wasserstein Weisfeiler-Lehman kernel, and GIN, on one core."""

import io
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import RandomForestClassifier
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from wegl_dask.errors import MissingDependencyError
from wegl_dask.graphs import GraphBatch, IntArray
from wegl_dask.network_simplex import network_simplex
from wegl_dask.parameters import JOB_KEYS
from wegl_dask.spec import JobSpec
from wegl_dask.wegl import WEGL

Labels = npt.NDArray[np.int64]

KERNEL_LAYERS = 4
"""Iterations of the Weisfeiler-Lehman scheme, as many as WEGL has layers."""

GIN_LAYERS, GIN_WIDTH, GIN_EPOCHS, GIN_BATCH = 5, 32, 300, 16

CONSTANTS: Mapping[str, Mapping[str, int]] = {
    "wegl": {},
    "wwl": {"kernel_layers": KERNEL_LAYERS},
    "gin": {"gin_layers": GIN_LAYERS, "gin_width": GIN_WIDTH, "gin_epochs": GIN_EPOCHS, "gin_batch": GIN_BATCH},
}
"""What is timed, by method, beyond the settings of a job."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one method on one data set.

    Attributes
    ----------
    training : float
        From the graphs of the training part, as arrays, to a model that can predict.
    inference : float
        For one more graph, from the graph to a prediction, on average.
    measured : float
        Part of the training that was measured; the rest is extrapolated.
    """

    training: float
    inference: float
    measured: float


def time_wegl(job: JobSpec, train: GraphBatch, y: Labels, test: GraphBatch) -> Timing:
    """Time the embedding by a job's settings and a forest of 100 balanced trees."""
    values = job.model_dump()
    parameters = {}
    for parameter, key in JOB_KEYS.items():
        table, _, leaf = key.rpartition(".")
        parameters[parameter] = (values[table] if table else values)[leaf]
    wegl = WEGL(**parameters)
    # What is imported at first use is no part of the time.
    import sklearn.cluster  # noqa: F401, PLC0415

    network_simplex()
    forest = RandomForestClassifier(100, class_weight="balanced", random_state=0)
    with threadpool_limits(1):
        started = time.perf_counter()
        forest.fit(wegl.fit_transform(train), y)
        trained = time.perf_counter()
        forest.predict(wegl.transform(test))
        done = time.perf_counter()
    return Timing(trained - started, (done - trained) / test.n_graphs, 1.0)


def time_wwl(train: GraphBatch, *, longest: float, part: int) -> Timing:
    """Time the kernel between all pairs of graphs, by the package ``wwl``.

    Labels of the nodes are those of the data, else their degrees, and always taken as categories: the package's scheme
    for numbers fails with NumPy 1.24 and later. The fit of a support vector machine to the kernel is left out.

    Parameters
    ----------
    train : GraphBatch
    longest : float
        Seconds that may be measured, going by the pairs within the part.
    part : int
        Graphs at random whose pairs are measured first.
    """
    try:
        from wwl import pairwise_wasserstein_distance  # noqa: PLC0415  nothing else needs it
    except ImportError as error:
        raise MissingDependencyError.for_extra("wwl", "reproduce") from error

    def seconds(graphs: GraphBatch) -> float:
        as_read = _igraphs(graphs)
        with threadpool_limits(1), redirect_stdout(io.StringIO()):
            started = time.perf_counter()
            pairwise_wasserstein_distance(as_read, num_iterations=KERNEL_LAYERS)
            return time.perf_counter() - started

    n_graphs, n_some = train.n_graphs, min(part, train.n_graphs)
    some = np.sort(np.random.default_rng(0).choice(n_graphs, n_some, replace=False))
    found = seconds(train.take(some))
    whole = found * _pairs(n_graphs) / _pairs(n_some)
    measured = _pairs(n_some) / _pairs(n_graphs)
    if n_some < n_graphs and whole <= longest:
        whole, measured = seconds(train), 1.0
    return Timing(whole, whole * n_graphs / _pairs(n_graphs), measured)


def time_gin(
    job: JobSpec, train: GraphBatch, y: Labels, test: GraphBatch, *, longest: float, n_epochs: int = GIN_EPOCHS
) -> Timing:
    """Time the training of GIN by torch_geometric on the CPU, and its predictions.

    Five layers of width 32 with batch normalisation, the sum over the nodes of all layers, Adam; batches of 16. The first
    epoch is not measured, the next one says how long all would take.

    Parameters
    ----------
    job : JobSpec
        Its node features are the network's input.
    train, y, test
    longest : float
        Seconds that may be measured, going by one epoch.
    n_epochs : int
    """
    torch, model, batches = _gin(job, train, y, test)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loss = torch.nn.CrossEntropyLoss()

    def epochs(count: int) -> float:
        model.train()
        started = time.perf_counter()
        for _ in range(count):
            for batch in batches["train"]:
                optimizer.zero_grad()
                loss(model(batch), batch.y).backward()
                optimizer.step()
        return time.perf_counter() - started

    epochs(1)
    whole, measured = n_epochs * epochs(1), 1 / n_epochs
    if whole <= longest:
        whole, measured = epochs(n_epochs), 1.0
    model.eval()
    started = time.perf_counter()
    with torch.no_grad():
        for batch in batches["test"]:
            model(batch).argmax(dim=1)
    return Timing(whole, (time.perf_counter() - started) / test.n_graphs, measured)


def _gin(job: JobSpec, train: GraphBatch, y: Labels, test: GraphBatch) -> tuple[Any, Any, dict[str, Any]]:
    """Set the network up on one core: torch, the network, and its batches."""
    try:
        import torch  # noqa: PLC0415  it is no requirement
        from torch_geometric.data import Data  # noqa: PLC0415
        from torch_geometric.loader import DataLoader  # noqa: PLC0415
        from torch_geometric.nn import GIN, global_add_pool  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependencyError.for_extra("torch-geometric", "datasets") from error
    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, n_features: int, n_classes: int) -> None:
            super().__init__()
            self.layers = GIN(n_features, GIN_WIDTH, GIN_LAYERS, norm="batch_norm", jk="cat")
            self.head = torch.nn.Linear(GIN_WIDTH, n_classes)

        def forward(self, batch: Any) -> Any:
            return self.head(global_add_pool(self.layers(batch.x, batch.edge_index), batch.batch))

    use_labels = bool(train.schema.node_category_counts)
    width = train.schema.node_category_counts[0] if use_labels else job.nodes.degree_clip + 1
    batches = {}
    for name, graphs in (("train", train), ("test", test)):
        categories = _categories(graphs, job.nodes.degree_clip)
        data = [
            Data(
                x=torch.nn.functional.one_hot(torch.as_tensor(categories[i]), width).float(),
                edge_index=torch.as_tensor(np.stack(_edges(graphs, i)), dtype=torch.int64),
                y=torch.as_tensor(y[i] if name == "train" else 0),
            )
            for i in range(graphs.n_graphs)
        ]
        batches[name] = DataLoader(data, batch_size=GIN_BATCH, shuffle=name == "train")
    return torch, Network(width, int(y.max()) + 1), batches


def _categories(graphs: GraphBatch, clip: int) -> Sequence[Labels]:
    """Find the first label of every node, of graphs without labels its degree."""
    if graphs.schema.node_category_counts:
        values = graphs.node_categories[:, 0].astype(np.int64)
    else:
        _, target = graphs.global_edges()
        values = np.minimum(np.bincount(target, minlength=graphs.n_nodes), clip)
    return np.split(values, graphs.node_offsets[1:-1])


def _edges(graphs: GraphBatch, graph: int) -> tuple[IntArray, IntArray]:
    own = slice(int(graphs.edge_offsets[graph]), int(graphs.edge_offsets[graph + 1]))
    return graphs.edge_source[own], graphs.edge_target[own]


def _igraphs(graphs: GraphBatch) -> list[Any]:
    """Turn graphs into those of igraph, with labels as categories."""
    import igraph  # noqa: PLC0415  wwl brings it

    categories = _categories(graphs, np.iinfo(np.int64).max)
    result = []
    for i, labels in enumerate(categories):
        source, target = _edges(graphs, i)
        once = source < target
        graph = igraph.Graph(len(labels), list(zip(source[once].tolist(), target[once].tolist(), strict=True)))
        graph.vs["label"] = [str(label) for label in labels.tolist()]
        result.append(graph)
    return result


def _pairs(n_graphs: int) -> int:
    """Count pairs as the package does, every graph with itself among them."""
    return n_graphs * (n_graphs + 1) // 2
