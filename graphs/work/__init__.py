"""Count the work of each node: multiply-accumulates, scalar operations, and the bytes of weights and activations.

Conventions
- MACs are those of convolutions, matrix products, recurrent cells and attention, as in torchvision's published
  figures; biases are not MACs. Everything else that computes is `elementwise`: one per scalar operation, where an
  elementary function (exp, erf, tanh, sqrt, ...) is one operation and a fused operator is the sum of its steps.
- Data movement (Transpose, Concat, Slice, ...) computes nothing but moves its bytes. What only renames or reshapes
  (Reshape, Squeeze, Identity, ...) moves none.
- Each distinct tensor that a node reads counts once. A lookup (Gather, Slice, ...) reads what it picks, not its
  whole table. Weights are what initialisers and Constant nodes hold.
- If counts the branch that known shapes decide for, else its costlier one; Loop and Scan count their body times the
  iterations; a model-local function counts its body. Inside the bodies of control flow, arithmetic on shapes whose
  result is known counts nothing.
- What cannot be known is None. An operator without a rule has its bytes counted and its operations None.
"""

from graphs.work.counting import count, why_uncosted
from graphs.work.totals import parameters, weight_bytes

__all__ = ["count", "parameters", "weight_bytes", "why_uncosted"]
