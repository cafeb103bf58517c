"""The reader of the simulator's trace, against files written by onnxruntime-qnn 2.7.0 (QAIRT 2.51).

The golden trace is a 3x3 convolution, 32 to 32 channels on 16x16, int8; the profile of the same compile says 4,049
cycles, 24,576 bytes of input fill and 8,192 of output spill.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from compilers import CompilerError, Trace, longest_chain, trace_by_node
from compilers.qnn.optrace import read_trace, trace_files

GOLDEN = Path(__file__).parent.parent / "golden"


def files() -> tuple[bytes, bytes]:
    log, schematic = trace_files(GOLDEN)
    return log.read_bytes(), schematic.read_bytes()


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(*files(), sdk="v2.51.0.260513")


def test_the_chip_is_the_one_the_simulator_names(trace: Trace) -> None:
    assert (trace.chip.name, trace.chip.hvx_threads, trace.chip.vtcm_bytes) == ("SA8255", 4, 8 << 20)
    assert trace.chip.core_hz == 1497.6e6
    assert trace.chip.ddr_bytes_per_s == pytest.approx(46.03e9, rel=1e-3)


def test_time_and_bytes_agree_with_the_profile(trace: Trace) -> None:
    assert trace.cycles == 4043  # six less than the profile's total, as in every trace seen
    assert sum(event.dram_read_bytes for event in trace.events) == 24576
    assert sum(event.dram_write_bytes for event in trace.events) == 8192


def test_the_convolution_is_two_tiles_on_the_matrix_unit(trace: Trace) -> None:
    nodes = {node.node: node for node in trace_by_node(trace, ["conv0"])}
    conv = nodes["conv0"]
    assert conv.tiles == (((1, 8, 16, 32), 2),)
    assert conv.cycles["hmx"] == 912
    assert trace.busy_ratio("hmx") == pytest.approx(912 / 4043)
    assert set(nodes) == {"conv0", "<graph input and output>"}


def test_the_chain_adds_up_to_the_whole(trace: Trace) -> None:
    chain = longest_chain(trace)
    assert sum(cycles for _, cycles in chain) == trace.cycles
    assert all(a.end <= b.start for (a, _), (b, _) in itertools.pairwise(chain))
    assert sum(node.chain_cycles for node in trace_by_node(trace, ["conv0"])) <= trace.cycles


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"traceEvents"', b'"tracedEvents"', "there is no traceEvents"),
        (b'"runlist_idx":0,"func"', b'"runlist_idx":0,"fu', "its JSON ends in"),
        (b'"uses_hmx"', b'"uses_hmy"', r"an event has the unknown unit \['uses_hmy'\]"),
        (b'"dmabytes"', b'"dmabites"', "an event lacks 'dmabytes'"),
        (b'"sim_ddr_freq"', b'"sim_ddr_hz"', "its chip lacks 'sim_ddr_freq'"),
    ],
)
def test_another_layout_is_refused_by_name(old: bytes, new: bytes, message: str) -> None:
    log, schematic = files()
    assert old in log
    with pytest.raises(CompilerError, match=message):
        read_trace(log.replace(old, new), schematic)


def test_another_version_is_refused_by_name() -> None:
    with pytest.raises(CompilerError, match=r"QAIRT 2.51 writes: it was written by v2.60.1"):
        read_trace(*files(), sdk="v2.60.1")
    with pytest.raises(CompilerError, match="no qnn_name_translations"):
        read_trace(files()[0], b"")


def test_a_folder_without_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(CompilerError, match="0 optrace logs and 0 schematics"):
        trace_files(tmp_path)
