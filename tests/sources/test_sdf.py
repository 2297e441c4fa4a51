import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from wegl_dask.errors import SourceError
from wegl_dask.molecules import MOLECULE_SCHEMA, graphs_from_smiles
from wegl_dask.sorted_texts import SortedTexts
from wegl_dask.sources.base import LabelSchema
from wegl_dask.sources.paths import local_path
from wegl_dask.sources.sdf import SdfSource
from wegl_dask.spec import SdfTable

Chem = pytest.importorskip("rdkit.Chem")

NCI = "package://rdkit/Data/NCI/first_200.props.sdf"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder that is the working directory."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def read(read_source):
    """Read files with keys of the table ``[source]``."""

    def read_files(path, task="auto", nodes_per_shard=10_000, **keys):
        return read_source(SdfTable(kind="sdf", path=path, **keys), task, nodes_per_shard)

    return read_files


def record(smiles, title="", **properties):
    block = Chem.MolToMolBlock(Chem.MolFromSmiles(smiles))
    data = "".join(f">  <{name}>\n{value}\n\n" for name, value in properties.items())
    return f"{title}\n{block.partition(chr(10))[2]}{data}$$$$\n"


def write(name, text):
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return name


def source(path, task="auto", **keys):
    return SdfSource(SdfTable(kind="sdf", path=path, **keys), task)


def test_real_records_have_the_properties_that_rdkit_reads(read):
    found = read(
        NCI, id_column="_Name", targets=["AMW", "NUM_RINGS"], extra_columns=["SMILES", "CP"], nodes_per_shard=500
    )
    assert len(found.cuts) > 3
    assert found.plan.schema == MOLECULE_SCHEMA
    expected = list(Chem.SDMolSupplier(str(local_path(NCI))))
    assert found.graphs.n_graphs == len(expected) == 200
    assert found.rows["SMILES"] == [molecule.GetProp("SMILES") for molecule in expected]
    assert found.rows["CP"] == [molecule.GetProp("CP") for molecule in expected]
    assert found.rows["label"] == [[float(m.GetProp("AMW")), float(m.GetProp("NUM_RINGS"))] for m in expected]
    # All titles are empty: then the id is the number of the row.
    assert found.rows["graph_id"] == list(map(str, range(200)))
    assert found.graphs.node_counts.tolist() == [molecule.GetNumAtoms() for molecule in expected]
    assert found.graphs.edge_counts.tolist() == [2 * molecule.GetNumBonds() for molecule in expected]


def test_real_records_are_the_graphs_of_their_smiles(read):
    found = read(NCI, extra_columns=["SMILES"])
    expected, rejected = graphs_from_smiles(found.rows["SMILES"])
    assert not rejected
    for graph in range(200):
        one, two = found.graphs.slice(graph, graph + 1), expected.slice(graph, graph + 1)
        # The order of atoms may differ, and a 2D drawing says more on stereo.
        kept = [0, 2, 3, 4, 5, 6, 7, 8]
        assert sorted(one.node_categories[:, kept].tolist()) == sorted(two.node_categories[:, kept].tolist())


def test_ids_labels_split_and_extra_columns_are_properties(read):
    write(
        "a.sdf", record("CO", "methanol", y=1.5, part="train", n="m 1") + record("C", y="", note="two\nlines", n="m 2")
    )
    found = read(
        "a.sdf", "regression", id_column="n", targets=["y"], split_column="part", extra_columns=["note", "_Name"]
    )
    assert found.rows == {
        "graph_id": ["m 1", "m 2"],
        "source_file": ["a.sdf"] * 2,
        "source_row": [0, 1],
        "label": [1.5, None],
        "split": ["train", None],
        "note": [None, "two\nlines"],
        "_Name": ["methanol", ""],
    }


def test_the_title_is_an_id_where_it_is_named(read):
    write("a.sdf", record("CO", "methanol") + record("C"))
    assert read("a.sdf", id_column="_Name").rows["graph_id"] == ["methanol", "1"]
    assert read("a.sdf").rows["graph_id"] == ["0", "1"]


