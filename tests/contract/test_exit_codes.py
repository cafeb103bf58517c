"""Every command ends by one rule: 0 done, 1 nothing usable came out, 2 an argument or a path that cannot be used, 130.

Whatever it refuses is one sentence, never a traceback, and leaves no file.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import onnx
import pytest

from experiments import arguments
from graphs import single

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = Path(__file__).resolve().parents[2] / "experiments"
DEVICE: Final = ("--device", "sa8255p")
TABLE: Final = "model,precision,device,soc_model,htp_arch,runtime,latency_ms,unit\n"
ROW: Final = "resnet18,float,Samsung Galaxy S24,57,75,onnx,1.5,NPU\n"
# What each command is given: IN is a file that it reads, OUT one or a folder that it writes.
GIVEN: Final = {
    "pareto": ("IN", *DEVICE, "--out", "OUT"),
    "splits": ("IN", *DEVICE, "--out", "OUT"),
    "placement": ("IN", *DEVICE, "--out", "OUT"),
    "knobs": ("IN", *DEVICE, "--precision", "fp16", "--out", "OUT"),
    "tiles": ("IN", "--out", "OUT"),
    "sustained": ("IN", *DEVICE, "--out", "OUT"),
    "advise": ("IN", *DEVICE, "--out", "OUT"),
    "latency": ("IN", "--out", "OUT"),
    "scenarios": ("R12", "--model", "IN", "--out", "OUT"),
    "deploy": ("IN", "--out", "OUT"),
    "guard": ("IN", "--log", "OUT"),
    "regress": ("IN", "IN", "--markdown", "OUT"),
    "calibrate": ("IN", "--result", "OUT"),
    "validate": ("IN", "--out", "OUT"),
    "energy_validate": ("IN", "--write", "OUT"),
    "published": ("IN",),
    "doctor": (),
}
READ: Final = [name for name, given in GIVEN.items() if "IN" in given]
WITH_MODEL: Final = ["pareto", "splits", "placement", "knobs", "tiles", "sustained", "advise", "latency", "scenarios"]


def run(name: str, *given: str) -> int:
    package = (FOLDER / name).is_dir()
    module = importlib.import_module(f"experiments.{name}.__main__" if package else f"experiments.{name}")
    try:
        return int(module.main(list(given)))
    except SystemExit as ended:  # argparse
        return int(ended.code or 0)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with one good model, and hold the command to leaving no other file."""
    monkeypatch.chdir(tmp_path)
    onnx.save(single("Relu", [1, 8, 4, 4]).proto(), "one.onnx")
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "damaged").write_bytes(b"\x08\x07garbage\xff\xff")
    (tmp_path / "table.csv").write_text(TABLE + ROW)
    before = files(tmp_path)
    yield tmp_path
    assert files(tmp_path) == before


def refused(name: str, capsys: pytest.CaptureFixture[str], *given: str) -> str:
    """Return the one sentence with which a command refuses what it is given."""
    capsys.readouterr()
    assert run(name, *given) == 2, capsys.readouterr()
    error = capsys.readouterr().err
    assert "error: " in error
    assert "Traceback" not in error
    assert "Errno" not in error
    return error.splitlines()[-1]


def with_files(name: str, read: str = "one.onnx", written: str = "out") -> list[str]:
    return [{"IN": read, "OUT": written}.get(word, word) for word in GIVEN[name]]


def test_every_command_is_held_to_the_rule() -> None:
    found = [path for path in FOLDER.rglob("*.py") if "raise SystemExit(main())" in path.read_text(encoding="utf-8")]
    assert {path.stem if path.parent == FOLDER else path.parent.name for path in found} == set(GIVEN)


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("what", ["none", "damaged", "file", "folder"])
def test_a_file_that_is_none(name: str, what: str, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    given = f"{what}.csv" if name == "published" else what
    if given != what and (folder / what).exists():
        (folder / what).rename(folder / given)
    try:
        assert what in refused(name, capsys, *with_files(name, given))
    finally:
        if given != what and (folder / given).exists():
            (folder / given).rename(folder / what)


@pytest.mark.parametrize("name", WITH_MODEL)
def test_a_folder_that_cannot_be_written(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "file/out" in refused(name, capsys, *with_files(name, written="file/out"))


@pytest.mark.parametrize(("name", "option"), [("calibrate", "--result"), ("validate", "--out")])
def test_a_result_that_cannot_be_written_is_told_before_the_work(
    name: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "file/out" in refused(name, capsys, "table.csv", "--models", "resnet18", option, "file/out/result")


@pytest.mark.parametrize("name", [name for name, given in GIVEN.items() if "--device" in given])
def test_a_device_that_nobody_knows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["sa8225p" if word == "sa8255p" else word for word in with_files(name)]
    assert "unknown device 'sa8225p'; did you mean" in refused(name, capsys, *given)


@pytest.mark.parametrize("option", ["--gpu", "--npu"])
def test_a_device_of_tiles_that_nobody_knows(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown device 'nope'" in refused("tiles", capsys, *with_files("tiles"), option, "nope")


@pytest.mark.parametrize(
    ("name", "option"),
    [
        *((name, "--backends") for name in ("pareto", "splits", "sustained", "advise")),
        *((name, "--backend") for name in ("placement", "knobs", "latency")),
        ("latency", "--against"),
    ],
)
def test_a_backend_that_nobody_knows(name: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown backend 'nope'" in refused(name, capsys, *with_files(name), option, "nope")


@pytest.mark.parametrize("name", GIVEN)
def test_an_argument_that_there_is_not(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unrecognized arguments: --no-such" in refused(name, capsys, *with_files(name), "--no-such")


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("pareto", ("--option", "snpe.nope=1", "--backends", "snpe", "--splits", "0", "--precisions", "fp16")),
        ("placement", ("--option", "nope=1", "--backend", "snpe")),
        ("knobs", ("--vary", "nope=1,2", "--backend", "snpe")),
    ],
)
def test_an_option_that_the_backend_lacks(
    name: str, given: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = str(tmp_path_factory.mktemp("out"))
    assert "snpe has no option nope (it has: htp_" in refused(name, capsys, *with_files(name, written=out), *given)


@pytest.mark.parametrize("name", GIVEN)
def test_ctrl_c(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.contextmanager
    def pressed() -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(arguments, "_terminated_as_interrupted", pressed)
    assert run(name, *with_files(name)) == 130
    assert capsys.readouterr().err.startswith("interrupted")
