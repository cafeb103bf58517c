"""What every backend promises, for every device and action."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from compilers import Action, CompilerError, Variant, compiler_names, get_compiler, sandbox
from graphs import single
from partition import PRECISIONS, Segment, device_names, load_device

ROOT = Path(__file__).resolve().parents[2]
PLACES = [(d, p.name) for d in device_names() for p in load_device(d).processors]


@pytest.mark.parametrize(("name", "place", "action"), list(itertools.product(compiler_names(), PLACES, Action)))
def test_why_not_is_none_or_a_sentence_that_says_more_than_no(
    name: str, place: tuple[str, str], action: Action
) -> None:
    device = load_device(place[0])
    reason = get_compiler(name).why_not(action, device, place[1])
    assert reason is None or len(reason.split()) > 4
    assert get_compiler(name).available(action, device, place[1]) == (reason is None)


@pytest.mark.parametrize("name", compiler_names())
def test_a_backend_is_registered_under_its_own_name_and_tells_its_version(name: str) -> None:
    assert get_compiler(name).name == name
    assert get_compiler(name).version() == get_compiler(name).version() != ""


@pytest.mark.parametrize("name", compiler_names())
@pytest.mark.parametrize("precision", PRECISIONS)
def test_ways_to_compile_differ_and_begin_with_the_plain_one(name: str, precision: str) -> None:
    device = load_device("a17_pro")
    ways = get_compiler(name).variants(precision, device, "npu")
    assert ways[0] == Variant()
    assert len(set(ways)) == len(ways)


@pytest.mark.parametrize("name", compiler_names())
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_option_that_states_its_default_changes_nothing_and_an_unknown_one_is_refused(
    name: str, precision: str, tmp_path: Path
) -> None:
    compiler, graph = get_compiler(name), single("Relu", [1, 8, 4, 4])
    for device, processor in ((load_device(d), p) for d, p in PLACES):
        if not compiler.available(Action.COMPILE, device, processor):
            continue
        bare = Segment(graph=graph, device=device, processor=processor, compiler=name, precision=precision)
        stated = dataclasses.replace(bare, options=tuple(compiler.defaults(bare).items()))
        assert sandbox.artefact_dir(compiler.plain(stated), tmp_path) == sandbox.artefact_dir(bare, tmp_path)
        for key, value in stated.options:
            other = dataclasses.replace(bare, options=((key, f"{value}1"),))
            assert compiler.plain(other) == other
        with pytest.raises(CompilerError):
            compiler.check_request(dataclasses.replace(bare, options=(("no_such_option", "1"),)))


def test_each_backend_compiles_for_some_device_or_names_its_extra() -> None:
    for name in compiler_names():
        reasons = [get_compiler(name).why_not(Action.COMPILE, load_device(d), p) for d, p in PLACES]
        assert any(r is None or "pip install edgefrontier[" in r for r in reasons), name


def test_an_unknown_backend_is_answered_with_the_nearest() -> None:
    with pytest.raises(KeyError, match="did you mean 'coreml'"):
        get_compiler("corelm")


def test_asking_every_backend_everything_imports_no_vendor_code() -> None:
    script = """
import sys
from compilers import Action, Variant, compiler_names, get_compiler
from partition import PRECISIONS, device_names, load_device
for name in compiler_names():
    get_compiler(name).version()
    for device in map(load_device, device_names()):
        for processor in device.processors:
            for action in Action:
                get_compiler(name).why_not(action, device, processor.name)
print(sorted(m for m in ("tvm", "tvm_ffi", "coremltools", "onnxruntime", "onnxruntime_qnn") if m in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_table_of_backends_prints(capsys: pytest.CaptureFixture[str]) -> None:
    from compilers.__main__ import main

    assert main(["--device", "host"]) == 0
    assert "ok" in capsys.readouterr().out
    assert main(["--device", "hots"]) == 2
    assert "did you mean 'host'" in capsys.readouterr().err
