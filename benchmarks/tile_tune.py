"""MetaSchedule beside the sweep on single operators of the CPU: quality against trials and seconds.

`benchmarks.tiles tune`. Both start from nothing and see the same function; their kernels are timed in turns.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any, Final

from benchmarks.tile_cpu import ROUNDS, least_s, operators

if TYPE_CHECKING:
    from collections.abc import Callable

TRIALS: Final = (16, 64)
SWEEPS: Final = (2, 8)


def peers() -> None:
    """Print, for each operator, the least time and the CPU seconds of each way, relative to the shipped sweep of 2."""
    print(f"one thread, kernels timed in turns; load average {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EDGEFRONTIER_CACHE"] = folder  # nothing is known from before
        for title, model in operators():
            found = _operator(model)
            first = next(iter(found.values()))[0]
            print(title, flush=True)
            for way, (least_s, cpu_s) in found.items():
                print(f"    {way:12s} {least_s * 1e6:8.1f} us {least_s / first:5.2f}x {cpu_s:7.1f} CPU-s", flush=True)


def _operator(model: Any) -> dict[str, tuple[float, float]]:  # noqa: ANN401 - TVM has no types
    from compilers.tvm import runtime
    from compilers.tvm.sweep import arguments_of, build_each
    from compilers.tvm.targets import host_target

    runtime.use_threads(1)
    target = host_target()
    func = _largest(model, target)
    scheduled, cpu_s = {}, {}
    for way, make in _ways(func, target).items():
        start = time.process_time()
        scheduled[way] = make()
        cpu_s[way] = time.process_time() - start
    kernels = build_each(scheduled, target)
    calls = {way: functools.partial(kernel, *arguments_of(func, scheduled[way])) for way, kernel in kernels}
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for way, call in calls.items():
            least[way] = min(least[way], least_s(call))
    return {way: (least[way], cpu_s[way]) for way in scheduled if way in least}


def _ways(func: Any, target: Any) -> dict[str, Callable[[], Any]]:  # noqa: ANN401 - as above
    from compilers.tvm.cache import TileCache
    from compilers.tvm.sweep import Sweep, apply
    from compilers.tvm.tune import Tuner

    def sweep(candidates: int) -> Sweep:
        cache = TileCache.for_build("benchmark", f"sweep{candidates}")
        return Sweep(target=target, threads=1, candidates=candidates, cache=cache)

    def swept(candidates: int) -> Any:  # noqa: ANN401
        (decision,) = sweep(candidates).decide({"main": func}, {"main": 1}).values()
        return apply(func, decision, threads=1)

    def tuned(trials: int) -> Any:  # noqa: ANN401
        cache = TileCache.for_build("benchmark", f"tune{trials}")
        return Tuner(sweep=sweep(1), trials=trials, cache=cache).best(func, trials)

    # More trials go on from the records of fewer, so their seconds add up.
    sweeps = {f"sweep of {n}": functools.partial(swept, n) for n in SWEEPS}
    return sweeps | {f"{n} trials": functools.partial(tuned, n) for n in TRIALS}


def _largest(model: Any, target: Any) -> Any:  # noqa: ANN401 - as above
    import tvm

    from compilers.tvm import frontend
    from compilers.tvm.schedule import analyse

    module = frontend.fuse(frontend.import_graph(model), target)
    functions = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    return max(((f, n) for f in functions if (n := analyse(f))), key=lambda item: item[1].macs)[0]
