"""What the arguments of every command promise."""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "experiments"
COMMANDS = sorted(
    path.relative_to(FOLDER.parent).with_suffix("").as_posix().replace("/", ".")
    for path in FOLDER.rglob("*.py")
    if "raise SystemExit(main())" in path.read_text(encoding="utf-8")
)


def test_every_command_of_the_readme_is_held_to_it() -> None:
    table = (FOLDER.parent / "README.md").read_text(encoding="utf-8").partition("| `python -m experiments.` |")[2]
    cells = [line.split("|")[1] for line in table.partition("\n\n")[0].splitlines() if line.startswith("| `")]
    named = {f"experiments.{name}" for cell in cells for name in re.findall(r"`([a-z_]+)", cell)}
    assert len(named) > 10
    assert named <= {command.removesuffix(".__main__") for command in COMMANDS}


class _ParserSeen(BaseException):
    """Ends a command once its parser is made."""


@pytest.fixture
def parser(command: str, monkeypatch: pytest.MonkeyPatch) -> argparse.ArgumentParser:
    seen: list[argparse.ArgumentParser] = []

    def catch(self: argparse.ArgumentParser, *_: object) -> Any:
        seen.append(self)
        raise _ParserSeen

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", catch)
    with pytest.raises(_ParserSeen):
        importlib.import_module(command).main([])
    return seen[0]


def is_number(action: argparse.Action) -> bool:
    try:
        return callable(action.type) and isinstance(action.type("2"), int | float)
    except argparse.ArgumentTypeError:
        return False


@pytest.mark.parametrize("command", COMMANDS)
def test_no_number_is_nan_or_infinite_or_a_word(parser: argparse.ArgumentParser) -> None:
    for action in filter(is_number, parser._actions):
        assert callable(action.type)
        for text in ("nan", "inf", "-inf", "many", ""):
            with pytest.raises(argparse.ArgumentTypeError, match="expected "):
                action.type(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_seed_and_a_limit_are_not_negative(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if {"--seed", "--time-limit", "--minutes", "--jobs", "--offset", "--vtcm-mb"}.intersection(
            action.option_strings
        ):
            assert callable(action.type)
            with pytest.raises(argparse.ArgumentTypeError, match="expected "):
                action.type("-1")


def test_help_waits_for_no_library() -> None:
    script = f"""
import contextlib, importlib, sys
for command in {COMMANDS}:
    with contextlib.suppress(SystemExit):
        importlib.import_module(command).main(["--help"])
sys.exit(" ".join(sorted({{"numpy", "onnx", "networkx", "rich", "matplotlib", "scipy"}} & set(sys.modules))) or 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=FOLDER.parent, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
