"""What this machine is, as far as code that is made and times that are taken here depend on it."""

from __future__ import annotations

import functools
import hashlib
import platform
import subprocess
import sys
from pathlib import Path
from typing import Final

CPUINFO: Final = Path("/proc/cpuinfo")
_KIND: Final = ("vendor_id", "cpu family", "model", "flags", "CPU implementer", "CPU part", "CPU variant", "Features")


def cpu_model() -> str:
    """Return what the CPU is called, or the numbers of its maker and kind where it has no name (aarch64 Linux)."""
    if sys.platform == "darwin":
        asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    facts = _facts()
    numbers = " ".join(facts[key] for key in ("CPU implementer", "CPU part") if key in facts)
    return facts.get("model name") or numbers or platform.processor() or platform.machine()


def cpu() -> str:
    """Tell this CPU from others: its name, and a hash of its kind and the instructions that a hypervisor leaves it."""
    kind = "\n".join(_facts().get(key, "") for key in _KIND)
    return f"{cpu_model()} {hashlib.sha256(kind.encode()).hexdigest()[:8]}"


@functools.cache
def _facts() -> dict[str, str]:
    """Read what Linux says of the first core; elsewhere nothing does."""
    if not CPUINFO.exists():
        return {}
    first = CPUINFO.read_text(encoding="utf-8").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): text.strip() for key, _, text in pairs}
