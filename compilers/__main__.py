"""`python -m compilers`: adapter x device x action, "ok" or why not and the way out."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from compilers.adapter import Action
from compilers.registry import compiler_names, get_compiler
from partition import Device, DeviceError, device_names, load_device

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table for the devices asked for, or for all, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m compilers", description="What each backend can do here, and why not."
    )
    parser.add_argument("--device", action="append", metavar="NAME", help="may be repeated (default: all)")
    options = parser.parse_args(argv)
    try:
        devices = [load_device(name) for name in options.device or device_names()]
    except DeviceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        _print_table(devices)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _print_table(devices: Sequence[Device]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(header_style="bold", show_lines=False)
    for heading in ("backend", "device", "processor", *Action):
        table.add_column(heading, overflow="fold")
    for name in compiler_names():
        compiler = get_compiler(name)
        for device in devices:
            for processor in device.processors:
                whys = [compiler.why_not(action, device, processor.name) for action in Action]
                table.add_row(name, device.name, processor.name, *_cells(whys))
        table.add_section()
    console = Console(width=None if sys.stdout.isatty() else 240)
    console.print(table)
    for name in compiler_names():
        console.print(f"{name}: {get_compiler(name).version()}", highlight=False)


def _cells(whys: Sequence[str | None]) -> list[str]:
    """Write "ok" or the reason, and a reason that repeats only once."""
    from rich.markup import escape

    cells: list[str] = []
    for why in whys:
        text = "[green]ok[/]" if why is None else escape(why)
        cells.append("the same" if why is not None and cells and text == cells[-1] else text)
    return cells


if __name__ == "__main__":
    raise SystemExit(main())
