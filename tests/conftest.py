"""Real data sets, read by code that shares nothing with the package, and small graphs to make up.

A *plain graph* is a namespace of lists: `node_labels` (a list of categories a node), `node_attributes` (a list of
numbers a node), `edges` (pairs, as listed), `edge_labels`, `edge_attributes`. `make_batch` turns plain graphs into a
`GraphBatch`; expected values are worked out from the plain graphs.
"""

import gzip
import itertools
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# POT imports every array library it finds unless it is told not to: 2 s for torch alone.
os.environ.setdefault("POT_BACKEND_DISABLE_PYTORCH", "1")

# ogb imports it to look on the network for later versions, in threads that go on, and fail, while other tests run.
sys.modules["outdated"] = None

# A shell has SIGINT ignored in what it starts in the background, and nohup SIGHUP, and so would every command that a test
# sends them. What a process handles is not handled in those that it starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# How long an example takes says how busy the machine is.
settings.register_profile("wegl-dask", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wegl-dask")

OGB_ATOM_FEATURES = (119, 5, 12, 12, 10, 6, 6, 2, 2)
OGB_BOND_FEATURES = (5, 6, 2)


def pytest_make_parametrize_id(val):
    """Name what is compressed by its length: it may hold the second it was made in, and all workers need the same names."""
    return f"compressed-{len(val)}" if isinstance(val, bytes) and val.startswith((b"\x1f\x8b", b"PK")) else None


@pytest.fixture(scope="session", autouse=True)
def _no_fork_server():
    """Let commands that tests call in this process leave none behind, of which later workers would be forks."""
    from wegl_dask import fork_server

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "start", lambda *_: None)
        yield


@pytest.fixture(autouse=True)
def _environment_put_back():
    """Let what a command that a test calls in this process sets in the environment not reach commands of later tests."""
    from wegl_dask.worker_environment import QUIET, WITHOUT_BACKENDS, variables_put_back

    with variables_put_back({**QUIET, **WITHOUT_BACKENDS}):
        yield


@pytest.fixture(scope="session")
def shared_data():
    """Folder of the benchmark data; the test is skipped where it is not there."""
    folder = os.environ.get("WEGL_SHARED_DATA") or Path(__file__).parents[2] / "shared" / "data"
    folder = Path(folder)
    if not folder.is_dir():
        pytest.skip(f"no benchmark data at {folder}")
    return folder


@pytest.fixture(scope="session")
def make_batch():
    """Build a GraphBatch from plain graphs, a graph, a node and an edge at a time."""
    from wegl_dask.graphs import GraphBatch, GraphSchema

    def make(graphs, *, node_labels=(), edge_labels=(), node_attributes=0, edge_attributes=0):
        nodes = [label for graph in graphs for label in graph.node_labels]
        edges = [pair for graph in graphs for pair in graph.edges]
        return GraphBatch(
            schema=GraphSchema(tuple(node_labels), tuple(edge_labels), node_attributes, edge_attributes),
            node_offsets=np.array([0, *itertools.accumulate(len(graph.node_labels) for graph in graphs)]),
            edge_offsets=np.array([0, *itertools.accumulate(len(graph.edges) for graph in graphs)]),
            edge_source=np.array([source for source, _ in edges], dtype=np.int64),
            edge_target=np.array([target for _, target in edges], dtype=np.int64),
            node_categories=np.array(nodes, dtype=np.int64).reshape(len(nodes), len(node_labels)),
            node_attributes=np.array(
                [row for graph in graphs for row in graph.node_attributes], dtype=np.float64
            ).reshape(len(nodes), node_attributes),
            edge_categories=np.array([row for graph in graphs for row in graph.edge_labels], dtype=np.int64).reshape(
                len(edges), len(edge_labels)
            ),
            edge_attributes=np.array(
                [row for graph in graphs for row in graph.edge_attributes], dtype=np.float64
            ).reshape(len(edges), edge_attributes),
        )

    return make


@pytest.fixture(scope="session")
def mutag(shared_data, make_batch):
    return _read_tud(shared_data, "MUTAG", make_batch, node_labels=(7,), edge_labels=(4,))


@pytest.fixture(scope="session")
def ptc_mr(shared_data, make_batch):
    return _read_tud(shared_data, "PTC_MR", make_batch, node_labels=(18,), edge_labels=(4,))


@pytest.fixture(scope="session")
def enzymes(shared_data, make_batch):
    return _read_tud(shared_data, "ENZYMES", make_batch, node_labels=(3,), node_attributes=18)


