"""Fixtures and switches that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long a draw takes says how busy the machine is, nothing about what is tested.
settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")

# Tile caches of the tests must not depend on, nor change, the user's own.
os.environ.setdefault("EDGEFRONTIER_CACHE", str(Path(__file__).resolve().parent.parent / "build" / "test-cache"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the golden files anew")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))
