import pytest

from wegl_dask.molecule_bytes import (
    Atom,
    Bond,
    Kinds,
    UnreadableError,
    is_known_version,
    read_atom,
    read_bond,
    read_parts,
)

pytest.importorskip("rdkit")


@pytest.fixture
def kinds():
    return Kinds(read_atom), Kinds(read_bond)


def bytes_of(smiles):
    from rdkit import Chem

    return Chem.MolFromSmiles(smiles).ToBinary()


def test_the_binary_form_of_the_installed_rdkit_is_known():
    # If a new RDKit fails here: compare its MolPickler.cpp, then add its version.
    assert is_known_version(bytes_of("C"))


def test_another_version_of_the_binary_form_is_not_known():
    data = bytes_of("C")
    assert data[8] == 16
    assert not is_known_version(data[:8] + b"\x11" + data[9:])
    assert not is_known_version(b"\0" + data[1:])


@pytest.mark.parametrize(
    ("data", "atom"),
    [
        # A carbon with three implicit hydrogens; its valence, 1, is not used.
        ("06 00 60000000 01 03", Atom(6, 0, 0, 3, 0, 4, False)),
        # An aromatic one, sp2, with one implicit hydrogen.
        ("06 40 68000000 03 03 01", Atom(6, 0, 0, 1, 0, 3, True)),
        # [15NH3+]: the isotope is last, and of four bytes.
        ("07 20 32010000 01 03 04 0f000000", Atom(7, 0, 1, 3, 0, 4, False)),
        # A charge of -1, clockwise, one hydrogen in brackets, two radical electrons.
        ("06 20 96000000 ff 01 01 02", Atom(6, 1, -1, 1, 2, 4, False)),
        # No implicit hydrogens, whatever their number.
        ("08 20 40000000 02", Atom(8, 0, 0, 0, 0, 4, False)),
    ],
)
def test_the_fields_of_an_atom_are_those_that_its_bits_name(data, atom):
    assert read_atom(bytes.fromhex(data)) == atom


@pytest.mark.parametrize(
    ("data", "bond"),
    [
        ("00", Bond(1, 0, False)),
        ("68 0c", Bond(12, 0, True)),
        ("04 03", Bond(1, 0, False)),
        ("2e 02 01 03", Bond(2, 3, True)),
    ],
)
def test_the_fields_of_a_bond_are_those_that_its_flags_name(data, bond):
    assert read_bond(bytes.fromhex(data)) == bond


def test_a_molecule_is_its_atoms_bonds_and_rings(kinds):
    atoms, bonds = kinds
    parts = read_parts(bytes_of("C1=CC1O"), atoms, bonds)
    assert [atoms.found[kind].hydrogens for kind in parts.atoms] == [1, 1, 1, 1]
    assert [bonds.found[kind].type for kind in parts.bonds] == [2, 1, 1, 1]
    assert parts.bonded == [0, 1, 1, 2, 2, 3, 2, 0]
    assert sorted(parts.in_rings) == [0, 1, 2]


def test_like_atoms_of_different_molecules_are_of_one_kind(kinds):
    first, second = (read_parts(bytes_of(smiles), *kinds) for smiles in ("CC", "OCC"))
    assert first.atoms == [0, 0]
    assert second.atoms[0] != second.atoms[2] == 0
    assert first.bonds == [0]
    assert second.bonds == [0, 0]


def test_bonds_after_one_with_stereo_are_read(kinds):
    atoms, bonds = kinds
    parts = read_parts(bytes_of("C/C=C/C#N"), atoms, bonds)
    assert parts.bonded == [0, 1, 1, 2, 2, 3, 3, 4]
    assert [bonds.found[kind].type for kind in parts.bonds] == [1, 2, 1, 3]
    assert [bonds.found[kind].stereo for kind in parts.bonds] == [0, 3, 0, 0]


@pytest.mark.parametrize(
    "smiles", ["[CH3:1]O", "*C", "C" * 256, "CC |$Q_e;$|"], ids=["map number", "label", "large", "query"]
)
def test_what_is_not_known_is_unreadable(kinds, smiles):
    with pytest.raises(UnreadableError):
        read_parts(bytes_of(smiles), *kinds)


def test_a_molecule_whose_rings_were_not_looked_for_is_unreadable(kinds):
    from rdkit import Chem

    with pytest.raises(UnreadableError):
        read_parts(Chem.MolFromSmiles("CC", sanitize=False).ToBinary(), *kinds)


def test_a_molecule_of_as_many_atoms_as_a_byte_counts_is_read(kinds):
    parts = read_parts(bytes_of("C" * 255), *kinds)
    assert len(parts.atoms) == 255
    assert parts.bonded[-2:] == [253, 254]
