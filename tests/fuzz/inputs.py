"""Small inputs of every kind: the files, and the table of a job that reads them."""

import bz2
import gzip
import io
import json
import lzma
import shutil
import zipfile
from pathlib import Path

SMILES = ["CCO", "c1ccccc1", "CC(=O)[O-].[Na+]", "[2H]C([2H])Br", "C/C=C\\C", "N#N", "O"]


def tud_files():
    edges = [(1, 2), (2, 3), (3, 1), (4, 5), (5, 4), (6, 7), (7, 8), (8, 6)]
    return {
        "T/raw/T_A.txt": "".join(f"{s}, {t}\n{t}, {s}\n" for s, t in edges),
        "T/raw/T_graph_indicator.txt": "1\n1\n1\n2\n2\n3\n3\n3\n",
        "T/raw/T_graph_labels.txt": "0\n1\n1\n",
        "T/raw/T_node_labels.txt": "0\n1\n1\n0\n2\n1\n0\n0\n",
        "T/raw/T_edge_labels.txt": "0\n1\n" * len(edges),
        "T/raw/T_node_attributes.txt": "".join(f"{node}.5, -{node}e-3\n" for node in range(8)),
    }


def tud_zip():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in tud_files().items():
            archive.writestr(zipfile.ZipInfo(name.replace("raw/", "")), text)
    return {"T.zip": file.getvalue()}


def ogb_files():
    nodes, edges = [3, 2, 4], [2, 1, 3]
    atom, bond = "5,0,4,5,3,0,2,0,0", "0,0,1"
    pairs = [(0, 1), (1, 2), (0, 1), (0, 1), (1, 2), (2, 3)]
    raw = {
        "num-node-list": "".join(f"{n}\n" for n in nodes),
        "num-edge-list": "".join(f"{n}\n" for n in edges),
        "graph-label": "0\n1\n0\n",
        "node-feat": f"{atom}\n" * sum(nodes),
        "edge": "".join(f"{s},{t}\n" for s, t in pairs),
        "edge-feat": f"{bond}\n" * sum(edges),
    }
    files = {f"ogbg_x/raw/{name}.csv.gz": gzip.compress(text.encode(), mtime=0) for name, text in raw.items()}
    split = {"train": "0\n", "valid": "1\n", "test": "2\n"}
    return files | {
        f"ogbg_x/split/scaffold/{name}.csv.gz": gzip.compress(text.encode(), mtime=0) for name, text in split.items()
    }


def csv_text():
    rows = [f'{smiles},m{i},{i % 2},{i}.25,"a ""quoted"" text\nof two lines"' for i, smiles in enumerate(SMILES)]
    return "smiles,id,y,z,note\n" + "\n".join(rows) + "\n"


def lookup_files():
    rows = "".join(f"m{i},{i}.5,part {i}\n" for i in range(len(SMILES)))
    return {"a.csv": csv_text(), "b.csv": f"id,w,origin\n{rows}"}


def parquet_bytes():
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"smiles": SMILES, "id": [f"m{i}" for i in range(len(SMILES))], "y": [0, 1, 0, 1, None, 0, 1]})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=3)
    return file.getvalue()


def sdf_text():
    from rdkit import Chem

    blocks = [Chem.MolToMolBlock(Chem.MolFromSmiles(smiles)) for smiles in SMILES]
    return "".join(f"{block}>  <y>\n{i % 2}\n\n>  <id>\nm{i}\n\n$$$$\n" for i, block in enumerate(blocks))


def networkx_files():
    import networkx as nx

    files = {}
    for i, size in enumerate((3, 4, 2)):
        graph = nx.path_graph(size)
        graph.graph["y"] = i % 2
        nx.set_node_attributes(graph, {node: f"k{node % 2}" for node in graph}, "kind")
        nx.set_node_attributes(graph, {node: node / 2 for node in graph}, "x")
        text = ("".join(f"{line}\n" for line in nx.generate_graphml(graph)), "\n".join(nx.generate_gml(graph)))
        node_link = json.dumps(nx.node_link_data(graph, edges="edges"))
        files |= {f"{i}.graphml": text[0], f"{i}.gml": text[1], f"{i}.json": node_link}
    return files


def pyg_files():
    from wegl_dask.convert import import_pyg

    torch, Data = import_pyg()
    graphs = [
        Data(
            x=torch.arange(2.0 * size).reshape(size, 2),
            edge_index=torch.tensor([[0, 1], [1, 0]]),
            edge_attr=torch.tensor([[0], [1]]),
            y=torch.tensor([size % 2]),
        )
        for size in (2, 3, 5)
    ]
    file = io.BytesIO()
    torch.save(graphs, file)
    return {"a.pt": file.getvalue()}


def shard_batch():
    import numpy as np

    from wegl_dask.graphs import GraphBatch, GraphSchema

    return GraphBatch(
        GraphSchema((3,), (2,), 2, 1),
        np.array([0, 3, 5, 9]),
        np.array([0, 4, 6, 10]),
        np.array([0, 1, 1, 2, 0, 1, 0, 1, 2, 3]),
        np.array([1, 0, 2, 1, 1, 0, 1, 2, 3, 0]),
        np.arange(9)[:, None] % 3,
        np.arange(18.0).reshape(9, 2),
        np.arange(10)[:, None] % 2,
        np.ones((10, 1)),
    )


