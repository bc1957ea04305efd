"""EQL's own: V and the weight against the closed form. The rest is in test_in_sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acpo.algorithms.eql import EQL
from acpo.errors import UserError

SAMPLE = np.random.default_rng(3).normal(size=200)


def closed_form(sample: np.ndarray, alpha: float) -> float:
    """α log E[exp(Q/α)]."""
    return float(alpha * np.log(np.exp(sample / alpha).mean()))


def loss_of(config: EQL, v: Any, q: np.ndarray) -> jax.Array:
    return config.value_loss(jnp.full(len(q), v), jnp.float32(q))[0]


@pytest.mark.parametrize("alpha", [0.5, 2.0, 10.0])
def test_v_tends_to_the_closed_form(alpha: float) -> None:
    config = EQL(alpha=alpha)
    expected = closed_form(SAMPLE, alpha)
    slope = jax.jit(jax.grad(lambda v: loss_of(config, v, SAMPLE)))
    # Downhill from either side, and at rest there
    assert float(slope(expected)) == pytest.approx(0.0, abs=1e-6)
    for distance in (0.01, 0.1, 1.0):
        assert float(slope(expected - distance)) < -1e-5
        assert float(slope(expected + distance)) > 1e-5


def test_the_weight_is_the_ratio_of_the_optimal_policy_to_the_behaviour() -> None:
    """On three actions: π* maximises E[Q] − α KL(π ‖ πβ), and w = π*/πβ for κ = 1."""
    beta, q, alpha = np.array([0.5, 0.3, 0.2]), np.array([1.0, 0.0, 2.0]), 0.8
    data = np.repeat(q, (10 * beta).round().astype(int))
    v = closed_form(data, alpha)
    config = EQL(alpha=alpha, sharpness=1.0)
    optimal = beta * np.exp(np.asarray(config.log_weight(jnp.float32(q - v))))
    assert optimal.sum() == pytest.approx(1.0, rel=1e-5)

    def objective(pi: np.ndarray) -> float:
        return float(pi @ q - alpha * pi @ np.log(pi / beta))

    assert objective(optimal / optimal.sum()) == pytest.approx(v, rel=1e-5)
    rng = np.random.default_rng(0)
    for pi in rng.dirichlet(np.ones(3), size=500):
        for share in (1.0, 0.1):
            assert objective((1 - share) * optimal + share * pi) < v + 1e-6


def test_the_authors_sharpness_multiplies_the_exponent() -> None:
    exponent = EQL(alpha=2.0, sharpness=10.0).log_weight(jnp.array([0.4]))
    assert float(exponent[0]) == pytest.approx(2.0)


def test_value_loss_by_hand() -> None:
    v, q = jnp.array([1.0, 2.0, 0.0]), jnp.array([2.0, 0.0, 1.0])
    # exponents 0.5, −1, 0.5; the largest is 0.5
    loss, metrics = EQL(alpha=2.0).value_loss(v, q)
    terms = np.exp([0.0, -1.5, 0.0]) + np.exp(-0.5) * np.array([0.5, 1.0, 0.0])
    assert float(loss) == pytest.approx(terms.mean(), rel=1e-5)
    assert float(metrics["value/v"]) == pytest.approx(1.0)
    gradient = jax.jit(jax.grad(lambda v: EQL(alpha=2.0).value_loss(v, q)[0]))(v)
    by_hand = np.exp(-0.5) * (1.0 - np.exp([0.5, -1.0, 0.5])) / 2.0 / 3
    np.testing.assert_allclose(gradient, by_hand, rtol=1e-5)


def test_exponents_stay_in_range() -> None:
    """From 5 on, Q no longer pulls; and V far above Q is pulled down by e/α at most."""
    config = EQL(alpha=0.1)
    slope = jax.jit(jax.grad(lambda v, q: config.value_loss(v, q)[0]))
    far_above = np.asarray(slope(jnp.zeros(2), jnp.array([1e6, 0.0])))
    assert far_above[0] == pytest.approx(np.exp(-5.0) / 0.1 / 2, rel=1e-4)
    assert far_above[1] == pytest.approx(0.0, abs=1e-6)
    far_below = np.asarray(slope(jnp.zeros(2), jnp.array([-1e6, -1e6])))
    np.testing.assert_allclose(far_below, np.e / 0.1 / 2, rtol=1e-5)


def test_the_authors_settings() -> None:
    assert (EQL().alpha, EQL().sharpness, EQL().layer_norm, EQL().reward_scale) == (
        2,
        10,
        True,
        None,
    )
    kitchen = replace(EQL(), **EQL.settings["kitchen"])
    assert (kitchen.alpha, kitchen.dropout, kitchen.reward_scale) == (2.0, 0.1, 1.0)
    antmaze: dict[str, Any] = dict(EQL.settings["antmaze"])
    assert antmaze.pop("relabel") == "reward - 1"
    maze = replace(EQL(), **antmaze)
    assert (maze.alpha, maze.learning_rate, maze.reward_scale) == (0.5, 2e-4, 1.0)
    assert replace(maze, **EQL.settings["antmaze-umaze-diverse-v2"]).alpha == 5.0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"alpha": 0.0}, "--alpha is 0; it must be above 0."),
        ({"sharpness": -1.0}, "--sharpness is -1; it must be 0 or more."),
    ],
)
def test_impossible_values_are_refused(fields: dict[str, float], says: str) -> None:
    with pytest.raises(UserError) as error:
        EQL(**fields)  # type: ignore[arg-type]
    assert str(error.value) == says
