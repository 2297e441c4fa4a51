"""Want of memory or of threads, while Parquet is read, is not taken for damage, whatever part of the package reads."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wegl_dask.folders import Folder, StorageError
from wegl_dask.report import trained
from wegl_dask.shards import read_shard
from wegl_dask.sources.parquet_tables import ParquetTable
from wegl_dask.spec import ClusterTable, TrainTable
from wegl_dask.storage import RunFolder
from wegl_dask.training.job import train
from wegl_dask.verify import verify_run


def read_part(path):
    with Folder(str(path.parent)).parquet(path.name):
        pass


@pytest.fixture
def reader(request, quickstart, make_problem, write_problem):
    """A function without parameters that reads Parquet in one way or another."""
    run = quickstart.folder / "runs/quickstart"
    part = next((run / "data").glob("*.parquet"))
    match request.param:
        case "folder":
            return lambda: read_part(part)
        case "verify":
            return lambda: verify_run(RunFolder(str(run)))
        case "shard":
            return lambda: read_shard(part)
        case "table":
            return ParquetTable(str(part)).n_rows
    folder = write_problem(make_problem("binary"))
    train(folder, TrainTable(model="svm-linear", protocol="cv", folds=2), ClusterTable(workers=1), seed=0)
    return lambda: trained.read_trained(folder, "")


@pytest.mark.parametrize(
    ("shortage", "expected"),
    [
        (pa.ArrowMemoryError("malloc of size 64 failed"), MemoryError),
        (OSError("Failed to launch worker thread: Resource temporarily unavailable"), StorageError),
    ],
)
@pytest.mark.parametrize("reader", ["folder", "verify", "shard", "table", "trained"], indirect=True)
def test_a_shortage_is_not_damage(reader, shortage, expected, monkeypatch):
    def fail(*_, **__):
        raise shortage

    monkeypatch.setattr(pq, "ParquetFile", fail)
    with pytest.raises(expected, match=str(shortage)) as caught:
        reader()
    assert not isinstance(caught.value, pa.ArrowException)
