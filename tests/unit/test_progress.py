"""What a person sees while something takes long: an emulator that runs a model for minutes, say."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rich.console import Console

from experiments import job

if TYPE_CHECKING:
    import pytest


def test_what_takes_long_is_told_with_its_limit_on_a_terminal_and_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_STILL_S", 0.05)
    monkeypatch.setattr(job, "_LONG_S", 0.0)
    for terminal in (False, True):
        out, go_on = io.StringIO(), threading.Event()
        console = Console(file=out, force_terminal=terminal, width=120)
        with job._Progress(1, 600.0, console) as progress, ThreadPoolExecutor(1) as pool:

            def slow(progress: job._Progress = progress, go_on: threading.Event = go_on) -> str:
                with progress.busy("running snpe sa8255p/npu fp16"):
                    go_on.wait(5)
                    return "done"

            future = pool.submit(slow)
            threading.Timer(0.5, go_on.set).start()
            assert [f.result() for f in job._as_completed({future: None}, progress)] == ["done"]  # type: ignore[dict-item]
        told = "running snpe sa8255p/npu fp16 (0 s, stopped at 600 s)"
        assert told in out.getvalue()
        assert ("still " in out.getvalue()) is not terminal
