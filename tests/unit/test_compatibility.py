from __future__ import annotations

import importlib.metadata
import json
from typing import TYPE_CHECKING

import pytest

from compilers import known_bad
from experiments.pareto import main as pareto

if TYPE_CHECKING:
    from pathlib import Path


def installed(**versions: str):  # type: ignore[no-untyped-def] # noqa: ANN201
    def version(name: str) -> str:
        try:
            return versions[name.replace("-", "_")]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(name) from None

    return version


@pytest.mark.parametrize("ffi", ["0.1.15", "0.1.15.post2"])
def test_a_combination_is_refused_with_the_reason_and_the_way_out(ffi: str) -> None:
    reason = known_bad("tvm", installed(apache_tvm="0.27.0.post1", apache_tvm_ffi=ffi))
    assert reason is not None
    assert f"apache-tvm 0.27.0.post1 with apache-tvm-ffi {ffi}: crashes" in reason
    assert "pip install apache-tvm-ffi==0.1.14.post1" in reason


def test_other_versions_backends_and_absent_packages_are_not() -> None:
    bad = {"apache_tvm": "0.27.0", "apache_tvm_ffi": "0.1.15"}
    assert known_bad("ort_cpu", installed(**bad)) is None
    assert known_bad("tvm", installed(**{**bad, "apache_tvm_ffi": "0.1.14.post1"})) is None
    assert known_bad("tvm", installed(**{**bad, "apache_tvm": "0.28.0"})) is None
    assert known_bad("tvm", installed(apache_tvm_ffi="0.1.15")) is None


def test_what_is_installed_here_is_not_known_to_be_bad() -> None:
    assert known_bad("tvm") is None


def test_the_main_job_stores_it_as_a_failure_and_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("compilers.sandbox.known_bad", lambda _: "known to be bad: x 1 with y 2: it crashes; upgrade y")
    asked = ["squeezenet1_1", "--device", "host", "--backends", "tvm", "--precisions", "fp32", "--splits", "0"]
    assert pareto([*asked, "--out", str(tmp_path)]) == 1
    (path,) = tmp_path.glob("*/outcomes.jsonl")
    (row,) = map(json.loads, path.read_text().splitlines())
    assert (row["status"], row["failed_action"]) == ("failed", "compile")
    assert "x 1 with y 2" in row["reason"]
    assert "x 1 with y 2" in capsys.readouterr().out
    assert not list((tmp_path / "build").glob("*/*-tvm-*"))