@pytest.fixture(scope="session")
def molhiv_500(shared_data, make_batch):
    """The first 500 molecules of ogbg-molhiv; each bond is one line of the file, and joins both ways."""
    raw = shared_data / "ogb" / "ogbg_molhiv" / "raw"
    n_graphs = 500
    node_counts = [int(line) for line in _first_lines(raw / "num-node-list.csv.gz", n_graphs)]
    edge_counts = [int(line) for line in _first_lines(raw / "num-edge-list.csv.gz", n_graphs)]
    nodes = iter(_first_lines(raw / "node-feat.csv.gz", sum(node_counts)))
    ends = iter(_first_lines(raw / "edge.csv.gz", sum(edge_counts)))
    bonds = iter(_first_lines(raw / "edge-feat.csv.gz", sum(edge_counts)))
    graphs = []
    for n_nodes, n_edges in zip(node_counts, edge_counts, strict=True):
        graph = SimpleNamespace(
            node_labels=[_integers(next(nodes)) for _ in range(n_nodes)],
            node_attributes=[[] for _ in range(n_nodes)],
            edges=[],
            edge_labels=[],
            edge_attributes=[],
        )
        for _ in range(n_edges):
            source, target = _integers(next(ends))
            bond = _integers(next(bonds))
            graph.edges += [(source, target), (target, source)]
            graph.edge_labels += [bond, bond]
            graph.edge_attributes += [[], []]
        graphs.append(graph)
    schema = {"node_labels": OGB_ATOM_FEATURES, "edge_labels": OGB_BOND_FEATURES}
    return _data_set("molhiv_500", graphs, schema, make_batch)


@pytest.fixture(scope="session")
def real_data(request):
    """Look a data set up by the name of its fixture."""
    return request.getfixturevalue


def _read_tud(shared_data, name, make_batch, **schema):
    """Read the raw text files of a TU data set; labels become their rank among the values that occur."""
    raw = shared_data / "TUDataset" / name / "raw"

    def lines(what):
        path = raw / f"{name}_{what}.txt"
        return path.read_text().split("\n")[:-1] if path.exists() else None

    owner = [int(line) - 1 for line in lines("graph_indicator")]
    first_node = {}
    for node, graph in enumerate(owner):
        first_node.setdefault(graph, node)
    node_labels = _ranks(lines("node_labels"))
    node_attributes = lines("node_attributes")
    edge_labels = _ranks(lines("edge_labels"))
    graphs = [
        SimpleNamespace(node_labels=[], node_attributes=[], edges=[], edge_labels=[], edge_attributes=[])
        for _ in range(owner[-1] + 1)
    ]
    for node, graph in enumerate(owner):
        graphs[graph].node_labels.append([node_labels[node]])
        values = node_attributes[node].split(",") if node_attributes else []
        graphs[graph].node_attributes.append([float(value) for value in values])
    for edge, line in enumerate(lines("A")):
        source, target = (end - 1 for end in _integers(line))
        graph = graphs[owner[source]]
        graph.edges.append((source - first_node[owner[source]], target - first_node[owner[source]]))
        graph.edge_labels.append([edge_labels[edge]] if edge_labels else [])
        graph.edge_attributes.append([])
    return _data_set(name, graphs, schema, make_batch)


def _data_set(name, graphs, schema, make_batch):
    for graph in graphs:
        pairs = Counter(graph.edges)
        assert max(pairs.values(), default=1) == 1, f"{name}: parallel edges"
        assert all((target, source) in pairs and source != target for source, target in pairs), f"{name}: not symmetric"
    return SimpleNamespace(name=name, graphs=graphs, schema=schema, batch=make_batch(graphs, **schema))


def _first_lines(path, n):
    with gzip.open(path, "rt") as file:
        return list(itertools.islice(file, n))


def _integers(line):
    return [int(value) for value in line.split(",")]


def _ranks(lines):
    if lines is None:
        return None
    values = [int(line) for line in lines]
    rank = {value: position for position, value in enumerate(sorted(set(values)))}
    return [rank[value] for value in values]


