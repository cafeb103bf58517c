"""docs/platforms.md says of each platform what the adapters say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compilers import Action, compiler_names, get_compiler
from experiments.calibration.borrowing import LEAST
from experiments.calibration.table import read_table
from experiments.published import load_table
from partition import Device, device_names, load_device

PAGE = Path(__file__).parents[2] / "docs" / "platforms.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("|")][2:]
SHIPPED = [(row[1].strip("`"), row[2]) for row in ROWS if row[1].startswith("`")]
PLATFORMS = (
    "Jetson Orin", "Ascend 310P", "Genio 1200", "Intel VPU", "QCS6490", "Hi3559A", "Snapdragon 8 Gen 3", "A17 Pro",
    "7840HS", "A100",
)  # fmt: skip


def able(device: Device, processor: str) -> list[str]:
    return [name for name in compiler_names() if get_compiler(name).why_not(Action.COMPILE, device, processor) is None]


def test_every_platform_of_the_reports_has_a_row() -> None:
    assert len(ROWS) == len(PLATFORMS)
    for platform in PLATFORMS:
        assert sum(platform in row[0] for row in ROWS) == 1, platform


@pytest.mark.parametrize(("name", "compiles"), SHIPPED)
def test_what_a_row_says_is_compiled_is_what_the_adapters_say(name: str, compiles: str) -> None:
    assert name in device_names()
    device = load_device(name)
    told = dict(part.split(": ") for part in compiles.split("; "))
    found = {processor.name: able(device, processor.name) for processor in device.processors}
    assert {kind: backends.split(", ") for kind, backends in told.items()} == {k: v for k, v in found.items() if v}


def test_what_has_no_device_file_has_none() -> None:
    titles = " ".join(load_device(name).title for name in device_names())
    for platform in ("Orin", "A100", "Genio", "Ascend", "Intel", "3559"):
        assert platform not in titles


def test_the_device_file_on_the_page_is_one_that_tvm_compiles_for(tmp_path: Path) -> None:
    block, _ = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    path = tmp_path / "orin.toml"
    path.write_text(block)
    device = load_device(str(path))
    assert able(device, "cpu") == ["ort_cpu", "tvm"]
    assert able(device, "gpu") == ["tvm"]
    for old, new in (("sm_87", "sm_80"), ('kind = "cuda"\narch = "sm_87"', 'kind = "opencl"')):
        path.write_text(block.replace(old, new))
        assert able(load_device(str(path)), "gpu") == ["tvm"]
    path.write_text(block.replace("aarch64-linux-gnu", "x86_64-linux-gnu").replace("cortex-a78", "znver4"))
    assert able(load_device(str(path)), "cpu") == ["ort_cpu", "tvm"]


def test_the_phone_and_the_measurements_on_the_page_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, phone = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    (own,) = re.findall(r"```\n(model,precision.*?)```", TEXT, re.DOTALL)
    monkeypatch.chdir(tmp_path)  # the table names the file from there
    (tmp_path / "phone.toml").write_text(phone)
    (tmp_path / "own.csv").write_text(own)
    assert able(load_device("phone.toml"), "npu") == ["ort_qnn", "snpe"]
    assert {(row.device, row.precision, row.compiler) for row in read_table(tmp_path / "own.csv").rows} == {
        ("phone", "int8", "ort_qnn")
    }
    assert len(read_table(tmp_path / "own.csv").rows) == LEAST


def test_the_reports_tables_that_the_page_names_are_there() -> None:
    for name in re.findall(r"\bR\d+\b", TEXT.split("unverified.")[0].rsplit("(", 1)[1]):
        assert load_table(name).rows
