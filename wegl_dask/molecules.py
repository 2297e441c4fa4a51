"""Molecules as graphs: the nine atom and three bond features of the Open Graph Benchmark, for a whole block at a time."""

import functools
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from wegl_dask.errors import MissingDependencyError
from wegl_dask.graphs import GraphBatch, GraphSchema, IntArray, offsets_from_counts

ATOM_CATEGORY_COUNTS = (119, 5, 12, 12, 10, 6, 6, 2, 2)
"""Sizes of the vocabularies of an atom: atomic number, chirality, total degree, formal charge, hydrogens, radical
electrons, hybridisation, aromatic, in a ring. Of the first seven the last category is "anything else"."""

BOND_CATEGORY_COUNTS = (5, 6, 2)
"""Sizes of the vocabularies of a bond: type (the last is "anything else"), stereo, conjugated."""

MOLECULE_SCHEMA = GraphSchema(node_category_counts=ATOM_CATEGORY_COUNTS, edge_category_counts=BOND_CATEGORY_COUNTS)

_SHOWN_CHARACTERS = 80


def graphs_from_smiles(smiles: Iterable[str], *, largest_fragment: bool = False) -> tuple[GraphBatch, dict[int, str]]:
    """Featurise molecules given as SMILES.

    Nodes, edges and features are those of ``ogb.utils.mol.smiles2graph`` under the same RDKit: atoms in the order of
    the SMILES, each bond as two edges next to one another, hydrogens as a feature of their atom. The stereo of
    atropisomers, for which OGB has no category, counts as none.

    Parameters
    ----------
    smiles : iterable of str
        Read once; one molecule at a time is alive.
    largest_fragment : bool, default False
        Keep of every molecule the fragment with the most heavy atoms, the first of several, and drop the rest.

    Returns
    -------
    graphs : GraphBatch
        The molecules that RDKit accepts, in order; schema `MOLECULE_SCHEMA`.
    rejected : dict of int to str
        Index in `smiles` to the reason, for all others.

    Raises
    ------
    MissingDependencyError
        If RDKit is not installed.

    Examples
    --------
    >>> graphs, rejected = graphs_from_smiles(["CO", "C1CC"])
    >>> graphs.node_categories[:, 0].tolist()  # carbon, oxygen
    [5, 7]
    >>> rejected
    {1: "RDKit cannot parse the SMILES 'C1CC': it is no SMILES"}
    """
    return _featurise(map(_parse_smiles, smiles), largest_fragment=largest_fragment)


def graphs_from_mol_blocks(
    mol_blocks: Iterable[str], *, largest_fragment: bool = False
) -> tuple[GraphBatch, dict[int, str]]:
    """Featurise molecules given as MDL mol blocks (V2000 or V3000); see `graphs_from_smiles`.

    Hydrogens that the block lists become a feature of their atom. Stereo is read as RDKit reads a mol block.

    Examples
    --------
    >>> from rdkit import Chem
    >>> graphs, rejected = graphs_from_mol_blocks([Chem.MolToMolBlock(Chem.MolFromSmiles("CCO"))])
    >>> graphs.n_nodes, rejected
    (3, {})
    """
    return _featurise(map(_parse_mol_block, mol_blocks), largest_fragment=largest_fragment)


def require_rdkit() -> None:
    """Raise `MissingDependencyError` if RDKit is not installed.

    Examples
    --------
    >>> require_rdkit()  # it is here
    """
    _rdkit()


def rdkit_version() -> str | None:
    """Return the version of RDKit, by which molecules may be read differently; None where it is not installed.

    Examples
    --------
    >>> rdkit_version() is not None
    True
    """
    try:
        from rdkit.rdBase import rdkitVersion  # noqa: PLC0415
    except ImportError:
        return None
    return str(rdkitVersion)


def _featurise(parsed: Iterator["_Molecule | str"], *, largest_fragment: bool) -> tuple[GraphBatch, dict[int, str]]:
    """Build the batch from molecules, or the reason where there is none."""
    columns = _Columns(_rdkit())
    rejected: dict[int, str] = {}
    with _rdkit().BlockLogs():
        for index, item in enumerate(parsed):
            if isinstance(item, str):
                rejected[index] = item
                continue
            molecule, has_stereo = item
            columns.append(_largest_fragment(molecule) if largest_fragment else molecule, has_stereo=has_stereo)
    return columns.to_batch(), rejected


class _Molecule(NamedTuple):
    """RDKit's molecule, and whether its text may say anything about stereo."""

    molecule: Any
    has_stereo: bool


