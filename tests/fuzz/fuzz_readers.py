"""Spoil small inputs of every kind at random and read them as a job does: no crash, no hang, no traceback, no row lost.

::

    python tests/fuzz/fuzz_readers.py --seconds 600 --state fuzz.json
    python tests/fuzz/fuzz_readers.py --reader sdf --case 17          # one case again, with its traceback

A *case* is a reader and a number, from which follow, with the seed, what is spoilt and how. A case is right if every row
of the plan becomes a graph or a reject, and the graphs can be written as a shard and read back; or if it ends with an
error that is meant for the user. Batches of cases run in a process of their own, which is ended when a case takes too
long. The state is written after every batch, so the program can be stopped at any time and goes on where it was.
"""

import argparse
import bz2
import gzip
import io
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).parents[2]
BATCH = 100
CASE_SECONDS = 20
START_SECONDS = 120

TOKENS = [
    *(b"nan", b"inf", b"-inf", b"1e400", b"-1", b"0", b"9223372036854775808", b"999999999", b"-0.0", b"1.5", b"0x10"),
    *(b"", b" ", b"\t", b"\n", b"\r\n", b"\r", b",", b'"', b'""', b"'", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xc3"),
    *("ü".encode(), "\u2028".encode(), b"[*]", b"$$$$", b"M  END", b"<>", b"&", b"{", b"]", b"null", b"true", b"\\"),
    *(b"[U+5]", b"C1CC", b"%%", b"(", b".", b"[2H]", b"A" * 3000),
]


# --- What is read ---


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


SMILES = ["CCO", "c1ccccc1", "CC(=O)[O-].[Na+]", "[2H]C([2H])Br", "C/C=C\\C", "N#N", "O"]


def csv_text():
    rows = [f'{smiles},m{i},{i % 2},{i}.25,"a ""quoted"" text\nof two lines"' for i, smiles in enumerate(SMILES)]
    return "smiles,id,y,z,note\n" + "\n".join(rows) + "\n"


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


def shard_bytes():
    import numpy as np
    import pyarrow as pa

    from wegl_dask.graphs import GraphBatch, GraphSchema
    from wegl_dask.shards import write_shard
    from wegl_dask.sources.base import LabelSchema

    batch = GraphBatch(
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
    write_shard(file, batch, rows, LabelSchema("class", ("no", "yes")))
    return file.getvalue()


def run_files():
    """A finished run on `shard_bytes`, made by the stages' own functions."""
    import pyarrow.parquet as pq  # noqa: F401  a worker has it loaded
    from distributed import Client

    from wegl_dask.pipeline import run_job
    from wegl_dask.spec import JobSpec

    with tempfile.TemporaryDirectory() as folder:
        shards, out = Path(folder, "in"), Path(folder, "out")
        shards.mkdir()
        (shards / "part-00000.parquet").write_bytes(shard_bytes())
        job = {
            "source": {"kind": "graph_parquet", "path": str(shards)},
            "reference": {"points": 2},
            "output": {"path": str(out)},
        }
        with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
            run_job(JobSpec.from_values(job), client, progress=Silent)
        return {f"out/{path.relative_to(out)}": path.read_bytes() for path in out.rglob("*") if path.is_file()}


class Silent:
    """A progress display that shows nothing."""

    def __init__(self, stage, total):
        del stage, total

    def __enter__(self):
        return self

    def update(self, parts=1, rows=0):
        del parts, rows

    def __exit__(self, *error):
        del error


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

READERS = {
    "tud": (tud_files, {"kind": "tud", "root": ".", "name": "T", "download": False}),
    "ogb": (ogb_files, {"kind": "ogb", "root": ".", "name": "ogbg-x", "download": False}),
    "csv": (lambda: {"a.csv": csv_text()}, MOLECULES | {"path": "a.csv"}),
    "csv-tasks": (lambda: {"a.csv": csv_text()}, MOLECULES | {"path": "a.csv", "targets": ["y", "z"]}),
    "csv-gz": (
        lambda: {
            "a.csv.gz": gzip.compress(csv_text().encode(), mtime=0),
            "b.csv.bz2": bz2.compress(csv_text().encode()),
        },
        MOLECULES | {"path": ["a.csv.gz", "b.csv.bz2"]},
    ),
    "csv-latin1": (
        lambda: {"a.csv": csv_text().encode("latin-1")},
        MOLECULES | {"path": "a.csv", "encoding": "latin-1"},
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
    "graph-parquet": (lambda: {"part-00000.parquet": shard_bytes()}, {"kind": "graph_parquet", "path": "."}),
    "job": (lambda: {"job.toml": JOB}, None),
    "run": (run_files, None),
}
"""Files, and the table ``[source]`` that reads them."""


# --- How it is spoilt ---


def spoil(draw, content):
    """Change bytes, lines, fields or the length of a file, once or several times."""
    for _ in range(draw.choice([1, 1, 1, 2, 3, 8])):
        content = draw.choice(CHANGES)(draw, content)
    return content


def flip(draw, content):
    if not content:
        return content
    at = draw.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]


def cut_off(draw, content):
    return content[: draw.randrange(len(content) + 1)]


def leave_out(draw, content):
    start = draw.randrange(len(content) + 1)
    return content[:start] + content[start + draw.choice([1, 2, 7, 50, 400]) :]


def repeat(draw, content):
    start = draw.randrange(len(content) + 1)
    piece = content[start : start + draw.choice([1, 4, 30, 300])]
    return content[:start] + piece * draw.choice([2, 3, 20]) + content[start + len(piece) :]


def insert(draw, content):
    at = draw.randrange(len(content) + 1)
    return content[:at] + draw.choice(TOKENS) + content[at:]


def change_line(draw, content):
    lines = content.split(b"\n")
    at = draw.randrange(len(lines))
    match draw.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[draw.randrange(len(lines))])
        case 2:
            other = draw.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            lines[at] = draw.choice(TOKENS)
        case 4:
            separator = draw.choice([b",", b" ", b"\t", b"="])
            fields = lines[at].split(separator)
            fields[draw.randrange(len(fields))] = draw.choice(TOKENS)
            lines[at] = separator.join(fields)
    return b"\n".join(lines)


CHANGES = (flip, flip, cut_off, leave_out, repeat, insert, insert, change_line, change_line, change_line)


def spoil_files(draw, files):
    """Spoil one file or two; that of a compressed file inside of it, mostly."""
    files = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
    for name in draw.sample(sorted(files), draw.choice([1, 1, 2]) if len(files) > 1 else 1):
        unpack, pack = {".gz": (gzip.decompress, gzip.compress), ".bz2": (bz2.decompress, bz2.compress)}.get(
            Path(name).suffix, (bytes, bytes)
        )
        if draw.random() < 0.7:
            files[name] = pack(spoil(draw, unpack(files[name])))
        else:
            files[name] = spoil(draw, files[name])
    if draw.random() < 0.03:
        del files[draw.choice(sorted(files))]
    return files


# --- A case ---


def read_source(table, draw):
    """Read a source as the stages do: how many graphs and rejects came of it."""
    from wegl_dask.graphs import find_invalid
    from wegl_dask.shards import ingest_shard, read_shard, write_shard
    from wegl_dask.sources import open_source
    from wegl_dask.sources.base import SourcePlan
    from wegl_dask.spec import JobSpec

    job = JobSpec.from_values({"source": table, "output": {"path": "out"}})
    source = open_source(job.source, draw.choice(["auto", "auto", "classification", "regression", "none"]))
    source.estimated_nodes()
    nodes_per_shard = draw.choice([1, 5, 1000])
    scans = [json.loads(json.dumps(source.scan(piece, nodes_per_shard))) for piece in source.pieces()]
    plan = SourcePlan.from_json(json.loads(json.dumps(source.plan(scans).to_json())))
    n_graphs = n_rejected = 0
    for unit in plan.units:
        shards = list(source.read(plan, unit))
        if [shard.shard for shard in shards] != [cut.shard for cut in unit.cuts]:
            raise AssertionError(f"shards {[shard.shard for shard in shards]} of cuts {unit.cuts}")
        for shard, cut in zip(shards, unit.cuts, strict=True):
            made = ingest_shard(shard, max_nodes=None, directed=False)
            if made.graphs.n_graphs + made.rejected.num_rows != cut.n_rows:
                raise AssertionError(
                    f"{made.graphs.n_graphs} graphs and {made.rejected.num_rows} rejects of {cut.n_rows} rows"
                )
            if not all(reason for reason in made.rejected.column("reason").to_pylist()):
                raise AssertionError("a reject without a reason")
            if find_invalid(made.graphs):
                raise AssertionError(f"invalid graphs are left: {find_invalid(made.graphs)}")
            file = io.BytesIO()
            write_shard(file, made.graphs, made.rows, plan.labels)
            if read_shard(io.BytesIO(file.getvalue())).graphs.n_graphs != made.graphs.n_graphs:
                raise AssertionError("the shard does not come back")
            n_graphs += made.graphs.n_graphs
            n_rejected += made.rejected.num_rows
    return n_graphs, n_rejected


def read_run():
    """Look at a run folder in every way that does not change it: its rows, and the problems found."""
    from wegl_dask.errors import WeglError
    from wegl_dask.reading import read_embeddings
    from wegl_dask.status import read_status
    from wegl_dask.storage import RunFolder
    from wegl_dask.verify import verify_run

    n_rows, errors = 0, []
    for look in (
        lambda: read_status(RunFolder("out")),
        lambda: verify_run(RunFolder("out"), deep=True),
        lambda: len(read_embeddings("out").X),
    ):
        try:
            found = look()
        except WeglError as error:
            errors.append(error)
        else:
            n_rows = found if isinstance(found, int) else n_rows
    if errors:
        raise errors[0]
    return n_rows, 0


def run_case(reader, number, seed):
    """Run one case in the working directory, which is empty: what came of it, as JSON values."""
    from wegl_dask.errors import WeglError
    from wegl_dask.spec import read_job

    make, table = READERS[reader]
    draw = random.Random(f"{seed} {reader} {number}")
    if reader not in _MADE:
        _MADE[reader] = make()
    for name, content in spoil_files(draw, _MADE[reader]).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    try:
        if reader == "job":
            read_job("job.toml")
            n_graphs, n_rejected = 0, 0
        else:
            n_graphs, n_rejected = read_run() if reader == "run" else read_source(table, draw)
    except WeglError as error:
        if not str(error) or "\n" in str(error):
            return {"failure": f"a message of {str(error).count(chr(10)) + 1} lines: {error}"}
        return {"refused": 1}
    except Exception:  # noqa: BLE001  whatever it is, it is what this program looks for
        return {"failure": traceback.format_exc()}
    return {"read": 1, "graphs": n_graphs, "rejected": n_rejected}


_MADE = {}


def run_batch(reader, first, last, seed):
    """Run cases one after another, a line of JSON each."""
    # The package under test is this tree's.
    sys.path.insert(0, str(ROOT))
    warnings.simplefilter("error")
    if reader in {"csv", "csv-tasks", "csv-gz", "csv-latin1", "smi", "parquet", "sdf"}:
        from rdkit import RDLogger

        RDLogger.DisableLog("rdApp.*")
    for number in range(first, last):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            sys.stdout.write(json.dumps({"case": number} | run_case(reader, number, seed)) + "\n")
            sys.stdout.flush()
            os.chdir("/")


# --- The program ---


def batch_in_a_process(reader, first, last, seed):
    """Run a batch: the results by case. A case that crashes or hangs is the last of them."""
    command = [sys.executable, __file__, "--reader", reader, "--seed", str(seed), "--batch", f"{first}:{last}"]
    environment = {**os.environ, "POT_BACKEND_DISABLE_PYTORCH": "1"}
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with out.open("w") as out_file, err.open("w") as err_file:
            process = subprocess.Popen(command, stdout=out_file, stderr=err_file, env=environment)
        n_bytes, moment, hangs = 0, time.monotonic() + START_SECONDS, False
        while process.poll() is None and not hangs:
            time.sleep(0.02)
            if out.stat().st_size > n_bytes:
                n_bytes, moment = out.stat().st_size, time.monotonic()
            hangs = time.monotonic() - moment > CASE_SECONDS
        process.kill()
        process.wait()
        whole_lines = out.read_text().split("\n")[:-1]
        results = {result.pop("case"): result for result in map(json.loads, whole_lines)}
        if hangs:
            results[first + len(results)] = {"failure": f"took more than {CASE_SECONDS} s"}
        elif process.returncode != 0:
            results[first + len(results)] = {"failure": f"exit code {process.returncode}: {err.read_text()[-2000:]}"}
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="time to go on for")
    parser.add_argument("--state", type=Path, help="JSON file of what was done; it is written anew")
    parser.add_argument("--reader", choices=READERS, action="append", help="readers to fuzz; all if not given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="run one case of the reader here and show what came of it")
    parser.add_argument("--batch", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    readers = arguments.reader or list(READERS)
    if arguments.batch or arguments.case is not None:
        first, last = map(int, arguments.batch.split(":")) if arguments.batch else (arguments.case, arguments.case + 1)
        run_batch(readers[0], first, last, arguments.seed)
        return 0
    state = {"seed": arguments.seed, "seconds": 0.0, "readers": {}, "failures": []}
    if arguments.state and arguments.state.exists():
        state |= json.loads(arguments.state.read_text())
        if state["seed"] != arguments.seed:
            raise SystemExit(f"{arguments.state} is of seed {state['seed']}")
    started, before = time.monotonic(), state["seconds"]
    for reader in itertools.cycle(readers):
        if time.monotonic() - started > arguments.seconds:
            break
        counts = state["readers"].setdefault(reader, {"cases": 0, "read": 0, "refused": 0, "graphs": 0, "rejected": 0})
        first = counts["cases"]
        results = batch_in_a_process(reader, first, first + BATCH, arguments.seed)
        for number, result in results.items():
            counts["cases"] = number + 1
            if "failure" in result:
                state["failures"].append({"reader": reader, "case": number, **result})
            for key in result.keys() & counts.keys():
                counts[key] += result[key]
        state["seconds"] = round(before + time.monotonic() - started, 1)
        if arguments.state:
            temporary = arguments.state.with_suffix(".tmp")
            temporary.write_text(json.dumps(state, indent=1))
            temporary.replace(arguments.state)
    print(json.dumps(state, indent=1))  # noqa: T201
    return 1 if state["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
