"""LSTM, GRU and RNN step by step.

The products with the input are one MatMul for all steps; each step adds the product with its state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from graphs.expansion.parts import Impossible, Parts

if TYPE_CHECKING:
    from collections.abc import Callable

    Array = np.ndarray[Any, Any]
    Step = Callable[[str, "list[str]"], "list[str]"]

MAX_STEPS: Final = 128
_GATES: Final = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS: Final = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_ACTIVATIONS: Final = frozenset({"Sigmoid", "Tanh", "Relu", "Softsign", "Softplus"})


class _Direction:
    """The constants of one direction: W (gates*H, I), R (gates*H, H), both biases (gates*H), its activations."""

    def __init__(self, parts: Parts, index: int) -> None:
        gates = _GATES[parts.op_type]
        self.parts, self.index = parts, index
        self.weight, self.recurrence = parts.known(1, "weight")[index], parts.known(2, "recurrence weight")[index]
        self.hidden = self.recurrence.shape[1]
        self.dtype = self.weight.dtype
        both = parts.known(3, "bias")[index] if parts.has(3) else np.zeros(2 * gates * self.hidden, self.dtype)
        self.bias, self.recurrent_bias = np.split(both, 2)
        usual = _DEFAULTS[parts.op_type]
        named = parts.attr("activations") or usual
        self.activations = named[index * len(usual) : (index + 1) * len(usual)] or named[: len(usual)]
        self.backwards = parts.attr("direction", "forward") == "reverse" or index == 1

    def rows(self, array: Array, first: int, count: int = 1) -> Array:
        """Return the rows of some gates."""
        return array[first * self.hidden : (first + count) * self.hidden]

    def gate(self, value: str, index: int) -> str:
        """Return one gate's columns of (batch, gates*H)."""
        return self.parts.part(value, 1, index * self.hidden, (index + 1) * self.hidden)

    def activate(self, index: int, value: str) -> str:
        """Apply an activation to what the attribute `clip` bounds."""
        clip = self.parts.attr("clip")
        if clip is not None:
            bound = np.array(clip, self.dtype)
            value = self.parts("Min", self.parts("Max", value, -bound), bound)
        return self.parts(self.activations[index], value)

    def product(self, state: str, recurrence: Array, bias: Array | None = None) -> str:
        """Multiply a state (batch, H) with rows of R."""
        value = self.parts("MatMul", state, np.ascontiguousarray(recurrence.T))
        return value if bias is None or not bias.any() else self.parts("Add", value, bias)

    def initial(self, position: int, batch: int, *, batch_first: bool) -> str:
        """Return the initial state (batch, H); zeros when the input is omitted."""
        if not self.parts.has(position):
            return self.parts.named(np.zeros((batch, self.hidden), self.dtype))
        return self.parts.row(self.parts.input(position), 1 if batch_first else 0, self.index)


def recurrent(parts: Parts) -> list[str | None]:
    """Replace an LSTM, GRU or RNN whose weights are constant and whose sequences all have the same known length."""
    batch_first = bool(parts.attr("layout", 0))
    x, shape = parts.input(0), parts.shape(0)
    if batch_first:
        x, shape = parts("Transpose", x, perm=[1, 0, 2]), (shape[1], shape[0], shape[2])
    _check(parts, shape)
    count = 2 if parts.attr("direction", "forward") == "bidirectional" else 1
    directions = [_Direction(parts, index) for index in range(count)]
    sequences, lasts = [], []
    for direction in directions:
        states, last = _unrolled(direction, x, shape, batch_first=batch_first)
        sequences.append(states)
        lasts.append(last)
    return _outputs(parts, sequences, lasts, (shape[1], directions[0].hidden), batch_first=batch_first)


def _check(parts: Parts, shape: tuple[int, ...]) -> None:
    steps, batch = shape[:2]
    if steps > MAX_STEPS:
        raise Impossible(f"a sequence of {steps} steps is not unrolled, {MAX_STEPS} at most: each becomes nodes")
    other = sorted(set(parts.attr("activations") or ()) - _ACTIVATIONS)
    if other:
        raise Impossible(f"its activation {other[0]} is not handled")
    if parts.has(4) and parts.known(4, "lengths of sequences").tolist() != [steps] * batch:
        raise Impossible("sequences of different lengths are not handled")


