"""The onnxruntime-qnn wheel: is it here, can it work on this machine, which libraries does it hold."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from typing import TYPE_CHECKING, Final

from compilers.adapter import (
    CompilerError,
    distribution_version,
    library_hash,
    missing_package,
    not_over_rpc,
    package_dir,
)

if TYPE_CHECKING:
    from pathlib import Path

    from partition import Device

PACKAGE: Final = "onnxruntime_qnn"
DISTRIBUTION: Final = "onnxruntime-qnn"
PROVIDER: Final = "QNNExecutionProvider"

PLUGIN: Final = "libonnxruntime_providers_qnn.so"
HTP_LIBRARY: Final = "libQnnHtp.so"
SYSTEM_LIBRARY: Final = "libQnnSystem.so"
IR_LIBRARY: Final = "libQnnIr.so"


def why_not_here(*libraries: str) -> str | None:
    """Return None when the wheel, with the named libraries, can work on this machine, else why not."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return (
            f"Qualcomm's offline HTP compiler comes for Linux x86-64 only, and this is {sys.platform} "
            f"{platform.machine()}; compile on a Linux x86-64 machine or container"
        )
    return (
        missing_package("onnxruntime", "onnxruntime")
        or missing_package(PACKAGE, DISTRIBUTION)
        or _missing_library(*libraries)
        or _glibc_too_old()
    )


def library(name: str) -> Path:
    """Return the path of a library of the wheel.

    Raises:
        CompilerError: the wheel does not hold it.
    """
    folder = package_dir(PACKAGE)
    if folder is None or not (folder / name).exists():
        raise CompilerError(_missing_library(name) or f"{DISTRIBUTION} is not installed")
    return folder / name


def version() -> str:
    """Return the versions of both packages and a hash of the plug-in, the HTP compiler and the DLC writer."""
    folder = package_dir(PACKAGE)
    names = (PLUGIN, HTP_LIBRARY, SYSTEM_LIBRARY, IR_LIBRARY)
    digest = library_hash(*(folder / name for name in names)) if folder else "absent"
    return f"onnxruntime-{distribution_version('onnxruntime')}+qnn-{distribution_version(DISTRIBUTION)}+{digest}"


def why_not_chip(device: Device, processor: str, backend: str) -> str | None:
    """Return None when the processor is an NPU that the compiler knows by a `soc_model`, else why not."""
    chosen = next((p for p in device.processors if p.name == processor), None)
    if chosen is None:
        have = ", ".join(p.name for p in device.processors)
        return f"{device.name} has no processor {processor}; it has {have}"
    if chosen.kind != "npu":
        return f"{backend} compiles for the Hexagon NPU, and {processor} of {device.name} is a {chosen.kind}"
    if device.address is not None:
        return not_over_rpc(device, backend)
    if "soc_model" not in chosen.ids.get("qnn", {}):
        return (
            f"{device.name} is no Qualcomm chip as far as its device file says; for one, put its soc_model "
            f"under processors.{processor}.ids.qnn"
        )
    return None


def why_not_simulated(device: Device, processor: str) -> str | None:
    """Return None when the compiler holds a simulator of the chip, as the device file says, else why not."""
    ids = device.processor(processor).ids["qnn"]
    if ids.get("simulated") == "true":
        return None
    return (
        f"Qualcomm's compiler holds no simulator of {device.name} (soc_model {ids['soc_model']}); it has one "
        "of SA8255P, QCS9075, SA8797 and SA8540 (soc_model 52, 77, 72, 62)"
    )


def _missing_library(*names: str) -> str | None:
    folder = package_dir(PACKAGE)
    missing = [name for name in names if folder is not None and not (folder / name).exists()]
    if not missing:
        return None
    return (
        f"{DISTRIBUTION} {distribution_version(DISTRIBUTION)} lacks {', '.join(missing)} "
        f"(looked in {folder}); run `pip install --force-reinstall {DISTRIBUTION}`"
    )


def _glibc_too_old() -> str | None:
    needed, have = _glibc_needed(), platform.libc_ver()
    if needed is None:
        return None
    if have[0] != "glibc":
        other = have[0] or "another C library"
        return f"{DISTRIBUTION} needs glibc {_dotted(needed)}, and this system has {other}"
    if _numbers(have[1]) < needed:
        return (
            f"{DISTRIBUTION} needs glibc {_dotted(needed)}, and this system has {have[1]}; "
            "use a newer distribution (Debian 12, Ubuntu 22.04) or a container of one"
        )
    return None


def _glibc_needed() -> tuple[int, ...] | None:
    """Read the lowest glibc that the wheel was built for from its own tag (manylinux_2_35_x86_64)."""
    try:
        tags = importlib.metadata.distribution(DISTRIBUTION).read_text("WHEEL") or ""
    except importlib.metadata.PackageNotFoundError:
        return None
    found = re.findall(r"manylinux_(\d+)_(\d+)_x86_64", tags)
    return min(((int(a), int(b)) for a, b in found), default=None)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
