"""The plain pipeline in one process, as the paper describes it, on ogbg-molhiv: what wegl-dask is compared with.

torch_geometric message passing over batches of 32 graphs with virtual nodes, scikit-learn's StandardScaler and PCA on the
training graphs, a full KMeans for the reference, and one ot.dist and one ot.emd a graph. Everything that a library call
does for many graphs at once is done so. The clock starts when the data set is in memory as a list of Data objects, and
stops when the embeddings are one array. For example::

    python jobs/benchmarks/baseline.py --data data/ogb
"""

import argparse
import json
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import ot
import pandas as pd
import torch
from ogb.graphproppred.mol_encoder import AtomEncoder
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import add_self_loops, scatter

BOND_CATEGORIES = (5, 6, 2)

Matrix = npt.NDArray[np.floating[Any]]


class Diffusion(MessagePassing):
    """One layer: every node sums its neighbours and itself, weighted (paper, appendix, non-negative edge features)."""

    def __init__(self) -> None:
        super().__init__(aggr="add")

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Propagate by one layer."""
        return self.propagate(edge_index, x=x, weight=weight)

    def message(self, x_j: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Weigh what comes along an edge."""
        return weight.view(-1, 1) * x_j


def with_virtual_nodes(batch: Batch, edge_attr: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Join every node both ways to its graph's virtual node: edges, their features, and the graph of each node."""
    n_nodes, n_graphs = batch.num_nodes, batch.num_graphs
    nodes, hubs = torch.arange(n_nodes), n_nodes + batch.batch
    edge_index = torch.cat([batch.edge_index, torch.stack([nodes, hubs]), torch.stack([hubs, nodes])], dim=1)
    spokes = (1.0 / torch.bincount(batch.batch, minlength=n_graphs).float())[batch.batch]
    spokes = spokes.view(-1, 1).expand(-1, edge_attr.shape[1])
    graph = torch.cat([batch.batch, torch.arange(n_graphs)])
    return edge_index, torch.cat([edge_attr, spokes, spokes]), graph


def edge_weights(edge_index: torch.Tensor, edge_attr: torch.Tensor, n_nodes: int) -> torch.Tensor:
    """Sum over the features of an edge, each divided by the roots of its two ends' degrees in that feature."""
    source, target = edge_index
    inverse_root = scatter(edge_attr, target, dim_size=n_nodes).rsqrt()
    return (inverse_root[source] * inverse_root[target] * edge_attr).sum(dim=1)


@torch.no_grad()
def node_embeddings(graphs: Sequence[Data], width: int, layers: int, seed: int) -> tuple[Matrix, npt.NDArray[np.int64]]:
    """Diffuse the node features of all graphs: the last layer, and the number of points of each graph."""
    torch.manual_seed(seed)
    encoder, layer = AtomEncoder(width), Diffusion()
    embeddings, counts = [], []
    for batch in DataLoader(graphs, batch_size=32):
        x = torch.cat([encoder(batch.x), torch.zeros(batch.num_graphs, width)])
        one_hot = [torch.nn.functional.one_hot(batch.edge_attr[:, i], n) for i, n in enumerate(BOND_CATEGORIES)]
        edge_index, edge_attr, graph = with_virtual_nodes(batch, torch.cat(one_hot, dim=1).float())
        edge_index, edge_attr = add_self_loops(edge_index, edge_attr, fill_value=1.0, num_nodes=len(x))
        weight = edge_weights(edge_index, edge_attr, len(x))
        for _ in range(layers):
            x = layer(x, edge_index, weight)
        order = torch.argsort(graph, stable=True)
        embeddings.append(x[order].numpy())
        counts.append(torch.bincount(graph).numpy())
    return np.concatenate(embeddings), np.concatenate(counts)


def transport(points: Matrix, counts: npt.NDArray[np.int64], reference: Matrix) -> npt.NDArray[np.float32]:
    """Embed every graph: barycentric projection of its optimal plan, minus the reference."""
    n_reference = len(reference)
    uniform = np.full(n_reference, 1.0 / n_reference)
    vectors = np.empty((len(counts), reference.size), dtype=np.float32)
    for i, graph in enumerate(np.split(points, np.cumsum(counts)[:-1])):
        plan = ot.emd(uniform, np.full(len(graph), 1.0 / len(graph)), ot.dist(reference, graph))
        vectors[i] = ((n_reference * plan @ graph - reference) / np.sqrt(n_reference)).ravel()
    return vectors


def run(
    graphs: Sequence[Data],
    train: npt.NDArray[np.int64],
    *,
    width: int = 300,
    layers: int = 4,
    components: int = 20,
    seed: int = 0,
) -> tuple[npt.NDArray[np.float32], dict[str, float]]:
    """Run the whole pipeline: the vectors, and the seconds of each stage."""
    seconds = {}
    clock = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        seconds[stage] = now - clock
        clock = now

    embeddings, counts = node_embeddings(graphs, width, layers, seed)
    lap("diffusion")
    is_train = np.zeros(len(graphs), dtype=bool)
    is_train[train] = True
    of_train = np.repeat(is_train, counts)
    scaler = StandardScaler().fit(embeddings[of_train])
    embeddings = scaler.transform(embeddings)
    lap("scaling")
    pca = PCA(components, random_state=seed).fit(embeddings[of_train])
    points = pca.transform(embeddings).astype(np.float64)
    lap("PCA")
    n_reference = int(counts[is_train].mean())
    reference = KMeans(n_reference, random_state=seed).fit(points[of_train]).cluster_centers_
    lap("k-means")
    vectors = transport(points, counts, reference)
    lap("transport")
    return vectors, seconds


def read_molhiv(root: Path, n_graphs: int | None = None) -> tuple[list[Data], npt.NDArray[np.int64]]:
    """Read ogbg-molhiv's raw files: its graphs, each edge listed both ways, and the rows of the training graphs."""
    raw = root / "ogbg_molhiv" / "raw"

    def table(name: str) -> torch.Tensor:
        return torch.from_numpy(pd.read_csv(raw / f"{name}.csv.gz", header=None).to_numpy(copy=True))

    node_counts, edge_counts = table("num-node-list")[:, 0].tolist(), table("num-edge-list")[:, 0].tolist()
    nodes, edges, bonds = table("node-feat").split(node_counts), table("edge").split(edge_counts), table("edge-feat")
    labels = table("graph-label")
    graphs = [
        Data(
            x=x,
            edge_index=torch.cat([ends, ends.flip(1)]).t().contiguous(),
            edge_attr=torch.cat([features, features]),
            y=labels[i : i + 1],
        )
        for i, (x, ends, features) in enumerate(zip(nodes, edges, bonds.split(edge_counts), strict=True))
        if n_graphs is None or i < n_graphs
    ]
    train = pd.read_csv(root / "ogbg_molhiv" / "split" / "scaffold" / "train.csv.gz", header=None)[0].to_numpy()
    return graphs, train[train < len(graphs)]


def main() -> None:
    """Run the pipeline once and print the seconds of each stage as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds ogbg_molhiv/")
    parser.add_argument("--graphs", type=int, help="take so many graphs alone")
    arguments = parser.parse_args()
    graphs, train = read_molhiv(arguments.data, arguments.graphs)
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    vectors, seconds = run(graphs, train)
    result = {
        "graphs": len(vectors),
        "width": vectors.shape[1],
        "seconds": {stage: round(value, 3) for stage, value in seconds.items()},
        "seconds_in_all": round(sum(seconds.values()), 3),
        "threads": torch.get_num_threads(),
        "loaded_bytes": loaded,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "norm": float(np.linalg.norm(vectors, axis=1).mean()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
