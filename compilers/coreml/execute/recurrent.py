"""MIL's lstm, one direction."""

from __future__ import annotations

from typing import Any

import numpy as np

from compilers.coreml.execute import reference
from compilers.coreml.execute.table import Arguments, kernel

Array = np.ndarray[Any, Any]


@kernel("lstm")
def _lstm(a: Arguments) -> tuple[Array, Array, Array]:
    # "reverse" and "bidirectional" are not handled: the order of their results is unclear.
    a.text("direction", "forward", default="forward")
    a.text("recurrent_activation", "sigmoid", default="sigmoid")
    a.text("cell_activation", "tanh", default="tanh")
    a.text("activation", "tanh", default="tanh")
    every_step = a.flag("output_sequence", default=False)
    x, h, c = a["x"], a["initial_h"], a["initial_c"]
    weight, recurrence = a["weight_ih"], a["weight_hh"]
    bias = a.get("bias", np.zeros(len(weight), np.float32))
    states = []
    for step in x:
        gates = reference.run("MatMul", step, weight.T) + reference.run("MatMul", h, recurrence.T) + bias
        i, f, o = np.split(reference.run("Sigmoid", gates[:, : -h.shape[1]]), 3, axis=1)
        c = f * c + i * np.tanh(gates[:, -h.shape[1] :])
        h = o * np.tanh(c)
        states.append(h)
    return np.stack(states if every_step else states[-1:]), h, c
