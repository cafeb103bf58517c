"""What the Qualcomm adapters say about a machine that lacks something, without importing the wheel."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from compilers.qnn import wheel


@pytest.fixture
def linux_with_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Linux x86-64 machine whose wheel is a folder without libraries."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(wheel, "missing_package", lambda *_: None)
    monkeypatch.setattr(wheel, "package_dir", lambda _: tmp_path)
    monkeypatch.setattr(wheel, "_glibc_needed", lambda: (2, 35))
    return tmp_path


def test_a_complete_machine_lacks_nothing(linux_with_wheel: Path) -> None:
    (linux_with_wheel / wheel.IR_LIBRARY).touch()
    assert wheel.why_not_here(wheel.IR_LIBRARY) is None


def test_a_wheel_without_the_ir_library_is_named(linux_with_wheel: Path) -> None:
    reason = wheel.why_not_here(wheel.IR_LIBRARY)
    assert reason is not None
    assert wheel.IR_LIBRARY in reason
    assert str(linux_with_wheel) in reason


@pytest.mark.usefixtures("linux_with_wheel")
@pytest.mark.parametrize(
    ("libc", "named"), [(("glibc", "2.31"), "2.35, and this system has 2.31"), (("", ""), "another C")]
)
def test_an_old_c_library_is_named(monkeypatch: pytest.MonkeyPatch, libc: tuple[str, str], named: str) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: libc)
    assert named in (wheel.why_not_here() or "")


@pytest.mark.usefixtures("linux_with_wheel")
def test_another_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "aarch64" in (wheel.why_not_here() or "")


def test_asking_imports_no_vendor_code() -> None:
    script = (
        "import sys\n"
        "from compilers import Action, get_compiler\n"
        "from partition import device_names, load_device\n"
        "for name in ('ort_cpu', 'ort_qnn', 'snpe'):\n"
        "    backend = get_compiler(name)\n"
        "    backend.version()\n"
        "    for device in map(load_device, device_names()):\n"
        "        for processor in device.processors:\n"
        "            for action in Action:\n"
        "                backend.why_not(action, device, processor.name)\n"
        "print([m for m in ('onnxruntime', 'onnxruntime_qnn') if m in sys.modules])\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"
