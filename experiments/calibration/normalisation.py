"""Put an image model's input normalisation into its graph, where Qualcomm's AI Hub measures it.

The hub's classifiers take pixels of 0 to 1 and normalise inside, as the public model definitions show
(github.com/quic/ai-hub-models, BSD-3). It is no detail: the two operations run on three channels in the slowest
layout and cost 0.3 of the 0.5 ms of a MobileNetV2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.calibration.error import CalibrationError
from graphs import from_proto

if TYPE_CHECKING:
    from graphs import Graph

# Operator and its constant [1, 3, 1, 1] or scalar, in the order the hub's code applies them.
_STEPS: Final = {
    "imagenet": (("Sub", (0.485, 0.456, 0.406)), ("Div", (0.229, 0.224, 0.225))),
    "symmetric": (("Mul", (2.0,)), ("Sub", (1.0,))),
}


def normalise_input(graph: Graph, kind: str) -> Graph:
    """Return the graph with `kind` of normalisation ("imagenet" or "symmetric") before its one image input.

    Raises:
        CalibrationError: the graph has not one input [N, 3, H, W].
    """
    from onnx import helper, numpy_helper

    specs = graph.inputs()
    if len(specs) != 1 or specs[0].shape is None or len(specs[0].shape) != 4 or specs[0].shape[1] != 3:
        raise CalibrationError(f"{graph.name} has not one input [N, 3, H, W], so there is no image to normalise")
    model, name = graph.proto(), specs[0].name
    tensor, front = name, []
    for index, (operator, values) in enumerate(_STEPS[kind]):
        constant, result = f"{name}_normalise_{index}_value", f"{name}_normalised_{index}"
        shape = (1, 3, 1, 1) if len(values) == 3 else ()
        array = np.array(values, np.float32).reshape(shape)
        model.graph.initializer.append(numpy_helper.from_array(array, constant))
        front.append(helper.make_node(operator, [tensor, constant], [result], name=f"normalise/{operator}"))
        tensor = result
    for node in model.graph.node:
        node.input[:] = [tensor if source == name else source for source in node.input]
    nodes = [*front, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return from_proto(model, name=graph.name)
