"""What goes through the scheduler stays small, whatever the job: the messages are weighed on the wire."""

import json

import distributed.comm.tcp
import pytest

from wegl_dask import bags
from wegl_dask.bags import run_stage
from wegl_dask.fit_tasks import MergeTask
from wegl_dask.records import PartFile

MOST_BYTES = 1_000_000


@pytest.fixture
def messages(monkeypatch):
    """Sizes in bytes of all messages that this process sends or gets: the client's, the scheduler's and the nannies'."""
    sizes = []
    tcp = distributed.comm.tcp
    write, from_frames = tcp.TCP.write, tcp.from_frames

    async def weighed_write(self, *arguments, **options):
        sizes.append(await write(self, *arguments, **options))
        return sizes[-1]

    async def weighed_from_frames(frames, *arguments, **options):
        sizes.append(sum(memoryview(frame).nbytes for frame in frames))
        return await from_frames(frames, *arguments, **options)

    monkeypatch.setattr(tcp.TCP, "write", weighed_write)
    monkeypatch.setattr(tcp, "from_frames", weighed_from_frames)
    return sizes


def test_the_scales_see_what_the_scheduler_passes_on(dask_client, messages):
    dask_client.submit(bytes, MOST_BYTES, pure=False).result()
    # From the worker to the scheduler, and from there to the client.
    assert sum(size > MOST_BYTES for size in messages) >= 3


def test_no_message_of_a_wide_job_exceeds_a_megabyte(run, shared_data, tmp_path, messages):
    """Degrees up to 135, one-hot, through nine layers side by side: 1,224 columns, 23,256 entries a graph."""
    job = {
        "source": {"kind": "tud", "root": str(shared_data / "TUDataset"), "name": "IMDB-BINARY"},
        "nodes": {"features": ["degrees"], "degree_clip": 500},
        "diffusion": {"layers": 8, "pooling": "concat"},
        "reference": {"kind": "sample", "max_nodes": 5000},
        "output": {"path": str(tmp_path / "out")},
    }
    summary = run(job)
    assert summary.dimension == 9 * 136
    assert len(messages) > 100
    assert max(messages) < MOST_BYTES / 10


def test_no_message_of_a_job_of_many_shards_exceeds_a_megabyte(run, mutag_job, messages):
    summary = run(mutag_job(source={"nodes_per_shard": 60}))
    assert summary.shards > 50
    assert max(messages) < MOST_BYTES / 10


def test_no_message_of_a_job_with_a_large_vocabulary_exceeds_a_megabyte(run, tmp_path, messages):
    """Every node has a label of its own, of 5000 characters: the vocabulary alone is more than a megabyte."""
    pytest.importorskip("networkx")
    (tmp_path / "graphs").mkdir()
    for number in range(10):
        names = [f"{number:02d}-{node:02d}-" + "x" * 5000 for node in range(30)]
        nodes = [{"id": node, "label": name} for node, name in enumerate(names)]
        edges = [{"source": node, "target": node + 1} for node in range(29)]
        graph = {"directed": False, "multigraph": False, "graph": {}, "nodes": nodes, "edges": edges}
        (tmp_path / "graphs" / f"{number:02d}.json").write_text(json.dumps(graph))
    job = {
        "source": {
            "kind": "networkx",
            "path": str(tmp_path / "graphs"),
            "node_labels": ["label"],
            "nodes_per_shard": 100,
        },
        "reference": {"kind": "sample", "points": 2},
        "output": {"path": str(tmp_path / "out")},
    }
    assert run(job).dimension == 300
    assert max(messages) < MOST_BYTES / 10


def test_a_full_wave_of_the_largest_descriptors_is_less_than_a_megabyte(dask_client, messages):
    files = tuple(PartFile(f"scratch/moments-{i:05d}-moments.npz", 0, 2**27, f"{i:064x}") for i in range(16))
    descriptors = [MergeTask(i, files) for i in range(bags.WAVE)]
    done = list(run_stage(dask_client, "merge", hash, descriptors, retries=0))
    assert len(done) == bags.WAVE
    assert max(messages) < MOST_BYTES


def test_the_scheduler_never_knows_of_more_than_some_waves(dask_client, monkeypatch):
    monkeypatch.setattr(bags, "WAVE", 10)
    monkeypatch.setattr(bags, "UNDER_WAY", 40)
    scheduler = dask_client.cluster.scheduler
    known = [len(scheduler.tasks) for _ in run_stage(dask_client, "count", abs, range(200), retries=0)]
    assert len(known) == 200
    # Tasks whose futures were released a moment ago may still be there.
    assert max(known) <= 2 * 40
