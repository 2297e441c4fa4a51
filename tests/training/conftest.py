import pytest
from threadpoolctl import threadpool_limits

from wegl_dask.training.spreading import Workers


@pytest.fixture(autouse=True)
def one_core():
    """As fits are done; and threads that wait for one another on a busy machine make a test slow."""
    with threadpool_limits(1):
        yield


@pytest.fixture
def one_worker():
    return Workers(1)
