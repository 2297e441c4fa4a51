"""The atoms and bonds of a molecule out of RDKit's binary form of it, which one call makes.

A call for one number of one atom takes RDKit 0.25 us, and a molecule has some 300 of them; all of its binary form takes
20 us. Of the forms that RDKit writes, no other has the hybridisations. It is what molecules are pickled to
(``MolPickler.cpp`` of RDKit), and begins with its version; what is not known here is refused. In little-endian integers:

- `_MAGIC`, three integers of four bytes for the version, two for the numbers of atoms and of bonds, and a byte;
- the byte 1, and of each atom the element, flags, four bytes whose bits 1 to 8 say which of charge, chirality,
  hybridisation, hydrogens in brackets, valence, implicit hydrogens, radical electrons and isotope follow, and these: a
  byte each, but for the isotope four;
- the byte 11, and of each bond where it begins and ends, flags, those of type, direction and stereo that the flags name,
  and after the stereo the number of atoms that it refers to, and these: a byte each;
- a byte of `_RINGS`, the number of rings in four bytes, and of each its size and its atoms.
"""

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

_MAGIC = bytes.fromhex("efbeadde00000000")
_VERSIONS = {(16, minor, 0) for minor in (1, 2, 3, 4)}
"""RDKit 2024.3 to 2026.9; of what is read here, all of them say the same."""

_MOST_ATOMS = 255
"""In molecules of more, the indices of atoms are written as four bytes."""

_COUNTS = struct.Struct("<ii")
_COUNTS_AT, _ATOMS_AT = 20, 29
_BEGIN_ATOMS, _BEGIN_BONDS = 1, 11
_RINGS = (20, 66)
"""The smallest set of smallest rings, as it is and made symmetric."""

_AROMATIC, _NO_IMPLICIT = 1 << 6, 1 << 5
_ATOM_FIELDS = range(1, 8)
_ISOTOPE = 1 << 8
_SP3 = 4
_ATOM_BYTES = tuple(6 + (fields & 0xFE).bit_count() for fields in range(256))

_CONJUGATED, _TYPE, _DIRECTION, _STEREO = 1 << 5, 1 << 3, 1 << 2, 1 << 1
_SINGLE = 1
_BOND_BYTES = tuple(1 + (flags & (_TYPE | _DIRECTION | _STEREO)).bit_count() for flags in range(256))


class Atom(NamedTuple):
    """What RDKit says of an atom; its enumerations as numbers."""

    element: int
    chirality: int
    charge: int
    hydrogens: int
    radical_electrons: int
    hybridization: int
    is_aromatic: bool


class Bond(NamedTuple):
    """What RDKit says of a bond; its enumerations as numbers."""

    type: int
    stereo: int
    is_conjugated: bool


class Kinds(dict[Any, int]):
    """Numbers the different atoms, or bonds, of many molecules as they come.

    A key is an atom, or the bytes that stand for one. `found` holds the atom of each number, one may be there twice.
    """

    def __init__(self, read: Callable[[bytes], tuple[int, ...]]) -> None:
        super().__init__()
        self.found: list[tuple[int, ...]] = []
        self._read = read

    def __missing__(self, key: bytes | tuple[int, ...]) -> int:
        """Give the next number to one that was not seen yet."""
        self.found.append(self._read(key) if isinstance(key, bytes) else key)
        self[key] = len(self.found) - 1
        return self[key]


class Parts(NamedTuple):
    """A molecule: the kinds of its atoms and bonds, and which atoms are bonded and in rings."""

    atoms: list[int]
    bonds: list[int]
    bonded: list[int]
    """The two atoms of each bond."""
    in_rings: list[int]
    """The atoms of each ring."""


class UnreadableError(ValueError):
    """There is something in the binary form of a molecule that is not known here."""


def is_known_version(data: bytes) -> bool:
    """Say whether the layout of a molecule's binary form is the one known here."""
    return data.startswith(_MAGIC) and struct.unpack_from("<iii", data, len(_MAGIC)) in _VERSIONS


def read_parts(data: bytes, atom_kinds: Kinds, bond_kinds: Kinds) -> Parts:
    """Take the binary form of a molecule apart.

    Parameters
    ----------
    data : bytes
        Of a version that is known.
    atom_kinds, bond_kinds : Kinds
        With `read_atom` and `read_bond`.

    Raises
    ------
    UnreadableError
        If atoms or bonds have queries, labels or residues, the rings are not known, or there are more than 255 atoms.
    """
    n_atoms, n_bonds = _COUNTS.unpack_from(data, _COUNTS_AT)
    _require(n_atoms <= _MOST_ATOMS and data[_ATOMS_AT] == _BEGIN_ATOMS)
    position = _ATOMS_AT + 1
    atoms = []
    for _ in range(n_atoms):
        stop = position + _ATOM_BYTES[data[position + 2]] + 4 * data[position + 3]
        atoms.append(atom_kinds[data[position:stop]])
        position = stop

    _require(data[position] == _BEGIN_BONDS)
    position += 1
    bonds, bonded = [], []
    for _ in range(n_bonds):
        bonded.append(data[position])
        bonded.append(data[position + 1])
        position += 2
        flags = data[position]
        stop = position + _BOND_BYTES[flags]
        bonds.append(bond_kinds[data[position:stop]])
        position = stop + 1 + data[stop] if flags & _STEREO else stop

    _require(data[position] in _RINGS)
    n_rings = int.from_bytes(data[position + 1 : position + 5], "little")
    position += 5
    in_rings: list[int] = []
    for _ in range(n_rings):
        stop = position + 1 + data[position]
        in_rings += data[position + 1 : stop]
        position = stop
    return Parts(atoms, bonds, bonded, in_rings)


def read_atom(data: bytes) -> Atom:
    """Read the bytes of one atom."""
    element, flags = data[:2]
    fields = int.from_bytes(data[2:6], "little")
    _require(not flags & ~(_AROMATIC | _NO_IMPLICIT) and not fields & ~(0xFE | _ISOTOPE))
    following = iter(data[6:])
    defaults = (0, 0, _SP3, 0, 0, 0, 0)
    charge, chirality, hybridization, explicit, _, implicit, radical_electrons = (
        next(following) if fields & 1 << bit else default for bit, default in zip(_ATOM_FIELDS, defaults, strict=True)
    )
    return Atom(
        element=element,
        chirality=chirality,
        charge=charge - 256 if charge > 127 else charge,
        hydrogens=explicit + (0 if flags & _NO_IMPLICIT else implicit),
        radical_electrons=radical_electrons,
        hybridization=hybridization,
        is_aromatic=bool(flags & _AROMATIC),
    )


def read_bond(data: bytes) -> Bond:
    """Read the bytes of one bond, without its ends."""
    flags = data[0]
    _require(not flags & ~(_AROMATIC | _CONJUGATED | _TYPE | _DIRECTION | _STEREO))
    return Bond(
        type=data[1] if flags & _TYPE else _SINGLE,
        stereo=data[-1] if flags & _STEREO else 0,
        is_conjugated=bool(flags & _CONJUGATED),
    )


def _require(is_known: bool) -> None:
    if not is_known:
        raise UnreadableError
