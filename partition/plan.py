"""Tile, Segment and Plan: what runs where, as frozen values with a digest and a JSON form."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from graphs import TensorSpec
from partition.device import Device, DeviceError, load_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from graphs import Graph

PRECISIONS: Final = ("fp32", "fp16", "int8")
PLAN_SCHEMA: Final = 2


class PlanError(ValueError):
    """Say what makes a plan unusable, in one sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """The tile sizes of one node, by axis name ("x", "y", "k", "c"), in elements."""

    node: str
    sizes: tuple[tuple[str, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FeedFile:
    """Feeds of the user for ranges of activations: an absolute path, and the digest of what it held (graphs)."""

    path: str
    digest: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One sub-model on one processor, through one compiler, in one precision.

    For "int8" the graph is a QDQ graph already; for "fp32" and "fp16" it is the float graph and the compiler
    lowers it, or refuses. `feeds` is for a compiler that quantises activations itself.
    """

    graph: Graph
    device: Device
    processor: str
    compiler: str
    precision: str
    options: tuple[tuple[str, str], ...] = ()
    tiles: tuple[Tile, ...] = ()
    feeds: FeedFile | None = None

    def __post_init__(self) -> None:
        self.device.processor(self.processor)
        if self.precision not in PRECISIONS:
            raise PlanError(f"unknown precision {self.precision!r}; use one of {', '.join(PRECISIONS)}")

    def option(self, key: str, default: str) -> str:
        """Return the option's text, or `default` when the segment does not set it."""
        return dict(self.options).get(key, default)

    def key(self) -> dict[str, Any]:
        """Return everything that tells this segment from another, JSON-ready; the graph by its digest."""
        return {
            "graph_digest": self.graph.digest,
            "graph_name": self.graph.name,
            "device": self.device.name,
            "processor": self.processor,
            "compiler": self.compiler,
            "precision": self.precision,
            "options": sorted(map(list, self.options)),
            "tiles": [{"node": t.node, "sizes": list(map(list, t.sizes))} for t in self.tiles],
            **({"feeds": dataclasses.asdict(self.feeds)} if self.feeds else {}),
        }

    @property
    def digest(self) -> str:
        """SHA-256 of `key()`, in hexadecimal; also covers the vendor's ids for the chip, and feeds by content alone."""
        ids = self.device.processor(self.processor).ids
        key = {**self.key(), "ids": {vendor: dict(table) for vendor, table in ids.items()}}
        return _digest({**key, "feeds": self.feeds.digest} if self.feeds else key)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """An ordered cover of one graph by segments; each segment starts when the one before has ended.

    `outputs` are the graph's: what a run gives. A segment's own outputs are also what later ones read, and one of the
    graph may be both; one that is an input of the graph, no segment gives.
    """

    graph_digest: str
    outputs: tuple[TensorSpec, ...]
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, graph: Graph, segments: Iterable[Segment]) -> Plan:
        """Make the plan of segments that cover the graph."""
        return cls(graph_digest=graph.digest, outputs=graph.outputs(), segments=tuple(segments))

    def __post_init__(self) -> None:
        if not self.segments:
            raise PlanError("a plan needs at least one segment")
        if len({s.device.name for s in self.segments}) != 1:
            raise PlanError("all segments of a plan run on one device")

    @property
    def device(self) -> Device:
        """The device all segments share."""
        return self.segments[0].device

    @property
    def digest(self) -> str:
        """SHA-256 over the graph and the segments, in hexadecimal."""
        return _digest([self.graph_digest, [s.digest for s in self.segments]])

    def to_json(self) -> str:
        """Write the plan without the graphs' content; `from_json` takes them by digest."""
        plan = {
            "schema": PLAN_SCHEMA,
            "graph_digest": self.graph_digest,
            "outputs": [dataclasses.asdict(spec) for spec in self.outputs],
            "segments": [s.key() for s in self.segments],
        }
        return json.dumps(plan, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, graphs: Mapping[str, Graph]) -> Plan:
        """Read a plan; `graphs` maps a digest to the graph it names.

        Raises:
            PlanError: the text is no plan of this schema, or a graph is missing.
        """
        try:
            plan = json.loads(text)
            _check_schema(plan["schema"])
            segments = tuple(_segment(entry, graphs) for entry in plan["segments"])
            return cls(graph_digest=plan["graph_digest"], outputs=_specs(plan["outputs"]), segments=segments)
        except (PlanError, DeviceError):
            raise
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise PlanError(f"not a plan: {type(error).__name__}: {error}") from error


def _check_schema(schema: object) -> None:
    if schema != PLAN_SCHEMA:
        raise PlanError(f"plan schema {schema} is not {PLAN_SCHEMA}; write the plan anew")


def _specs(entries: Iterable[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(name=e["name"], shape=None if e["shape"] is None else tuple(e["shape"]), dtype=e["dtype"])
        for e in entries
    )


def _segment(entry: Mapping[str, Any], graphs: Mapping[str, Graph]) -> Segment:
    digest = entry["graph_digest"]
    if digest not in graphs:
        raise PlanError(f"the plan names graph {digest[:12]} ({entry['graph_name']}), which was not given")
    return Segment(
        graph=graphs[digest],
        device=load_device(entry["device"]),
        processor=entry["processor"],
        compiler=entry["compiler"],
        precision=entry["precision"],
        options=tuple((str(k), str(v)) for k, v in entry["options"]),
        tiles=tuple(
            Tile(node=t["node"], sizes=tuple((str(axis), int(n)) for axis, n in t["sizes"])) for t in entry["tiles"]
        ),
        feeds=FeedFile(**entry["feeds"]) if "feeds" in entry else None,
    )


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
