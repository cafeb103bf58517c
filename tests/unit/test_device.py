from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partition import Address, DeviceError, device_names, load_device

if TYPE_CHECKING:
    from pathlib import Path

MINIMAL = """
title = "a chip"
os = "linux"
[sources]
sheet = "data sheet"
[processors.cpu]
title = "core"
"""


@pytest.mark.parametrize("name", device_names())
def test_every_figure_of_a_shipped_device_has_a_listed_source(name: str) -> None:
    device = load_device(name)  # the reader refuses figures without one
    assert device.processors
    used = {f.source for p in device.processors for f in (*p.macs_per_s.values(), *p.energy_j_per_mac.values())}
    assert used <= set(device.sources)


def test_a_misspelt_device_is_answered_with_the_nearest() -> None:
    with pytest.raises(DeviceError, match="did you mean 'sa8255p'"):
        load_device("sa8255")


def test_an_unknown_processor_is_answered_with_those_there_are() -> None:
    with pytest.raises(DeviceError, match="it has cpu, gpu, npu, hvx"):
        load_device("sm8650").processor("dsp")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('active_w = { value = 1.0, tag = "guessed", source = "sheet" }', "has tag 'guessed'"),
        ('active_w = { value = 1.0, tag = "published", source = "blog" }', "does not list"),
        ('active_w = { value = 0.0, tag = "published", source = "sheet" }', "0 < low"),
        ('active_w = { value = 1.0, low = 2.0, tag = "published", source = "sheet" }', "0 < low"),
        ("active_w = { value = 1.0 }", "malformed"),
        ("active_w = 1.0", "malformed"),
        ('active_w = { value = "one", tag = "published", source = "sheet" }', "malformed"),
        ("active_w = ", "malformed"),
    ],
)
def test_a_figure_that_cannot_be_traced_is_refused(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "chip.toml"
    file.write_text(MINIMAL + line)
    with pytest.raises(DeviceError, match=message):
        load_device(str(file))


def test_a_device_without_processors_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "chip.toml"
    file.write_text('title = "a chip"\nos = "linux"\n')
    with pytest.raises(DeviceError, match="lists no processor"):
        load_device(str(file))


def test_an_address_is_a_device_elsewhere_with_the_figures_of_its_file() -> None:
    device = load_device("rpc://board.local:9190/pi?device=host")
    assert device.address == Address(host="board.local", port=9190, key="pi")
    assert device.processors == load_device("host").processors
    assert device.os != "host"
    assert load_device(device.name) == device


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rpc://board:9190?device=host", "it lacks /KEY; write rpc://HOST:PORT/KEY"),
        ("rpc://board/pi?device=host", "it lacks PORT"),
        ("rpc:/pi", "it lacks HOST and PORT and"),
        ("rpc://board:many/pi?device=host", "names no device"),
        ("rpc://board:99999/pi?device=host", "names no device"),
        ("rpc://[board:9190/pi?device=host", "names no device"),
        ("rpc://board:9190/pi", "it lacks .device=NAME, the device file"),
        ("rpc://board:9190/pi?device=host&speed=2", "is all that may follow the key"),
        ("rpc://board:9190/pi?device=host&device=sm8650", "is all that may follow the key"),
        ("rpc://board:9190/pi?device=hots", "did you mean 'host'"),
        ("rpc://board:9190/pi?device=rpc://a:1/b%3Fdevice=host", "its device is an address again"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused_with_the_form(text: str, message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        load_device(text)
