"""The job file: what is read, what is refused, and in which words."""

import tomllib

import pytest

from wegl_dask.errors import JobFileError, WeglError
from wegl_dask.spec import JobSpec, documented_keys, read_job, source_kinds
from wegl_dask.storage import RunFolder

SMALLEST = '[source]\nkind = "smiles"\npath = "m.csv"\n[output]\npath = "out"\n'

SOURCES = {
    "tud": {"root": "data", "name": "MUTAG"},
    "ogb": {"root": "data", "name": "ogbg-molhiv"},
    "smiles": {"path": "a.csv"},
    "sdf": {"path": "a.sdf"},
    "pyg": {"path": "a.pt", "trust": True},
    "networkx": {"path": "graphs/"},
    "graph_parquet": {"path": "runs/1/graphs"},
}


WIDE = (
    'source.extra_columns: "e0005" is the name of a column of the vector where output.layout = "wide"; rename it in the '
    'input, or set output.layout = "list"'
)


def job(kind="tud", /, *, top=None, **tables):
    """Build the values of a job that is allowed, with tables changed; keys of `source` are added to those it needs."""
    values = {"source": {"kind": kind, **SOURCES[kind]}, "output": {"path": "out"}, **(top or {})}
    for name, table in tables.items():
        values[name] = {**values.get(name, {}), **table}
    return values


def refusal(values):
    with pytest.raises(JobFileError) as caught:
        JobSpec.from_values(values)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert "\n" not in message
    return message.removeprefix("job file: ")


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_and_an_output_path_are_a_whole_job(kind):
    spec = JobSpec.from_values(job(kind))
    assert spec.source.kind == kind
    assert spec.diffusion.layers == 4
    assert spec.transport.solver == "exact"


def test_every_kind_of_source_is_tested():
    assert set(SOURCES) == set(source_kinds())


def test_the_job_written_out_with_its_defaults_is_the_same_job():
    spec = JobSpec.from_values(job("smiles", source={"lookup": {"path": "b.csv"}, "targets": ["a"]}))
    text = spec.to_toml()
    assert JobSpec.from_toml(text) == spec
    assert tomllib.loads(text)["reference"]["epochs"] == 5


def test_values_cannot_be_changed_after_reading():
    spec = JobSpec.from_values(job())
    with pytest.raises(ValueError, match="frozen"):
        spec.seed = 1


# Overrides


@pytest.mark.parametrize(
    ("override", "table", "key", "value"),
    [
        ("transport.solver=sinkhorn", "transport", "solver", "sinkhorn"),
        ('transport.solver="sinkhorn"', "transport", "solver", "sinkhorn"),
        ("diffusion.layers=2", "diffusion", "layers", 2),
        ("nodes.virtual_node=true", "nodes", "virtual_node", True),
        ('nodes.features=["labels", "degrees"]', "nodes", "features", ["labels", "degrees"]),
        ("transport.regularization=1", "transport", "regularization", 1.0),
        ("output.path=s3://bucket/run=1", "output", "path", "s3://bucket/run=1"),
        (" cluster.workers = 3 ", "cluster", "workers", 3),
    ],
)
def test_an_override_takes_the_place_of_the_value_in_the_file(override, table, key, value):
    text = '[source]\nkind = "tud"\nroot = "data"\nname = "MUTAG"\n[output]\npath = "out"\n'
    assert getattr(getattr(JobSpec.from_toml(text, [override]), table), key) == value


def test_the_last_of_several_overrides_holds():
    text = JobSpec.from_values(job()).to_toml()
    assert JobSpec.from_toml(text, ["seed=1", "seed=2"]).seed == 2


@pytest.mark.parametrize("override", ["transport.solver", "=exact", " = "])
def test_an_override_without_a_key_or_a_value_is_refused(override):
    with pytest.raises(JobFileError, match=r"is not KEY=VALUE; write for example --set transport\.solver=sinkhorn"):
        JobSpec.from_toml("", [override])


def test_an_override_inside_a_value_is_refused():
    with pytest.raises(JobFileError, match="name is a value in the job file, not a table"):
        JobSpec.from_toml('name = "a"', ["name.first=b"])


# Files


