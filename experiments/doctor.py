"""Which power sensors there are, and why the others are not: `python -m experiments.doctor`.

Exit code: 0 when a sensor can be read, 1 when none can: energy is then modelled.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from experiments.arguments import exit_code

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """List the sensors with their rails, or the reason and the way out."""
    parser = argparse.ArgumentParser(prog="python -m experiments.doctor", description=__doc__.split("\n", 1)[0])
    parser.parse_args(argv)
    return exit_code(_list_sensors)


def _list_sensors() -> int:
    from experiments.evaluator.power.meter import find_meter
    from experiments.evaluator.power.registry import all_sensors
    from experiments.evaluator.power.sensor import SensorError
    from experiments.units import joules, watts

    usable = 0
    for sensor in all_sensors():
        reason = sensor.why_not()
        try:
            values = {} if reason else sensor.read()
        except SensorError as error:  # it answered once and does no more
            reason = str(error)
        if reason:
            print(f"{sensor.name:16} no   {reason}")
            continue
        usable += 1
        write = joules if sensor.counts else watts
        rails = ", ".join(f"{rail} {write(value)}" for rail, value in values.items())
        print(f"{sensor.name:16} ok   every {sensor.period_s:g} s: {rails}")
    for kind in ("cpu", "gpu", "npu"):
        meter = find_meter(kind)
        told = "energy is modelled" if isinstance(meter, str) else f"energy is measured by {meter.title}"
        print(f"what runs on this machine's {kind}: {told}")
    return 0 if usable else 1


if __name__ == "__main__":
    raise SystemExit(main())