@pytest.fixture(scope="session")
def fit_points():
    """Fit a `PointEmbedding` to a batch, as a job does it for one shard."""
    from wegl_dask.features import degrees
    from wegl_dask.points import NodeEmbedding, PointEmbedding
    from wegl_dask.projection import fit_projection

    def fit(batch, features, edge_features="none", *, virtual_node=False, layers=4, pooling="final", **projection):
        nodes = NodeEmbedding(features, edge_features, virtual_node, layers, pooling)
        categories = [np.unique(column) for column in batch.node_categories.T]
        seen = features.seen_columns(categories, np.unique(degrees(batch)))
        settings = {"standardize": True, "components": None} | projection
        encodes_later = features.encoder is not None and not nodes.encodes_before_moments(seen)
        scatter = settings["components"] is not None or encodes_later
        covered = None if features.encoder is not None else seen
        fitted = fit_projection(
            nodes.moments(batch, seen, scatter=scatter),
            encoder=features.encoder[seen] if encodes_later else None,
            columns=covered,
            n_columns=features.n_features,
            repeats=nodes.repeats,
            **settings,
        )
        return PointEmbedding(nodes, fitted)

    return fit


@pytest.fixture(scope="session")
def embedded(real_data, fit_points):
    """Embed a real data set with a k-means reference; the same object for the same name.

    MUTAG and PTC_MR without principal components, where sparse one-hot columns make ties; ENZYMES with labels and
    attributes; the molecules as the paper has them, with virtual nodes and 20 principal components.
    """
    from sklearn.cluster import KMeans

    from wegl_dask.canonical import canonical_points, canonical_reference
    from wegl_dask.features import build_features
    from wegl_dask.transport import embed_points

    settings = {
        "mutag": (("labels",), {"edge_features": "labels", "layers": 4, "pooling": "average"}),
        "ptc_mr": (("labels",), {"edge_features": "labels", "layers": 3, "pooling": "final"}),
        "enzymes": (("labels", "attributes"), {"layers": 2, "pooling": "average"}),
        "molhiv_500": (("atom_embedding",), {"edge_features": "labels", "virtual_node": True, "components": 20}),
    }
    cache = {}

    def embed(name):
        if name not in cache:
            names, options = settings[name]
            batch = real_data(name).batch
            features = build_features(batch.schema, names, max_degree=10, degree_clip=10, embedding_width=300, seed=5)
            model = fit_points(batch, features, **options)
            points, offsets = model.evaluate(batch)
            n_reference = len(points) // batch.n_graphs
            centres = KMeans(n_reference, n_init=1, max_iter=20, random_state=0).fit(points).cluster_centers_
            step = model.projection.rounding_step
            reference = canonical_reference(centres, step)
            canonical = canonical_points(points, offsets, step)
            cache[name] = SimpleNamespace(
                batch=batch,
                model=model,
                points=points,
                offsets=offsets,
                step=step,
                reference=reference,
                canonical=canonical,
                result=embed_points(canonical, reference),
            )
        return cache[name]

    return embed


@pytest.fixture(scope="session")
def s3_options():
    """Storage options of an S3 server on this machine, with the bucket "runs"."""
    server_module = pytest.importorskip("moto.server")
    s3fs = pytest.importorskip("s3fs")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {"key": "test", "secret": "test", "endpoint_url": f"http://{host}:{port}"}
    s3fs.S3FileSystem(**options).mkdir("runs")
    yield options
    server.stop()


@pytest.fixture(params=["local", "memory", "s3"])
def run_folder(request, tmp_path):
    """A run folder that does not exist yet: on disk under an awkward name, in memory, on an object store."""
    from wegl_dask.storage import RunFolder

    name = f"{request.node.name[:40]}-{tmp_path.name}"
    match request.param:
        case "local":
            return RunFolder(str(tmp_path / "Läufe 100%" / "a=1,b #2 [x]*"))
        case "memory":
            return RunFolder(f"memory://runs/{name}")
        case _:
            return RunFolder(f"s3://runs/{name}", request.getfixturevalue("s3_options"))


@pytest.fixture(scope="session")
def plain_graphs():
    """Strategy for lists of plain graphs with loops and parallel edges; `plain_batch` makes a batch of them."""
    from hypothesis import strategies as st

    @st.composite
    def graph(draw):
        n_nodes = draw(st.integers(1, 6))
        ends = st.integers(0, n_nodes - 1)
        edges = draw(st.lists(st.tuples(ends, ends), max_size=10))
        number = st.integers(-8, 8).map(float)
        return SimpleNamespace(
            node_labels=[[draw(st.integers(0, 2)), draw(st.integers(0, 1))] for _ in range(n_nodes)],
            node_attributes=[[draw(number)] for _ in range(n_nodes)],
            edges=edges,
            edge_labels=[[draw(st.integers(0, 3))] for _ in edges],
            edge_attributes=[[abs(draw(number)), abs(draw(number))] for _ in edges],
        )

    return st.lists(graph(), max_size=5)