@pytest.mark.parametrize(
    ("tail", "properties"),
    [
        ("> <A>\n1\n\n> <B>\n2\n\n$$$$\n", {"A": "1", "B": "2"}),
        (">  25 <A> DT12\n1\n\n>  <B>  (7)\n2\n\n$$$$\n", {"A": "1", "B": "2"}),
        ("> <A>\n1\n> <B>\n2\n\n$$$$\n", {"A": "1\n> <B>\n2", "B": None}),
        ("> <A>\n\n> <B>\n2\n\n$$$$\n", {"A": "", "B": "2"}),
        ("> <A>\n1\n\n> <B>\n2\n\n$$$$", {"A": "1", "B": "2"}),
        ("> <A>\n1\n\n> <B>\n2\n$$$$\n", {"A": "1", "B": "2"}),
        ("> <A>\r\n1\r\n\r\n> <B>\r\n2\r\n\r\n$$$$\r\n", {"A": "1", "B": "2"}),
        ("> <A>\n1\n2\n\n> no name\n3\n\n> <B>\n<4>\n\n$$$$\n", {"A": "1\n2", "B": "<4>"}),
    ],
)
def test_properties_are_read_as_the_format_has_them(read, tail, properties):
    block = record("CO").removesuffix("$$$$\n")
    write("a.sdf", record("C", A="x", B="y") + block + tail)
    found = read("a.sdf", extra_columns=["A", "B"])
    assert {name: found.rows[name][1] for name in ("A", "B")} == properties


def test_v3000_records_and_windows_line_ends(read):
    block = Chem.MolToV3KMolBlock(Chem.MolFromSmiles("CCO"))
    write("a.sdf", f"{block}$$$$\n".replace("\n", "\r\n") + f"{block}> <n>\n7\n\n$$$$\n")
    found = read("a.sdf", id_column="n")
    assert found.rows["graph_id"] == ["0", "7"]
    assert (found.graphs.node_categories[:, 0] + 1).tolist() == [6, 6, 8] * 2


def test_hydrogens_that_are_listed_become_a_feature_of_their_atom(read):
    block = Chem.MolToMolBlock(Chem.AddHs(Chem.MolFromSmiles("CO")))
    write("a.sdf", f"{block}$$$$\n")
    expected, _ = graphs_from_smiles(["CO"])
    np.testing.assert_array_equal(read("a.sdf").graphs.node_categories, expected.node_categories)


def test_a_label_of_other_bytes_is_no_class(read):
    labels = {"a": "Blei", "b": "Öl", "c": "Zinn"}
    records = [record("C", n=name, y=label).encode("latin-1") for name, label in labels.items()]
    write("a.sdf", b"".join(records))
    found = read("a.sdf", "classification", id_column="n", targets=["y"])
    assert found.plan.labels.class_names == ("Blei", "Zinn")
    assert found.rows["graph_id"] == ["a", "c"]
    assert [row["reason"] for row in found.rejected] == ["property 'y' holds bytes that are no UTF-8 text"]


def test_records_that_cannot_be_used_are_rejected_with_the_reason_and_the_rest_goes_on(read):
    bad_valence = record("CC", n="b").replace("C   0  0", "F   0  0").replace("  1  2  1  0", "  1  2  2  0")
    write(
        "a.sdf",
        record("CO", n="a", y=1).encode()
        + bad_valence.encode()
        + b"not a mol block\n$$$$\n"
        + b"\n\n$$$$\n"
        + record("C", n="d", y="high").encode()
        + record("C", n="X", y=1).encode().replace(b"\nX\n", b"\n\xc4\n")
        + record("C", "Bär", n="e", y=2).encode("latin-1")
        + b"\n \n",
    )
    found = read("a.sdf", "regression", id_column="n", targets=["y"])
    assert found.rows["graph_id"] == ["a", "e"]
    assert found.rows["source_row"] == [0, 6]
    assert [(row["source_row"], row["graph_id"], row["reason"]) for row in found.rejected] == [
        (1, "b", "RDKit cannot parse the mol block: Explicit valence for atom # 0 F, 2, is greater than permitted"),
        (2, "2", "RDKit cannot parse the mol block: it is no mol block"),
        (3, "3", "RDKit cannot parse the mol block: it is no mol block"),
        (4, "d", "column y holds 'high'; a target holds a finite number, or nothing"),
        (5, "5", "property 'n' holds bytes that are no UTF-8 text"),
    ]


def test_classes_are_found_over_all_files_and_a_file_may_lack_a_property(read):
    write("a.sdf", record("CO", y="yes") + record("C", y="no"))
    write("b.sd", record("C", z="1"))
    write("c.sdf.gz", gzip.compress(record("CC", y="maybe").encode()))
    found = read(["a.sdf", "b.sd", "c.sdf.gz"], targets=["y"])
    assert found.plan.labels == LabelSchema("class", ("maybe", "no", "yes"))
    assert found.rows["label"] == [2, 1, None, 0]