class _Columns:
    """The features of molecules, column by column, as RDKit gives them.

    RDKit has no bulk access to atoms, so the cost is its Python calls: 0.2 us a number, 0.6 us an enumeration or a
    wrapper of an atom. Hence `map` over its C functions, no call for what other columns say (the degree) or what is
    nearly always the same (chirality, radicals, stereo), and wrappers that die with their molecule.
    """

    def __init__(self, rdkit: "_RDKit") -> None:
        self._rdkit = rdkit
        atom, bond = rdkit.Chem.Atom, rdkit.Chem.Bond
        self._atom_counts = array("q")
        self._bond_counts = array("q")
        self._n_atoms = self._n_bonds = 0
        self._elements, self._charges, self._hydrogens = array("h"), array("h"), array("h")
        self._hybridizations, self._aromatic, self._in_ring = array("h"), array("h"), array("h")
        self._chirality: dict[int, int] = {}
        self._radicals: dict[int, int] = {}
        self._begins, self._ends = array("i"), array("i")
        self._bond_types, self._conjugated = array("h"), array("h")
        self._stereo: dict[int, int] = {}
        self._of_atoms = (
            (self._elements.extend, atom.GetAtomicNum),
            (self._charges.extend, atom.GetFormalCharge),
            (self._hydrogens.extend, atom.GetTotalNumHs),
            (self._hybridizations.extend, atom.GetHybridization),
            (self._aromatic.extend, atom.GetIsAromatic),
            (self._in_ring.extend, atom.IsInRing),
        )
        self._of_bonds = (
            (self._begins.extend, bond.GetBeginAtomIdx),
            (self._ends.extend, bond.GetEndAtomIdx),
            (self._bond_types.extend, bond.GetBondType),
            (self._conjugated.extend, bond.GetIsConjugated),
        )

    def append(self, molecule: Any, *, has_stereo: bool) -> None:
        """Read the features of one more molecule."""
        n_atoms, n_bonds = molecule.GetNumAtoms(), molecule.GetNumBonds()
        # By index: the iterators of RDKit end in a C++ exception, which costs as much as ten atoms.
        atoms = list(map(molecule.GetAtomWithIdx, range(n_atoms)))
        for extend, getter in self._of_atoms:
            extend(map(getter, atoms))
        for atom in _matching(molecule, self._rdkit.is_radical):
            self._radicals[self._n_atoms + atom.GetIdx()] = atom.GetNumRadicalElectrons()
        bonds = list(map(molecule.GetBondWithIdx, range(n_bonds)))
        for extend, getter in self._of_bonds:
            extend(map(getter, bonds))
        if has_stereo:
            for atom in _matching(molecule, self._rdkit.is_chiral):
                self._chirality[self._n_atoms + atom.GetIdx()] = atom.GetChiralTag()
            for index, stereo in enumerate(map(self._rdkit.Chem.Bond.GetStereo, bonds), self._n_bonds):
                if stereo:
                    self._stereo[index] = stereo
        self._atom_counts.append(n_atoms)
        self._bond_counts.append(n_bonds)
        self._n_atoms += n_atoms
        self._n_bonds += n_bonds

    def to_batch(self) -> GraphBatch:
        """Translate RDKit's values into categories."""
        rdkit = self._rdkit
        node_offsets = offsets_from_counts(np.asarray(self._atom_counts))
        bond_counts = np.asarray(self._bond_counts)
        begins, ends = np.asarray(self._begins), np.asarray(self._ends)
        first_atom = np.repeat(node_offsets[:-1], bond_counts)
        hydrogens = np.asarray(self._hydrogens)
        degrees = hydrogens + np.bincount(
            np.concatenate([begins + first_atom, ends + first_atom]), minlength=self._n_atoms
        )
        atom_columns = np.zeros((self._n_atoms, len(ATOM_CATEGORY_COUNTS)), dtype=np.int16)
        atom_columns[:, 0] = _category(np.asarray(self._elements), 1, 118)
        atom_columns[list(self._chirality), 1] = rdkit.chirality[list(self._chirality.values())]
        atom_columns[:, 2] = _category(degrees, 0, 10)
        atom_columns[:, 3] = _category(np.asarray(self._charges), -5, 5)
        atom_columns[:, 4] = _category(hydrogens, 0, 8)
        atom_columns[list(self._radicals), 5] = np.minimum(list(self._radicals.values()), 5)
        atom_columns[:, 6] = rdkit.hybridization[np.asarray(self._hybridizations)]
        atom_columns[:, 7] = self._aromatic
        atom_columns[:, 8] = self._in_ring
        bond_columns = np.zeros((self._n_bonds, len(BOND_CATEGORY_COUNTS)), dtype=np.int16)
        bond_columns[:, 0] = rdkit.bond_type[np.asarray(self._bond_types)]
        bond_columns[list(self._stereo), 1] = rdkit.bond_stereo[list(self._stereo.values())]
        bond_columns[:, 2] = self._conjugated
        return GraphBatch(
            schema=MOLECULE_SCHEMA,
            node_offsets=node_offsets,
            edge_offsets=offsets_from_counts(2 * bond_counts),
            edge_source=np.stack([begins, ends], axis=1).ravel(),
            edge_target=np.stack([ends, begins], axis=1).ravel(),
            node_categories=atom_columns,
            node_attributes=np.empty((self._n_atoms, 0), dtype=np.float32),
            edge_categories=np.repeat(bond_columns, 2, axis=0),
            edge_attributes=np.empty((2 * self._n_bonds, 0), dtype=np.float32),
        )


