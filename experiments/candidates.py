"""Which plans to try: every backend that takes a processor of a device, in each precision, whole or cut."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from compilers import Action, compiler_names, get_compiler
from experiments.arguments import UserError
from experiments.store import options_text
from partition import Device, FeedFile, Plan, Segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from compilers import Compiler
    from graphs import Calibration, Graph


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A plan to evaluate; `cuts` names the tensors at which a split plan hands over."""

    plan: Plan
    cuts: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """A short name for progress lines."""
        first = self.plan.segments[0]
        backends = "+".join(dict.fromkeys(s.compiler for s in self.plan.segments))
        precisions = "+".join(dict.fromkeys(s.precision for s in self.plan.segments))
        where = "+".join(dict.fromkeys(s.processor for s in self.plan.segments))
        return " ".join(filter(None, [backends, f"{first.device.name}/{where}", precisions, options_text(first)]))


def whole_graph(
    graph: Graph,
    by_precision: Mapping[str, Graph],
    devices: Iterable[Device],
    backends: Sequence[str],
    feeds: FeedFile | None = None,
    *,
    options: Iterable[tuple[str, tuple[str, str]]] = (),
    compile_only: bool = False,
    sweep: bool = False,
) -> Iterator[Candidate]:
    """Yield one candidate per (device, processor, backend, precision, options) that the backend can be asked for.

    Without `compile_only`, a place for which a backend compiles and says nothing more (it neither runs nor
    estimates there) is left out: its row would show the device's figures, whatever the backend. Options are those of
    the backend's plain way, or with `sweep` of all its ways to compile, and on top the user's, as (backend, (key,
    value)); ranges of activations come from `feeds` where a way needs some.
    """
    asked: dict[str, dict[str, str]] = {name: {} for name in backends}
    for name, (key, value) in options:
        asked[name][key] = value
    places = (
        (device, name, processor)
        for device in devices
        for name in backends
        for processor in compiling_processors(name, device, compile_only=compile_only)
    )
    for (device, name, processor), (precision, lowered) in itertools.product(places, by_precision.items()):
        ways = get_compiler(name).variants(precision, device, processor)
        for way in ways if sweep else ways[:1]:
            segment = Segment(
                graph=lowered,
                device=device,
                processor=processor,
                compiler=name,
                precision=precision,
                options=tuple((dict(way.options) | asked[name]).items()),
                feeds=feeds if way.reads_feeds else None,
            )
            yield Candidate(plan=Plan.of(graph, [segment]))


def see_options(segments: Iterable[Segment]) -> None:
    """Refuse an option that its backend has nowhere; where it has it, and with which values, is the backend's word.

    Raises:
        UserError: the message lists those that it has.
    """
    asked = [(segment.compiler, get_compiler(segment.compiler).defaults(segment), segment) for segment in segments]
    for backend, _, segment in asked:
        known = {key for name, defaults, _ in asked if name == backend for key in defaults}
        unknown = next((key for key, _ in segment.options if key not in known), None)
        if unknown:
            raise UserError(f"{backend} has no option {unknown} (it has: {', '.join(sorted(known)) or 'none'})")


def feed_file(calibration: Calibration) -> FeedFile | None:
    """Return where the user's calibration data lies; random data lies nowhere."""
    if calibration.is_random:
        return None
    return FeedFile(path=str(Path(calibration.source).resolve()), digest=calibration.digest)


def splits(
    graph: Graph, by_precision: Mapping[str, Graph], devices: Iterable[Device], backends: Sequence[str], count: int
) -> Iterator[Candidate]:
    """Yield the `count` best plans per device that use two or more processors, as the search proposes them."""
    if not count:
        return
    from experiments.proposals import propose_splits  # brings networkx and the search

    for device in devices:
        for plan, cuts in propose_splits(graph, by_precision, device, backends, count):
            yield Candidate(plan=plan, cuts=cuts)


def compiling_processors(backend: str, device: Device, *, compile_only: bool) -> tuple[str, ...]:
    """List the processors of the device that the backend can compile for here; see `whole_graph`."""
    compiler = get_compiler(backend)
    found = (p.name for p in device.processors if compiler.available(Action.COMPILE, device, p.name))
    return tuple(p for p in found if compile_only or not _only_compiles(compiler, device, p))


def _only_compiles(compiler: Compiler, device: Device, processor: str) -> bool:
    return not any(compiler.available(action, device, processor) for action in (Action.RUN, Action.ESTIMATE))


def inapplicable(devices: Iterable[Device], backends: Sequence[str], *, compile_only: bool = False) -> dict[str, str]:
    """Map "backend on device" to the reason, for pairs without a candidate of `whole_graph`."""
    reasons = {}
    for device in devices:
        for name in backends:
            if not compiling_processors(name, device, compile_only=compile_only):
                compiler = get_compiler(name)
                whys = (compiler.why_not(Action.COMPILE, device, p.name) for p in device.processors)
                only = compiling_processors(name, device, compile_only=True)
                asked = f"it compiles for {', '.join(only)} and can do no more there; ask with --backends {name}"
                reasons[f"{name} on {device.name}"] = asked if only else "; ".join(dict.fromkeys(filter(None, whys)))
    return reasons


def known_backends(asked: Sequence[str]) -> tuple[str, ...]:
    """Return the asked backends, or all.

    Raises:
        UnknownBackendError: one is unknown; the message lists those there are.
    """
    for name in asked:
        get_compiler(name)
    return tuple(asked) or compiler_names()