def test_a_message_names_the_job_file(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text("layers = 3\n")
    with pytest.raises(JobFileError) as caught:
        read_job(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "unknown key layers; did you mean diffusion.layers?" in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(JobFileError, match=r"cannot read the job file .*absent\.toml: No such file or directory"):
        read_job(tmp_path / "absent.toml")


def test_text_that_is_not_toml_is_refused_with_its_line(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text('name = "a"\n[source\n')
    with pytest.raises(JobFileError, match=r"job\.toml is not TOML: .*line 2"):
        read_job(path)


def test_a_byte_order_mark_does_not_matter(tmp_path):
    path = tmp_path / "job.toml"
    path.write_text(JobSpec.from_values(job()).to_toml(), encoding="utf-8-sig")
    assert read_job(path) == JobSpec.from_values(job())


def test_text_that_is_not_utf8_is_refused_with_its_byte(tmp_path):
    path = tmp_path / "job.toml"
    path.write_bytes(b'name = "\xff"')
    with pytest.raises(JobFileError, match="is not UTF-8 text: invalid start byte at byte 8"):
        read_job(path)


# Keys and values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (job(top={"layers": 3}), "unknown key layers; did you mean diffusion.layers?"),
        (job(top={"transprt": {}}), "unknown key transprt; did you mean transport?"),
        (job(transport={"solvr": "exact"}), "unknown key transport.solvr; did you mean transport.solver?"),
        (job(transport={"layers": 3}), "unknown key transport.layers; did you mean diffusion.layers?"),
        (
            job(diffusion={"qqq": 1}),
            "unknown key diffusion.qqq; there are diffusion.layers, diffusion.pooling",
        ),
        (
            job("smiles", source={"root": "x"}),
            'source.root is a key of source.kind "tud" and "ogb", and not of "smiles"',
        ),
        (
            job("smiles", source={"smile_column": "x"}),
            "unknown key source.smile_column; did you mean source.smiles_column?",
        ),
        (
            job("smiles", source={"lookup": {"path": "b", "colums": ["a"]}}),
            "unknown key source.lookup.colums; did you mean source.lookup.columns?",
        ),
    ],
)
def test_an_unknown_key_comes_with_the_nearest_known_one(values, message):
    assert refusal(values) == message


def test_without_a_near_one_all_keys_and_tables_are_named():
    there = refusal(job(top={"qqq": 1})).removeprefix("unknown key qqq; there are ").split(", ")
    keys = documented_keys()
    assert set(there) == {key.key for key in keys if not key.table} | {key.table for key in keys if key.table}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (job(transport={"solver": "exct"}), 'transport.solver = "exct": it must be "exact" or "sinkhorn" or "auto"'),
        (job(top={"name": 3}), "name = 3: it must be text"),
        (job(top={"seed": True}), "seed = true: it must be an integer"),
        (job(top={"seed": 1.5}), "seed = 1.5: it must be an integer"),
        (job(top={"seed": -1}), "seed = -1: it must be greater than or equal to 0"),
        (job(top={"seed": 2**32}), "seed = 4294967296: it must be less than or equal to 4294967295"),
        (job(cluster={"workers": "four"}), 'cluster.workers = "four": it must be an integer'),
        (job(cluster={"workers": 0}), "cluster.workers = 0: it must be greater than or equal to 1"),
        (job(nodes={"virtual_node": 1}), "nodes.virtual_node = 1: it must be true or false"),
        (
            job(nodes={"features": "labels"}),
            'nodes.features = "labels": it must be a list of "labels" or "degrees" or "attributes" or "atom_embedding"',
        ),
        (
            job(nodes={"features": ["label"]}),
            'nodes.features[0] = "label": it must be "labels" or "degrees" or "attributes" or "atom_embedding"',
        ),
        (job(nodes={"features": []}), "nodes.features is empty; leave it out, or give it a value"),
        (job(transport={"regularization": "a"}), 'transport.regularization = "a": it must be a number'),
        (job(transport={"regularization": 0}), "transport.regularization = 0: it must be greater than 0"),
        (
            job(transport={"regularization": float("inf")}),
            "transport.regularization = Infinity: it must be a finite number",
        ),
        (
            job(source={"max_rejected_fraction": float("nan")}),
            "source.max_rejected_fraction = NaN: it must be a finite number",
        ),
        (job("smiles", source={"path": 3}), "source.path = 3: it must be text or list of text"),
        (job("smiles", source={"path": ["a", 3]}), "source.path[1] = 3: it must be text"),
        (job("smiles", source={"path": ""}), "source.path is empty; leave it out, or give it a value"),
        (job("smiles", source={"path": []}), "source.path is empty; leave it out, or give it a value"),
        (job("smiles", source={"path": ["", "a"]}), "source.path[0] is empty; leave it out, or give it a value"),
        (job("smiles", source={"delimiter": ";;"}), 'source.delimiter = ";;": it must be one character'),
        (job("smiles", source={"lookup": 3}), "source.lookup = 3: it must be a table, [source.lookup]"),
        (job("smiles", source={"targets": [1]}), "source.targets[0] = 1: it must be text"),
        (job(top={"cluster": "local"}), 'cluster = "local": it must be a table, [cluster]'),
        (job(output={"path": ""}), "output.path is empty; leave it out, or give it a value"),
        (
            job(diffusion={"layers": 2**31}),
            "diffusion.layers = 2147483648: it must be less than or equal to 10000",
        ),
        (job(output={"path": "a\0b"}), 'output.path = "a\\u0000b": it must be text without NUL'),
        (job("smiles", source={"path": ["a", "\0"]}), 'source.path[1] = "\\u0000": it must be text without NUL'),
        (job(source={"name": "../MUTAG"}), 'source.name = "../MUTAG": it must be a name without slashes'),
    ],
)
def test_a_value_that_is_not_allowed_is_shown_with_what_is(values, message):
    assert refusal(values) == message


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"output": {"path": "out"}}, "source.kind is missing: What is read"),
        (
            {"source": {"path": "a"}, "output": {"path": "out"}},
            'source.kind is missing: it is "tud" or "ogb" or "smiles" or "sdf" or "pyg" or "networkx" or "graph_parquet"',
        ),
        (
            {"source": {"kind": "smile"}, "output": {"path": "out"}},
            (
                'source.kind = "smile": it must be "tud" or "ogb" or "smiles" or "sdf" or "pyg" or "networkx" or '
                '"graph_parquet"'
            ),
        ),
        (
            {"source": {"kind": "tud", "root": "data"}, "output": {"path": "out"}},
            'source.name is missing: Name of the data set, for example "MUTAG"',
        ),
        ({"source": job()["source"]}, "output.path is missing: The run folder: a path or any fsspec URL"),
        (
            job("smiles", source={"lookup": {}}),
            "source.lookup.path is missing: The file: a path, an fsspec URL or package",
        ),
    ],
)
def test_a_key_that_is_missing_comes_with_its_meaning(values, message):
    assert refusal(values).startswith(message)


