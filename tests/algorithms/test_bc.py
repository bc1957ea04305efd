"""Behaviour cloning against numpy, and the running average it shares with ACPO."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acpo.algorithms.base import Batch, Spec
from acpo.algorithms.bc import BC, BCState

ROWS, S, A = 32, 3, 2


def make(**changes: object) -> BC:
    return BC(**{"hidden": (8, 8), "head": "plain", "batch_size": ROWS, **changes})  # type: ignore[arg-type]


def start(config: BC) -> BCState:
    return config.init(jax.random.key(0), Spec(S, A, 10))


def make_batch(seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    s, following = (jnp.float32(rng.normal(size=(ROWS, S))) for _ in range(2))
    a = jnp.float32(rng.uniform(-0.9, 0.9, (ROWS, A)))
    return Batch(s, a, jnp.zeros(ROWS), following, jnp.zeros(ROWS))


@pytest.mark.parametrize("head", ["plain", "squashed"])
def test_the_loss_is_the_mean_negative_log_likelihood(head: str) -> None:
    config, batch = make(head=head), make_batch()
    actor = start(config).actor
    x = np.asarray(batch.observations, np.float64)
    for weight, bias in zip(actor.weights[:-1], actor.biases[:-1], strict=True):
        x = np.maximum(x @ np.asarray(weight, np.float64) + np.asarray(bias), 0.0)
    output = x @ np.asarray(actor.weights[-1], np.float64) + np.asarray(actor.biases[-1])
    mean, std = output[:, :A], np.exp(np.clip(output[:, A:], -5.0, 2.0))
    a = np.asarray(batch.actions, np.float64)
    if head == "plain":
        mean, u, volume = np.tanh(mean), a, 0.0
    else:
        u, volume = np.arctanh(a), np.log(1.0 - a**2)
    density = np.exp(-0.5 * ((u - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    expected = -(np.log(density) - volume).sum(axis=1).mean()
    assert float(config.policy_loss(actor, batch)[0]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("share", "power"), [(1.0, 0), (0.5, 1)])
def test_the_policy_is_a_mean_of_its_past_in_which_later_steps_count_more(
    share: float, power: int
) -> None:
    config = make(actor_average=share)
    state, past = start(config), []
    for step in range(6):
        state, _ = config.update(state, make_batch(step), jax.random.key(step))
        past.append(np.asarray(state.actor.weights[0], np.float64))
    counts = np.arange(1.0, 7.0) ** power
    expected = np.average(past, axis=0, weights=counts)
    np.testing.assert_allclose(config.actor(state).weights[0], expected, atol=1e-6)


def test_an_average_over_nothing_is_the_policy_itself() -> None:
    config = make(actor_average=0.0)
    state = start(config)
    for step in range(3):
        state, _ = config.update(state, make_batch(step), jax.random.key(step))
    assert jax.tree.all(jax.tree.map(np.array_equal, config.actor(state), state.actor))
