"""What was asked for by name and came to nothing is told, whatever else came to something."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from experiments import job, store
from experiments.ranking import Ranked


def row(backend: str, status: str, options: str = "") -> store.Row:
    return store.Row(
        key="k", status=status, model="m", device="d", processor="cpu+npu", backend=backend, precision="fp16",
        options=options, segments=1, cuts=(), plan_digest="p",
    )  # fmt: skip


def told(rows: list[store.Row], *options: tuple[str, tuple[str, str]]) -> list[str]:
    request: Any = SimpleNamespace(plans=())
    asked: Any = SimpleNamespace(options=options)
    return list(job._in_vain(request, asked, rows))


def test_a_split_without_the_option_is_not_what_was_asked_for() -> None:
    asked = ("ort_qnn", ("vtcm_mb", "3"))
    split = row("ort_cpu+ort_qnn", "ok")
    refused = row("ort_qnn", "failed", "vtcm_mb=3")
    assert told([split, refused], asked) == ["nothing came of ort_qnn with vtcm_mb=3; the reasons are above"]
    assert told([split, row("ort_qnn", "ok", "vtcm_mb=3")], asked) == []


def test_the_csv_file_has_the_cuts_and_notes_that_the_table_shows() -> None:
    cut = dataclasses.replace(row("ort_qnn", "ok"), cuts=("a", "b"), notes=("one", "two"))
    (line,) = job._csv_lines([Ranked(row=cut, standing="frontier", device_standing="frontier")])
    assert (line["cuts"], line["notes"]) == ("a; b", "one; two")
    assert {"cuts", "notes"} <= set(job._CSV_HEADER)


def test_the_last_of_two_values_is_the_one_asked_for() -> None:
    asked = (("tvm", ("tune", "3")), ("tvm", ("tune", "4")))
    assert told([row("tvm", "uncalibrated", "threads=1 tune=4")], *asked) == []
