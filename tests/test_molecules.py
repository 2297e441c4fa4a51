import subprocess
import sys
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wegl_dask import molecules
from wegl_dask.errors import MissingDependencyError
from wegl_dask.molecules import ATOM_CATEGORY_COUNTS, BOND_CATEGORY_COUNTS, graphs_from_mol_blocks, graphs_from_smiles
from wegl_dask.sources.paths import local_path

pytest.importorskip("rdkit")

UNUSUAL = {
    "salt": "[Na+].[Cl-]",
    "zwitterion": "C[N+](C)(C)CC(=O)[O-]",
    "wildcard": "*CC[*:1]",
    "isotopes": "[13CH4].[2H]O[2H]",
    "hydrogen molecule": "[H][H]",
    "explicit hydrogens": "[H]C([H])([H])O[H]",
    "proton": "[H+]",
    "radicals": "[CH3].[O][O].[N]=O",
    "many radical electrons": "[C].[Si].[Fe]",
    "high charge": "[U+6].[C-4]",
    "chiral": "N[C@@H](C)C(=O)O",
    "double bond stereo": "C/C=C/C.C/C=C\\C.F/C=C1/CCC[C@@H]1F",
    "square planar": "C[Pt@SP1](F)(Cl)[NH3]",
    "bipyramid": "S[As@TB1](F)(Cl)(Br)N",
    "octahedral": "C[Co@OH1](F)(Cl)(Br)(I)S",
    "wavy bond": "CC=CC |w:1.0|",
    "dative": "CN(C)(C)->[Fe]",
    "quadruple": "[Re]$[Re]",
    "hypervalent": "FS(F)(F)(F)(F)F.FP(F)(F)(F)F.O=[Xe](=O)=O",
    "aromatic": "c1ccc2[nH]ccc2c1.c1ccsc1.[se]1cccc1",
    "linear": "C#N.C=C=C.[C-]#[O+]",
    "peptide": "NCC(=O)" * 75 + "O",
    "cage": "C12C3C4C1C5C2C3C45",
    "heaviest": "[Og]",
    "atom maps": "[CH3:1][13CH2:2][O-:300]",
    "query": "CC(=O)O |$;;Q_e;$|",
}

IMPOSSIBLE = """
  RDKit

  2  1  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 N   -9223372036854775808  0  0  0  0  0  0  0  0  0  0  0
   -0.0000   -1.5000    0.0000 N   0  0  0  0  0  7  0  0  0  0  0  0
  1  2  3  0
M  END
"""
"""RDKit's checks of it end in what RDKit itself takes for impossible."""

DIFLUORINE = """
  RDKit

  2  1  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.0000 F   0  0
    1.0000    0.0000    0.0000 F   0  0
  1  2  1  0
M  END
"""