def test_all_that_is_wrong_is_said_on_one_line():
    message = refusal(job(top={"seed": -1, "nam": "a"}, cluster={"workers": 0}))
    assert "seed = -1" in message
    assert "did you mean name?" in message
    assert "cluster.workers = 0" in message


# Keys that cannot go together


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            job(cluster={"kind": "scheduler"}),
            'cluster.address and cluster.kind = "scheduler" go together: set both or neither',
        ),
        (
            job(cluster={"address": "tcp://host:8786"}),
            'cluster.address and cluster.kind = "scheduler" go together: set both or neither',
        ),
        (job(nodes={"features": ["labels", "labels"]}), 'nodes.features names "labels" twice: name it once'),
        (
            job("smiles", source={"targets": ["a", "b", "a"]}, top={"task": "multitask"}),
            'source.targets names "a" twice: name it once',
        ),
        (
            job("networkx", source={"edge_attributes": ["w", "w"]}),
            'source.edge_attributes names "w" twice: name it once',
        ),
        (
            job("pyg", source={"trust": False}),
            'source.kind = "pyg" loads files that run code: set source.trust = true if you trust where they come from',
        ),
        (
            job("sdf", source={"extra_columns": ["e0005"]}, output={"layout": "wide"}),
            WIDE,
        ),
        (
            job(
                "sdf",
                source={"extra_columns": ["e0006", "e0005"]},
                output={"layout": "wide"},
                reference={"points": 3},
                projection={"components": 2},
            ),
            WIDE,
        ),
        (
            job("sdf", source={"extra_columns": ["solver"]}),
            'source.extra_columns: "solver" is the name of a column that every part has; rename it in the input',
        ),
        (
            job("smiles", source={"columns": ["mol", "id"]}),
            'source.smiles_column names "smiles", which is not in source.columns: correct either',
        ),
        (
            job("smiles", source={"columns": ["smiles"], "id_column": "id"}),
            'source.id_column names "id", which is not in source.columns: correct either',
        ),
        (
            job("smiles", source={"columns": ["smiles"], "targets": ["y"]}),
            'source.targets names "y", which is not in source.columns: correct either',
        ),
        (
            job("smiles", source={"columns": ["smiles"], "lookup": {"path": "b", "on": "id"}}),
            'source.lookup.on names "id", which is not in source.columns: correct either',
        ),
        (
            job("smiles", top={"task": "regression"}),
            'task = "regression" needs labels: name their columns in source.targets, or set task = "none"',
        ),
        (
            job("sdf", top={"task": "classification"}, source={"targets": ["a", "b"]}),
            (
                'task = "classification" needs one label a graph, and source.targets names 2: set task = "multitask", or '
                "name one"
            ),
        ),
        (
            job("networkx", top={"task": "classification"}),
            'task = "classification" needs labels: name the graph attribute in source.label, or set task = "none"',
        ),
        (
            job("smiles", nodes={"features": ["attributes"]}),
            'nodes.features asks for "attributes", and atoms have none: use "atom_embedding", "labels" or "degrees"',
        ),
        (
            job("ogb", nodes={"features": ["degrees", "attributes"]}),
            'nodes.features asks for "attributes", and atoms have none: use "atom_embedding", "labels" or "degrees"',
        ),
        (
            job("tud", nodes={"features": ["atom_embedding"]}),
            (
                'nodes.features asks for "atom_embedding", which is made for the atoms of molecules, and source.kind = "tud" '
                "has none"
            ),
        ),
        (
            job("networkx", nodes={"features": ["labels"]}),
            'nodes.features asks for "labels": name the node attributes in source.node_labels',
        ),
        (
            job("networkx", nodes={"features": ["attributes"]}),
            'nodes.features asks for "attributes": name the node attributes in source.node_attributes',
        ),
        (
            job("smiles", edges={"features": "weight"}),
            'edges.features = "weight", and bonds have no attributes: use "labels" or "none"',
        ),
        (
            job("networkx", edges={"features": "labels"}),
            'edges.features = "labels": name the edge attributes in source.edge_labels',
        ),
        (
            job("networkx", edges={"features": "attributes"}),
            'edges.features = "attributes": name the edge attributes in source.edge_attributes',
        ),
        (
            job("networkx", edges={"features": "weight"}, source={"edge_attributes": ["a", "b"]}),
            'edges.features = "weight" needs one attribute in source.edge_attributes, which names 2',
        ),
        (
            job("tud", projection={"fit_on": "train"}),
            'projection.fit_on = "train" needs graphs with a split, and source.kind = "tud" has none: set it to "all"',
        ),
        (
            job("smiles", projection={"fit_on": "train"}),
            (
                'projection.fit_on = "train" needs graphs with a split: name its column in source.split_column, or set it '
                'to "all"'
            ),
        ),
        (
            job("networkx", projection={"fit_on": "train"}),
            (
                'projection.fit_on = "train" needs graphs with a split: name the graph attribute in source.split, or set it '
                'to "all"'
            ),
        ),
        (
            job(
                "smiles",
                nodes={"features": ["atom_embedding"], "atom_embedding_width": 10},
                diffusion={"layers": 1, "pooling": "concat"},
                projection={"components": 21},
            ),
            (
                "projection.components = 21, and the node embeddings have 20 columns (nodes.atom_embedding_width): set it to "
                "20 at most"
            ),
        ),
        (
            job(reference={"points": 11, "max_nodes": 10}),
            "reference.points = 11 cannot be found among reference.max_nodes = 10 node embeddings: raise the latter",
        ),
        (
            job(reference={"kind": "origin", "points": 2}),
            'reference.kind = "origin" is one point, and reference.points = 2: leave out the latter',
        ),
    ],
)
def test_keys_that_cannot_go_together_are_refused(values, message):
    assert refusal(values) == message


