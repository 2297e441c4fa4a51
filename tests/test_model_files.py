import io
import time
import zipfile

import numpy as np
import pytest

from wegl_dask.errors import WeglError
from wegl_dask.model_files import MODEL_ARRAYS, MODEL_JSON, encode_model, npz_bytes, read_model

ARRAYS = {
    "reference": np.arange(6.0).reshape(3, 2),
    "components": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    "mean": np.array([0.5, -0.0, np.pi]),
}


def test_a_model_is_read_back(run_folder):
    with run_folder.recording("reference", 0, "x") as part:
        part.write_model({"N": 3, "job": {"name": "Übung"}}, ARRAYS)
    model, arrays = run_folder.read_model()
    assert (model["N"], model["job"]) == (3, {"name": "Übung"})
    assert model["arrays"]["reference"]["shape"] == [3, 2]
    assert model["arrays"]["components"]["dtype"] == "float32"
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert np.array_equal(arrays[name], array)


def test_a_model_of_a_part_is_covered_by_its_record(run_folder):
    with run_folder.recording("reference", 0, "x") as part:
        part.write_model({"N": 3}, ARRAYS)
    assert [file.path for file in part.record.files] == [MODEL_ARRAYS, MODEL_JSON]
    assert run_folder.part_is_intact(run_folder.finished("reference", {0: "x"})[0])


def test_equal_arrays_give_equal_bytes(monkeypatch):
    before = npz_bytes(ARRAYS)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 10**8)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1234567890")
    same = {"mean": ARRAYS["mean"].astype(">f8"), **{k: v.copy() for k, v in reversed(ARRAYS.items())}}
    assert npz_bytes({k: same[k] for k in reversed(same)}) == before
    assert encode_model({"a": 1}, same) == encode_model({"a": 1}, ARRAYS)
    with zipfile.ZipFile(io.BytesIO(before)) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_numpy_reads_the_arrays_alone():
    with np.load(io.BytesIO(npz_bytes(ARRAYS))) as archive:
        assert np.array_equal(archive["components"], ARRAYS["components"])


def test_what_is_not_json_is_refused():
    with pytest.raises(ValueError, match='the key "arrays"'):
        encode_model({"arrays": {}}, {})
    with pytest.raises(ValueError, match='the key "checksum"'):
        encode_model({"checksum": ""}, {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode_model({"step": float("nan")}, {})


def altered(content):
    return content.replace(b"\x00\x00\x00\x40", b"\x00\x00\x00\x41", 1)


def with_header(shape, descr="'<f8'"):
    """Make an archive whose only array is said to be of a shape and a type by its header alone."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("mean.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    return file.getvalue()


def with_zip_field(at_local, at_central, value):
    """Set a field of two bytes in the headers of the first member of a zip file."""

    def change(content):
        content = bytearray(content)
        for start in (content.index(b"PK\x03\x04") + at_local, content.index(b"PK\x01\x02") + at_central):
            content[start : start + 2] = value.to_bytes(2, "little")
        return bytes(content)

    return change


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (MODEL_ARRAYS, with_zip_field(6, 8, 1), r"arrays\.npz is damaged: .*encrypted"),
        (MODEL_ARRAYS, with_zip_field(8, 10, 99), r"arrays\.npz is damaged: .*compression"),
        (MODEL_ARRAYS, lambda _: with_header("(10**12,)"), r"arrays\.npz is damaged"),
        (MODEL_ARRAYS, lambda _: with_header(f"({10**14},)"), r"arrays\.npz is damaged"),
        (MODEL_ARRAYS, lambda _: with_header(f"({10**23},)"), r"arrays\.npz is damaged"),
        (MODEL_ARRAYS, lambda _: with_header("(" * 200), r"arrays\.npz is damaged"),
        (MODEL_ARRAYS, lambda _: with_header("(3,)", descr="()"), r"arrays\.npz is damaged"),
        (MODEL_ARRAYS, lambda content: content[:-30], r"arrays\.npz is damaged"),
        (MODEL_ARRAYS, lambda _: b"", r"arrays\.npz is damaged"),
        (MODEL_ARRAYS, altered, r"arrays\.npz is damaged: Bad CRC"),
        (MODEL_ARRAYS, lambda _: npz_bytes({**ARRAYS, "mean": np.zeros(3)}), "the array 'mean' is"),
        (MODEL_ARRAYS, lambda _: npz_bytes({**ARRAYS, "mean": np.zeros(4)}), r"'mean' is {'shape': \[4\]"),
        (MODEL_ARRAYS, lambda _: npz_bytes({"mean": ARRAYS["mean"]}), "the array 'components' is None"),
        (MODEL_ARRAYS, lambda _: npz_bytes({**ARRAYS, "extra": np.zeros(1)}), r"the former says None"),
        (MODEL_JSON, lambda content: content[:-30], r"model\.json is no model of this package, or damaged"),
        (MODEL_JSON, lambda _: b"[]", r"model\.json is no model of this package, or damaged"),
        (MODEL_JSON, lambda _: b'{"N": 3}', r"model\.json is no model of this package, or damaged"),
        (
            MODEL_JSON,
            lambda content: content.replace(b'"N": 3', b'"N": 4'),
            r"model\.json .* damaged: .* it was altered",
        ),
        (MODEL_JSON, lambda _: encode_model({}, {"mean": np.zeros(2)})[MODEL_JSON], "the array 'components' is"),
    ],
)
def test_damaged_or_contradicting_files_are_named(run_folder, name, damage, message):
    with run_folder.recording("reference", 0, "x") as part:
        part.write_model({"N": 3}, ARRAYS)
    run_folder.write(name, damage(run_folder.read(name)))
    with pytest.raises(WeglError, match=message):
        read_model(run_folder)


def test_a_missing_file_is_named(run_folder):
    with pytest.raises(WeglError, match=r"cannot read .*model/model\.json: it is not there"):
        read_model(run_folder)
    with run_folder.recording("reference", 0, "x") as part:
        part.write_model({"N": 3}, ARRAYS)
    run_folder.remove(MODEL_ARRAYS)
    with pytest.raises(WeglError, match=r"cannot read .*model/arrays\.npz: it is not there"):
        read_model(run_folder)


def test_pickled_objects_are_not_loaded(tmp_path, run_folder):
    class Bomb:
        def __reduce__(self):
            return (tmp_path.joinpath("exploded").touch, ())

    buffer = io.BytesIO()
    np.savez(buffer, reference=np.array([Bomb()], dtype=object))
    run_folder.write(MODEL_JSON, encode_model({}, {})[MODEL_JSON])
    run_folder.write(MODEL_ARRAYS, buffer.getvalue())
    with pytest.raises(WeglError, match=r"is damaged: .*allow_pickle"):
        read_model(run_folder)
    assert not tmp_path.joinpath("exploded").exists()
