"""Run the code that the paper's authors published, https://github.com/navid-naderi/WEGL, up to its embeddings.

It is fetched by whoever runs this and stays as it is; what it imports for its notebook's plots and tables is replaced by
nothing, and no classifier is run. The seconds are printed as JSON.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch_geometric.data
from baseline import read_molhiv
from torch_geometric.loader import DataLoader


class Nothing:
    """Stands for plots and tables."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.title = ""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


def stand_ins() -> None:
    """Put what the notebook shows its results with out of the way."""
    contents: dict[str, dict[str, Any]] = {
        "prettytable": {"PrettyTable": Nothing},
        "tqdm.notebook": {"tqdm": lambda items: items},
        "matplotlib": {},
        "matplotlib.pyplot": dict.fromkeys(("plot", "xlabel", "ylabel", "xticks", "grid", "show"), Nothing().plot),
    }
    for name, content in contents.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        sys.modules[name] = module
    # It has moved since.
    torch_geometric.data.DataLoader = DataLoader


class DataSet:
    """What the code asks of OGB's data set, whose own loader asks questions and refuses its own files."""

    name = "ogbg-molhiv"

    def __init__(self, graphs: list[Any], split: Mapping[str, Iterable[int]]) -> None:
        self._graphs = graphs
        self._split = split

    def get_idx_split(self) -> Mapping[str, Iterable[int]]:
        """Rows of each part."""
        return self._split

    def __getitem__(self, rows: Iterable[int]) -> list[Any]:
        return [self._graphs[row] for row in rows]


def main() -> None:
    """Run it once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--code", type=Path, required=True, help="checkout of the published repository")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds ogbg_molhiv/")
    parser.add_argument("--graphs", type=int, help="take so many graphs alone")
    arguments = parser.parse_args()
    stand_ins()
    sys.path.insert(0, str(arguments.code))
    from WEGL.WEGL import WEGL  # noqa: PLC0415

    graphs, train = read_molhiv(arguments.data, arguments.graphs)
    rest = np.setdiff1d(np.arange(len(graphs)), train)
    split = {"train": train, "valid": rest[::2], "test": rest[1::2]}
    settings = SimpleNamespace(num_hidden_layers=[4], node_embedding_sizes=[300], final_node_embedding="final")
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    started = time.perf_counter()
    WEGL(DataSet(graphs, split), num_pca_components=20, num_experiments=0, classifiers=[], **vars(settings))
    result = {
        "graphs": len(graphs),
        "seconds_in_all": round(time.perf_counter() - started, 3),
        "loaded_bytes": loaded,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    print("\n" + json.dumps(result))


if __name__ == "__main__":
    main()
