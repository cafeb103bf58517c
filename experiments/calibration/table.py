"""Read a table of measured latencies: Qualcomm's AI Hub table, or a user's own in the same columns.

The AI Hub's is a CSV of the `perf.yaml` files of the Python package qai-hub-models (BSD-3).
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from experiments.calibration.error import CalibrationError
from experiments.csv_file import read_csv
from partition import Device, DeviceError, device_names, load_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

COLUMNS: Final = ("model", "precision", "device", "soc_model", "htp_arch", "runtime", "latency_ms", "unit")
# What the table calls a runtime or a precision -> our backend or precision. Others are left out: they are other
# software (tflite) or other numbers of bits.
RUNTIMES: Final = {"onnx": "ort_qnn", "qnn_dlc": "snpe"}
RUNTIME_NAMES: Final = {ours: theirs for theirs, ours in RUNTIMES.items()}
PRECISIONS: Final = {"float": "fp16", "w8a8": "int8", "w8a16": "w8a16"}
# A user's own table may say it as we do.
_COMPILERS: Final = {**RUNTIMES, **{ours: ours for ours in RUNTIMES.values()}}
_PRECISIONS: Final = {**PRECISIONS, **{ours: ours for ours in PRECISIONS.values()}}
# Copies of one measurement agree to the last digit; two measurements of one thing differ by their noise.
_SAME_RATIO: Final = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """One measured latency; `device` is ours, `elsewhere_layers` counts layers that did not run on the NPU.

    `htp_arch` and `vtcm_mb` are its chip's, by which references are chosen. `npu_layers` is 0 where the table does not
    say.
    """

    model: str
    precision: str
    device: str
    compiler: str
    latency_s: float
    htp_arch: int
    vtcm_mb: int
    elsewhere_layers: int = 0
    npu_layers: int = 0

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What was measured: model, precision, device, backend."""
        return self.model, self.precision, self.device, self.compiler


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """The usable rows of a table, one per thing measured.

    `copies` maps a device of ours to the names that the table lists its rows under; `left_out` counts rows by the
    reason why they are not used.
    """

    rows: tuple[Measurement, ...]
    copies: Mapping[str, tuple[str, ...]]
    left_out: Mapping[str, int]


def read_table(path: Path) -> Table:
    """Read a table and merge the rows of devices that are one chip.

    Raises:
        UserError: it is no CSV file, or lacks a column.
        CalibrationError: a row names a device or a chip id that no device file has, or a
            latency that is none; or two rows for the same thing disagree.
    """
    hub = hub_devices()
    rows: dict[tuple[str, str, str, str], tuple[Measurement, str]] = {}
    names: dict[str, dict[str, None]] = {}
    left_out: dict[str, int] = {}
    _, lines = read_csv(path, needed=COLUMNS, least=0)
    for where, cells, model in _named(path, [(f"{path.name} line {place}", line) for place, line in lines]):
        device = _device(cells, hub, where)
        row = _measurement(cells, model, device, where)
        names.setdefault(device.name, {})[cells["device"]] = None
        if isinstance(row, str):
            left_out[row] = left_out.get(row, 0) + 1
        elif row.key not in rows:
            rows[row.key] = row, where
        else:
            _check_same(rows[row.key], row, where)
            left_out["copy of another device's row"] = left_out.get("copy of another device's row", 0) + 1
    if not rows:
        why = "".join(f"; left out: {count} of {reason}" for reason, count in left_out.items())
        wanted = f"runtime {' or '.join(RUNTIMES)} in {', '.join(PRECISIONS)} on the NPU"
        raise CalibrationError(f"{path} holds no row of {wanted}{why}")
    return Table(
        rows=tuple(row for row, _ in rows.values()),
        copies={device: tuple(found) for device, found in names.items()},
        left_out=left_out,
    )


def with_own(table: Table, own: Table) -> Table:
    """Add own measurements; an own row takes the place of the table's row for the same thing."""
    rows = {row.key: row for row in (*table.rows, *own.rows)}
    devices = {*table.copies, *own.copies}
    copies = {d: tuple(dict.fromkeys((*table.copies.get(d, ()), *own.copies.get(d, ())))) for d in devices}
    return Table(rows=tuple(rows.values()), copies=copies, left_out=table.left_out)


def rows_hash(rows: Iterable[Measurement]) -> str:
    """Hash rows by content, in whatever order they come: SHA-256 in hexadecimal."""
    lines = sorted(json.dumps([*row.key, row.latency_s]) for row in rows)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def hub_devices() -> dict[str, Device]:
    """Map what the table calls a device, and our own names, to the device file that lists it."""
    devices = [load_device(name) for name in device_names()]
    found = {device.name: device for device in devices}
    for device in devices:
        for processor in device.processors:
            listed = processor.ids.get("aihub", {}).get("devices", "")
            found |= {name.strip(): device for name in listed.split(";") if name.strip()}
    return found


