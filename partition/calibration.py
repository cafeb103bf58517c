"""A device's latency as a linear function of simulations: the models that `experiments.calibrate` fits.

The file `devices/calibration/NAME.json` is written by that command and read where a latency is predicted. It holds
coefficients, prediction intervals and held-out errors, and says what it was trained on.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

CALIBRATION_SCHEMA: Final = 1
CALIBRATION_DIR: Final = Path(__file__).parent / "devices" / "calibration"
CALIBRATION_FILE: Final = CALIBRATION_DIR / "qnn.json"

# Terms of a latency model: the fixed cost of an invocation, the bytes between DRAM and chip and the
# multiply-accumulates; every other term is the simulated time on the device of that name.
OVERHEAD: Final = "overhead"
DRAM_BYTES: Final = "dram_bytes"
MACS: Final = "macs"


class CalibrationFileError(ValueError):
    """Say what is wrong with a calibration file, in one sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LatencyModel:
    """Latency of one (device, compiler, precision): the sum of coefficient times term.

    Coefficients are seconds for the overhead, seconds per byte and per MAC, and ratios for simulated times. A new
    model's latency lies between `low_ratio` and `high_ratio` times the prediction in 8 of 10 cases; where one of the
    simulations knows no cost of some node, between the `uncosted_ratios`, if enough such models were measured to tell.
    The errors are absolute relative ones of models that took no part in the fit. `options` go before those of the
    calibration where this device's references are simulated: it has another on-chip memory than most. A device with few
    `models` has `lenders`, devices whose rows teach beside its own; its errors and intervals are then those of other
    devices that were cut to as few models.
    """

    device: str
    compiler: str
    precision: str
    coefficients: tuple[tuple[str, float], ...]
    low_ratio: float
    high_ratio: float
    models: int
    error_median: float
    error_p90: float
    uncosted_ratios: tuple[float, float] | None = None
    options: tuple[tuple[str, str], ...] = ()
    lenders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        intervals = ((self.low_ratio, self.high_ratio), self.uncosted_ratios or (1.0, 1.0))
        if not all(0 < low <= 1 <= high for low, high in intervals):
            raise CalibrationFileError(f"{self.device}: an interval must hold the prediction itself")
        if not self.coefficients or any(value < 0 for _, value in self.coefficients):
            raise CalibrationFileError(f"{self.device}: coefficients must be there and not be negative")

    @property
    def key(self) -> tuple[str, str, str]:
        """Device, compiler and precision."""
        return self.device, self.compiler, self.precision

    @property
    def references(self) -> tuple[str, ...]:
        """The devices whose simulations the model needs: those with a coefficient, and one for the DRAM bytes."""
        return tuple(term for term, _ in self.coefficients if term not in {OVERHEAD, DRAM_BYTES, MACS})

    def bounds_s(self, predicted_s: float, *, uncosted: bool) -> tuple[float, float]:
        """Return the interval of a prediction; `uncosted` says that a simulation lacks the cost of some node."""
        low, high = (uncosted and self.uncosted_ratios) or (self.low_ratio, self.high_ratio)
        return predicted_s * low, predicted_s * high

    def predict(self, terms: Mapping[str, float]) -> float:
        """Return the latency in seconds; `terms` gives each term but the overhead its value.

        Raises:
            KeyError: a term is missing.
        """
        return sum(value * (1.0 if term == OVERHEAD else terms[term]) for term, value in self.coefficients)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CalibrationSet:
    """All latency models of one calibration, with what they were made of.

    `options` are each compiler's options under which the references were simulated; `dram_reference` is the device
    whose simulated DRAM traffic the models take.
    """

    models: tuple[LatencyModel, ...]
    options: Mapping[str, tuple[tuple[str, str], ...]]
    dram_reference: str
    trained_on: tuple[str, ...]
    rows_hash: str
    rows: int
    versions: Mapping[str, str]
    source: str

    def find(self, device: str, compiler: str, precision: str) -> tuple[LatencyModel, ...]:
        """Return the latency models for that device, compiler and precision, best first; none when there are none.

        A later one refers to fewer devices: it is there for graphs that one of the references cannot simulate.
        """
        return tuple(m for m in self.models if m.key == (device, compiler, precision))


def load_calibration(path: Path = CALIBRATION_FILE) -> CalibrationSet:
    """Read a calibration file.

    Raises:
        CalibrationFileError: there is none, or it is not of this schema.
    """
    try:
        return _from_json(json.loads(path.read_text(encoding="utf-8")), path)
    except FileNotFoundError as error:
        raise CalibrationFileError(f"there is no calibration at {path}; run experiments.calibrate") from error
    except CalibrationFileError:
        raise
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise CalibrationFileError(f"{path} is no calibration: {type(error).__name__}: {error}") from error


def save_calibration(calibration: CalibrationSet, path: Path = CALIBRATION_FILE) -> None:
    """Write a calibration file, by rename; the same calibration gives the same bytes."""
    entry = {"schema": CALIBRATION_SCHEMA, **dataclasses.asdict(calibration)}
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(_text(entry), encoding="utf-8")
    scratch.replace(path)


def _text(entry: Mapping[str, Any]) -> str:
    """Write one latency model a line, so that a change of one shows as one line."""
    pairs = ("coefficients", "options")
    models = [{**model, **{name: dict(model[name]) for name in pairs}} for model in entry["models"]]
    lines = [json.dumps({name: v for name, v in model.items() if v not in (None, {}, ())}) for model in models]
    head = {key: value for key, value in entry.items() if key != "models"}
    return json.dumps(head, indent=1)[:-2] + ',\n "models": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"


def _from_json(entry: Mapping[str, Any], path: Path) -> CalibrationSet:
    if entry["schema"] != CALIBRATION_SCHEMA:
        raise CalibrationFileError(
            f"{path} has schema {entry['schema']}, not {CALIBRATION_SCHEMA}; run experiments.calibrate again"
        )
    return CalibrationSet(
        models=tuple(_model(model) for model in entry["models"]),
        options={name: tuple((k, v) for k, v in pairs) for name, pairs in entry["options"].items()},
        dram_reference=entry["dram_reference"],
        trained_on=tuple(entry["trained_on"]),
        rows_hash=entry["rows_hash"],
        rows=entry["rows"],
        versions=dict(entry["versions"]),
        source=entry["source"],
    )


def _model(entry: Mapping[str, Any]) -> LatencyModel:
    coefficients = tuple((str(name), float(value)) for name, value in entry["coefficients"].items())
    ratios = entry.get("uncosted_ratios")
    options = tuple((str(name), str(value)) for name, value in entry.get("options", {}).items())
    return LatencyModel(
        **{
            **entry,
            "coefficients": coefficients,
            "uncosted_ratios": ratios and tuple(ratios),
            "options": options,
            "lenders": tuple(map(str, entry.get("lenders", ()))),
        }
    )
