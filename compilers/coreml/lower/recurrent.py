"""LSTM as MIL's own operation; GRU and RNN step by step.

Each direction is one forward pass over the sequence, or over the reversed sequence: MIL leaves open in which order
its "reverse" gives the results. MIL's GRU has another reset gate and one bias too few, so GRU is unrolled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compilers.coreml.lower.table import lowers
from compilers.coreml.lower.value import FLOATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from compilers.coreml.lower.node import Node
    from compilers.coreml.vendor import MilVar

Array = np.ndarray[Any, Any]

MAX_STEPS: Final = 128
_ACTIVATIONS: Final = {
    "LSTM": ["Sigmoid", "Tanh", "Tanh"],
    "GRU": ["Sigmoid", "Tanh"],
    "RNN": ["Tanh"],
}
_GATES: Final = {"LSTM": 4, "GRU": 3, "RNN": 1}


class _Direction:
    """The constants of one direction: W (gates*H, I), R (gates*H, H), both biases (gates*H)."""

    def __init__(self, node: Node, index: int) -> None:
        gates = _GATES[node.op_type]
        self.weight, self.recurrence = node.const(1)[index], node.const(2)[index]
        self.hidden = self.recurrence.shape[1]
        both = node.const(3)[index] if node.has(3) else np.zeros(2 * gates * self.hidden, self.weight.dtype)
        self.bias, self.recurrent_bias = np.split(both, 2)

    def gate(self, array: Array, index: int) -> Array:
        """Return the rows of one gate."""
        return array[index * self.hidden : (index + 1) * self.hidden]


def _check(node: Node) -> None:
    node.need_dtype(*FLOATS)
    if len(node.shape()) != 3:
        node.refuse(f"input 0 has shape {node.shape()}, not (steps, batch, features)")
    node.require("layout", 0, default=0)
    node.attr("hidden_size")  # said again by the weights
    if node.attr("clip") is not None:
        node.refuse("attribute clip is not handled")
    given = [a.decode() if isinstance(a, bytes) else a for a in node.attr("activations") or ()]
    usual = _ACTIVATIONS[node.op_type] * _count(node)
    if given and given[: len(usual)] != usual:  # RNN's default names one for either direction
        node.refuse(f"attribute activations={given} is not handled, only {usual}")
    if node.has(4) and set(node.const(4).reshape(-1).tolist()) != {node.shape(0)[0]}:
        node.refuse("input 4: sequences of different lengths are not handled")


def _count(node: Node) -> int:
    return 2 if node.attr("direction") == "bidirectional" else 1


def _is_reversed(node: Node, index: int) -> bool:
    return bool(node.attr("direction") == "reverse" or index == 1)


def _initial(node: Node, position: int, index: int, width: int) -> MilVar:
    """Return the initial state (batch, H) of a direction; zeros when the input is omitted."""
    if not node.has(position):
        return node.constant(np.zeros((node.shape(0)[1], width), node.dtype(0)))
    if node.is_const(position):
        return node.constant(np.ascontiguousarray(node.const(position)[index]))
    state = node.x(position)
    if state.shape[0] > 1:
        state = node.mil.split(x=state, num_splits=state.shape[0], axis=0)[index]
    return node.mil.squeeze(x=state, axes=[0])


def _finish(node: Node, sequences: list[Any], *states: list[Any]) -> None:
    """Hand over Y (steps, directions, batch, H) and the last states (directions, batch, H)."""
    mil = node.mil
    if node.uses_output(0):
        node.out(mil.stack(values=sequences, axis=1))
    for position, each in enumerate(states, start=1):
        if node.uses_output(position):
            node.out(mil.stack(values=each, axis=0), index=position)


@lowers("LSTM")
def _lstm(node: Node) -> None:
    _check(node)
    node.require("input_forget", 0)
    if node.has(7):
        node.refuse("input 7: peepholes are not handled")
    sequences, hidden, cells = [], [], []
    for index in range(_count(node)):
        y, h, c = _lstm_direction(node, _Direction(node, index), index)
        sequences.append(y)
        hidden.append(h)
        cells.append(c)
    _finish(node, sequences, hidden, cells)


def _lstm_direction(node: Node, weights: _Direction, index: int) -> tuple[Any, Any, Any]:
    mil, backwards = node.mil, _is_reversed(node, index)
    x = mil.reverse(x=node.x(0), axes=[0]) if backwards else node.x(0)

    def ordered(array: Array) -> Array:
        # ONNX: input, output, forget, cell; MIL: input, forget, output, cell.
        return np.concatenate([weights.gate(array, gate) for gate in (0, 2, 1, 3)])

    y, h, c = mil.lstm(
        x=x,
        initial_h=_initial(node, 5, index, weights.hidden),
        initial_c=_initial(node, 6, index, weights.hidden),
        weight_ih=ordered(weights.weight),
        weight_hh=ordered(weights.recurrence),
        bias=ordered(weights.bias + weights.recurrent_bias),
        direction="forward",
        output_sequence=True,
    )
    return (mil.reverse(x=y, axes=[0]) if backwards else y), h, c


@lowers("GRU")
def _gru(node: Node) -> None:
    _check(node)
    after = bool(node.attr("linear_before_reset"))
    _unrolled(node, lambda weights: _gru_step(node, weights, linear_before_reset=after))


@lowers("RNN")
def _rnn(node: Node) -> None:
    _check(node)
    _unrolled(node, lambda weights: _rnn_step(node, weights))


def _unrolled(node: Node, step_of: Callable[[_Direction], Callable[[Any, Any], Any]]) -> None:
    sequences, lasts = [], []
    for index in range(_count(node)):
        weights = _Direction(node, index)
        y, h = _unroll(node, weights, step_of(weights), index)
        sequences.append(y)
        lasts.append(h)
    _finish(node, sequences, lasts)


def _unroll(node: Node, weights: _Direction, step: Callable[[Any, Any], Any], index: int) -> tuple[Any, Any]:
    """Return the states of all steps (steps, batch, H) and the last."""
    mil, steps = node.mil, node.shape(0)[0]
    if steps > MAX_STEPS:
        node.refuse(
            f"a sequence of {steps} steps is not handled, {MAX_STEPS} at most: each becomes operations of its own"
        )
    bias = weights.bias.copy()
    driven = mil.linear(x=node.x(0), weight=node.constant(weights.weight), bias=node.constant(bias))
    parts = mil.split(x=driven, num_splits=steps, axis=0) if steps > 1 else [driven]
    order = range(steps - 1, -1, -1) if _is_reversed(node, index) else range(steps)
    state = _initial(node, 5, index, weights.hidden)
    states: dict[int, Any] = {}
    for position in order:
        state = step(mil.squeeze(x=parts[position], axes=[0]), state)
        states[position] = state
    return mil.stack(values=[states[i] for i in range(steps)], axis=0), state


def _rnn_step(node: Node, weights: _Direction) -> Callable[[Any, Any], Any]:
    mil = node.mil
    recurrence, bias = node.constant(weights.recurrence), node.constant(weights.recurrent_bias)

    def step(driven: MilVar, state: MilVar) -> MilVar:
        return mil.tanh(x=mil.add(x=driven, y=mil.linear(x=state, weight=recurrence, bias=bias)))

    return step


def _gru_step(node: Node, weights: _Direction, *, linear_before_reset: bool) -> Callable[[Any, Any], Any]:
    """Return one step; gates in ONNX's order: update, reset, hidden."""
    mil, width = node.mil, weights.hidden
    gates = node.constant(np.ascontiguousarray(weights.recurrence[: 2 * width]))
    gates_bias = node.constant(np.ascontiguousarray(weights.recurrent_bias[: 2 * width]))
    hidden = node.constant(np.ascontiguousarray(weights.gate(weights.recurrence, 2)))
    hidden_bias = node.constant(np.ascontiguousarray(weights.gate(weights.recurrent_bias, 2)))

    def step(driven: MilVar, state: MilVar) -> MilVar:
        x_gates, x_hidden = mil.split(x=driven, split_sizes=[2 * width, width], axis=-1)
        both = mil.sigmoid(x=mil.add(x=x_gates, y=mil.linear(x=state, weight=gates, bias=gates_bias)))
        update, reset = mil.split(x=both, num_splits=2, axis=-1)
        if linear_before_reset:
            recalled = mil.mul(x=reset, y=mil.linear(x=state, weight=hidden, bias=hidden_bias))
        else:
            recalled = mil.linear(x=mil.mul(x=reset, y=state), weight=hidden, bias=hidden_bias)
        candidate = mil.tanh(x=mil.add(x=x_hidden, y=recalled))
        # The update gate weighs the old state against the candidate.
        return mil.add(x=candidate, y=mil.mul(x=update, y=mil.sub(x=state, y=candidate)))

    return step
