import subprocess
import sys

import pytest

from wegl_dask.cluster import open_client
from wegl_dask.spec import ClusterTable

pytest.importorskip("pandas")


def printed(*statements):
    """What statements print, in a process of their own that has pyarrow and `spare_pandas`."""
    code = "\n".join(["import sys, pyarrow as pa", "from wegl_dask.without_pandas import spare_pandas", *statements])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


CONVERT = "pa.array([1, 2]), pa.array(['a']).to_numpy(zero_copy_only=False), pa.scalar(1)"


def test_pyarrow_converts_without_pandas_once_it_is_spared():
    shown = "print('pandas' in sys.modules)"
    assert printed(CONVERT, shown) == ["True"], "pyarrow no longer imports pandas: nothing is left to spare"
    assert printed("spare_pandas()", CONVERT, shown) == ["False"]


def test_pandas_is_imported_by_what_asks_for_it():
    assert printed("spare_pandas()", "print(pa.table({'a': [7]}).to_pandas()['a'].sum())") == ["7"]
    assert printed("spare_pandas()", "import pandas as pd", "print(*pa.array(pd.Series([7, 8])).to_pylist())") == [
        "7",
        "8",
    ]


def test_pandas_that_is_there_is_left_alone():
    assert printed("import pandas as pd", "spare_pandas()", "print(pa.array(pd.Series([1.0, None])).null_count)") == [
        "1"
    ]


def test_local_workers_convert_without_pandas():
    def convert():
        import sys

        import pyarrow as pa

        pa.array([1, 2])
        return "pandas" in sys.modules

    with open_client(ClusterTable(workers=1, memory_limit="600MB")) as client:
        assert client.submit(convert).result() is False