def _named(path: Path, lines: Sequence[tuple[str, dict[str, str]]]) -> Iterable[tuple[str, dict[str, str], str]]:
    """Give each line the name of its model: `model`, or `model/component` where a model has several parts."""
    components: dict[str, set[str]] = {}
    for _, line in lines:
        components.setdefault(line["model"], set()).add(line.get("component") or "")
    for where, line in lines:
        if not line["model"]:
            raise CalibrationError(f"{where} of {path} names no model")
        several = len(components[line["model"]]) > 1
        yield where, line, f"{line['model']}/{line.get('component')}" if several else line["model"]


def _device(cells: Mapping[str, str], hub: Mapping[str, Device], where: str) -> Device:
    device = _own_device(cells["device"], where) or hub.get(cells["device"])
    if device is None:
        close = difflib.get_close_matches(cells["device"], hub, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise CalibrationError(
            f"{where} measures {cells['device']!r}, which no device file lists{hint}; a device of your own is named by "
            "the path of its file, such as ./phone.toml (docs/platforms.md says what is in it)"
        )
    ids = next((p.ids["qnn"] for p in device.processors if "qnn" in p.ids), {})
    for column in ("soc_model", "htp_arch"):
        if cells[column] != ids.get(column):
            raise CalibrationError(
                f"{where} gives {cells['device']!r} the {column} {cells[column]!r}, but the device file "
                f"{device.name} says {ids.get(column)!r}"
            )
    return device


def _own_device(text: str, where: str) -> Device | None:
    """Load a user's own device, which a row names by the path of its file."""
    if not text.endswith(".toml"):
        return None
    if not Path(text).is_file():
        raise CalibrationError(f"{where} names the device file {text!r}, and there is none at {Path(text).absolute()}")
    try:
        return load_device(text)
    except DeviceError as error:
        raise CalibrationError(f"{where}: {error}") from error


def npu_facts(device: Device) -> dict[str, int]:
    """Return the facts of a device's NPU by which its references are chosen: `htp_arch` and `vtcm_mb`.

    Raises:
        DeviceError: the device file lacks one.
    """
    ids = device.processor("npu").ids.get("qnn", {})
    lacking = [name for name in ("htp_arch", "vtcm_mb") if not ids.get(name, "").isdecimal()]
    if lacking:
        raise DeviceError(f"device {device.name} has no {lacking[0]} in processors.npu.ids.qnn, a whole number")
    return {name: int(ids[name]) for name in ("htp_arch", "vtcm_mb")}


def _measurement(cells: Mapping[str, str], model: str, device: Device, where: str) -> Measurement | str:
    """Return the row as a value, or why it is not used."""
    latency_ms = _number(cells["latency_ms"], where)
    if cells["runtime"] not in _COMPILERS:
        return f"runtime {cells['runtime']}"
    if cells["precision"] not in _PRECISIONS:
        return f"precision {cells['precision']}"
    if cells["unit"] != "NPU":
        return f"ran on the {cells['unit'] or 'unknown unit'}"
    try:
        facts = npu_facts(device)
    except DeviceError as error:
        raise CalibrationError(f"{where}: {error}") from error
    return Measurement(
        **facts,
        model=model,
        precision=_PRECISIONS[cells["precision"]],
        device=device.name,
        compiler=_COMPILERS[cells["runtime"]],
        latency_s=latency_ms * 1e-3,
        npu_layers=_layers(cells.get("npu_layers"), where),
        elsewhere_layers=sum(_layers(cells.get(f"{unit}_layers"), where) for unit in ("cpu", "gpu")),
    )


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise CalibrationError(f"{where} gives the latency {text!r}; a latency is a positive number of milliseconds")
    return value


def _layers(text: str | None, where: str) -> int:
    if text and not text.isdecimal():
        raise CalibrationError(f"{where} gives {text!r} where a number of layers belongs")
    return int(text) if text else 0


def _check_same(first: tuple[Measurement, str], second: Measurement, where: str) -> None:
    known, known_where = first
    if abs(known.latency_s - second.latency_s) > _SAME_RATIO * known.latency_s:
        raise CalibrationError(
            f"{known_where} and {where} both measure {known.model} {known.precision} on {known.device} with "
            f"{known.compiler} and disagree: {known.latency_s * 1e3:g} and {second.latency_s * 1e3:g} ms; keep one"
        )
