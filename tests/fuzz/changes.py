"""How a file is spoilt: its bytes, its lines and numbers, or the values that it holds, drawn at random."""

import bz2
import copy
import gzip
import io
import json
import lzma
import pickle
import re
import zipfile
from pathlib import PurePosixPath

TOKENS = [
    *(b"nan", b"inf", b"-inf", b"1e400", b"-1", b"0", b"9223372036854775808", b"999999999", b"-0.0", b"1.5", b"0x10"),
    *(b"", b" ", b"\t", b"\n", b"\r\n", b"\r", b",", b'"', b'""', b"'", b"\x00", b"\xff", b"\xef\xbb\xbf", b"\xc3"),
    *("ü".encode(), "\u2028".encode(), b"[*]", b"$$$$", b"M  END", b"<>", b"&", b"{", b"]", b"null", b"true", b"\\"),
    *(b"\\ud800", b"&#xDFFF;"),
    *(b"[U+5]", b"C1CC", b"%%", b"(", b".", b"[2H]", b"A" * 3000),
]
NUMBERS = [-1, 0, 1, 2, 3, 7, 9, 40, 119, 1000, 2**15, 2**31, 2**63, -(2**63), 0.5, -0.5, 1e-320, 1e39, 1e400]
VALUES = [
    *(None, True, "", "x", "nan", "-1", [], [1, 2], ["x"], {}, {"x": 1}),
    *NUMBERS,
    *(float("nan"), float("-inf"), "ü\nü", [[1], [2, 3]], [None]),
]

COMPRESSIONS = {
    ".gz": (gzip.decompress, gzip.compress),
    ".bz2": (bz2.decompress, bz2.compress),
    ".xz": (lzma.decompress, lzma.compress),
}


def spoil_files(draw, files):
    """Spoil one file or two: that of a compressed file inside of it, and values rather than bytes, mostly."""
    files = {name: text.encode() if isinstance(text, str) else text for name, text in files.items()}
    for name in draw.sample(sorted(files), draw.choice([1, 1, 2]) if len(files) > 1 else 1):
        unpack, pack = COMPRESSIONS.get(PurePosixPath(name).suffix, (bytes, bytes))
        change_values = VALUE_CHANGES.get(PurePosixPath(name).suffix)
        if draw.random() < 0.3:
            files[name] = spoil(draw, files[name])
        elif change_values and draw.random() < 0.8:
            files[name] = change_values(draw, files[name])
        else:
            files[name] = pack(spoil(draw, unpack(files[name])))
    if draw.random() < 0.03:
        del files[draw.choice(sorted(files))]
    return files


def spoil(draw, content):
    """Change bytes, lines, fields, numbers or the length of a file, once or several times."""
    for _ in range(draw.choice([1, 1, 1, 2, 3, 8])):
        content = draw.choice(CHANGES)(draw, content)
    return content


# --- Text and bytes ---


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


def change_number(draw, content):
    places = [*re.finditer(rb"-?\d+(?:\.\d+)?", content)]
    if not places:
        return content
    place = draw.choice(places)
    return content[: place.start()] + str(draw.choice(NUMBERS)).encode() + content[place.end() :]


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


CHANGES = (flip, flip, cut_off, leave_out, repeat, insert, insert, *[change_number] * 4, *[change_line] * 3)


# --- Values ---


def change_json(draw, content):
    return json.dumps(changed_value(draw, json.loads(content))).encode()


def changed_value(draw, value):
    """Change one value in a structure of lists and dictionaries, or leave it out, or repeat it."""
    holders = []

    def collect(value):
        if isinstance(value, dict | list) and value:
            holders.append(value)
            for item in value.values() if isinstance(value, dict) else value:
                collect(item)

    value = copy.deepcopy(value)
    collect(value)
    for holder in draw.sample(holders, min(len(holders), draw.choice([1, 1, 2]))):
        key = draw.choice([*(holder if isinstance(holder, dict) else range(len(holder)))])
        match draw.randrange(6):
            case 0:
                del holder[key]
                if not holder:
                    break
            case 1 if isinstance(holder, list):
                holder.append(holder[key])
            case _:
                holder[key] = draw.choice(VALUES)
    return value


def change_member(draw, content):
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, member in spoil_files(draw, files).items():
            archive.writestr(zipfile.ZipInfo(name), member)
    return file.getvalue()


