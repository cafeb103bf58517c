"""Operators from text: `conv2d:c=64,k=64,y=56,x=56,f=3`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from partition.tile.operators import Layer, TileError, convolution, matmul, normalisation, pool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_USAGE: Final = {
    "conv2d": "conv2d:c=64,k=64,y=56,x=56,f=3[,s=1][,p=1][,d=1][,g=1][,n=1]",
    "matmul": "matmul:m=128,c=768,k=768[,b=1]",
    "maxpool": "maxpool:c=64,y=112,x=112,f=3[,s=2][,p=1][,n=1]",
    "avgpool": "avgpool:c=64,y=112,x=112,f=3[,s=2][,p=1][,n=1]",
    "softmax": "softmax:m=196,k=196",
    "layernorm": "layernorm:m=196,k=768",
}


def parse_operator(text: str) -> Layer:
    """Read an operator from text such as `conv2d:c=64,k=64,y=56,x=56,f=3`; y and x are the input's rows and columns.

    A pair is written `3x5`; the padding `p` is "same" (half the dilated kernel) unless given.

    Raises:
        TileError: the text is none of the forms that the message lists, or a size is below 1.
    """
    kind, _, rest = text.partition(":")
    if kind not in _USAGE:
        raise TileError(f"operator {kind!r} has no tiles here; give one of {', '.join(_USAGE.values())}")
    values = _values(kind, rest)
    sizes = _Sizes(kind, text, values)
    layer = _PARSERS[kind](text, sizes)
    sizes.refuse_rest()
    return layer


def _values(kind: str, rest: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in rest.split(",") if part]
    wrong = next((key for key, equals, _ in pairs if not equals), None)
    if wrong is not None or not pairs:
        raise TileError(f"cannot read {wrong or 'an operator without sizes'!r}; write {_USAGE[kind]}")
    return {key.strip(): value.strip() for key, _, value in pairs}


class _Sizes:
    """The key=value list of an operator, each key asked for once."""

    def __init__(self, kind: str, text: str, values: Mapping[str, str]) -> None:
        self._kind, self._text, self._left = kind, text, dict(values)

    def one(self, key: str, default: int | None = None) -> int:
        pair = self.pair(key, None if default is None else (default, default))
        if pair[0] != pair[1]:
            raise TileError(f"{key} of {self._text!r} is one number")
        return pair[0]

    def pair(self, key: str, default: tuple[int, int] | None = None) -> tuple[int, int]:
        if key not in self._left:
            if default is None:
                raise TileError(f"{self._text!r} lacks {key}; write {_USAGE[self._kind]}")
            return default
        value = self._left.pop(key)
        parts = value.split("x")
        least = 0 if key == "p" else 1
        if len(parts) > 2 or not all(part.isdecimal() and int(part) >= least for part in parts):
            raise TileError(f"{key}={value} is not a size of at least {least}; write {_USAGE[self._kind]}")
        return int(parts[0]), int(parts[-1])

    def refuse_rest(self) -> None:
        if self._left:
            raise TileError(f"{self._kind} has no {next(iter(self._left))!r}; write {_USAGE[self._kind]}")


def _parse_conv(text: str, sizes: _Sizes) -> Layer:
    kernel, dilation = sizes.pair("f"), sizes.pair("d", (1, 1))
    pad = sizes.pair("p", (dilation[0] * (kernel[0] - 1) // 2, dilation[1] * (kernel[1] - 1) // 2))
    shape = (sizes.one("n", 1), sizes.one("c"), sizes.one("y"), sizes.one("x"))
    return convolution(
        text, shape=shape, k=sizes.one("k"), groups=sizes.one("g", 1), kernel=kernel,
        stride=sizes.pair("s", (1, 1)), dilation=dilation, pads=(*pad, *pad),
    )  # fmt: skip


def _parse_pool(op_type: str) -> Callable[[str, _Sizes], Layer]:
    def parse(text: str, sizes: _Sizes) -> Layer:
        shape = (sizes.one("n", 1), sizes.one("c"), sizes.one("y"), sizes.one("x"))
        kernel = sizes.pair("f")
        pad = sizes.pair("p", (0, 0))
        return pool(text, op_type, shape=shape, kernel=kernel, stride=sizes.pair("s", kernel), pads=(*pad, *pad))

    return parse


def _parse_matmul(text: str, sizes: _Sizes) -> Layer:
    return matmul(text, rows=sizes.one("m"), c=sizes.one("c"), k=sizes.one("k"), batch=sizes.one("b", 1))


def _parse_norm(op_type: str) -> Callable[[str, _Sizes], Layer]:
    return lambda text, sizes: normalisation(text, op_type, rows=sizes.one("m"), span=sizes.one("k"))


_PARSERS: Final[Mapping[str, Callable[[str, _Sizes], Layer]]] = {
    "conv2d": _parse_conv,
    "matmul": _parse_matmul,
    "maxpool": _parse_pool("MaxPool"),
    "avgpool": _parse_pool("AveragePool"),
    "softmax": _parse_norm("Softmax"),
    "layernorm": _parse_norm("LayerNormalization"),
}
