"""Plans on disk: `plans/<digest12>.json`, and beside them the sub-models they name by content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from experiments.store import write_text
from graphs import Graph, GraphError, from_proto, load, save
from partition import DeviceError, Plan, PlanError

PLANS_DIR: Final = "plans"
GRAPHS_DIR: Final = "graphs"


def write_plan(plan: Plan, folder: Path, whole: Graph | None = None) -> Path:
    """Write the plan below `folder`, with each segment's graph once, and return the JSON's path.

    With `whole`, the model that the plan is for, it goes there too: a run on a device is held against it. A graph that
    is there already is kept: its name is its content.
    """
    graphs = folder / PLANS_DIR / GRAPHS_DIR
    graphs.mkdir(parents=True, exist_ok=True)
    for graph in (*(segment.graph for segment in plan.segments), *([whole] if whole else [])):
        path = graphs / f"{graph.digest}.onnx"
        if not path.exists():
            save(graph, path)
    path = folder / PLANS_DIR / f"{plan.digest[:12]}.json"
    write_text(path, plan.to_json() + "\n")
    return path


def read_plan(path: Path) -> Plan:
    """Read a plan that `write_plan` wrote, with the graphs beside it.

    Raises:
        PlanError: the file is no plan, or a graph that it names is gone or is not what it says.
    """
    try:
        text = path.read_text(encoding="utf-8")
        return Plan.from_json(text, _GraphsBeside(path.parent / GRAPHS_DIR, _names(text)))
    except OSError as error:
        raise PlanError(f"cannot read the plan {path} ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is no plan: it is no text in UTF-8") from error
    except (DeviceError, GraphError, PlanError) as error:
        raise PlanError(f"the plan {path} cannot be used: {error}") from error


def read_whole(path: Path, plan: Plan) -> Graph | None:
    """Read the model that a plan is for from beside it, None where it is not there.

    Raises:
        PlanError: what is there is something else.
    """
    beside = _GraphsBeside(path.parent / GRAPHS_DIR, {plan.graph_digest: plan.segments[0].graph.name})
    try:
        return beside[plan.graph_digest] if plan.graph_digest in beside else None  # noqa: SIM401 - `get` loads nothing
    except GraphError as error:
        raise PlanError(f"the model beside the plan {path} cannot be used: {error}") from error


def _names(text: str) -> dict[str, str]:
    """Return the graphs' names by digest; a file that is no plan has none, and `Plan.from_json` says what it lacks."""
    try:
        return {entry["graph_digest"]: entry["graph_name"] for entry in json.loads(text)["segments"]}
    except (ValueError, KeyError, TypeError):
        return {}


class _GraphsBeside(dict[str, Graph]):
    """The graphs of a folder by digest, loaded when asked for, under the names that they have in the plan."""

    def __init__(self, folder: Path, names: dict[str, str]) -> None:
        super().__init__()
        self._folder, self._names = folder, names

    def __contains__(self, digest: object) -> bool:
        return isinstance(digest, str) and (self._folder / f"{Path(digest).name}.onnx").exists()

    def __missing__(self, digest: str) -> Graph:
        graph = load(self._folder / f"{digest}.onnx")
        if graph.digest != digest:
            raise PlanError(f"{self._folder / digest}.onnx is another graph ({graph.digest[:12]}) than its name says")
        return from_proto(graph.proto(), name=self._names[digest], base_dir=graph.base_dir)
