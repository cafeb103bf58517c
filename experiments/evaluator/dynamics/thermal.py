"""Heat from the die to the air through a chain of thermal resistances and capacities, stepped exactly."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RcChain:
    """Lumps from the die outwards; heat enters the first, and the last loses it to the air.

    `resistances_k_per_w[i]` lies between lump i and the next, the last one between the last lump and the air.
    """

    names: tuple[str, ...]
    capacities_j_per_k: tuple[float, ...]
    resistances_k_per_w: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes = {len(self.names), len(self.capacities_j_per_k), len(self.resistances_k_per_w)}
        if len(sizes) != 1 or not self.names:
            raise ValueError("a heat path needs one capacity and one resistance per lump, and at least one lump")
        if min(*self.capacities_j_per_k, *self.resistances_k_per_w) <= 0:
            raise ValueError("heat capacities and thermal resistances must be above 0")

    def time_constants_s(self) -> tuple[float, ...]:
        """Return the time constants of the chain, the shortest first."""
        return tuple(float(1.0 / rate) for rate in sorted(self._modes()[0], reverse=True))

    def stepper(self, step_s: float) -> Array:
        """Return M [n + 1, n + 2] with (temperatures after, joules lost to the air) = M @ (temperatures, W, ambient).

        The step is exact for a power and an ambient temperature that are constant during it, so the energy
        balance closes to rounding.
        """
        rates, modes, roots = self._modes()
        to_modes, from_modes = modes.T * roots, (modes.T / roots).T

        def of_chain(function: Callable[[Array], Array]) -> Array:
            return np.asarray(from_modes @ np.diag(function(rates * step_s)) @ to_modes)

        n = len(self.names)
        into_die = np.zeros(n)
        into_die[0] = 1.0 / self.capacities_j_per_k[0]
        decay, mean = of_chain(lambda x: np.exp(-x)), of_chain(_phi1)
        per_watt = step_s * mean @ into_die
        mean_per_watt = step_s * of_chain(_phi2) @ into_die
        matrix = np.zeros((n + 1, n + 2))
        matrix[:n, :n], matrix[:n, n], matrix[:n, n + 1] = decay, per_watt, 1.0 - decay.sum(axis=1)
        loss = step_s / self.resistances_k_per_w[-1]
        matrix[n, :n], matrix[n, n] = loss * mean[-1], loss * mean_per_watt[-1]
        matrix[n, n + 1] = -loss * mean[-1].sum()
        return matrix

    def _modes(self) -> tuple[Array, Array, Array]:
        """Return decay rates, orthogonal modes and sqrt(C) of the symmetric form C^-1/2 K C^-1/2."""
        n = len(self.names)
        conductance = np.zeros((n, n))
        for i, resistance in enumerate(self.resistances_k_per_w):
            conductance[i, i] += 1.0 / resistance
            if i + 1 < n:
                conductance[i + 1, i + 1] += 1.0 / resistance
                conductance[i, i + 1] = conductance[i + 1, i] = -1.0 / resistance
        roots = np.sqrt(np.asarray(self.capacities_j_per_k))
        rates, modes = np.linalg.eigh(conductance / np.outer(roots, roots))
        return rates, modes, roots


def _phi1(x: Array) -> Array:
    """Return (1 - exp(-x)) / x: the mean of a decay over a step."""
    return np.asarray(-np.expm1(-x) / x)


def _phi2(x: Array) -> Any:  # noqa: ANN401 - an array; numpy's stubs lose that
    """Return (1 - phi1(x)) / x: the mean of a charge over a step."""
    series = 0.5 - x / 6.0 + x * x / 24.0
    return np.where(x < 1e-4, series, (1.0 - _phi1(x)) / x)
