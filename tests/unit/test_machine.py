"""What tells one machine from another, in every key of what was made or timed on it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from compilers import compiler_names, get_compiler, machine, sandbox
from experiments.evaluator import depends_on, settings
from graphs import zoo
from partition import Plan, Segment, load_device

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GRAPH = zoo.build("squeezenet1_1", size=64)
X86 = "processor\t: 0\nvendor_id\t: A\nmodel\t\t: 1\nmodel name\t: A chip\nflags\t\t: fpu {flags}\ncpu MHz\t\t: {mhz}\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n"


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    forget()
    yield tmp_path / "cpuinfo"
    forget()


def forget() -> None:
    machine._facts.cache_clear()


def told(cpuinfo: Path, text: str) -> tuple[str, str]:
    cpuinfo.write_text(f"{text}\nprocessor\t: 1\nmodel name\t: another core\n")
    forget()
    return machine.cpu_model(), machine.cpu()


def test_a_cpu_is_its_name_and_its_instructions_not_its_clock_of_now(cpuinfo: Path) -> None:
    whole, slow = (told(cpuinfo, X86.format(flags="avx2 avx512f", mhz=mhz)) for mhz in (3000, 800))
    assert whole == slow
    assert whole[0] == "A chip"
    masked = told(cpuinfo, X86.format(flags="avx2", mhz=3000))  # the same chip under a hypervisor
    assert masked[0] == whole[0]
    assert masked[1] != whole[1]
    assert told(cpuinfo, ARM)[0] == "0x41 0xd4f"


def segment(device: str, processor: str, compiler: str = "ort_cpu") -> Segment:
    return Segment(graph=GRAPH, device=load_device(device), processor=processor, compiler=compiler, precision="fp32")


def keys(asked: Segment, root: Path) -> tuple[str, str]:
    """The keys of what is compiled and of the row that it comes to."""
    return str(sandbox.artefact_dir(asked, root)), str(depends_on(Plan.of(GRAPH, [asked])))


@pytest.mark.parametrize(
    "backend", sorted({*compiler_names()} - {"coreml"})
)  # its packages are for Apple's chips alone
def test_another_cpu_has_its_own_artefacts_and_rows(backend: str, cpuinfo: Path, tmp_path: Path) -> None:
    here, elsewhere = segment("host", "cpu", backend), segment("sa8255p", "npu", backend)
    told(cpuinfo, X86.format(flags="avx2", mhz=1))
    before, other = keys(here, tmp_path), keys(elsewhere, tmp_path)
    told(cpuinfo, X86.format(flags="", mhz=1))
    assert all(now != was for now, was in zip(keys(here, tmp_path), before, strict=True))
    assert keys(elsewhere, tmp_path) == other  # a simulation is the same everywhere


def test_another_gpu_or_driver_has_its_own_artefacts_and_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for name in ("one GPU (OpenCL, driver 1)", "one GPU (OpenCL, driver 2)", "another GPU (OpenCL, driver 1)"):
        monkeypatch.setattr("compilers.tvm._opencl_device", lambda name=name: name)
        found += keys(segment("host_gpu", "gpu", "tvm"), tmp_path)
    assert len(set(found)) == 6


def test_what_else_may_change_the_times_here_is_in_the_key_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = (Plan.of(GRAPH, [one]) for one in (segment("host", "cpu"), segment("sm8650", "cpu")))
    monkeypatch.setenv("EDGEFRONTIER_SYS", str(tmp_path))
    file = tmp_path / "devices/system/cpu/cpu0/cpufreq/scaling_governor"
    file.parent.mkdir(parents=True)
    assert settings()["governor"] is None
    file.write_text("powersave\n")
    before = depends_on(here), depends_on(elsewhere)
    file.write_text("performance\n")
    assert settings()["governor"] == "performance"
    assert depends_on(here) != before[0]
    assert depends_on(elsewhere) == before[1]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    assert settings()["usable_cores"] == 3


def test_a_device_whose_figures_changed_has_rows_of_its_own() -> None:
    one = segment("sm8650", "cpu")
    other = dataclasses.replace(one, device=dataclasses.replace(one.device, dram_bytes_per_s=None))
    assert depends_on(Plan.of(GRAPH, [one])) != depends_on(Plan.of(GRAPH, [other]))


def test_only_the_opencl_device_stands_for_the_gpu_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compilers.tvm._opencl_device", lambda: "one GPU")
    tvm = get_compiler("tvm")
    assert tvm.machine(load_device("host_gpu"), "gpu") == "one GPU"
    assert tvm.machine(load_device("host"), "cpu") == machine.cpu()
    assert tvm.machine(load_device("sm8650"), "gpu") == ""
