"""Which machine an object file is for, from its ELF or COFF header. No TVM here."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# e_machine of the ELF specification (Hexagon is its EM_QDSP6), by the architecture of an LLVM triple.
MACHINES: Final[Mapping[str, int]] = MappingProxyType(
    {"i386": 3, "arm": 40, "x86_64": 62, "hexagon": 164, "aarch64": 183, "riscv64": 243}
)
# Machine of the PE format, with which an object file for Windows begins.
_COFF: Final[Mapping[int, str]] = MappingProxyType({0x8664: "x86_64", 0xAA64: "aarch64"})
_HEADER_BYTES: Final = 20
_BIG_ENDIAN: Final = 2


def machine_of(path: Path) -> str:
    """Return the architecture that a file is for; a description of what it is when it is none of `MACHINES`."""
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    coff = _COFF.get(int.from_bytes(header[:2], "little"))
    if coff and len(header) == _HEADER_BYTES:
        return coff
    if len(header) < _HEADER_BYTES or header[:4] != b"\x7fELF":
        return f"no ELF or COFF file (it begins with {header[:4].hex()})"
    machine = int.from_bytes(header[18:20], "big" if header[5] == _BIG_ENDIAN else "little")
    return next((name for name, code in MACHINES.items() if code == machine), f"ELF machine {machine}")
