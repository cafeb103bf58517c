"""Run a deployment's `run.sh` under a time limit, and say which step failed and why."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING, Final

from experiments.deployment.measured import Measured, OutputFormatError, read_perf_test, read_throughput
from experiments.deployment.script import STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LOG_FILE: Final = "run.log"
_TAIL_LINES: Final = 3


class DeployError(RuntimeError):
    """A plan that cannot be deployed; the message says why, in one sentence."""


class RunError(DeployError):
    """The deployment was made, and the device did not run it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Executed:
    """What a device measured, and what it calls itself."""

    device: str
    parts: tuple[Measured, ...]


def execute(
    folder: Path, backends: Sequence[str], runs: int, limit_s: float, environment: Mapping[str, str]
) -> Executed:
    """Run the deployment in `folder` on the device that answers and read what its tools measured.

    Raises:
        RunError: no device answered, a step failed or did not end in time, or a tool's output cannot be read.
    """
    log = folder / LOG_FILE
    code = _run(folder / "run.sh", log, limit_s, environment)
    printed = log.read_text(encoding="utf-8", errors="replace")
    if code is None:
        raise RunError(
            f"step {_last_step(printed)} did not end within {limit_s:g} s and was stopped; see {log}, or raise "
            "--time-limit"
        )
    if code != 0:
        raise RunError(_failure(code, printed, log))
    name = re.search(r"^device: (.+)$", printed, re.MULTILINE)
    return Executed(
        device=" ".join(name.group(1).split()) if name else "unnamed device",
        parts=tuple(_part(folder, index, backend, runs) for index, backend in enumerate(backends)),
    )


def _run(script: Path, log: Path, limit_s: float, environment: Mapping[str, str]) -> int | None:
    """Return the exit code; None when the time was up and the script and its children were ended."""
    with log.open("wb") as sink:
        process = subprocess.Popen(
            ["sh", str(script)],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,  # so that the tool that hangs ends with the script
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _failure(code: int, printed: str, log: Path) -> str:
    step = STEPS.get(code, _last_step(printed))
    said = "; ".join(_tail(printed)) or "it printed nothing"
    hints = {
        "connect": "no device answered",
        "push": "the files could not be copied to the device",
        "run": "the device did not run the plan",
        "pull": "the results could not be fetched",
    }
    hint = "the device has no space left" if "No space left on device" in printed else hints.get(step, "it failed")
    return f"step {step}: {hint} ({said}); see {log}"


def _last_step(printed: str) -> str:
    steps = re.findall(r"^step: (\w+)$", printed, re.MULTILINE)
    return steps[-1] if steps else "start"


def _tail(printed: str) -> list[str]:
    lines = [line.strip() for line in printed.splitlines() if line.strip() and not line.startswith("step: ")]
    return lines[-_TAIL_LINES:]


def _part(folder: Path, index: int, backend: str, runs: int) -> Measured:
    path = folder / "results" / f"{index}.txt"
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
        return read_throughput(text) if backend == "snpe" else read_perf_test(text, runs)
    except OSError as error:
        raise RunError(f"the device left no output of segment {index} ({error})") from error
    except OutputFormatError as error:
        raise RunError(f"segment {index} on the device: {error}; see {path}") from error