def _unrolled(
    direction: _Direction, x: str, shape: tuple[int, ...], *, batch_first: bool
) -> tuple[list[str], list[str]]:
    """Return the hidden states of all steps, each (batch, H), and the last states."""
    parts, (steps, batch, features) = direction.parts, shape
    step = _STEPS[parts.op_type](direction)
    bias = direction.bias if parts.op_type == "GRU" else direction.bias + direction.recurrent_bias
    flat = parts.reshape(x, steps * batch, features)
    driven = parts("Add", parts("MatMul", flat, np.ascontiguousarray(direction.weight.T)), bias)
    state = [direction.initial(5, batch, batch_first=batch_first)]
    if parts.op_type == "LSTM":
        state.append(direction.initial(6, batch, batch_first=batch_first))
    order = range(steps - 1, -1, -1) if direction.backwards else range(steps)
    states = {}
    for position in order:
        row = parts.part(driven, 0, position * batch, (position + 1) * batch) if steps > 1 else driven
        state = step(row, state)
        states[position] = state[0]
    return [states[position] for position in range(steps)], state


def _outputs(
    parts: Parts, sequences: list[list[str]], lasts: list[list[str]], size: tuple[int, int], *, batch_first: bool
) -> list[str | None]:
    """Join the states of the directions to Y (steps, directions, batch, H) and the last ones (directions, batch, H)."""

    def joined(values: list[str], *front: int) -> str:
        shaped = [parts.reshape(value, *front, *size) for value in values]
        return parts("Concat", *shaped, axis=0) if len(shaped) > 1 else shaped[0]

    results: list[str | None] = [None]
    if parts.wants(0):
        steps = [joined([each[step] for each in sequences], 1) for step in range(len(sequences[0]))]
        all_steps = [parts.reshape(step, 1, len(sequences), *size) for step in steps]
        y = parts("Concat", *all_steps, axis=0) if len(all_steps) > 1 else all_steps[0]
        results = [parts("Transpose", y, perm=[2, 0, 1, 3]) if batch_first else y]
    for states in zip(*lasts, strict=True):
        last = joined(list(states), 1)
        results.append(parts("Transpose", last, perm=[1, 0, 2]) if batch_first else last)
    return results


def _lstm(direction: _Direction) -> Step:
    """Return one step; the gates in ONNX's order: input, output, forget, cell."""
    parts = direction.parts
    peephole = np.split(parts.known(7, "peephole")[direction.index], 3) if parts.has(7) else None
    coupled = bool(parts.attr("input_forget", 0))
    one = np.array(1, direction.dtype)

    def seen(gate: str, cell: str, index: int) -> str:
        return parts("Add", gate, parts("Mul", cell, peephole[index])) if peephole else gate

    def step(driven: str, state: list[str]) -> list[str]:
        hidden, cell = state
        gates = parts("Add", driven, direction.product(hidden, direction.recurrence))
        opened, given_out, kept, new = (direction.gate(gates, index) for index in range(4))
        opened = direction.activate(0, seen(opened, cell, 0))
        kept = parts("Sub", one, opened) if coupled else direction.activate(0, seen(kept, cell, 2))
        new = direction.activate(1, new)
        cell = parts("Add", parts("Mul", kept, cell), parts("Mul", opened, new))
        given_out = direction.activate(0, seen(given_out, cell, 1))
        return [parts("Mul", given_out, direction.activate(2, cell)), cell]

    return step


def _gru(direction: _Direction) -> Step:
    """Return one step; the gates in ONNX's order: update, reset, hidden."""
    parts, d = direction.parts, direction
    after = bool(parts.attr("linear_before_reset", 0))
    one = np.array(1, d.dtype)
    gates_bias, hidden_bias = d.rows(d.recurrent_bias, 0, 2), d.rows(d.recurrent_bias, 2)

    def step(driven: str, state: list[str]) -> list[str]:
        (hidden,) = state
        both = parts(
            "Add", parts.part(driven, 1, 0, 2 * d.hidden), d.product(hidden, d.rows(d.recurrence, 0, 2), gates_bias)
        )
        update, reset = (d.activate(0, d.gate(both, index)) for index in range(2))
        fresh = d.gate(driven, 2)
        recurrence = d.rows(d.recurrence, 2)
        if after:
            fresh = parts("Add", fresh, parts("Mul", reset, d.product(hidden, recurrence, hidden_bias)))
        else:
            fresh = parts("Add", fresh, d.product(parts("Mul", reset, hidden), recurrence, hidden_bias))
        fresh = d.activate(1, fresh)
        return [parts("Add", parts("Mul", parts("Sub", one, update), fresh), parts("Mul", update, hidden))]

    return step


def _rnn(direction: _Direction) -> Step:
    parts = direction.parts

    def step(driven: str, state: list[str]) -> list[str]:
        return [direction.activate(0, parts("Add", driven, direction.product(state[0], direction.recurrence)))]

    return step


_STEPS: Final = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