@pytest.mark.parametrize(
    "values",
    [
        job(cluster={"kind": "scheduler", "address": "tcp://host:8786"}),
        job("smiles", source={"columns": ["smiles"], "targets": ["y"], "lookup": {"path": "b"}}),
        job(
            "smiles",
            source={"columns": ["smiles"], "targets": ["y"], "lookup": {"path": "b", "columns": ["smiles", "y"]}},
        ),
        job("smiles", source={"targets": ["y"]}, top={"task": "multitask"}),
        job("ogb", projection={"fit_on": "train"}),
        job("ogb", source={"name": "ogbg-ppa"}, edges={"features": "attributes"}),
        job("networkx", source={"edge_attributes": ["w"]}, edges={"features": "weight"}),
        job("graph_parquet", projection={"fit_on": "train"}, nodes={"features": ["atom_embedding"]}),
        job(reference={"kind": "normal", "points": 11, "max_nodes": 10}),
        job(transport={"solver": "exact", "regularization": 0.5, "auto_size": 10}),
    ],
)
def test_keys_that_the_data_may_bear_out_are_allowed(values):
    JobSpec.from_values(values)


def test_the_names_that_no_extra_column_may_have_are_those_of_shards_and_parts():
    from wegl_dask.embeddings import EmbeddingFormat
    from wegl_dask.job_checks import TAKEN_COLUMNS
    from wegl_dask.shards import GRAPH_COLUMNS, ROW_COLUMNS

    part = EmbeddingFormat(n_points=1, dimension=1).schema.names
    assert {*ROW_COLUMNS, *GRAPH_COLUMNS, *part} == TAKEN_COLUMNS


