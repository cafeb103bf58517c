"""What is known of the error of a modelled latency, in the words that go beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from experiments.units import significant
from partition.tile import OPERATORS, Validation, validations

if TYPE_CHECKING:
    from partition.tile import Machine


def own_error(machine: Machine, held_out: str = OPERATORS) -> Validation | None:
    """Return the error against the truth of this very machine, None where there is no such truth."""
    return next((v for v in validations(machine) if not v.fitted and v.held_out == held_out), None)


def error_sentence(machine: Machine) -> str:
    """Return one sentence on the error of the machine's latencies, against what, and on how many samples."""
    own = own_error(machine)
    if own is not None:
        figures = f", found with the same figures on {own.processor}" if own.processor != machine.name else ""
        return (
            f"{machine.name}, {own.precision}: median error {percent(own.error_median)} (90th percentile "
            f"{percent(own.error_p90)}, rank correlation {own.rank_correlation:.2f}) on {own.samples} {own.held_out} "
            f"that no fit saw, against {own.truth}{figures}; {_kinds(own)}"
        )
    elsewhere = _elsewhere(machine)
    if not elsewhere:
        return f"{machine.name}: error not known; these figures were held against no measurement and no simulation"
    return (
        f"{machine.name}: absolute error not known, no measurement of it is at hand; {_range(elsewhere)} median error "
        f"for {elsewhere[0].held_out} on {len(elsewhere)} other processors, with {_fitted(elsewhere[0])} fitted to "
        f"each, one model kept out at a time, against {elsewhere[0].truth}"
    )


def short_error(machine: Machine) -> str:
    """Return the error in a few words, for a title."""
    own = own_error(machine)
    if own is not None:
        return f"median error {percent(own.error_median)}"
    elsewhere = _elsewhere(machine)
    return "error not known" + (f", {_range(elsewhere)} on others once scaled" if elsewhere else "")


def kind_error(machine: Machine, kind: str) -> float | None:
    """Return the median error for that kind of operator, None where it is not known."""
    own = own_error(machine)
    return None if own is None else own.kind_median(kind)


def percent(ratio: float) -> str:
    """Return a ratio in percent."""
    return f"{significant(100 * ratio, 2)} %"


def _elsewhere(machine: Machine) -> tuple[Validation, ...]:
    return tuple(found for found in validations(machine) if found.fitted)


def _kinds(found: Validation) -> str:
    return "by kind " + ", ".join(f"{kind} {percent(median)}" for kind, median in found.kinds)


def _range(found: tuple[Validation, ...]) -> str:
    errors = [entry.error_median for entry in found]
    return f"{significant(100 * min(errors), 2)} to {percent(max(errors))}"


def _fitted(found: Validation) -> str:
    return f"{len(found.fitted)} figures ({', '.join(name for name, _ in found.fitted)})"
