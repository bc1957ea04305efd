"""A gradient by blocks of rows is the gradient of all rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from acpo.algorithms import base
from acpo.algorithms.base import Metrics, gradient_by_blocks

ROWS = 12


def loss(weights: Array, rows: dict[str, Array]) -> tuple[Array, Metrics]:
    error = rows["x"] @ weights - rows["y"]
    return jnp.mean(error**2), {"error": jnp.mean(error), "rows": jnp.float32(len(error))}


def by_blocks(inputs: int, rows: int = ROWS) -> tuple[Any, Metrics, dict[str, Array]]:
    rng = np.random.default_rng(0)
    data = {
        "x": jnp.float32(rng.normal(size=(rows, 3))),
        "y": jnp.float32(rng.normal(size=rows)),
    }
    gradient, metrics = jax.jit(lambda weights: gradient_by_blocks(loss, weights, data, inputs))(
        jnp.float32([0.5, -1.0, 2.0])
    )
    return gradient, metrics, data


@pytest.mark.parametrize(("inputs", "size"), [(1, 12), (400, 4), (512, 4), (1000, 2), (9000, 1)])
def test_gradient_and_metrics_are_those_of_all_rows(inputs: int, size: int) -> None:
    gradient, metrics, data = by_blocks(inputs)
    x, y = (np.asarray(data[name], np.float64) for name in ("x", "y"))
    error = x @ [0.5, -1.0, 2.0] - y
    np.testing.assert_allclose(gradient, 2.0 * x.T @ error / ROWS, rtol=1e-5)
    np.testing.assert_allclose(metrics["error"], error.mean(), rtol=1e-5)
    assert metrics["rows"] == size, "else other blocks were taken than meant"


def test_rows_without_a_divisor_near_enough_stay_together() -> None:
    _, metrics, _ = by_blocks(inputs=256, rows=13)
    assert metrics["rows"] == 13


def test_other_devices_than_a_cpu_take_all_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base.jax, "default_backend", lambda: "gpu")
    _, metrics, _ = by_blocks(inputs=1000)
    assert metrics["rows"] == ROWS