# A model that is given


def test_a_job_with_a_model_has_no_keys_that_shape_the_embedding():
    values = job() | {"model": {"path": "runs/earlier", "sha256": "ab12"}}
    text = JobSpec.from_values(values).to_toml()
    assert set(tomllib.loads(text)) == {"name", "task", "source", "model", "output", "cluster", "train"}
    assert JobSpec.from_toml(text).to_toml() == text
    assert "model" not in tomllib.loads(JobSpec.from_values(job()).to_toml())


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"model": {"path": "x"}, "diffusion": {"layers": 3}}, "diffusion is the model's where model.path is set"),
        ({"model": {"path": "x"}, "seed": 1}, "seed is the model's where model.path is set: take either out"),
        ({"model": {"sha256": "x"}}, "model.sha256 is of the model in model.path, which is not set"),
        ({"model": {"path": ""}}, "model.path is empty"),
    ],
)
def test_a_model_and_what_it_says_exclude_one_another(extra, reason):
    with pytest.raises(JobFileError, match=reason):
        JobSpec.from_values(job() | extra)


# Documentation


def test_every_key_is_documented_once_and_with_a_sentence():
    keys = documented_keys()
    assert len({key.key for key in keys}) == len(keys)
    for key in keys:
        assert key.meaning.endswith("."), key
        assert key.kind, key


def test_the_documented_defaults_are_those_of_a_job():
    spec = JobSpec.from_values(job())
    values = tomllib.loads(spec.to_toml())
    for key in documented_keys():
        table, _, leaf = key.key.rpartition(".")
        if table.startswith("source") or key.key == "output.path":
            continue
        found = values.get(table, {}) if table else values
        if key.default == "not set":
            assert leaf not in found, key
        else:
            assert found[leaf] == tomllib.loads(f"value = {key.default}")["value"], key


def test_a_key_with_two_meanings_has_both_in_its_documentation():
    (split,) = (key for key in documented_keys() if key.key == "source.split")
    assert split.meaning.startswith("ogb: ")
    assert " networkx: " in split.meaning


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("seed = " + "9" * 5000, "it holds an integer of too many digits"),
        ("seed = " + "[" * 100_000, "it is nested too deeply"),
        ("seed = " + "[" * 200 + "]" * 200, "it is nested too deeply"),
        (".".join("a" * 5000) + " = 1", "it is nested too deeply"),
    ],
    ids=["digits", "open", "lists", "tables"],
)
def test_toml_that_is_absurd_is_refused_in_words(text, what, tmp_path):
    (tmp_path / "job.toml").write_text(text)
    with pytest.raises(JobFileError, match=f"is not TOML: {what}$"):
        read_job(tmp_path / "job.toml")
    folder = RunFolder(str(tmp_path))
    with pytest.raises(WeglError, match=rf"job\.toml is damaged: {what}"):
        folder.job()


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 100_000], ids=["digits", "lists"])
def test_an_absurd_value_of_an_override_is_shown_in_part(value):
    with pytest.raises(JobFileError, match=r"seed = .*\.\.\.: it must be an integer$") as caught:
        JobSpec.from_toml(SMALLEST, [f"seed={value}"])
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("key", ["cluster.retries", "source.nodes_per_shard", "transport.auto_size"])
def test_integers_are_those_that_dask_and_arrow_count_with(key):
    assert JobSpec.from_toml(SMALLEST, [f"{key}={2**63 - 1}"])
    with pytest.raises(JobFileError, match=rf"{key} = {10**30}: it must be {2**63 - 1} at most"):
        JobSpec.from_toml(SMALLEST, [f"{key}={10**30}"])
