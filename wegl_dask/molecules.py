"""Molecules as graphs: the nine atom and three bond features of the Open Graph Benchmark, for a whole block at a time."""

import functools
import logging
from array import array
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from wegl_dask.errors import MissingDependencyError
from wegl_dask.graphs import GraphBatch, GraphSchema, IntArray, offsets_from_counts
from wegl_dask.molecule_bytes import (
    Atom,
    Bond,
    Kinds,
    Parts,
    UnreadableError,
    is_known_version,
    read_atom,
    read_bond,
    read_parts,
)

_log = logging.getLogger(__name__)

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
    TypeError
        If `smiles` is a single text.

    Examples
    --------
    >>> graphs, rejected = graphs_from_smiles(["CO", "C1CC"])
    >>> graphs.node_categories[:, 0].tolist()  # carbon, oxygen
    [5, 7]
    >>> rejected
    {1: "RDKit cannot parse the SMILES 'C1CC': it is no SMILES"}
    """
    _refuse_single("smiles", smiles)
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
    _refuse_single("mol_blocks", mol_blocks)
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


def _refuse_single(name: str, texts: Any) -> None:
    """Refuse one text, whose letters would be read as a molecule each."""
    if isinstance(texts, str | bytes):
        raise TypeError(f"{name} is a single text; a list of texts is needed, one a molecule: put it in a list, [...]")


def _featurise(parsed: Iterable[Any], *, largest_fragment: bool) -> tuple[GraphBatch, dict[int, str]]:
    """Build the batch from RDKit's molecules, or the reason where there is none."""
    columns = _Columns(_rdkit())
    rejected: dict[int, str] = {}
    with _rdkit().BlockLogs():
        for index, molecule in enumerate(parsed):
            if isinstance(molecule, str):
                rejected[index] = molecule
            else:
                columns.append(_largest_fragment(molecule) if largest_fragment else molecule)
    return columns.to_batch(), rejected


class _Columns:
    """What RDKit says of molecules, column by column; atoms and bonds as numbers of their kinds."""

    def __init__(self, rdkit: "_RDKit") -> None:
        self._rdkit = rdkit
        self._atom_kinds, self._bond_kinds = Kinds(read_atom), Kinds(read_bond)
        self._atom_counts, self._bond_counts, self._ring_counts = array("q"), array("q"), array("q")
        self._atoms, self._bonds, self._bonded, self._in_rings = array("i"), array("i"), array("i"), array("i")

    def append(self, molecule: Any) -> None:
        """Read one more molecule."""
        atoms, bonds, bonded, in_rings = self._parts(molecule)
        self._atom_counts.append(len(atoms))
        self._bond_counts.append(len(bonds))
        self._ring_counts.append(len(in_rings))
        # Twice as fast as `extend`.
        self._atoms.fromlist(atoms)
        self._bonds.fromlist(bonds)
        self._bonded.fromlist(bonded)
        self._in_rings.fromlist(in_rings)

    def _parts(self, molecule: Any) -> Parts:
        if self._rdkit.has_known_bytes:
            # RDKit may have a query that it cannot write.
            with suppress(UnreadableError, RuntimeError):
                return read_parts(molecule.ToBinary(), self._atom_kinds, self._bond_kinds)
        return _ask(molecule, self._atom_kinds, self._bond_kinds)

    def to_batch(self) -> GraphBatch:
        """Translate RDKit's values into categories."""
        node_offsets = offsets_from_counts(np.asarray(self._atom_counts))
        bond_counts = np.asarray(self._bond_counts)
        bonded = np.asarray(self._bonded).reshape(-1, 2)
        first_atoms = np.repeat(node_offsets[:-1], bond_counts)
        n_bonded = np.bincount((bonded + first_atoms[:, None]).ravel(), minlength=len(self._atoms))
        in_rings = self._in_rings + np.repeat(node_offsets[:-1], self._ring_counts)
        atoms = self._atom_columns(n_bonded, in_rings)
        bonds = self._bond_columns()
        return GraphBatch(
            schema=MOLECULE_SCHEMA,
            node_offsets=node_offsets,
            edge_offsets=offsets_from_counts(2 * bond_counts),
            edge_source=bonded.ravel(),
            edge_target=bonded[:, ::-1].ravel(),
            node_categories=atoms,
            node_attributes=np.empty((len(atoms), 0), dtype=np.float32),
            edge_categories=np.repeat(bonds, 2, axis=0),
            edge_attributes=np.empty((2 * len(bonds), 0), dtype=np.float32),
        )

    def _atom_columns(self, n_bonded: IntArray, in_rings: IntArray) -> IntArray:
        """Categories of the atoms, by how many others each is bonded to and which are in rings."""
        kinds = np.array(self._atom_kinds.found, dtype=np.int64).reshape(-1, len(Atom._fields))
        element, chirality, charge, hydrogens, radical_electrons, hybridization, is_aromatic = kinds.T
        categories = np.zeros((len(kinds), len(ATOM_CATEGORY_COUNTS)), dtype=np.int16)
        categories[:, 0] = _category(element, 1, 118)
        categories[:, 1] = self._rdkit.chirality[chirality]
        categories[:, 3] = _category(charge, -5, 5)
        categories[:, 4] = _category(hydrogens, 0, 8)
        categories[:, 5] = np.minimum(radical_electrons, 5)
        categories[:, 6] = self._rdkit.hybridization[hybridization]
        categories[:, 7] = is_aromatic
        atoms = np.asarray(self._atoms)
        columns: IntArray = categories[atoms]
        columns[:, 2] = _category(n_bonded + hydrogens[atoms], 0, 10)
        columns[in_rings, 8] = 1
        return columns

    def _bond_columns(self) -> IntArray:
        """Categories of the bonds."""
        kinds = np.array(self._bond_kinds.found, dtype=np.int64).reshape(-1, len(Bond._fields))
        bond_type, stereo, is_conjugated = kinds.T
        categories = np.empty((len(kinds), len(BOND_CATEGORY_COUNTS)), dtype=np.int16)
        categories[:, 0] = self._rdkit.bond_type[bond_type]
        categories[:, 1] = self._rdkit.bond_stereo[stereo]
        categories[:, 2] = is_conjugated
        columns: IntArray = categories[np.asarray(self._bonds)]
        return columns