def _category(values: IntArray, lowest: int, highest: int) -> IntArray:
    """Translate the values from `lowest` to `highest` into 0, 1, ...; all others get the number after the last."""
    inside = (values >= lowest) & (values <= highest)
    return np.where(inside, values - lowest, highest - lowest + 1)


def _matching(molecule: Any, query: Any) -> list[Any]:
    """Atoms of a molecule that match an RDKit query."""
    matches = molecule.GetAtomsMatchingQuery(query)
    return [matches[i] for i in range(len(matches))]


def _largest_fragment(molecule: Any) -> Any:
    """Take the fragment with the most heavy atoms, the first of several."""
    chem = _rdkit().Chem
    if len(chem.GetMolFrags(molecule)) == 1:
        return molecule
    # Sanitised already, as a part of the molecule.
    fragments = chem.GetMolFrags(molecule, asMols=True, sanitizeFrags=False)
    return max(fragments, key=chem.Mol.GetNumHeavyAtoms)


def _parse_smiles(smiles: str) -> _Molecule | str:
    """Return the molecule, or the reason why there is none."""
    chem = _rdkit().Chem
    if not smiles or smiles.isspace():
        return "the SMILES is empty"
    # RDKit ends the text silently at a byte of zero or above 127, and parses what stands before it.
    if not smiles.isascii() or "\0" in smiles:
        found = next(character for character in smiles if character == "\0" or not character.isascii())
        return f"the SMILES {_shown(smiles)} contains {found!a}; it may hold ASCII characters alone"
    molecule = _made(chem.MolFromSmiles, smiles)
    if molecule is None:
        unchecked = _made(chem.MolFromSmiles, smiles, sanitize=False)
        problem = "it is no SMILES" if unchecked is None else _first_problem(unchecked)
        return f"RDKit cannot parse the SMILES {_shown(smiles)}: {problem}"
    if not molecule.GetNumAtoms():
        return f"the SMILES {_shown(smiles)} has no atoms"
    return _Molecule(molecule, has_stereo=any(mark in smiles for mark in "@/\\|"))


def _parse_mol_block(mol_block: str) -> _Molecule | str:
    """Return the molecule, or the reason why there is none."""
    chem = _rdkit().Chem
    if not mol_block.isascii():
        # The header lines may be in any encoding; the rest of a mol block is ASCII.
        mol_block = mol_block.encode("ascii", errors="replace").decode("ascii")
    molecule = _made(chem.MolFromMolBlock, mol_block)
    if molecule is None:
        unchecked = _made(chem.MolFromMolBlock, mol_block, sanitize=False)
        problem = "it is no mol block" if unchecked is None else _first_problem(unchecked)
        return f"RDKit cannot parse the mol block: {problem}"
    return _Molecule(molecule, has_stereo=True) if molecule.GetNumAtoms() else "the mol block has no atoms"


def _made(read: Callable[..., Any], text: str, **options: Any) -> Any:
    """Let RDKit read a molecule; None also where it runs into something that it takes for impossible."""
    try:
        return read(text, **options)
    except RuntimeError:
        return None


def _first_problem(unchecked: Any) -> str:
    """Say what RDKit's checks hold against a molecule that was parsed without them."""
    try:
        problems = _rdkit().Chem.DetectChemistryProblems(unchecked)
    # RDKit's checks rely on one another, and fail where the first of them has stopped half way.
    except RuntimeError:
        problems = ()
    return problems[0].Message() if problems else "its checks fail"


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 3]}...")


@dataclass(frozen=True)
class _RDKit:
    """RDKit's modules, and its enumerations as tables from value to category."""

    Chem: Any
    BlockLogs: Any
    is_chiral: Any
    is_radical: Any
    chirality: IntArray
    hybridization: IntArray
    bond_type: IntArray
    bond_stereo: IntArray


@functools.cache
def _rdkit() -> _RDKit:
    try:
        from rdkit import Chem  # noqa: PLC0415
        from rdkit.Chem import rdqueries  # noqa: PLC0415
        from rdkit.rdBase import BlockLogs  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependencyError.for_extra("rdkit", "molecules") from error

    def table(values: dict[int, Any], names: tuple[str, ...], other: int) -> IntArray:
        result = np.full(max(values) + 1, other, dtype=np.int16)
        for value, member in values.items():
            if member.name in names:
                result[value] = names.index(member.name)
        return result

    return _RDKit(
        Chem=Chem,
        BlockLogs=BlockLogs,
        is_chiral=rdqueries.HasChiralTagQueryAtom(),
        is_radical=rdqueries.NumRadicalElectronsGreaterQueryAtom(0),
        chirality=table(
            Chem.ChiralType.values,
            ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER"),
            4,
        ),
        hybridization=table(Chem.HybridizationType.values, ("SP", "SP2", "SP3", "SP3D", "SP3D2"), 5),
        bond_type=table(Chem.BondType.values, ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC"), 4),
        # OGB has no category for the stereo of atropisomers.
        bond_stereo=table(
            Chem.BondStereo.values,
            ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY"),
            0,
        ),
    )
