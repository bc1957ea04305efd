"""SAC against an independent float64 numpy version: gradients there are finite differences."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from by_hand import ROWS, A, S, both_q, doubles, forward, make_batch, numerical_gradient

from acpo.algorithms.base import Batch, Spec
from acpo.algorithms.sac import SAC, SACState
from acpo.networks import MLP, TwinQ

CONFIG = SAC(gamma=0.9, tau=0.1, learning_rate=1e-2, batch_size=ROWS, hidden=(8, 8))


@cache
def compiled() -> Callable[..., tuple[SACState, dict[str, jax.Array]]]:
    return jax.jit(CONFIG.update)


@cache
def start() -> SACState:
    """Target unlike critic and α ≠ 1, as in the middle of a run."""
    state = CONFIG.init(jax.random.key(0), Spec(S, A, 1))
    target = CONFIG.init(jax.random.key(1), Spec(S, A, 1)).critic
    return state._replace(target=target, log_alpha=jnp.float32(-0.5))


# --- the numpy version --------------------------------------------------------------------------


def sample(actor: MLP, s: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    output = forward(actor, s)
    mean, std = output[:, :A], np.exp(np.clip(output[:, A:], -20.0, 2.0))
    action = np.tanh(mean + std * noise)
    normal = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return action, (normal - np.log(1.0 - action**2)).sum(axis=1)


def critic_loss(critic: TwinQ, state: SACState, b: Batch, noise: np.ndarray) -> float:
    action, log_pi = sample(state.actor, b.next_observations, noise)
    soft_value = (
        np.minimum(*both_q(state.target, b.next_observations, action))
        - np.exp(state.log_alpha) * log_pi
    )
    y = b.rewards + CONFIG.gamma * np.where(b.terminals == 1.0, 0.0, soft_value)
    return sum(0.5 * ((q - y) ** 2).mean() for q in both_q(critic, b.observations, b.actions))


def actor_loss(actor: MLP, state: SACState, b: Batch, noise: np.ndarray) -> float:
    action, log_pi = sample(actor, b.observations, noise)
    q = np.minimum(*both_q(state.critic, b.observations, action))
    return (np.exp(state.log_alpha) * log_pi - q).mean()


def noises(key: jax.Array) -> list[np.ndarray]:
    return [np.asarray(jax.random.normal(k, (ROWS, A)), np.float64) for k in jax.random.split(key)]


def assert_close(found: Any, expected: Any, rtol: float = 0.0, atol: float = 1e-5) -> None:
    for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(f, e, rtol=rtol, atol=atol)


class Reference(NamedTuple):
    """The state of the numpy version."""

    state: SACState
    first: Any
    second: Any
    step: int


def reference_update(ref: Reference, batch: Batch, key: jax.Array) -> tuple[Reference, dict]:
    state, b, (noise_critic, noise_actor) = ref.state, doubles(batch), noises(key)
    trained = (state.actor, state.critic, state.log_alpha)
    entropy = -sample(state.actor, b.observations, noise_actor)[1].mean()
    metrics = {
        "critic/loss": critic_loss(state.critic, state, b, noise_critic),
        "actor/loss": actor_loss(state.actor, state, b, noise_actor),
        "actor/entropy": entropy,
    }
    actor, critic, _ = jax.tree.map(np.copy, trained)
    gradient = (
        numerical_gradient(lambda net: actor_loss(net, state, b, noise_actor), actor),
        numerical_gradient(lambda net: critic_loss(net, state, b, noise_critic), critic),
        # L(α) = α (entropy − target entropy), target entropy −a_dim, differentiated in log α
        np.exp(state.log_alpha) * (entropy - -A),
    )
    t = ref.step + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, ref.first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, ref.second, gradient)
    actor, critic, log_alpha = jax.tree.map(
        lambda p, m, v: p - 1e-2 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8),
        trained,
        first,
        second,
    )
    target = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, state.target, critic)
    state = state._replace(actor=actor, critic=critic, target=target, log_alpha=log_alpha)
    return Reference(state, first, second, t), metrics


def test_updates_equal_the_numpy_version() -> None:
    state = start()
    exact = doubles(state)
    zeros = jax.tree.map(np.zeros_like, (exact.actor, exact.critic, exact.log_alpha))
    ref = Reference(exact, zeros, zeros, 0)
    for step in range(2):
        batch, key = make_batch(step), jax.random.key(step)
        state, metrics = compiled()(state, batch, key)
        ref, expected = reference_update(ref, batch, key)
        for name, value in expected.items():
            assert float(metrics[name]) == pytest.approx(value, rel=1e-4), name
        moment = optax.tree_utils.tree_get(state.optimiser, "mu")
        assert_close(moment, ref.first, rtol=1e-4)
        for part in ("actor", "critic", "target", "log_alpha"):
            assert_close(getattr(state, part), getattr(ref.state, part))


def with_log_std(state: SACState, log_std: float) -> SACState:
    """The same actor with log σ shifted: another entropy, nothing else."""
    shift = jnp.asarray([0.0] * A + [log_std] * A, jnp.float32)
    biases = (*state.actor.biases[:-1], state.actor.biases[-1] + shift)
    return state._replace(actor=MLP(state.actor.weights, biases, state.actor.layer_norm))


def test_the_temperature_rises_when_entropy_is_below_its_target_and_falls_above() -> None:
    for log_std, rises in [(-4.0, True), (0.0, False)]:
        state = with_log_std(start(), log_std)
        after, metrics = compiled()(state, make_batch(), jax.random.key(0))
        assert (float(metrics["actor/entropy"]) < -A) is rises
        assert bool(after.log_alpha > state.log_alpha) is rises
        assert float(metrics["alpha"]) == pytest.approx(np.exp(-0.5))


def test_what_follows_a_terminal_is_never_looked_at() -> None:
    batch, key = make_batch(), jax.random.key(0)

    def loss(terminal: float, shift: float) -> float:
        changed = batch._replace(
            terminals=jnp.full_like(batch.terminals, terminal),
            next_observations=batch.next_observations + shift,
        )
        return float(compiled()(start(), changed, key)[1]["critic/loss"])

    assert loss(1.0, 0.0) == loss(1.0, 1.0)
    assert loss(0.0, 0.0) != pytest.approx(loss(0.0, 1.0), rel=1e-3)


def test_an_update_is_a_function_of_its_inputs_and_its_key() -> None:
    def actor(key: int) -> list[np.ndarray]:
        after, _ = compiled()(start(), make_batch(), jax.random.key(key))
        return [np.asarray(x) for x in jax.tree.leaves(after.actor)]

    for a, b in zip(actor(0), actor(0), strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(actor(0), actor(1), strict=True))


def test_the_deterministic_action_is_tanh_of_the_mean() -> None:
    observations = make_batch().observations
    expected = np.tanh(forward(doubles(start().actor), np.asarray(observations))[:, :A])
    np.testing.assert_allclose(CONFIG.act(start(), observations), expected, atol=1e-5)
