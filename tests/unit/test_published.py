from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from experiments.evaluator.dynamics import parse_trace
from experiments.published import load_table, table_names
from experiments.published.__main__ import main
from experiments.published.checks import checks, implied_frontiers, write_value
from experiments.published.rules import density_rule, flow_chart
from experiments.published.tables import read_table

if TYPE_CHECKING:
    from pathlib import Path


def test_all_sixteen_tables_are_there_and_have_whole_rows() -> None:
    assert table_names() == tuple(f"R{i}" for i in range(1, 17))
    for name in table_names():
        table = load_table(name)
        assert table.report in {"A", "B"}
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_r1_the_objectives_decide_the_frontier() -> None:
    by_pair = {implied.objectives: implied for implied in implied_frontiers(load_table("R1"))}
    by_power = by_pair["latency_s", "power_w"]
    assert set(by_power.on) == {"SNPE 2.12", "TVM (auto-tuned)", "Core ML (iOS 17)"}
    by_energy = by_pair["latency_s", "energy_j"]
    assert by_energy.on == ("SNPE 2.12",)
    assert set(by_energy.dominated_by.values()) == {"SNPE 2.12"}
    assert load_table("R1").column("energy_j")[2] == pytest.approx(12.4e-3, rel=1e-2)


def test_r1_the_stated_efficiency_does_not_follow_and_the_rest_of_report_a_does() -> None:
    assert [check.holds for check in checks(load_table("R1"))] == [False] * 4 + [True]
    for name in ("R2", "R4", "R5", "R9", "R13"):
        assert all(check.holds for check in checks(load_table(name)))
    assert [check.holds for check in checks(load_table("R3"))] == [True, True, False]  # R2 has another YOLOv5s
    assert "they cost 13% of it" in checks(load_table("R13"))[0].text  # 8.7 % over 1 - 11 / 32


def test_r7_cutting_per_operator_is_dominated() -> None:
    (implied,) = implied_frontiers(load_table("R7"))
    assert implied.dominated_by == {"per operator": "mixed static and dynamic"}


def test_r15_the_two_rules_disagree() -> None:
    assert (density_rule(1.0, 1), flow_chart(1.0)) == ("cpu", "igpu")
    assert density_rule(0.2, 3) == "igpu"
    assert density_rule(7.0, 1) == flow_chart(7.0) == "npu"
    assert density_rule(7.0, 1, fits=False) == "cpu"
    assert not any(check.holds for check in checks(load_table("R15")))


def test_the_command_prints_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "not verified" in capsys.readouterr().out
    assert main(["R16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["R16"]["rows"][3][3] is None
    assert main(["R1", "--objectives", "latency_s,gops_per_w"]) == 0
    assert capsys.readouterr().out.count("frontier by") == 1
    assert main(["R17"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert main(["R1", "--objectives", "latency_s,price"]) == 2
    assert "no column 'price'" in capsys.readouterr().err


OWN = "backend,latency_s,power_w,energy_j,gops_per_w,macs\n"


def test_a_table_of_ones_own_is_checked_like_the_published_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    path.write_text(OWN + "snpe,0.0121,1.024,0.0124,661.8,4.1e9\ntvm,0.0147,0.886,0.0150,15.9,4.1e9\n")
    table = read_table(path)
    assert [check.holds for check in checks(table)] == [True, True, False, False]
    assert table.minimise == ("latency_s", "power_w", "energy_j")
    assert table.maximise == ("gops_per_w",)
    assert main([str(path)]) == 0
    printed = capsys.readouterr().out
    assert "DIFFERS: tvm: power x latency: 13.0 mJ by the table, 15.0 mJ stated" in printed
    assert "field reports" not in printed


def test_a_table_of_ones_own_without_energy_gets_it_from_latency_and_power(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    rows = (f"{row[0]},{row[1]},{row[2]}" for row in load_table("R1").rows)
    path.write_text("\n".join(["backend,latency_s,power_w", *rows]))
    by_pair = {implied.objectives: implied.on for implied in implied_frontiers(read_table(path))}
    assert by_pair["latency_s", "energy_j"] == ("SNPE 2.12",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("a,latency_s\n", "has no rows"),
        ("a,latency_s\nx,1\nx,2\n", "'x' twice"),
        ("a,latency_s,latency_s\nx,1,1\n", "names a column twice: latency_s"),
        ("a,latency_s\n\n,\nx,-1\n", "line 4: latency_s is '-1'"),
        ("a,latency_s\nx,fast\n", "'fast' where a number above 0 is needed"),
        ("a,latency_s\nx\n", "has 1 cells where the header has 2"),
        ("a,latency_ms,power_w\nx,1,1\n", "call it latency_s and give it in that"),
        ("a,latency_s,power_mW\nx,1,1\n", "call it power_w and give it in that"),
        ("a,latency_s,peak_MiB\nx,1,1\n", "call it peak_bytes and give it in that"),
        ("clock_mhz,load_1_s\n680,1\n", "call it clock_hz and give it in that"),
    ],
)
def test_a_table_that_is_none_is_refused(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.csv"
    path.write_text(text)
    assert main([str(path)]) == 2
    assert said in capsys.readouterr().err
    assert main([str(tmp_path / "none.csv")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_the_mark_that_spreadsheets_begin_a_file_with_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("backend,latency_s\na,1\n", encoding="utf-8-sig")
    assert read_table(path).columns == ("backend", "latency_s")
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s\n1\n", encoding="utf-8-sig")
    arrivals = parse_trace(str(trace), 10.0, 0).arrivals_s
    assert arrivals is not None
    assert arrivals.tolist() == [1.0]


@pytest.mark.parametrize("objectives", ["latency_s", "latency_s,latency_s"])
def test_one_objective_is_no_frontier(capsys: pytest.CaptureFixture[str], objectives: str) -> None:
    assert main(["R1", "--objectives", objectives]) == 2
    assert "needs two objectives" in capsys.readouterr().err


def test_cells_have_the_unit_of_their_column() -> None:
    assert write_value("clock_hz", 1.2e9) == "1.20 GHz"
    assert write_value("gops_per_w", 12.6) == "12.6"
    assert write_value("stated_ratio", 6.4) == "6.4 times"
    assert write_value("temperature_c", float("nan")) == "-"