@pytest.fixture(scope="session")
def plain_batch(make_batch):
    """Build a GraphBatch from a list that `plain_graphs` made."""

    def make(graphs):
        return make_batch(graphs, node_labels=(3, 2), node_attributes=1, edge_labels=(4,), edge_attributes=2)

    return make


@pytest.fixture(scope="session")
def assert_same_batch():
    """Compare two batches, value by value; the width of the number types may differ."""
    from dataclasses import fields

    def check(found, expected):
        for field in fields(expected):
            one, two = getattr(found, field.name), getattr(expected, field.name)
            if isinstance(two, np.ndarray):
                np.testing.assert_array_equal(one, two, err_msg=field.name, strict=False)
                assert one.shape == two.shape, field.name
            else:
                assert one == two, field.name

    return check


@pytest.fixture(scope="session")
def dask_client():
    """A client of two worker processes, which all tests of whole jobs share; tests leave its workers as they found them.

    A part may cost two workers their lives before it counts as failed.
    """
    from wegl_dask.cluster import open_client
    from wegl_dask.spec import ClusterTable

    table = ClusterTable(workers=2, allowed_failures=1, memory_limit="2GB")
    with open_client(table) as client:
        yield client


@pytest.fixture(scope="session")
def write_embedded_run(embedded, tmp_path_factory):
    """Write a real data set, embedded as by `embedded`, as the run folder of a job; its path. Ids are g0, g1, ..."""
    import io

    import pyarrow as pa

    from wegl_dask.saved_model import Model, Origin
    from wegl_dask.shards import write_shard
    from wegl_dask.sources.base import LabelSchema
    from wegl_dask.storage import RunFolder
    from wegl_dask.tasks import ShardTask, embed_shard

    def write(name, *, n_shards=3, ids=None, dtype="float32", layout="list"):
        data = embedded(name)
        folder = RunFolder(str(tmp_path_factory.mktemp(name) / "run"))
        folder.claim("")
        model = Model(data.batch.schema, data.model, data.reference, data.step, False, "exact", 0.01, 4_000_000)
        n_graphs = data.batch.n_graphs
        with folder.recording("reference", 0, "x") as part:
            part.write_model(*model.to_files(Origin({**model._job(), "seed": 0}, "", n_graphs, len(data.points))))
        ids = [f"g{graph}" for graph in range(n_graphs)] if ids is None else ids
        bounds = [n_graphs * shard // n_shards for shard in range(n_shards + 1)]
        for shard, (start, stop) in enumerate(itertools.pairwise(bounds)):
            rows = pa.table(
                {
                    "graph_id": pa.array(ids[start:stop], pa.string()),
                    "source_file": pa.array([name] * (stop - start), pa.string()),
                    "source_row": pa.array(range(start, stop), pa.int64()),
                    "label": pa.nulls(stop - start, LabelSchema().arrow_type),
                    "split": pa.nulls(stop - start, pa.string()),
                }
            )
            content = io.BytesIO()
            write_shard(content, data.batch.slice(start, stop), rows, LabelSchema())
            with folder.recording("ingest", shard, "") as part:
                graphs = part.write("graphs", content.getvalue(), rows=stop - start)
            embed_shard(
                folder,
                ShardTask(shard, "", graphs.sha256),
                model_fingerprint=folder.sha256("model/model.json"),
                dtype=dtype,
                layout=layout,
                metadata={},
                fail=True,
            )
        folder.mark_success()
        return folder.url

    return write


@pytest.fixture(scope="session")
def embedded_run(write_embedded_run):
    """Look the run folder of a real data set up, or write it; it must not be changed."""
    cache = {}

    def find(name):
        if name not in cache:
            cache[name] = write_embedded_run(name)
        return cache[name]

    return find


@pytest.fixture(scope="session")
def wait_until():
    """Wait until a condition holds, which is looked at every `interval` seconds; an error after some minutes."""

    def wait(condition, what, seconds=300, interval=0.01):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
            time.sleep(interval)

    return wait


@pytest.fixture
def make_problem():
    """Make a training problem whose labels follow from the first columns, with noise."""
    from wegl_dask.training.problem import Problem

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
    """Write a training problem as the finished run folder of a job; the folder."""
    import io

    import pyarrow as pa

    from wegl_dask.embeddings import EmbeddingFormat, EmbeddingRows
    from wegl_dask.sources.base import LabelSchema
    from wegl_dask.spec import JobSpec
    from wegl_dask.storage import RunFolder

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
        with folder.recording("reference", 0, "x") as part:
            part.write_model({"N": problem.X.shape[1] // 2}, {"reference": np.zeros((problem.X.shape[1] // 2, 2))})
        folder.mark_success()
        return folder

    return write
