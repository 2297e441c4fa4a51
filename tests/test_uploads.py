import zipfile

import pytest

from wegl_dask.errors import JobFileError
from wegl_dask.uploads import upload_wheel


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(JobFileError, match=r'cluster\.upload = ".*missing\.whl" cannot be read: No such file'):
        upload_wheel(None, str(tmp_path / "missing.whl"))


def test_what_is_no_wheel_of_the_package_is_refused(tmp_path):
    text, other = tmp_path / "text.whl", tmp_path / "other.whl"
    text.write_text("no archive")
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("other/__init__.py", "")
    for path in (text, other):
        with pytest.raises(JobFileError, match=rf'cluster\.upload = "{path}" is no wheel of wegl-dask: make one with'):
            upload_wheel(None, str(path))