def test_the_largest_fragment_alone_is_kept_where_asked_for(read):
    write("a.sdf", record("[Na+].CC(=O)[O-]"))
    assert (read("a.sdf", largest_fragment=True).graphs.node_categories[:, 0] + 1).tolist() == [6, 6, 8, 8]


def test_the_cuts_do_not_change_rows_or_graphs(read, assert_same_batch):
    whole, parts = read(NCI, nodes_per_shard=1_000_000), read(NCI, nodes_per_shard=1)
    assert len(whole.cuts) == 1
    assert len(parts.cuts) == 200
    assert whole.rows == parts.rows
    assert_same_batch(parts.graphs, whole.graphs)


CUT_OFF = "the record does not end with a line $$$$, so that its properties may be cut off"


@pytest.mark.parametrize("keys", [{}, {"targets": ["activity"]}, {"targets": ["activity"], "extra_columns": ["note"]}])
def test_a_file_that_is_cut_off_anywhere_gives_the_whole_record_or_none(read, keys, assert_same_batch):
    first, second = record("CCO", activity="inactive", note="a"), record("CCN", activity="active", note="b\nc")
    whole = read(write("whole.sdf", first + second), **keys)
    assert whole.graphs.n_graphs == 2
    mol_block = second.index("M  END") + len("M  END\n")
    for length in range(1, len(second)):
        found = read(write("cut.sdf", first + second[:length]), **keys)
        assert len(found.rows["graph_id"]) + len(found.rejected) == 1 + bool(second[:length].strip())
        is_whole = second[:length].rstrip().endswith("$$$$") or (not keys and length >= mol_block - 1)
        if is_whole:
            assert_same_batch(found.graphs, whole.graphs)
            assert found.rows["label"] == whole.rows["label"]
        else:
            assert found.rows["graph_id"] == ["0"]
            assert found.plan.labels.class_names in {(), ("inactive",)}
            if length > mol_block:
                assert found.rejected[0]["reason"].startswith(CUT_OFF)


def test_a_mol_block_alone_is_a_record_where_no_properties_are_asked_for(read):
    mol_block = Chem.MolToMolBlock(Chem.MolFromSmiles("CCO"))
    found = read(write("a.sdf", mol_block + " \r\n\n"), id_column="_Name")
    assert (found.graphs.n_nodes, len(found.rejected)) == (3, 0)


@pytest.mark.parametrize(
    ("content", "keys", "message"),
    [
        (
            record("C", a=1),
            {"targets": ["y"]},
            r"^a\.sdf has no column 'y', which source\.targets names; it has _Name, a$",
        ),
        (record("C", a=1), {"id_column": "y"}, r"has no column 'y', which source\.id_column names"),
        (record("C", a=1).encode("utf-16"), {}, r"^a\.sdf is UTF-16 text"),
    ],
)
def test_an_input_that_cannot_be_used_is_one_clear_error(content, keys, message):
    made = source(write("a.sdf", content), **keys)
    with pytest.raises(SourceError, match=message):
        made.plan([made.scan("a.sdf", 1000)])


def test_another_ending_is_one_clear_error():
    with pytest.raises(SourceError, match=r"^a\.mol2 ends in '\.mol2'; SDF is read from \.sdf, \.sd"):
        source(write("a.mol2", "")).pieces()


@pytest.mark.parametrize("content", ["", "\n", " \r\n\n"])
def test_a_file_without_records_has_no_cuts(content):
    made = source(write("a.sdf", content), targets=["y"])
    assert made.plan([made.scan("a.sdf", 1000)]).units == ()
    assert made.estimated_nodes() == 0


def test_records_whose_ids_are_known_are_passed_over_unread():
    write("a.sdf", record("CCO", "a") + "b\n\n\nbroken\nM  END\n$$$$\n" + record("CCN", "c"))
    found = source("a.sdf", id_column="_Name")
    plan = found.plan([found.scan("a.sdf", 10_000)])
    (shard,) = found.read(plan, plan.units[0], known_ids=SortedTexts.of([pa.array(["b", "c"])]))
    assert shard.rows.column("graph_id").to_pylist() == ["a"]
    assert (shard.graphs.n_graphs, shard.rejected.num_rows, shard.n_passed_over) == (1, 0, 2)