def change_table(draw, content):
    """Change the columns, the types, the values or the metadata of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(content))
    for _ in range(draw.choice([1, 1, 2])):
        at = draw.randrange(table.num_columns)
        name, column = table.column_names[at], table.column(at)
        metadata = {**(table.schema.metadata or {})}
        match draw.randrange(8):
            case 0:
                table = table.remove_column(at)
            case 1:
                table = table.append_column(draw.choice([name, "other", ""]), column)
            case 2:
                table = table.slice(draw.randrange(table.num_rows + 1), draw.randrange(table.num_rows + 1))
            case 3 if metadata:
                key = draw.choice(sorted(metadata))
                metadata[key] = spoil(draw, metadata[key])
                table = table.replace_schema_metadata(metadata)
            case 4:
                types = [
                    pa.int8(),
                    pa.float64(),
                    pa.large_string(),
                    pa.binary(),
                    pa.dictionary(pa.int32(), pa.string()),
                ]
                try:
                    table = table.set_column(at, name, column.cast(draw.choice(types)))
                except (pa.ArrowException, NotImplementedError):
                    table = table.set_column(at, name, pa.nulls(table.num_rows, draw.choice(types[:3])))
            case _:
                values = changed_value(draw, [column.to_pylist()])
                values = values[0] if values and isinstance(values[0], list) else []
                values = (values + [None] * table.num_rows)[: table.num_rows]
                try:
                    table = table.set_column(at, name, pa.array(values, column.type))
                except (pa.ArrowException, TypeError, ValueError, OverflowError):
                    table = table.set_column(at, name, pa.array([str(value) for value in values]))
    file = io.BytesIO()
    try:
        pq.write_table(table, file, row_group_size=max(1, draw.choice([2, 1000])))
    except (pa.ArrowException, NotImplementedError):
        return content
    return file.getvalue()


def change_tensors(draw, content):
    """Change the fields of graphs that torch.save wrote."""
    import torch

    graphs = torch.load(io.BytesIO(content), weights_only=False)
    graph = draw.choice(graphs)
    name = draw.choice(sorted(graph.keys()))
    field = graph[name]
    match draw.randrange(7):
        case 0:
            del graph[name]
        case 1:
            graph[name] = field.T if field.dim() == 2 else field[None]
        case 2:
            graph[name] = field[: draw.randrange(len(field) + 1)]
        case 3:
            graph[name] = field.to(draw.choice([torch.float32, torch.int16, torch.complex64, torch.bool]))
        case 4:
            graph[name] = draw.choice([None, "x", 3, [1, 2], torch.tensor(7), torch.zeros(0), torch.zeros((0, 2))])
        case 5:
            graph[draw.choice(["edge_weight", "y", "num_nodes", "z"])] = draw.choice(
                [torch.tensor([1.0]), torch.tensor([float("nan")] * 4), 5, "x", torch.tensor([[1, 2, 3]])]
            )
        case 6:
            flat = field.clone().reshape(-1)
            if len(flat):
                number = draw.choice([number for number in NUMBERS if abs(number) < 2**15])
                flat[draw.randrange(len(flat))] = number
            graph[name] = flat.reshape(field.shape)
    file = io.BytesIO()
    try:
        torch.save(draw.choice([graphs, graphs, graphs, graph, {"graphs": graphs}, tuple(graphs)]), file)
    except (pickle.PicklingError, RuntimeError):
        return content
    return file.getvalue()


def spoil_model(draw, files):
    """Change what a model holds, and its checksums with it: what a checksum cannot tell."""
    import numpy as np

    from wegl_dask.model_files import encode_model

    (json_name,), (arrays_name,) = ([name for name in files if name.endswith(end)] for end in (".json", ".npz"))
    model = json.loads(files[json_name])
    with np.load(io.BytesIO(files[arrays_name])) as archive:
        arrays = dict(archive)
    for key in ("arrays", "checksum"):
        model.pop(key, None)
    if draw.random() < 0.6:
        model = changed_value(draw, model)
    else:
        name = draw.choice(sorted(arrays))
        array = arrays[name]
        match draw.randrange(6):
            case 0:
                del arrays[name]
            case 1:
                arrays[name] = array.astype(draw.choice(["<f4", "<i8", "<c16", "<U5", "?"]))
            case 2:
                arrays[name] = array.T if array.ndim == 2 else array[:, None]
            case 3:
                arrays[name] = array[: draw.randrange(len(array) + 1)]
            case 4:
                arrays[name] = np.array(3.0)
            case 5:
                arrays[name] = array.copy()
                arrays[name].reshape(-1)[draw.randrange(array.size)] = draw.choice(
                    [np.nan, np.inf, -1.0, 0.0, 1e300, 1e-320]
                )
    try:
        made = encode_model(model, arrays)
    except ValueError:
        # NaN is no JSON.
        return files
    return {name: made[f"model/{PurePosixPath(name).name}"] for name in files}


VALUE_CHANGES = {".json": change_json, ".parquet": change_table, ".pt": change_tensors, ".zip": change_member}
"""By the ending of a file."""