def shard_bytes():
    import pyarrow as pa

    from wegl_dask.shards import write_shard
    from wegl_dask.sources.base import LabelSchema

    rows = pa.table(
        {
            "graph_id": ["a", "b", "c"],
            "source_file": ["f"] * 3,
            "source_row": pa.array([0, 1, 2], pa.int64()),
            "label": pa.array([0, 1, None], pa.int64()),
            "split": pa.array(["train", None, "test"], pa.string()),
        }
    )
    file = io.BytesIO()
    write_shard(file, shard_batch(), rows, LabelSchema("class", ("no", "yes")))
    return file.getvalue()


def run_values():
    """The job of `run_files`, for the working directory."""
    return {
        "source": {"kind": "graph_parquet", "path": "in", "nodes_per_shard": 4},
        "projection": {"components": 2},
        "reference": {"points": 2},
        "output": {"path": "out"},
    }


def run_files():
    """A finished run on `shard_bytes`, made in the working directory, and its input."""
    from wegl_dask.pipeline import run_job
    from wegl_dask.progress import unshown
    from wegl_dask.spec import JobSpec

    Path("in").mkdir()
    Path("in/part-00000.parquet").write_bytes(shard_bytes())
    with local_client() as client:
        run_job(JobSpec.from_values(run_values()), client, progress=unshown)
    made = {str(path): path.read_bytes() for path in Path("out").rglob("*") if path.is_file()}
    shutil.rmtree("in")
    shutil.rmtree("out")
    return made


def resumed_files():
    return {**run_files(), "in/part-00000.parquet": shard_bytes()}


def model_files():
    return {name: content for name, content in run_files().items() if "/model/" in name}


def local_client():
    from distributed import Client

    return Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0")


JOB = """
name = "job"
seed = 3
task = "classification"
[source]
kind = "smiles"
path = ["a.csv", "b*.smi"]
targets = ["y"]
max_nodes = 100
[diffusion]
layers = 4
pooling = "concat"
[projection]
components = 3
[transport]
regularization = 0.01
[output]
path = "out"
[cluster]
workers = 2
"""

MOLECULES = {"kind": "smiles", "id_column": "id", "targets": ["y"], "extra_columns": ["note"]}

SOURCES = {
    "tud": (tud_files, {"kind": "tud", "root": ".", "name": "T", "download": False}),
    "tud-zip": (tud_zip, {"kind": "tud", "root": ".", "name": "T", "download": False}),
    "ogb": (ogb_files, {"kind": "ogb", "root": ".", "name": "ogbg-x", "download": False}),
    "csv": (lambda: {"a.csv": csv_text()}, MOLECULES | {"path": "a.csv"}),
    "csv-tasks": (lambda: {"a.csv": csv_text()}, MOLECULES | {"path": "a.csv", "targets": ["y", "z"]}),
    "csv-compressed": (
        lambda: {
            "a.csv.gz": gzip.compress(csv_text().encode(), mtime=0),
            "b.csv.bz2": bz2.compress(csv_text().encode()),
            "c.csv.xz": lzma.compress(csv_text().encode()),
        },
        MOLECULES | {"path": ["a.csv.gz", "b.csv.bz2", "c.csv.xz"]},
    ),
    "csv-latin1": (
        lambda: {"a.csv": csv_text().encode("latin-1")},
        MOLECULES | {"path": "a.csv", "encoding": "latin-1"},
    ),
    "csv-lookup": (
        lookup_files,
        {
            "kind": "smiles",
            "path": "a.csv",
            "id_column": "id",
            "targets": ["w"],
            "extra_columns": ["origin"],
            "lookup": {"path": "b.csv", "on": "id"},
        },
    ),
    "tsv": (
        lambda: {"a.tsv": "smiles\ty\n" + "".join(f"{s}\t{i}.5\n" for i, s in enumerate(SMILES))},
        {"kind": "smiles", "path": "a.tsv", "targets": ["y"]},
    ),
    "smi": (
        lambda: {"a.smi": "".join(f"{s} m{i}\n" for i, s in enumerate(SMILES))},
        {"kind": "smiles", "path": "a.smi"},
    ),
    "parquet": (
        lambda: {"a.parquet": parquet_bytes()},
        {"kind": "smiles", "path": "a.parquet", "id_column": "id", "targets": ["y"]},
    ),
    "sdf": (lambda: {"a.sdf": sdf_text()}, {"kind": "sdf", "path": "a.sdf", "id_column": "id", "targets": ["y"]}),
    "networkx": (
        networkx_files,
        {"kind": "networkx", "path": ".", "label": "y", "node_labels": ["kind"], "node_attributes": ["x"]},
    ),
    "pyg": (pyg_files, {"kind": "pyg", "path": "a.pt", "trust": True}),
    "graph-parquet": (lambda: {"part-00000.parquet": shard_bytes()}, {"kind": "graph_parquet", "path": "."}),
}
"""Files, and the table ``[source]`` that reads them."""
