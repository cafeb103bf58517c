from __future__ import annotations

import dataclasses
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from experiments import store
from experiments.evaluator import Failure
from experiments.store import OUTCOMES_FILE, Row, StoreError, alone_in, append_row, open_run, read_rows, write_json
from graphs import Graph, zoo
from partition import Plan, Segment, load_device

ROW = Row(
    key="k1",
    status="ok",
    model="m",
    device="host",
    processor="cpu",
    backend="tvm",
    precision="fp32",
    options="",
    segments=1,
    cuts=("a", "b"),
    plan_digest="d",
    latency_s=1e-3,
    samples_s=(1e-3, 2e-3),
    placement={"cpu": 3},
)


def test_rows_survive_and_the_last_of_a_key_counts(tmp_path: Path) -> None:
    append_row(tmp_path, ROW)
    append_row(tmp_path, dataclasses.replace(ROW, key="k2"))
    append_row(tmp_path, dataclasses.replace(ROW, status="failed"))
    assert read_rows(tmp_path) == {
        "k1": dataclasses.replace(ROW, status="failed"),
        "k2": dataclasses.replace(ROW, key="k2"),
    }


def test_a_line_cut_short_is_left_out_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    append_row(tmp_path, ROW)
    path = tmp_path / OUTCOMES_FILE
    path.write_bytes(path.read_bytes() + b'{"key": "half')
    append_row(tmp_path, dataclasses.replace(ROW, key="k3"))
    assert list(read_rows(tmp_path)) == ["k1", "k3"]


def test_a_row_of_another_schema_is_left_out(tmp_path: Path) -> None:
    (tmp_path / OUTCOMES_FILE).write_text('{"key": "old", "colour": "red"}\n[]\n')
    assert read_rows(tmp_path) == {}


def test_a_damaged_line_is_left_out_and_the_others_are_read(tmp_path: Path) -> None:
    append_row(tmp_path, ROW)
    path = tmp_path / OUTCOMES_FILE
    path.write_bytes(b'\xff\x00garbage\n3\n{"key": []}\n' + path.read_bytes())
    assert list(read_rows(tmp_path)) == ["k1"]


def add_rows(folder: Path, name: str, count: int) -> None:
    for number in range(count):
        append_row(folder, dataclasses.replace(ROW, key=f"{name}{number}", samples_s=(1e-3,) * 2000))


def test_rows_of_several_processes_are_all_there(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        pool.starmap(add_rows, [(tmp_path, name, 25) for name in "abcd"])
    assert set(read_rows(tmp_path)) == {f"{name}{number}" for name in "abcd" for number in range(25)}
    assert len((tmp_path / OUTCOMES_FILE).read_bytes().splitlines()) == 100


def test_a_second_run_says_who_works_there_and_waits(tmp_path: Path) -> None:
    told: list[str] = []
    order: list[str] = []

    def second() -> None:
        with alone_in(tmp_path, told.append):
            order.append("second")

    with alone_in(tmp_path, told.append):
        waiting = threading.Thread(target=second)
        waiting.start()
        deadline = time.monotonic() + 30
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
        order.append("first")
    waiting.join(timeout=30)
    assert order == ["first", "second"]
    assert len(told) == 1
    assert f"process {os.getpid()} works in {tmp_path}" in told[0]


def test_a_full_disk_is_named_by_the_file(tmp_path: Path) -> None:
    for name in (OUTCOMES_FILE, f".{os.getpid()}.environment.json"):
        (tmp_path / name).symlink_to("/dev/full")
    for write in (lambda: append_row(tmp_path, ROW), lambda: write_json(tmp_path / "environment.json", ["x"])):
        with pytest.raises(OSError, match="No space left") as full:
            write()
        assert Path(full.value.filename).parent == tmp_path


def test_a_folder_that_cannot_be_made_names_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="--out"):
        open_run(tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("status", "again"), [("failed", True), ("misplaced", True), ("ok", False), ("uncalibrated", False)]
)
def test_what_other_adapters_refused_is_asked_again(
    status: str, again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by = store.what_refuses() if again else None
    append_row(tmp_path, dataclasses.replace(ROW, status=status, refused_by=by))
    (known,) = read_rows(tmp_path).values()
    assert not store.may_differ_next_time(known)
    monkeypatch.setattr(store, "adapters_hash", lambda: "others")
    assert store.may_differ_next_time(known) == again


def test_a_refusal_names_the_code_that_made_it() -> None:
    plan = whole(zoo.build("squeezenet1_1"))
    refusal = Failure(plan_digest=plan.digest, segment=0, compiler="ort_cpu", action="compile", reason="no", log="")
    row = store.row(plan, "k", "m", (), refusal)
    assert row.refused_by == store.what_refuses()
    assert not store.may_differ_next_time(row)
    assert store.may_differ_next_time(dataclasses.replace(row, refused_by=None))  # written by an earlier version


def whole(graph: Graph) -> Plan:
    host = load_device("host")
    return Plan.of(graph, [Segment(graph=graph, device=host, processor="cpu", compiler="ort_cpu", precision="fp32")])
