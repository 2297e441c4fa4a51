import bz2
import gzip
import io
import lzma
import random

import fsspec
import pytest
import zstandard

from wegl_dask.errors import SourceError
from wegl_dask.sources.streams import open_stream

COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}
# Text that does not compress well, and is longer than any buffer.
TEXT = random.Random(0).randbytes(700_000).hex().encode()


@pytest.mark.parametrize("ending", COMPRESS)
def test_files_are_decompressed_by_their_ending(tmp_path, ending):
    (tmp_path / f"a.csv{ending}").write_bytes(COMPRESS[ending](TEXT))
    with open_stream(str(tmp_path / f"a.csv{ending}")) as stream:
        assert stream.read() == TEXT
        assert not stream.seekable()
        with pytest.raises(io.UnsupportedOperation):
            stream.seek(0)


@pytest.mark.parametrize("ending", COMPRESS)
def test_archives_one_after_another_are_one_text(tmp_path, ending):
    (tmp_path / f"a.csv{ending.upper()}").write_bytes(COMPRESS[ending](b"first,") + COMPRESS[ending](b"second"))
    with open_stream(str(tmp_path / f"a.csv{ending.upper()}")) as stream:
        assert stream.read() == b"first,second"


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("kept", [0.5, 0.999])
def test_a_truncated_archive_is_one_error_that_names_it(tmp_path, ending, kept):
    archive = COMPRESS[ending](TEXT)
    (tmp_path / f"a.csv{ending}").write_bytes(archive[: int(kept * len(archive))])
    with (
        open_stream(str(tmp_path / f"a.csv{ending}")) as stream,
        pytest.raises(SourceError, match=rf"a\.csv{ending} is cut off"),
    ):
        stream.read()


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_file_that_is_no_archive_is_one_error_that_names_it(tmp_path, ending):
    (tmp_path / f"a.csv{ending}").write_bytes(b"smiles,id\nC,1\n")
    with (
        open_stream(str(tmp_path / f"a.csv{ending}")) as stream,
        pytest.raises(SourceError, match=rf"a\.csv{ending} (is damaged|cannot be read)"),
    ):
        stream.read()


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst"])
def test_a_damaged_archive_is_an_error_or_read_to_its_end(tmp_path, ending):
    archive = bytearray(COMPRESS[ending](TEXT))
    for position in range(0, len(archive), 1009):
        archive[position] ^= 0xFF
    (tmp_path / f"a.csv{ending}").write_bytes(archive)
    with open_stream(str(tmp_path / f"a.csv{ending}")) as stream, pytest.raises(SourceError, match=rf"a\.csv{ending}"):
        stream.read()


def test_a_plain_file_can_seek(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"0123456789")
    with open_stream(str(tmp_path / "a.csv")) as stream:
        stream.seek(7)
        assert stream.read() == b"789"


def test_files_of_packages_and_urls_are_opened():
    fsspec.filesystem("memory").pipe("/s.csv.gz", gzip.compress(b"text"))
    with open_stream("memory://s.csv.gz") as stream:
        assert stream.read() == b"text"
    with open_stream("package://wegl_dask/sources/streams.py") as stream:
        assert stream.readline().startswith(b'"""Input files as streams')


def test_a_file_that_cannot_be_opened_is_one_error_that_names_it(tmp_path):
    with pytest.raises(SourceError, match=r"missing\.csv cannot be read: No such file or directory"):
        open_stream(str(tmp_path / "missing.csv"))
    with pytest.raises(SourceError, match=r"cannot be read: Is a directory"):
        open_stream(str(tmp_path))
    with pytest.raises(SourceError, match=r"memory://missing\.csv cannot be read"):
        open_stream("memory://missing.csv")