def _ask(molecule: Any, atom_kinds: Kinds, bond_kinds: Kinds) -> Parts:
    """Ask RDKit for one number after the other, which takes seven times as long as its binary form."""
    atoms, bonds = list(molecule.GetAtoms()), list(molecule.GetBonds())
    return Parts(
        atoms=[
            atom_kinds[
                Atom(
                    element=atom.GetAtomicNum(),
                    chirality=int(atom.GetChiralTag()),
                    charge=atom.GetFormalCharge(),
                    hydrogens=atom.GetTotalNumHs(),
                    radical_electrons=atom.GetNumRadicalElectrons(),
                    hybridization=int(atom.GetHybridization()),
                    is_aromatic=atom.GetIsAromatic(),
                )
            ]
            for atom in atoms
        ],
        bonds=[
            bond_kinds[
                Bond(type=int(bond.GetBondType()), stereo=int(bond.GetStereo()), is_conjugated=bond.GetIsConjugated())
            ]
            for bond in bonds
        ],
        bonded=[atom for bond in bonds for atom in (bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())],
        in_rings=[atom.GetIdx() for atom in atoms if atom.IsInRing()],
    )


def _category(values: IntArray, lowest: int, highest: int) -> IntArray:
    """Translate the values from `lowest` to `highest` into 0, 1, ...; all others get the number after the last."""
    inside = (values >= lowest) & (values <= highest)
    return np.where(inside, values - lowest, highest - lowest + 1)


def _largest_fragment(molecule: Any) -> Any:
    """Take the fragment with the most heavy atoms, the first of several."""
    chem = _rdkit().Chem
    if len(chem.GetMolFrags(molecule)) == 1:
        return molecule
    # Sanitised already, as a part of the molecule.
    fragments = chem.GetMolFrags(molecule, asMols=True, sanitizeFrags=False)
    fragment = max(fragments, key=chem.Mol.GetNumHeavyAtoms)
    chem.GetSSSR(fragment)
    return fragment


def _parse_smiles(smiles: Any) -> Any:
    """Return RDKit's molecule, or the reason why there is none."""
    chem = _rdkit().Chem
    if smiles is None or (isinstance(smiles, str) and not smiles.strip()):
        return "the SMILES is empty"
    # As pandas has for nothing, which is NaN.
    if not isinstance(smiles, str):
        return f"the SMILES is {smiles!r}, of type {type(smiles).__name__}; a string is needed"
    # RDKit ends the text silently at a byte of zero or above 127, and parses what stands before it.
    if not smiles.isascii() or "\0" in smiles:
        found = next(character for character in smiles if character == "\0" or not character.isascii())
        return f"the SMILES {_shown(smiles)} contains {found!a}; it may hold ASCII characters alone"
    # RDKit takes what follows white space for a name, unless it is the extensions of a CXSMILES.
    if any(not rest.startswith("|") for rest in smiles.split(maxsplit=1)[1:]):
        return f"the SMILES {_shown(smiles)} has white space in it, after which nothing would be read"
    molecule = _made(chem.MolFromSmiles, smiles)
    if molecule is None:
        unchecked = _made(chem.MolFromSmiles, smiles, sanitize=False)
        problem = "it is no SMILES" if unchecked is None else _first_problem(unchecked)
        return f"RDKit cannot parse the SMILES {_shown(smiles)}: {problem}"
    if not molecule.GetNumAtoms():
        return f"the SMILES {_shown(smiles)} has no atoms"
    return molecule


def _parse_mol_block(mol_block: str) -> Any:
    """Return RDKit's molecule, or the reason why there is none."""
    chem = _rdkit().Chem
    if not mol_block.isascii():
        # The header lines may be in any encoding; the rest of a mol block is ASCII.
        mol_block = mol_block.encode("ascii", errors="replace").decode("ascii")
    molecule = _made(chem.MolFromMolBlock, mol_block)
    if molecule is None:
        unchecked = _made(chem.MolFromMolBlock, mol_block, sanitize=False)
        problem = "it is no mol block" if unchecked is None else _first_problem(unchecked)
        return f"RDKit cannot parse the mol block: {problem}"
    return molecule if molecule.GetNumAtoms() else "the mol block has no atoms"


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
    has_known_bytes: bool
    chirality: IntArray
    hybridization: IntArray
    bond_type: IntArray
    bond_stereo: IntArray


@functools.cache
def _rdkit() -> _RDKit:
    try:
        from rdkit import Chem  # noqa: PLC0415
        from rdkit.rdBase import BlockLogs  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependencyError.for_extra("rdkit", "molecules") from error
    has_known_bytes = is_known_version(Chem.Mol().ToBinary())
    if not has_known_bytes:
        _log.warning(
            "RDKit %s writes molecules in a form that is not known here: atoms are asked for one by one, which takes twice "
            "as long",
            rdkit_version(),
        )

    def table(values: dict[int, Any], names: tuple[str, ...], other: int) -> IntArray:
        result = np.full(max(values) + 1, other, dtype=np.int16)
        for value, member in values.items():
            if member.name in names:
                result[value] = names.index(member.name)
        return result

    return _RDKit(
        Chem=Chem,
        BlockLogs=BlockLogs,
        has_known_bytes=has_known_bytes,
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
