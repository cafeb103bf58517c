"""TVM for processors that this machine has not: real objects for the right machine, and right under an emulator."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compilers import Action, Artefact, CompilerError, Limits, compile_segment, get_compiler
from compilers.tvm.elf import machine_of
from graphs import Calibration, Graph, from_proto, quantise
from partition import Device, Segment, Tile, load_device

TVM = get_compiler("tvm")
HOST = load_device("host")
PHONE = load_device("sm8650")
BOARD = load_device("qcs6490")  # Linux, so that its libraries load under qemu-user
LIMITS = Limits(time_s=300)
DRIVER = Path(__file__).parent / "native" / "call_kernel.c"
CROSS_GCC, QEMU = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
ZIG, HEXAGON = shutil.which("zig"), shutil.which("qemu-hexagon")
SYSTEM = os.environ.get("QEMU_LD_PREFIX", "/usr/aarch64-linux-gnu")

pytestmark = pytest.mark.skipif(not TVM.available(Action.COMPILE, HOST, "cpu"), reason="TVM does not work here")


def convolution() -> Graph:
    """Conv with padding and ReLU, and a classifier: a pad, a tiled nest, a layout change and a matrix product."""
    random = np.random.default_rng(7)
    weights = {
        "w": random.normal(0, 0.1, (32, 8, 3, 3)),
        "b": random.normal(0, 0.1, (32,)),
        "v": random.normal(0, 0.1, (32, 10)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("ReduceMean", ["r"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["m", "v"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    return from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))


def graph_in(precision: str) -> Graph:
    graph = convolution()
    return quantise(graph, "int8", Calibration.random(graph, 2, 0)) if precision == "int8" else graph


def compiled(
    device: Device, processor: str, folder: Path, precision: str = "fp32", tiles: tuple[Tile, ...] = ()
) -> Artefact:
    segment = Segment(
        graph=graph_in(precision), device=device, processor=processor, compiler="tvm", precision=precision, tiles=tiles
    )
    return compile_segment(segment, folder, LIMITS)


def objects(artefact: Artefact, folder: Path) -> list[Path]:
    with tarfile.open(artefact.main_file) as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    ("device", "processor", "machine", "mcpu"),
    [
        ("sm8650", "cpu", "aarch64", "cortex-x4"),
        ("sm8650", "hvx", "hexagon", "hexagonv75"),
        ("x_elite", "cpu", "aarch64", "oryon-1"),  # COFF, for Windows
    ],
)
def test_without_a_linker_the_objects_are_packed_and_for_the_machine_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, processor: str, machine: str, mcpu: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("EDGEFRONTIER_CACHE", str(tmp_path / "cache"))
    artefact = compiled(load_device(device), processor, tmp_path / "build")
    assert artefact.files[0] == "model.tar"
    found = objects(artefact, tmp_path / "objects")
    assert [path.name for path in found] == ["devc.o", "lib0.o"]
    assert {machine_of(path) for path in found} == {machine}
    assert artefact.fact("mcpu") == mcpu
    assert "not measured" in artefact.fact("schedules")
    assert float(artefact.fact("relative_error")) < 1e-5
    rows = json.loads((artefact.directory / "functions.json").read_text())
    assert {row["build"] for row in rows} == {"tiled", "flat"}
    assert {row["time_s"] for row in rows} == {None}
    assert not (tmp_path / "cache").exists()  # what was not measured is not remembered
    assert "does not run on this machine" in (TVM.why_not(Action.RUN, load_device(device), processor) or "")


def test_loops_whose_ends_are_known_at_run_time_have_no_facts_and_are_built(tmp_path: Path) -> None:
    """The boxes that NonMaxSuppression keeps, and what reads them."""
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most"], ["kept"], name="suppress"),
        helper.make_node("Gather", ["kept", "last"], ["which"], axis=1),
        helper.make_node("Gather", ["boxes", "which"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "case",
        [
            helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [1, 30, 4]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 2, 30]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.array(number), name) for name, number in (("most", 9), ("last", 2))],
    )
    model = from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9))
    segment = Segment(graph=model, device=PHONE, processor="cpu", compiler="tvm", precision="fp32")
    artefact = compile_segment(segment, tmp_path / "build", LIMITS)
    assert artefact.fact("relative_error") == "0"
    rows = {row["function"]: row for row in json.loads((artefact.directory / "functions.json").read_text())}
    assert not rows["suppressed"].get("code")
    with pytest.raises(CompilerError, match="suppressed cannot be scheduled for a GPU"):
        compile_segment(dataclasses.replace(segment, processor="gpu"), tmp_path / "gpu", LIMITS)


def test_no_linker_here_writes_a_library_for_windows() -> None:
    from compilers.tvm.foreign import linker_for

    assert linker_for("aarch64-pc-windows-msvc") is None


def test_scheduled_functions_use_hexagons_vectors() -> None:
    import tvm

    from compilers.tvm import foreign, frontend
    from compilers.tvm.sweep import apply, build_modules
    from compilers.tvm.targets import target_of

    target = target_of(PHONE, "hvx")
    module = frontend.fuse(frontend.import_graph(convolution().proto()), target)
    functions = {gv.name_hint: f for gv, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    decisions = foreign.decide(functions, target, threads=1)
    scheduled = {name: apply(func, decisions[name], threads=1) for name, func in functions.items()}
    (built,) = [library for _, library in build_modules(scheduled, target)]
    assert re.search(r"vmpy\(v\d+\.sf,v\d+\.sf\)", built.inspect_source("asm"))


@pytest.mark.parametrize(("precision", "product_bytes"), [("fp32", 4), ("int8", 1)])
def test_an_npu_tile_becomes_blocks_of_the_vector_units_loops_and_its_code_is_counted(
    tmp_path: Path, precision: str, product_bytes: int
) -> None:
    """The tile's 8 of 12 rows come down to 6; sums of 32 lanes, whatever the bytes of what is multiplied."""
    tile = Tile(node="Conv_c", sizes=(("x", 6), ("y", 8), ("k", 32), ("c", 8)))
    artefact = compiled(PHONE, "hvx", tmp_path, precision, (tile,))
    assert float(artefact.fact("relative_error")) < 1e-5
    rows = json.loads((artefact.directory / "functions.json").read_text())
    (row,) = (row for row in rows if row["reason"] == "asked for by the plan")
    assert row["config"]["block"] == [6, 6, 32]
    code = row["code"]
    assert code["vector_bytes"] == 128
    # 12 x 12 positions, 9 taps; 8 channels, of which vrmpy takes 4 at once: a vector of weights for each step.
    steps = 12 * 12 * 9 * (2 if precision == "int8" else 8)
    data_loads = 1 if product_bytes == 1 else steps  # bytes are broadcast from the padded copy
    assert code["loads"] >= steps + data_loads
    assert code["vector_instructions"] > code["vector_products"] > 0
    assert code["stack_bytes"] > 0


