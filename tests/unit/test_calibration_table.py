"""Reading a table of measured latencies: what is used, what is merged, and each kind of bad row by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from experiments.arguments import UserError
from experiments.calibration.error import CalibrationError
from experiments.calibration.table import read_table, rows_hash, with_own

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "model,component,precision,device,soc_model,htp_arch,runtime,latency_ms,unit,npu_layers,cpu_layers,gpu_layers"
S22 = "Samsung Galaxy S22 5G,36,69"
XR2 = "Snapdragon XR2 Gen 2,36,69"
S24 = "Samsung Galaxy S24,57,75"


def table(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "table.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def row(
    device: str = S24, latency: str = "1.5", model: str = "net,Net", precision: str = "float", end: str = "NPU,9,0,0"
) -> str:
    return f"{model},{precision},{device},onnx,{latency},{end}"


def test_a_row_becomes_a_measurement_in_our_terms(tmp_path: Path) -> None:
    found = read_table(table(tmp_path, row(precision="w8a8")))
    (measured,) = found.rows
    assert measured.key == ("net", "int8", "sm8650", "ort_qnn")
    assert measured.latency_s == pytest.approx(1.5e-3)
    assert measured.npu_layers == 9


def test_the_mark_at_the_start_of_a_spreadsheets_file_is_no_part_of_a_name(tmp_path: Path) -> None:
    assert len(read_table(table(tmp_path, row(), header=f"\ufeff{HEADER}")).rows) == 1


def test_devices_of_one_chip_count_once(tmp_path: Path) -> None:
    found = read_table(table(tmp_path, row(S22), row(XR2)))
    assert len(found.rows) == 1
    assert found.copies == {"sm8450": ("Samsung Galaxy S22 5G", "Snapdragon XR2 Gen 2")}


def test_rows_in_other_runtimes_precisions_and_units_are_counted_and_left_out(tmp_path: Path) -> None:
    other = row().replace(",onnx,", ",tflite,")
    found = read_table(table(tmp_path, row(), other, row(precision="mixed"), row(model="b,B", end="CPU,0,9,0")))
    assert len(found.rows) == 1
    assert found.left_out == {"runtime tflite": 1, "precision mixed": 1, "ran on the CPU": 1}


def test_our_own_names_of_runtimes_and_precisions_are_understood(tmp_path: Path) -> None:
    found = read_table(table(tmp_path, row(precision="int8"), row(precision="fp16").replace(",onnx,", ",snpe,")))
    assert [r.key for r in found.rows] == [
        ("net", "int8", "sm8650", "ort_qnn"), ("net", "fp16", "sm8650", "snpe"),
    ]  # fmt: skip


def test_a_device_that_no_file_lists_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match=r"such as \./phone\.toml \(docs/platforms\.md") as said:
        read_table(table(tmp_path, row("Samsung Galaxy S24 FE,57,75")))
    assert "no device file lists; did you mean 'Samsung Galaxy S24'?" in str(said.value)


def test_a_model_of_several_parts_has_a_name_for_each(tmp_path: Path) -> None:
    found = read_table(table(tmp_path, row(model="clip,image"), row(model="clip,text"), row(model="net,Net")))
    assert [r.model for r in found.rows] == ["clip/image", "clip/text", "net"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([row("Some Phone,1,2")], "line 2 measures 'Some Phone', which no device file lists"),
        ([row("Samsung Galaxy S24,999,75")], "soc_model '999', but the device file sm8650 says '57'"),
        ([row("Samsung Galaxy S24,57,73")], "htp_arch '73'"),
        ([row(latency="0")], "line 2 gives the latency '0'"),
        ([row(latency="-3.1")], "latency '-3.1'"),
        ([row(latency="fast")], "latency 'fast'"),
        ([row(latency="inf")], "latency 'inf'"),
        ([row(), row(latency="1.6")], "table.csv line 2 and table.csv line 3 both measure net fp16 on sm8650"),
        ([row(S22), row(XR2, latency="9")], "disagree: 1.5 and 9 ms"),
        ([row(end="NPU,nine,0,0")], "'nine' where a number of layers belongs"),
        ([row(model=",Net")], "names no model"),
        ([row("gone.toml,1,2")], "line 2 names the device file 'gone.toml', and there is none at /"),
        ([], "holds no row"),
        ([row(end="CPU,0,9,0"), row(model="b,B", end=",0,9,0")], "1 of ran on the CPU; left out: 1 of ran on the unk"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(CalibrationError) as caught:
        read_table(table(tmp_path, *lines))
    assert said in str(caught.value)


def test_missing_columns_and_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no column latency_ms, unit "):
        read_table(table(tmp_path, header="model,precision,device,soc_model,htp_arch,runtime"))
    with pytest.raises(UserError, match=r"cannot read .*nowhere.csv"):
        read_table(tmp_path / "nowhere.csv")


def test_an_own_measurement_takes_the_place_of_the_tables(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    ours = read_table(table(tmp_path / "own", row(latency="2"), row(model="mine,Mine")))
    both = with_own(read_table(table(tmp_path, row(), row(S22))), ours)
    assert sorted((r.model, r.device, r.latency_s * 1e3) for r in both.rows) == [
        ("mine", "sm8650", 1.5),
        ("net", "sm8450", 1.5),
        ("net", "sm8650", 2.0),
    ]


def test_an_own_device_is_named_by_its_file(tmp_path: Path) -> None:
    device = tmp_path / "board.toml"
    device.write_text(
        'title = "Board"\nos = "linux"\n[processors.npu]\ntitle = "HTP"\n'
        '[processors.npu.ids.qnn]\nsoc_model = "43"\nhtp_arch = "73"\nvtcm_mb = "2"\n'
    )
    found = read_table(table(tmp_path, row(f"{device},43,73")))
    assert [(r.device, r.htp_arch, r.vtcm_mb) for r in found.rows] == [("board", 73, 2)]


def test_an_own_device_that_lacks_what_chooses_its_references_is_refused(tmp_path: Path) -> None:
    device = tmp_path / "board.toml"
    device.write_text(
        'title = "Board"\nos = "linux"\n[processors.npu]\ntitle = "HTP"\n'
        '[processors.npu.ids.qnn]\nsoc_model = "43"\nhtp_arch = "73"\n'
    )
    with pytest.raises(CalibrationError, match="device board has no vtcm_mb in processors"):
        read_table(table(tmp_path, row(f"{device},43,73")))


def test_the_hash_is_of_the_rows_and_not_of_their_order(tmp_path: Path) -> None:
    first = read_table(table(tmp_path, row(), row(S22))).rows
    assert rows_hash(first) == rows_hash(first[::-1])
    assert rows_hash(first) != rows_hash(first[:1])
