"""A small valid dataset for each test to spoil in its own way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def fields() -> dict[str, Any]:
    """Twelve rows: a terminal at 3, a timeout at 7, and an end of file at 11 without a flag."""
    rng = np.random.default_rng(0)
    terminals, timeouts = np.zeros(12, bool), np.zeros(12, bool)
    terminals[3] = timeouts[7] = True
    return {
        "observations": rng.normal(size=(12, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, size=(12, 2)).astype(np.float32),
        "rewards": np.arange(12, dtype=np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
    }