def test_a_tile_of_neither_kind_is_refused(tmp_path: Path) -> None:
    for sizes, reason in (((("x", 6), ("y", 0), ("k", 32), ("c", 8)), "every size must be at least 1"),
                          ((("x", 6), ("y", 4)), "none of this processor")):  # fmt: skip
        with pytest.raises(CompilerError, match=reason):
            compiled(PHONE, "hvx", tmp_path, tiles=(Tile(node="Conv_c", sizes=sizes),))


@pytest.mark.skipif(not (ZIG and HEXAGON), reason="needs qemu-hexagon, and zig for a C library of Hexagon's")
def test_integer_functions_on_hexagon_vectors_compute_the_same_under_qemu(tmp_path: Path) -> None:
    """The oldest vectors that QEMU 7.2 knows have no floats, so the float functions are not tried."""
    import tvm
    import tvm_ffi.libinfo

    from compilers.tvm import foreign, frontend
    from compilers.tvm.sweep import _rounds, apply, arguments_of, values_agree
    from compilers.tvm.targets import host_target, reference_target, target_of

    ids = {**PHONE.processor("hvx").ids["tvm"], "mcpu": "hexagonv67", "mattr": "+hvxv67,+hvx-length128b"}
    old = dataclasses.replace(PHONE, processors=(dataclasses.replace(PHONE.processor("hvx"), ids={"tvm": ids}),))
    target = target_of(old, "hvx")
    module = frontend.fuse(frontend.import_graph(graph_in("int8").proto()), target)
    functions = {gv.name_hint: f for gv, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    decisions = foreign.decide(functions, target, threads=1)
    includes = [f"-I{tvm_ffi.libinfo.find_include_path()}", f"-I{tvm_ffi.libinfo.find_dlpack_include_path()}"]
    dots = 0
    for name, func in functions.items():
        scheduled = apply(func, decisions[name], threads=1)
        built = tvm.tirx.build(tvm.IRModule({name: scheduled.with_attr("global_symbol", name)}), target=target)
        built.write_to_file(str(tmp_path / "kernel.o"), "o")
        assert machine_of(tmp_path / "kernel.o") == "hexagon"
        dots += "vrmpy" in built.inspect_source("asm")
        command = [str(ZIG), "cc", "-target", "hexagon-linux-musl", "-mcpu=hexagonv67", "-static", "-O1", *includes,
                   f"-DLINKED=__tvm_ffi_{name}", str(DRIVER), str(tmp_path / "kernel.o"),
                   "-o", str(tmp_path / "driver")]  # fmt: skip
        subprocess.run(command, check=True)
        expected = arguments_of(func)
        tvm.tirx.build(
            tvm.IRModule({name: func.with_attr("global_symbol", name)}), target=reference_target(host_target())
        )[name](*expected)
        command = [str(HEXAGON), "-cpu", "v67", str(tmp_path / "driver")]
        found = _emulated(command, "", name, [a.numpy() for a in arguments_of(func, scheduled)], tmp_path)
        assert values_agree(expected[-1].numpy(), found[-1], rounds=_rounds(func)), name
    assert dots == 2


def test_code_for_this_machine_in_place_of_hexagons_is_caught(tmp_path: Path) -> None:
    """TVM compiles its own Hexagon target without a host to x86 code and says nothing."""
    import tvm

    from compilers.tvm.foreign import check_machine

    one = tvm.te.placeholder((64,), name="one")
    function = tvm.te.create_prim_func([one, tvm.te.compute((64,), lambda i: one[i] + 1, name="two")])
    built = tvm.tirx.build(function, target=tvm.target.Target("qcom/hexagon-v68"))
    built.write_to_file(str(tmp_path / "kernel.o"))
    with pytest.raises(CompilerError, match="asked for hexagon-unknown-linux-musl and wrote code for x86_64"):
        check_machine(tmp_path / "kernel.o", "hexagon-unknown-linux-musl")


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"kind": "zorgon"}, 'Target kind "zorgon" is not defined'),
        ({"kind": "llvm", "mtriple": "aarch64-linux-android", "mcpu": "cortex-x33"}, "near it are cortex-x3"),
        ({"kind": "llvm", "mtriple": "nonsense-a-b"}, "no code for the triple"),
        ({"kind": "llvm", "wings": "2"}, "Unknown config option 'wings'"),
    ],
)
def test_a_target_that_tvm_does_not_know_is_named(table: dict[str, str], reason: str) -> None:
    from compilers.tvm.targets import target_of

    cpu = dataclasses.replace(PHONE.processor("cpu"), ids={"tvm": table})
    with pytest.raises(CompilerError, match=reason):
        target_of(dataclasses.replace(PHONE, processors=(cpu,)), "cpu")


