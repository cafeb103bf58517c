"""Choose how each fused function is built: short measured runs, values checked, the result cached by structure.

Imports TVM; only reached through the methods of `TvmCompiler`.

All functions are built together, one candidate each, in rounds: a function costs 0.05 s of CPU that way and four
times as much alone. The first round takes the candidate that the static model likes best; later rounds go to
the functions that take a relevant share of the model's time.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import tvm
import tvm_ffi

from compilers.adapter import CompilerError
from compilers.tvm.blocks import UnscheduledError
from compilers.tvm.cache import Build, Decision, TileCache
from compilers.tvm.library import NO_ASSERTS
from compilers.tvm.nans import PIPELINE
from compilers.tvm.schedule import analyse, schedule
from compilers.tvm.targets import reference_target, registers_of
from compilers.tvm.tiles import TileConfig, candidates
from compilers.tvm.weights import laid_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Array = np.ndarray[Any, Any]

RELEVANT_SHARE: Final = 0.02
"""A function below this share of the summed time is not worth a second candidate."""
# The static model's choice stands unless another is faster by more than the noise.
_CLEARLY_FASTER: Final = 0.97
_HOPELESS: Final = 4.0
# Where its tensors lie in memory moves a kernel's time by up to a tenth, more where a page is large or not.
_CLOSE: Final = 1.2
_PLACES: Final = 3
_MEASURE_S: Final = 0.01
_MIN_RUNS: Final = 3
_ROUNDINGS: Final = frozenset(f"tirx.{name}" for name in ("ceil", "floor", "nearbyint", "round", "trunc"))
# Level 0 runs at half the speed of level 1, 1 ns a multiply-add, and compiles in a third of the time.
_HEAVY_MACS: Final = 100_000_000
# Of the largest value: summing in another order moves float32 by less.
_TOLERANCE: Final = 1e-4
# Rounding to integers turns the last bit into a whole step, so those are judged by the mean square.
_ROUNDING_TOLERANCE: Final = 2e-3


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """What the sweep may do: candidates per function, and threads the code will run with."""

    target: Any
    threads: int
    candidates: int
    cache: TileCache

    def decide(self, functions: Mapping[str, Any], calls: Mapping[str, int]) -> dict[str, Decision]:
        """Return a decision for each function; what the cache lacks is built, checked and measured here.

        `calls` counts the call sites of each function.

        Raises:
            CompilerError: no build of some function computes what the baseline build computes.
        """
        keys = {name: structure_key(func) for name, func in functions.items()}
        known = {key: decision for key in keys.values() if (decision := self.cache.get(key))}
        unknown = {name: func for name, func in functions.items() if keys[name] not in known}
        for name, decision in self._search(unknown, calls).items():
            known[keys[name]] = decision
            self.cache.put(keys[name], decision)
        return {name: known[key] for name, key in keys.items()}

    def faster(self, func: Any, decided: Decision, other: Any) -> Decision:  # noqa: ANN401
        """Return what was decided with its time of now, or "tuned" where `other` is right and clearly faster."""
        trial = self._trial(func)
        _run_reference({"": trial}, self.target)
        builds: tuple[tuple[Build, Any, TileConfig | None], ...] = (
            (decided.build, apply(func, decided, threads=self.threads), decided.config),
            ("tuned", other, None),
        )
        for build, scheduled, config in builds:
            for _, kernel in build_each({"": scheduled}, self.target):
                trial.measure(kernel, scheduled, build, config)
        return trial.decision("")

    def _search(self, functions: Mapping[str, Any], calls: Mapping[str, int]) -> dict[str, Decision]:
        static = {name: func for name, func in functions.items() if _is_static(func)}
        trials = {name: self._trial(func) for name, func in static.items()}
        _run_reference(trials, self.target)
        for turn in range(self.candidates):
            self._round(trials, calls, turn)
        self._settle_rest(trials)
        found = {name: trial.decision(name) for name, trial in trials.items()}
        return {name: found.get(name, _NOT_STATIC) for name in functions}

    def _trial(self, func: Any) -> _Trial:  # noqa: ANN401
        trial = _Trial(func=func, candidates=(), rounds=_rounds(func))
        try:
            nest = analyse(func)
        except UnscheduledError as reason:
            trial.reason = str(reason)
            return trial
        trial.candidates = (
            candidates(nest, registers_of(self.target), self.candidates, self.threads) if nest else (None,)
        )
        trial.macs = nest.macs if nest else 0
        return trial

    def _round(self, trials: Mapping[str, _Trial], calls: Mapping[str, int], turn: int) -> None:
        total_s = sum(t.best_s * calls.get(name, 1) for name, t in trials.items() if t.best is not None)
        scheduled = {}
        for name, trial in trials.items():
            small = trial.best is not None and trial.best_s * calls.get(name, 1) < RELEVANT_SHARE * total_s
            if turn >= len(trial.candidates) or small:
                continue
            try:
                scheduled[name] = schedule(trial.func, trial.candidates[turn], threads=self.threads)
            except UnscheduledError as reason:
                trial.reason = str(reason)
        for name, kernel in build_each(scheduled, self.target):
            config = trials[name].candidates[turn]
            trials[name].measure(kernel, scheduled[name], "tiled" if config else "flat", config)

    def _settle_rest(self, trials: Mapping[str, _Trial]) -> None:
        """Build what no schedule fits, or what every schedule broke, as it is; then for the baseline CPU."""
        builds: tuple[tuple[Build, Any], ...] = (
            ("plain", self.target),
            ("safe", reference_target(self.target)),
        )
        for build, target in builds:
            rest = {name: trial.func for name, trial in trials.items() if trial.best is None}
            for name, kernel in build_each(rest, target):
                trials[name].measure(kernel, trials[name].func, build, None)


@dataclasses.dataclass(kw_only=True, slots=True)
class _Trial:
    """One function under test: its candidates, its expected values, and the best build so far."""

    func: Any
    candidates: tuple[TileConfig | None, ...]
    macs: int = 0
    rounds: bool = False
    reason: str = ""
    expected: dict[int, Array] = dataclasses.field(default_factory=dict)
    best: tuple[Build, TileConfig | None] | None = None
    best_call: functools.partial[object] | None = None
    best_s: float = float("inf")
    miscompiled: list[str] = dataclasses.field(default_factory=list)

    def measure(self, kernel: Any, scheduled: Any, build: Build, config: TileConfig | None) -> None:  # noqa: ANN401
        """Check the kernel's values, and keep it when it beats the best so far in runs taken in turns."""
        arguments = arguments_of(self.func, scheduled)
        call = functools.partial(kernel, *arguments)
        call()
        if not all(values_agree(e, arguments[i].numpy(), rounds=self.rounds) for i, e in self.expected.items()):
            self.miscompiled.append(build if config is None else f"{build} {config}")
            return
        if self.best_call is None:
            (time_s,) = timed_s([call])
        else:
            best_s, time_s = _compared_s(self.best_call, call)
            self.best_s = min(self.best_s, best_s)
            if time_s >= _CLEARLY_FASTER * best_s:
                return
        self.best, self.best_call, self.best_s = (build, config), call, time_s

    def decision(self, name: str) -> Decision:
        """Return what the trial came to."""
        if self.best is None:
            raise CompilerError(f"every build of TVM's function {name} computes wrong values: {self.miscompiled}")
        build, config = self.best
        return Decision(
            build=build,
            config=config,
            time_s=self.best_s,
            reason="" if build in ("tiled", "flat", "tuned") else self.reason or "its schedules computed wrong values",
            miscompiled=tuple(self.miscompiled),
        )


