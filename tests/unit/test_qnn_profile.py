"""The reader of the QNN profile CSV, against files written by onnxruntime-qnn 2.7.0 (QAIRT 2.51)."""

from __future__ import annotations

from pathlib import Path

import pytest

from compilers import CompilerError
from compilers.qnn.profile import HEADER, HtpEstimate, read_estimates

GOLDEN = Path(__file__).parent.parent / "golden"


def read(name: str) -> str:
    return (GOLDEN / f"qnn_profile_{name}.csv").read_text(encoding="utf-8")


def test_resnet50_int8_on_soc_52() -> None:
    (found,) = read_estimates(read("resnet50_w8a8"), partitions=1)
    assert found == HtpEstimate(
        cycles=1033136,
        cycles_low=996635,
        cycles_high=1084287,
        time_us=689,
        time_low_us=665,
        time_high_us=724,
        input_fill_bytes=25952256,
        fill_bytes=0,
        spill_bytes=0,
        inter_htp_fill_bytes=0,
        inter_htp_spill_bytes=0,
        output_spill_bytes=65536,
        operations_without_cost=0,
    )
    assert found.dram_bytes == 25952256 + 65536


def test_one_megabyte_of_vtcm_spills_and_is_slower() -> None:
    (small,) = read_estimates(read("resnet50_w8a8_vtcm1"), partitions=1)
    (full,) = read_estimates(read("resnet50_w8a8"), partitions=1)
    assert small.time_us > full.time_us
    assert small.spill_bytes > 3_000_000 > full.spill_bytes


def test_operations_without_a_cost_are_named_where_the_file_names_them() -> None:
    """Rows as soc_model 62 gives them for a HardSigmoid, and one without a name (a 3-D convolution in w8a16)."""
    count = "Missing Ops (Number of Ops with no Costs associated)"
    row = "0,BACKEND,0,US,BACKEND,SUB-EVENT,"
    text = read("resnet50_w8a8").replace(f"{row}{count}", f"0,BACKEND,3,US,BACKEND,SUB-EVENT,{count}")
    text = text.replace(f"{count}\n", f"{count}\n{row}/features.6.block/HardSigmoid : OpId_316\n{row}OpId_2\n")
    (found,) = read_estimates(text, partitions=1)
    assert found.operations_without_cost == 3
    assert found.names_without_cost == ("/features.6.block/HardSigmoid",)
    with pytest.raises(CompilerError, match="lists 2 operations without cost and counts 1"):
        read_estimates(
            text.replace(f",3,US,BACKEND,SUB-EVENT,{count}", f",1,US,BACKEND,SUB-EVENT,{count}"), partitions=1
        )


def test_repeated_blocks_of_partitions_are_counted_once() -> None:
    first, second = read_estimates(read("two_partitions"), partitions=2)
    assert (first.cycles, second.cycles) == (11932, 12411)


def test_another_number_of_blocks_than_the_known_defect_writes_is_refused() -> None:
    with pytest.raises(CompilerError, match=r"3 blocks .* for 1 partitions"):
        read_estimates(read("two_partitions"), partitions=1)


def test_blocks_that_should_be_copies_and_are_not_are_refused() -> None:
    text = read("two_partitions").replace("11932,CYCLES", "11933,CYCLES", 1)
    with pytest.raises(CompilerError, match="written twice"):
        read_estimates(text, partitions=2)


def test_a_chip_without_simulator_gives_no_estimate() -> None:
    assert read_estimates(read("no_simulator"), partitions=1) == ()


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        (",".join(HEADER), "Time,Message", "Time,Message"),
        ("Intermediate Spill", "Spill to DDR", "Spill to DDR"),
        ("0,BACKEND,689,US,BACKEND,SUB-EVENT,Simulated (Accelerator exec time us)\n", "", "exec time us"),
        ("689,US", "0.689,MS", "0.689"),
        ("689,US", "-689,US", "-689"),
        ("0,BACKEND,0,US,BACKEND,SUB-EVENT,Mode", "0,BACKEND,0", "7 columns"),
        ("Performance Estimates", "Estimates of Performance", "outside"),
        ("SUB-EVENT,Mode", "SUB-EVENT,HTP ID", "HTP ID|Mode"),
    ],
)
def test_another_layout_is_refused_by_name(old: str, new: str, named: str) -> None:
    text = read("resnet50_w8a8")
    assert old in text
    with pytest.raises(CompilerError, match=named):
        read_estimates(text.replace(old, new), partitions=1)


def test_an_empty_file_is_refused() -> None:
    with pytest.raises(CompilerError, match="empty file"):
        read_estimates("", partitions=1)