@pytest.mark.skipif(not (CROSS_GCC and QEMU), reason="needs aarch64-linux-gnu-gcc and qemu-aarch64")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_every_function_computes_the_same_under_qemu(tmp_path: Path, precision: str) -> None:
    import tvm
    import tvm_ffi.libinfo

    from compilers.tvm import frontend
    from compilers.tvm.schedule import schedule
    from compilers.tvm.sweep import _rounds, arguments_of, values_agree
    from compilers.tvm.targets import host_target, reference_target, target_of
    from compilers.tvm.tiles import TileConfig
    from compilers.tvm.weights import laid_out

    artefact = compiled(BOARD, "cpu", tmp_path / "build", precision)
    assert artefact.files[0] == "model.so"
    assert ("sdot" in _disassembled(artefact.main_file)) == (precision == "int8")
    driver = tmp_path / "driver"
    includes = [f"-I{tvm_ffi.libinfo.find_include_path()}", f"-I{tvm_ffi.libinfo.find_dlpack_include_path()}"]
    subprocess.run([str(CROSS_GCC), "-O1", "-rdynamic", *includes, str(DRIVER), "-ldl", "-o", driver], check=True)
    module = frontend.fuse(frontend.import_graph(graph_in(precision).proto()), target_of(BOARD, "cpu"))
    functions = {gv.name_hint: f for gv, f in module.functions.items() if isinstance(f, tvm.tirx.PrimFunc)}
    assert len(functions) >= 3
    rows = json.loads((artefact.directory / "functions.json").read_text())
    configs = {row["function"]: TileConfig.from_json(row["config"]) if row["config"] else None for row in rows}
    for name, func in functions.items():
        expected = arguments_of(func)
        built = tvm.IRModule({name: func.with_attr("global_symbol", name)})
        tvm.tirx.build(built, target=reference_target(host_target()))[name](*expected)
        scheduled = schedule(func, configs[name], threads=1)
        arguments = [argument.numpy() for argument in arguments_of(func, scheduled)]
        found = _under_qemu(driver, artefact.main_file, name, arguments, tmp_path)
        wanted = laid_out([tensor.numpy() for tensor in expected], scheduled)
        assert all(values_agree(w, f, rounds=_rounds(func)) for w, f in zip(wanted, found, strict=True)), name


def _disassembled(library: Path) -> str:
    command = [str(CROSS_GCC).replace("gcc", "objdump"), "-d", str(library)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _under_qemu(
    driver: Path, library: Path, name: str, arrays: list[np.ndarray[Any, Any]], folder: Path
) -> list[np.ndarray[Any, Any]]:
    return _emulated([str(QEMU), "-L", SYSTEM, str(driver)], str(library), name, arrays, folder)


def _emulated(
    emulator: list[str], library: str, name: str, arrays: list[np.ndarray[Any, Any]], folder: Path
) -> list[np.ndarray[Any, Any]]:
    words = []
    for index, array in enumerate(arrays):
        path = folder / f"{name}.{index}"
        path.write_bytes(array.tobytes())
        code = {"i": 0, "u": 1, "f": 2}[array.dtype.kind]
        words += [str(path), *(str(n) for n in (code, array.dtype.itemsize * 8, array.ndim, *array.shape))]
    subprocess.run([*emulator, library, f"__tvm_ffi_{name}", *words], check=True, timeout=120)
    return [
        np.frombuffer((folder / f"{name}.{i}").read_bytes(), a.dtype).reshape(a.shape) for i, a in enumerate(arrays)
    ]
