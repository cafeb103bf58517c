"""A small decision tree (CART, Gini impurity) that can be read aloud."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.units import significant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_LEAST_LEAF: Final = 4
_FOLDS: Final = 5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """A verdict, and how many of the examples that came here agree."""

    label: str
    agree: int
    total: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A question: is the feature at most the bound?"""

    feature: str
    bound: float
    at_most: Leaf | Split
    above: Leaf | Split


Tree = Leaf | Split


def learn(examples: Sequence[Mapping[str, float]], labels: Sequence[str], *, depth: int = 3) -> Tree:
    """Learn a tree of at most that depth.

    Raises:
        ValueError: no example, or a label too few.
    """
    if not examples or len(examples) != len(labels):
        raise ValueError(f"learning needs as many labels as examples and at least one, got {len(labels)}")
    names = tuple(examples[0])
    values = np.array([[example[name] for name in names] for example in examples], dtype=float)
    return _grow(values, np.asarray(labels), names, depth)


def decide(tree: Tree, example: Mapping[str, float]) -> tuple[str, tuple[str, ...]]:
    """Return the verdict and the answers that led to it."""
    path = []
    while isinstance(tree, Split):
        below = example[tree.feature] <= tree.bound
        path.append(f"{tree.feature} {'at most' if below else 'above'} {significant(tree.bound)}")
        tree = tree.at_most if below else tree.above
    return tree.label, tuple(path)


def describe(tree: Tree, indent: str = "") -> list[str]:
    """Write the tree as indented lines."""
    if isinstance(tree, Leaf):
        return [f"{indent}{tree.label} ({tree.agree} of {tree.total})"]
    return [
        f"{indent}{tree.feature} at most {significant(tree.bound)}:",
        *describe(tree.at_most, indent + "  "),
        f"{indent}above:",
        *describe(tree.above, indent + "  "),
    ]


def cross_validated(
    examples: Sequence[Mapping[str, float]],
    labels: Sequence[str],
    groups: Sequence[str],
) -> float:
    """Return the share of right verdicts on groups kept out; a group (a model) is never on both sides.

    Raises:
        ValueError: fewer groups than folds.
    """
    kinds = sorted(set(groups))
    if len(kinds) < _FOLDS:
        raise ValueError(f"{_FOLDS} folds need as many groups, there are {len(kinds)}")
    fold_of = {kind: i % _FOLDS for i, kind in enumerate(kinds)}
    right = 0
    for fold in range(_FOLDS):
        inside = [i for i, group in enumerate(groups) if fold_of[group] != fold]
        tree = learn([examples[i] for i in inside], [labels[i] for i in inside])
        outside = [i for i, group in enumerate(groups) if fold_of[group] == fold]
        right += sum(decide(tree, examples[i])[0] == labels[i] for i in outside)
    return right / len(examples)


def _grow(values: NDArray[np.float64], labels: NDArray[np.str_], names: tuple[str, ...], depth: int) -> Tree:
    kinds, counts = np.unique(labels, return_counts=True)
    leaf = Leaf(label=str(kinds[counts.argmax()]), agree=int(counts.max()), total=len(labels))
    if depth == 0 or len(kinds) == 1:
        return leaf
    best = _best_split(values, labels)
    if best is None:
        return leaf
    column, bound = best
    below = values[:, column] <= bound
    at_most = _grow(values[below], labels[below], names, depth - 1)
    above = _grow(values[~below], labels[~below], names, depth - 1)
    if isinstance(at_most, Leaf) and isinstance(above, Leaf) and at_most.label == above.label:
        return leaf
    return Split(feature=names[column], bound=bound, at_most=at_most, above=above)


def _best_split(values: NDArray[np.float64], labels: NDArray[np.str_]) -> tuple[int, float] | None:
    """Return the (column, bound) that lowers impurity most; None when none does, or a side would be too small."""
    best, best_impurity = None, _impurity(labels) * len(labels) - 1e-9
    for column in range(values.shape[1]):
        levels = np.unique(values[:, column])
        for low, high in itertools.pairwise(levels):
            # Between two levels the geometric middle, where both are positive: sizes span decades.
            bound = float(np.sqrt(low * high)) if low > 0 else float((low + high) / 2)
            below = values[:, column] <= bound
            sizes = int(below.sum()), int((~below).sum())
            if min(sizes) < _LEAST_LEAF:
                continue
            impurity = _impurity(labels[below]) * sizes[0] + _impurity(labels[~below]) * sizes[1]
            if impurity < best_impurity:
                best, best_impurity = (column, bound), impurity
    return best


def _impurity(labels: NDArray[np.str_]) -> float:
    shares = np.unique(labels, return_counts=True)[1] / len(labels)
    return float(1.0 - (shares**2).sum())