@pytest.fixture(scope="session")
def ogb():
    """The functions of the Open Graph Benchmark that the features are defined by."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("ogb")
        from ogb.utils import features, mol
    return {
        "smiles2graph": mol.smiles2graph,
        "atom": features.atom_to_feature_vector,
        "bond": features.bond_to_feature_vector,
        "atom_counts": features.get_atom_feature_dims(),
        "bond_counts": features.get_bond_feature_dims(),
    }


@pytest.fixture(scope="session")
def nci_smiles():
    path = local_path("package://rdkit/Data/NCI/first_5K.smi")
    return [line.split()[0] for line in path.read_text().splitlines()]


def assert_is_graph_of_ogb(graph, expected):
    np.testing.assert_array_equal(graph.node_categories, expected["node_feat"])
    np.testing.assert_array_equal(np.stack([graph.edge_source, graph.edge_target]), expected["edge_index"])
    np.testing.assert_array_equal(graph.edge_categories, expected["edge_feat"])


def test_vocabularies_are_those_of_ogb(ogb):
    assert list(ATOM_CATEGORY_COUNTS) == ogb["atom_counts"]
    assert list(BOND_CATEGORY_COUNTS) == ogb["bond_counts"]


def test_a_chiral_molecule_has_the_features_that_ogb_documents():
    # The atom and the bond that the comments in ogb/utils/features.py work out.
    graphs, _ = graphs_from_smiles(["Cl[C@H](/C=C/C)Br"])
    assert graphs.node_categories[1].tolist() == [5, 2, 4, 5, 1, 0, 2, 0, 0]
    assert graphs.edge_categories[2 * 2].tolist() == [1, 2, 0]


def test_methanol_is_two_atoms_and_a_bond_listed_both_ways():
    graphs, rejected = graphs_from_smiles(["CO"])
    assert not rejected
    # Atomic number - 1, no chirality, total degree, charge + 5, hydrogens, no radical, sp3, not aromatic, not in a ring.
    assert graphs.node_categories.tolist() == [[5, 0, 4, 5, 3, 0, 2, 0, 0], [7, 0, 2, 5, 1, 0, 2, 0, 0]]
    assert list(zip(graphs.edge_source.tolist(), graphs.edge_target.tolist(), strict=True)) == [(0, 1), (1, 0)]
    assert graphs.edge_categories.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_real_molecules_are_the_graphs_of_smiles2graph(ogb, nci_smiles):
    from rdkit import Chem, rdBase

    graphs, rejected = graphs_from_smiles(nci_smiles)
    assert graphs.n_graphs == 4991
    assert len(rejected) == 8
    accepted = [smiles for index, smiles in enumerate(nci_smiles) if index not in rejected]
    with rdBase.BlockLogs():
        assert not any(Chem.MolFromSmiles(nci_smiles[index]) for index in rejected)
        for index, smiles in enumerate(accepted):
            assert_is_graph_of_ogb(graphs.slice(index, index + 1), ogb["smiles2graph"](smiles))


@pytest.fixture
def unknown_rdkit(monkeypatch):
    """An RDKit that writes molecules in bytes that are not known."""
    monkeypatch.setattr(molecules, "is_known_version", lambda _: False)
    molecules._rdkit.cache_clear()
    yield
    molecules._rdkit.cache_clear()


@pytest.mark.parametrize("has_known_bytes", [True, False])
@pytest.mark.parametrize("smiles", UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_molecule_is_the_graph_of_smiles2graph(ogb, smiles, has_known_bytes, request):
    if not has_known_bytes:
        request.getfixturevalue("unknown_rdkit")
    graphs, rejected = graphs_from_smiles([smiles])
    assert not rejected
    assert_is_graph_of_ogb(graphs, ogb["smiles2graph"](smiles))


@pytest.mark.usefixtures("unknown_rdkit")
def test_an_rdkit_whose_bytes_are_not_known_is_named_once(caplog):
    for _ in range(2):
        graphs_from_smiles(["CCO"])
    [record] = caplog.records
    assert record.getMessage().startswith(
        f"RDKit {molecules.rdkit_version()} writes molecules in a form that is not known"
    )


def test_a_molecule_that_rdkit_cannot_write_as_bytes_is_the_same_graph(monkeypatch, assert_same_batch):
    from rdkit import Chem

    def stop(_):
        raise RuntimeError("do not know how to pickle part of the query.")

    smiles = ["C/C=C/[C@H](N)O", "c1ccccc1"]
    expected, _ = graphs_from_smiles(smiles)
    monkeypatch.setattr(Chem.Mol, "ToBinary", stop)
    found, _ = graphs_from_smiles(smiles)
    assert_same_batch(found, expected)


def test_a_wildcard_is_an_atom_of_the_last_category():
    graphs, _ = graphs_from_smiles(["*C"])
    assert graphs.node_categories[:, 0].tolist() == [118, 5]


def test_the_stereo_of_atropisomers_counts_as_none():
    from rdkit import Chem

    # Two rings on a bond that cannot turn; ogb stops with an error here.
    flat = "Cc1cccc(I)c1-n1c(C)ccc1Br"
    coordinates = (
        "1.5,1.2,;0.75,0,;-0.75,0,;-1.5,-1.3,;-0.75,-2.6,;0.75,-2.6,;1.5,-3.9,;1.5,-1.3,;"
        "3,-1.3,;3.9,-0.1,;3.4,1.3,;5.3,-0.6,;5.3,-2.1,;3.9,-2.5,;3.4,-3.9,"
    )
    smiles = f"{flat} |({coordinates}),wU:7.6|"
    assert any(str(bond.GetStereo()) == "STEREOATROPCW" for bond in Chem.MolFromSmiles(smiles).GetBonds())
    graphs, _ = graphs_from_smiles([smiles, flat])
    assert (graphs.edge_categories[:, 1] == 0).all()
    np.testing.assert_array_equal(graphs.slice(0, 1).edge_categories, graphs.slice(1, 2).edge_categories)


def test_mol_blocks_have_the_features_that_ogb_gives_their_atoms_and_bonds(ogb):
    from rdkit import Chem

    text = local_path("package://rdkit/Data/NCI/first_200.props.sdf").read_text()
    blocks = text.split("$$$$\n")[:-1]
    # A bond of type 8, "any", has stereo of its own in the first of these.
    blocks.append(blocks[0].replace("  2  3  2  3", "  2  3  8  3"))
    graphs, rejected = graphs_from_mol_blocks(blocks)
    assert not rejected
    for index, block in enumerate(blocks):
        molecule, graph = Chem.MolFromMolBlock(block), graphs.slice(index, index + 1)
        assert graph.node_categories.tolist() == [ogb["atom"](atom) for atom in molecule.GetAtoms()]
        bonds = [ogb["bond"](bond) for bond in molecule.GetBonds()]
        assert graph.edge_categories.tolist() == [bond for bond in bonds for _ in range(2)]


def test_a_mol_block_may_have_windows_line_ends_and_any_title():
    from rdkit import Chem

    block = "Äthanol\n" + Chem.MolToMolBlock(Chem.MolFromSmiles("CCO")).split("\n", 1)[1]
    graphs, rejected = graphs_from_mol_blocks([block.replace("\n", "\r\n")])
    assert not rejected
    expected, _ = graphs_from_smiles(["CCO"])
    np.testing.assert_array_equal(graphs.node_categories, expected.node_categories)


@pytest.mark.parametrize(
    ("mol_block", "reason"),
    [
        ("", "RDKit cannot parse the mol block: it is no mol block"),
        ("title\n  program\n\nnot counts at all\nM  END\n", "RDKit cannot parse the mol block: it is no mol block"),
        ("\n  RDKit\n\n  0  0  0  0  0  0  0  0  0  0999 V2000\nM  END\n", "the mol block has no atoms"),
        (
            IMPOSSIBLE,
            "RDKit cannot parse the mol block: its checks fail",
        ),
        (
            DIFLUORINE.replace("  1  2  1  0", "  1  2  2  0"),
            "RDKit cannot parse the mol block: Explicit valence for atom # 0 F, 2, is greater than permitted",
        ),
    ],
)
def test_a_mol_block_that_is_none_is_rejected_with_the_reason(mol_block, reason):
    graphs, rejected = graphs_from_mol_blocks([mol_block])
    assert graphs.n_graphs == 0
    assert rejected == {0: reason}


@pytest.mark.parametrize(
    ("smiles", "kept"),
    [
        ("[Na+].CC(=O)[O-]", "CC(=O)[O-]"),
        ("CCO.CCN", "CCO"),
        ("O.OCC(=O)O.[Cl-].c1ccccc1C", "c1ccccc1C"),
        ("[H][H].C", "C"),
        ("N[C@@H](C)C(=O)O.Cl", "N[C@@H](C)C(=O)O"),
        ("CCO", "CCO"),
    ],
)
def test_the_largest_fragment_is_the_graph_of_that_fragment(smiles, kept, assert_same_batch):
    found, _ = graphs_from_smiles([smiles], largest_fragment=True)
    expected, _ = graphs_from_smiles([kept])
    assert_same_batch(found, expected)


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [
        ("", "the SMILES is empty"),
        (None, "the SMILES is empty"),
        (float("nan"), "the SMILES is nan, of type float; a string is needed"),
        (" \t", "the SMILES is empty"),
        ("|$R$|", "RDKit cannot parse the SMILES '|$R$|': it is no SMILES"),
        ("C1CC", "RDKit cannot parse the SMILES 'C1CC': it is no SMILES"),
        ("CC(", "RDKit cannot parse the SMILES 'CC(': it is no SMILES"),
        ("benzene", "RDKit cannot parse the SMILES 'benzene': it is no SMILES"),
        (
            "CN(C)(C)C",
            "RDKit cannot parse the SMILES 'CN(C)(C)C': Explicit valence for atom # 1 N, 4, is greater than permitted",
        ),
        ("c1cccc1", "RDKit cannot parse the SMILES 'c1cccc1': Can't kekulize mol.  Unkekulized atoms: 0 1 2 3 4"),
        ("CC\0C", "the SMILES 'CC\\x00C' contains '\\x00'; it may hold ASCII characters alone"),
        ("Cé", "the SMILES 'Cé' contains '\\xe9'; it may hold ASCII characters alone"),
        ("C\udcff", "the SMILES 'C\\udcff' contains '\\udcff'; it may hold ASCII characters alone"),
        ("C" * 200 + "(", f"RDKit cannot parse the SMILES '{'C' * 77}...': it is no SMILES"),
    ],
)
def test_a_text_that_is_no_molecule_is_rejected_with_the_reason(smiles, reason):
    graphs, rejected = graphs_from_smiles(["C", smiles, "O"])
    assert graphs.node_categories[:, 0].tolist() == [5, 7]
    assert rejected == {1: reason}


def test_rdkit_writes_nothing_to_the_terminal(capfd):
    graphs_from_smiles(["CN(C)(C)C", "C1CC", "[H]", "C.[H]"])
    graphs_from_mol_blocks(["nothing"])
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""


@pytest.mark.parametrize("read", [graphs_from_smiles, graphs_from_mol_blocks])
@pytest.mark.parametrize("text", ["CCO", b"CCO"])
def test_a_single_text_is_not_taken_for_a_molecule_a_letter(read, text):
    with pytest.raises(TypeError, match=r"(smiles|mol_blocks) is a single text; .*: put it in a list"):
        read(text)


def test_no_molecules_are_a_batch_of_no_graphs():
    graphs, rejected = graphs_from_smiles([])
    assert (graphs.n_graphs, graphs.n_nodes, graphs.n_edges, rejected) == (0, 0, 0, {})
    assert graphs.node_categories.shape == (0, 9)


@settings(max_examples=30)
@given(st.lists(st.sampled_from([*UNUSUAL.values(), "", "C1CC"]), max_size=6))
def test_molecules_do_not_depend_on_their_neighbours(texts):
    graphs, rejected = graphs_from_smiles(texts)
    kept = [index for index in range(len(texts)) if index not in rejected]
    for position, index in enumerate(kept):
        alone, _ = graphs_from_smiles([texts[index]])
        graph = graphs.slice(position, position + 1)
        np.testing.assert_array_equal(graph.node_categories, alone.node_categories)
        np.testing.assert_array_equal(graph.edge_categories, alone.edge_categories)
        np.testing.assert_array_equal(graph.edge_target, alone.edge_target)


@settings(max_examples=300)
@given(st.text(st.sampled_from("CNOcn[]()=#@+-123%./\\H|:*>$ é\0\n"), max_size=25))
def test_any_text_is_a_graph_or_rejected(text):
    graphs, rejected = graphs_from_smiles([text])
    assert graphs.n_graphs + len(rejected) == 1


def test_rdkit_is_imported_only_when_there_are_molecules():
    code = "import sys, wegl_dask.molecules; sys.exit('rdkit' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_rdkit_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    molecules._rdkit.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"rdkit is needed .* pip install 'wegl-dask\[molecules\]'"):
        graphs_from_smiles(["C"])


@pytest.mark.parametrize("smiles", ["CCO CCN", "CCCCCC\nCCCCCC", "CCO\tname", "C\rC"])
def test_smiles_with_white_space_in_them_are_rejected_and_not_cut_off(smiles):
    graphs, rejected = graphs_from_smiles([smiles, f" {smiles.split()[0]} "])
    assert graphs.n_graphs == 1
    assert "has white space in it, after which nothing would be read" in rejected[0]


def test_extensions_of_a_cxsmiles_may_follow_white_space():
    graphs, rejected = graphs_from_smiles(["C[C@H](O)F |o1:1|", "C[C@H](O)F |o1:1| a name"])
    assert graphs.node_counts.tolist() == [4, 4]
    assert rejected == {}