def apply(func: Any, decision: Decision, *, threads: int) -> Any:  # noqa: ANN401
    """Return the function as decided."""
    if decision.build not in ("tiled", "flat"):
        return func  # as it is; what is "tuned" comes from the tuner
    return schedule(func, decision.config, threads=threads)


_NOT_STATIC: Final = Decision(build="plain", reason="a shape of it is known only at run time")


def structure_key(func: Any) -> str:  # noqa: ANN401
    """Return a name for the function's structure: same shapes, dtypes and arithmetic, same name."""
    return f"{tvm_ffi.structural_hash(func.without_attr('global_symbol')) & (2**64 - 1):016x}"


def arguments_of(func: Any, scheduled: Any = None) -> list[Any]:  # noqa: ANN401
    """Return seeded tensors for a function's parameters, outputs included, laid out as the `scheduled` one takes them.

    Where int8 weights are summed, floats are scales, and of a size that spreads the sums over a byte.
    """
    random, least = np.random.default_rng(0), int(_divides(func))
    most = least if _looks_up(func) else 1
    arrays = [_random(random, buffer, least, most) for buffer in func.params]
    weights = [array for array in arrays if array.dtype == np.int8]
    if weights:
        terms = max(1, weights[0].size // max(1, arrays[-1].shape[-1] if arrays[-1].ndim else 1))
        arrays = [np.abs(array) / (25 * terms) if array.dtype == np.float32 else array for array in arrays]
    return [tvm.runtime.tensor(array) for array in laid_out(arrays, scheduled or func)]


def values_agree(expected: Array, got: Array, *, rounds: bool) -> bool:
    """Tell whether two outputs are the same up to the order of float32 sums."""
    finite = np.isfinite(expected.astype(np.float64))
    left, right = expected[finite].astype(np.float64), got[finite].astype(np.float64)
    if not np.array_equal(expected[~finite], got[~finite], equal_nan=True):
        return False
    if not left.size:
        return True
    difference = np.abs(left - right)
    if rounds:
        return bool(np.sqrt(np.mean(difference**2)) <= _ROUNDING_TOLERANCE * max(_rms(left), 1e-30))
    return bool(difference.max() <= _TOLERANCE * max(np.abs(left).max(), 1e-30))


def _rms(values: Array) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _rounds(func: Any) -> bool:  # noqa: ANN401
    """Tell whether a float is rounded to an integer on the way, so that a last bit may become a whole step."""
    found: list[str] = []

    def call(node: Any) -> None:  # noqa: ANN401
        found.extend(_ROUNDINGS & {getattr(node.op, "name", "")})

    def cast(node: Any) -> None:  # noqa: ANN401
        found.extend(["cast"] if not str(node.ty.dtype).startswith("float") else [])

    tvm_ffi.structural_walk(func, [(tvm.ir.Call, call), (tvm.tirx.Cast, cast)])
    return bool(found)


def _divides(func: Any) -> bool:  # noqa: ANN401
    """Tell whether integers are divided by what is not known now, so that a zero would end the process."""
    found: list[Any] = []
    kinds = (tvm.tirx.Div, tvm.tirx.Mod, tvm.tirx.FloorDiv, tvm.tirx.FloorMod)
    tvm_ffi.structural_walk(func, [(kind, lambda node: found.append(node.b)) for kind in kinds])
    return any(not isinstance(divisor, tvm.tirx.IntImm) and "int" in str(divisor.ty.dtype) for divisor in found)


def _looks_up(func: Any) -> bool:  # noqa: ANN401
    """Tell whether values are indices: of an axis of one element only 0 is one."""
    found: list[bool] = []

    def load(node: Any) -> None:  # noqa: ANN401
        found.extend(_loads(index) for index in node.indices)

    tvm_ffi.structural_walk(func, [(tvm.ir.TensorLoad, load)])
    return any(found)


def _loads(expr: Any) -> bool:  # noqa: ANN401
    found: list[Any] = []
    tvm_ffi.structural_walk(expr, [(tvm.ir.TensorLoad, found.append)])
    return bool(found)


def _random(random: np.random.Generator, buffer: Any, least: int, most: int) -> Array:  # noqa: ANN401
    shape, dtype = tuple(int(extent) for extent in buffer.shape), str(buffer.dtype)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    if dtype.startswith(("int", "uint")):
        # Small and not negative: they may be indices or zero points.
        return random.integers(least, most + 1 if dtype in ("int32", "int64") else 100, shape).astype(dtype)
    return random.standard_normal(shape, np.float32).astype(dtype)


def _run_reference(trials: Mapping[str, _Trial], target: Any) -> None:  # noqa: ANN401
    levels: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name, trial in trials.items():
        levels[trial.macs > _HEAVY_MACS][name] = trial.func
    references = (build_each(levels[level], reference_target(target, level=level)) for level in (0, 1))
    for name, kernel in itertools.chain.from_iterable(references):
        before = [argument.numpy() for argument in arguments_of(trials[name].func)]
        arguments = arguments_of(trials[name].func)
        kernel(*arguments)
        after = [argument.numpy() for argument in arguments]
        # The outputs are what the function changed; the last parameter is one even if it came out the same.
        changed = (i for i, array in enumerate(after) if not np.array_equal(array, before[i], equal_nan=True))
        trials[name].expected = {i: after[i] for i in {*changed, len(after) - 1}}
    unbuilt = [name for name, trial in trials.items() if not trial.expected]
    if unbuilt:
        raise CompilerError(f"TVM cannot build its function {unbuilt[0]}, not even for the baseline CPU")


def build_each(functions: Mapping[str, Any], target: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Yield (name, callable) of the functions that build."""
    for names, library in build_modules(functions, target):
        for name in names:
            yield name, library[name]


def build_modules(functions: Mapping[str, Any], target: Any) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401
    """Build the functions in one module, and each alone when that fails: yield the names and what was built."""
    if not functions:
        return
    module = tvm.IRModule({name: func.with_attr("global_symbol", name) for name, func in functions.items()})
    try:
        with tvm.transform.PassContext(config=NO_ASSERTS):
            library = tvm.tirx.build(module, target=target, pipeline=PIPELINE)
    except Exception:  # noqa: BLE001 - TVM's passes raise what they like; find which function it was
        if len(functions) == 1:
            traceback.print_exc()  # into the compile log
            return
        for name, func in functions.items():
            yield from build_modules({name: func}, target)
        return
    yield tuple(functions), library


def _is_static(func: Any) -> bool:  # noqa: ANN401
    extents = [extent for buffer in func.params for extent in getattr(buffer, "shape", (None,))]
    return all(isinstance(extent, int | tvm.tirx.IntImm) for extent in extents)


def _compared_s(one: functools.partial[object], other: functools.partial[object]) -> tuple[float, float]:
    """Return the times of two kernels; close ones are timed with tensors in other places too: the median ratio counts.

    Each pair of times is of runs in turns, and both are of the same place.
    """
    times, pairs = [timed_s([one, other])], [(one, other)]
    while max(times[0]) < _CLOSE * min(times[0]) and len(times) < _PLACES:
        pairs.append((elsewhere(one), elsewhere(other)))  # what is in use leaves new tensors no old place
        for call in pairs[-1]:
            call()
        times.append(timed_s(pairs[-1]))
    one_s, other_s = sorted(times, key=lambda pair: pair[1] / pair[0])[len(times) // 2]
    return one_s, other_s


def elsewhere(call: functools.partial[object]) -> functools.partial[object]:
    """Return the call with copies of its tensors."""
    return functools.partial(call.func, *(tvm.runtime.tensor(tensor.numpy()) for tensor in call.args))


def timed_s(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Return the time that a quarter of a few runs of each stays below, in turns: what disturbs one disturbs all.

    All ran already once. The clock is that of this thread: other processes take the CPU away for longer than most
    kernels run, and are to decide nothing. Of a parallel kernel this thread has the largest share, and it waits awake
    for the others. Now and then that clock is a third short, so the shortest run says less than the quarter does.
    It ends early where one is so much slower than another that no more runs are needed to tell.
    """
    times: list[list[float]] = [[] for _ in calls]
    shortest, spent = [float("inf")] * len(calls), 0.0
    while len(times[0]) < _MIN_RUNS or spent < _MEASURE_S * len(calls):
        for i, call in enumerate(calls):
            start_s = time.thread_time()
            call()
            took = time.thread_time() - start_s
            times[i].append(took)
            shortest[i], spent = min(shortest[i], took), spent + took
        if max(shortest) > _HOPELESS * min(shortest):
            break
    return [sorted(taken)[len(taken) // 4] for taken in times]
