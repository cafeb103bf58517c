"""What a result was made with: versions, host, commit and command line."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compilers import cpu_model, get_compiler
from experiments.evaluator import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

_DISTRIBUTIONS: Final = (
    "apache-tvm",
    "apache-tvm-ffi",
    "coremltools",
    "edgefrontier",
    "networkx",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnxruntime-qnn",
)


def environment(argv: list[str], backends: Sequence[str]) -> dict[str, Any]:
    """Describe this machine and process, JSON-ready."""
    return {
        "command": ["python", "-m", "experiments.pareto", *argv],
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        **settings(),
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "git_commit": _git_commit(),
        "versions": {name: _version(name) for name in _DISTRIBUTIONS},
        "compilers": {name: get_compiler(name).version() for name in backends},
    }


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    root = Path(__file__).resolve().parent.parent
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None  # not a checkout, or no git: the versions above still tell
