"""What a person sees: names as they are, and what takes long, say an emulator that runs a model for minutes."""

from __future__ import annotations

import io
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from rich.console import Console

from experiments import console as shared
from experiments import job

if TYPE_CHECKING:
    import pytest


def test_names_and_reasons_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ("shape [n, c]", "layer[/a]", "onnx:cat:1")
    table = shared.plain_table("node", "reason")
    for text in texts:
        table.add_row(text, text)
    console = shared.open_console()
    console.print(table)
    console.print(*texts)
    printed = capsys.readouterr().out
    assert [printed.count(text) for text in texts] == [3, 3, 3]


def test_what_takes_long_is_told_with_its_limit_on_a_terminal_and_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_STILL_S", 0.05)
    monkeypatch.setattr(shared, "_LONG_S", 0.0)
    for terminal in (False, True):
        out, go_on = io.StringIO(), threading.Event()
        console = Console(file=out, force_terminal=terminal, width=120, markup=False)
        with shared.Progress(1, 600.0, console) as progress, ThreadPoolExecutor(1) as pool:

            def slow(progress: shared.Progress = progress, go_on: threading.Event = go_on) -> str:
                with progress.busy("running [a] sa8255p/npu fp16"):
                    go_on.wait(5)
                    return "done"

            future = pool.submit(slow)
            threading.Timer(0.5, go_on.set).start()
            assert [f.result() for f in job._as_completed({future: None}, progress)] == ["done"]  # type: ignore[dict-item]
        told = "running [a] sa8255p/npu fp16 (0 s, stopped at 600 s)"
        assert told in out.getvalue()
        assert ("still " in out.getvalue()) is not terminal
