"""IQL's own: V is an expectile of Q, and the weight is exp(βA). The rest is in test_in_sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acpo.algorithms.iql import IQL
from acpo.errors import UserError

SAMPLE = np.random.default_rng(3).gamma(2.0, size=200)


def expectile(sample: np.ndarray, share: float) -> float:
    """Where share · E[(q − v)⁺] = (1 − share) · E[(v − q)⁺], by bisection."""
    low, high = sample.min(), sample.max()
    for _ in range(100):
        v = (low + high) / 2
        above, below = np.maximum(sample - v, 0).mean(), np.maximum(v - sample, 0).mean()
        low, high = (v, high) if share * above > (1 - share) * below else (low, v)
    return float(v)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9, 0.999])
def test_v_tends_to_the_expectile_of_q(share: float) -> None:
    config = IQL(expectile=share)
    q = jnp.float32(SAMPLE)

    def loss(v: jax.Array) -> jax.Array:
        return config.value_loss(jnp.full_like(q, v), q)[0]

    # Newton's steps, for the loss is a parabola between two neighbours of the sample.
    def step(_: int, v: jax.Array) -> jax.Array:
        return v - jax.grad(loss)(v) / (2 * jnp.where(q > v, share, 1 - share).mean())

    v = float(jax.lax.fori_loop(0, 30, step, q.mean()))
    assert v == pytest.approx(expectile(SAMPLE, share), rel=1e-4)
    if share == 0.5:
        assert v == pytest.approx(SAMPLE.mean(), rel=1e-5)
    if share > 0.99:
        assert np.quantile(SAMPLE, 0.97) < v < SAMPLE.max()


def test_value_loss_by_hand() -> None:
    v, q = jnp.array([1.0, 1.0, 0.0]), jnp.array([3.0, 0.0, 0.0])
    loss, metrics = IQL(expectile=0.8).value_loss(v, q)
    assert float(loss) == pytest.approx((0.8 * 4.0 + 0.2 * 1.0) / 3)
    assert float(metrics["value/v"]) == pytest.approx(2.0 / 3)
    gradient = jax.jit(jax.grad(lambda v: IQL(expectile=0.8).value_loss(v, q)[0]))(v)
    np.testing.assert_allclose(gradient, np.array([-3.2, 0.4, 0.0]) / 3, rtol=1e-5)


def test_policy_loss_by_hand() -> None:
    log_pi, advantage = jnp.array([-1.0, -2.0, 3.0]), jnp.array([0.5, -0.5, 9.0])
    loss, _ = IQL(beta=2.0, weight_max=20.0).policy_loss(log_pi, advantage)
    assert float(loss) == pytest.approx((np.e + 2 / np.e - 60.0) / 3, rel=1e-5)


def test_without_temperature_the_policy_is_behaviour_cloning() -> None:
    log_pi, advantage = jnp.array([-1.0, -2.0]), jnp.array([50.0, -50.0])
    loss, _ = IQL(beta=0.0).policy_loss(log_pi, advantage)
    assert float(loss) == pytest.approx(1.5)


def test_the_authors_settings() -> None:
    kitchen = replace(IQL(), **IQL.settings["kitchen"])
    assert (kitchen.expectile, kitchen.beta, kitchen.dropout) == (0.7, 0.5, 0.1)
    antmaze: dict[str, Any] = dict(IQL.settings["antmaze"])
    assert antmaze.pop("relabel") == "reward - 1"
    maze = replace(IQL(), **antmaze)
    assert (maze.expectile, maze.beta, maze.dropout, maze.reward_scale) == (0.9, 10.0, 0.0, 1.0)
    assert (IQL().expectile, IQL().beta, IQL().reward_scale) == (0.7, 3.0, None)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"expectile": 1.5}, "--expectile is 1.5; it must be above 0 and below 1."),
        ({"expectile": 0.0}, "--expectile is 0; it must be above 0 and below 1."),
        ({"beta": -1.0}, "--beta is -1; it must be 0 or more."),
    ],
)
def test_impossible_values_are_refused(fields: dict[str, float], says: str) -> None:
    with pytest.raises(UserError) as error:
        IQL(**fields)  # type: ignore[arg-type]
    assert str(error.value) == says
