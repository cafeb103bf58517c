"""Every command's help: it has examples, which use what the command has."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

import pytest

from experiments.arguments import duration

ROOT = Path(__file__).parents[2]
COMMANDS = sorted(
    path.stem if path.parent.name == "experiments" else path.parent.name
    for path in (ROOT / "experiments").rglob("*.py")
    if "raise SystemExit(main())" in path.read_text()
)
FREE_OF_EXAMPLES = {"doctor"}  # it takes no argument


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    name = f"experiments.{command}"
    package = (ROOT / "experiments" / command).is_dir()
    module = importlib.import_module(f"{name}.__main__" if package else name)
    with pytest.raises(SystemExit) as ended:
        module.main(["--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) >= 17
    assert {"pareto", "scenarios", "published"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples_that_use_what_there_is(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, _, examples = help_of(command, capsys).partition("examples:\n")
    if command in FREE_OF_EXAMPLES:
        return
    lines = examples.strip().splitlines()
    assert lines
    for line in lines:
        assert line.strip().startswith(f"python -m experiments.{command} ")
        assert set(re.findall(r"--[a-z-]+", line)) <= set(re.findall(r"--[a-z-]+", text))


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_is_without_a_word_of_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    entries = re.split(r"\n  (?=-)", help_of(command, capsys).partition("examples:")[0].partition("options:")[2])[1:]
    for entry in entries:
        option, *words = re.sub(r"\{[^}]*\}", "", entry).replace("\n", " ").split("  ", 1)
        assert words, option
        assert words[0].strip(), option


@pytest.mark.parametrize("command", ["scenarios", "published", "regress", "doctor", "energy_validate", "knobs"])
def test_ctrl_c_is_one_sentence(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    name = f"experiments.{command}"
    module = importlib.import_module(f"{name}.__main__" if (ROOT / "experiments" / command).is_dir() else name)
    inside, arguments = {
        "scenarios": ("experiments.scenarios.catalogue.study", ["R4"]),
        "published": ("experiments.published.tables.load_table", ["R1"]),
        "regress": ("experiments.gate.compare_folders", [str(tmp_path), str(tmp_path)]),
        "doctor": ("experiments.evaluator.power.registry.all_sensors", []),
        "energy_validate": ("experiments.evaluator.power.mlperf.read_platforms", ["pairs.csv"]),
        "knobs": ("experiments.knob_sweep.load_device", ["resnet18", "--device", "sa8255p"]),
    }[command]
    monkeypatch.setattr(inside, pressed)
    assert module.main(arguments) == 130
    assert capsys.readouterr().err.startswith("interrupted")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_ends_by_the_same_rules(command: str) -> None:
    folder = ROOT / "experiments" / command
    assert "exit_code(" in (folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")).read_text()


def test_a_duration_has_a_unit_or_is_in_seconds() -> None:
    assert duration("20ms") == pytest.approx(0.02)
    assert duration("5us") == pytest.approx(5e-6)
    assert duration("1.5s") == duration("1.5") == 1.5
    for text in ("-1ms", "0", "20m", "ms", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="such as 20ms"):
            duration(text)
