"""EDAC against an independent float64 numpy version, and its critics' gradients parting."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import (
    ROWS,
    A,
    S,
    assert_close,
    doubles,
    forward,
    gradients,
    make_batch,
    mixed,
    numerical_gradient,
    shaken,
)

from acpo import networks
from acpo.algorithms.base import Metrics, Spec
from acpo.algorithms.edac import EDAC, Trained
from acpo.algorithms.soft import SoftState
from acpo.errors import UserError
from acpo.networks import MLP

N = 4
KEY = jax.random.key(7)


def make(**changes: Any) -> EDAC:
    """Every field that these tests rest on, whatever the defaults become."""
    fields: dict[str, Any] = {
        "gamma": 0.9,
        "tau": 0.1,
        "learning_rate": 1e-2,
        "actor_learning_rate": 1e-3,
        "batch_size": ROWS,
        "hidden": (8, 8),
        "critics": N,
        "eta": 30.0,
    }
    return EDAC(**{**fields, **changes})


@cache
def start() -> SoftState:
    """As in the middle of a run: a target that differs, a temperature that is not 1."""
    state = make().init(jax.random.key(0), Spec(S, A, 10))
    # Biases that leave no critic without a slope, where the direction of ∇_a Q is not defined.
    critic = state.trained.critic
    critic = MLP(critic.weights, tuple(b + 0.3 for b in critic.biases))
    trained = state.trained._replace(critic=critic, log_alpha=jnp.float32(-0.5))
    return state._replace(trained=trained, target=shaken(state.target))


@cache
def compiled() -> Callable[..., tuple[SoftState, Metrics]]:
    return jax.jit(make().update)


@cache
def updated() -> tuple[SoftState, Metrics]:
    return compiled()(start(), make_batch(), KEY)


# --- the numpy version --------------------------------------------------------------------------


def member(critic: MLP, i: int) -> MLP:
    return jax.tree.map(lambda x: x[i], critic)


def all_q(critic: MLP, s: np.ndarray, a: np.ndarray) -> np.ndarray:
    x = np.concatenate([s, a], axis=1)
    return np.stack([forward(member(critic, i), x)[:, 0] for i in range(N)])


def action_gradients(critic: MLP, s: np.ndarray, a: np.ndarray) -> np.ndarray:
    """∇_a Q_i(s,a) by central differences, [N, rows, a_dim]."""
    steps = 1e-6 * np.eye(A)
    columns = [(all_q(critic, s, a + e) - all_q(critic, s, a - e)) / 2e-6 for e in steps]
    return np.stack(columns, axis=-1)


def cosines(slopes: np.ndarray) -> np.ndarray:
    """Σ_{i≠j} cos(g_i, g_j) of each row, pair by pair."""
    total = np.zeros(ROWS)
    for i in range(N):
        for j in range(N):
            if i != j:
                lengths = np.linalg.norm(slopes[i], axis=1) * np.linalg.norm(slopes[j], axis=1)
                total += np.sum(slopes[i] * slopes[j], axis=1) / (lengths + 1e-20)
    return total


def sample(actor: MLP, s: np.ndarray, eps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    output = forward(actor, s)
    mean, log_std = output[:, :A], np.clip(output[:, A:], -5.0, 2.0)
    action = np.tanh(mean + np.exp(log_std) * eps)
    normal = -0.5 * eps**2 - log_std - 0.5 * np.log(2 * np.pi)
    return action, (normal - np.log(1.0 - action**2)).sum(axis=-1)


@cache
def noise() -> np.ndarray:
    return doubles(jax.random.normal(KEY, (2, ROWS, A)))


@cache
def next_value() -> np.ndarray:
    state, b = doubles(start()), doubles(make_batch())
    action, log_pi = sample(state.trained.actor, b.next_observations, noise()[1])
    return all_q(state.target, b.next_observations, action).min(axis=0) - np.exp(-0.5) * log_pi


def critic_total(critic: MLP) -> float:
    b = doubles(make_batch())
    y = b.rewards + 0.9 * np.where(b.terminals == 1.0, 0.0, next_value())
    bellman = np.mean((all_q(critic, b.observations, b.actions) - y) ** 2, axis=1).sum()
    pairs = cosines(action_gradients(critic, b.observations, b.actions))
    return float(bellman + 30.0 * np.mean(pairs) / (N - 1))


def policy_total(actor: MLP) -> float:
    b, critic = doubles(make_batch()), doubles(start().trained.critic)
    action, log_pi = sample(actor, b.observations, noise()[0])
    q = all_q(critic, b.observations, action).min(axis=0)
    return float(np.mean(np.exp(-0.5) * log_pi - q))


@cache
def written_gradient() -> MLP:
    """∂L/∂φ by autodiff of ∇_a Q by autodiff, in float64, with the targets as constants."""
    b = doubles(make_batch())
    y = b.rewards + 0.9 * np.where(b.terminals == 1.0, 0.0, next_value())

    def q(net: MLP, actions: jax.Array) -> jax.Array:
        return net(jnp.concatenate([b.observations, actions], axis=-1))[..., 0]

    def loss(critic: MLP) -> jax.Array:
        values = jax.vmap(lambda net: q(net, b.actions))(critic)
        slopes = jax.vmap(lambda net: jax.grad(lambda a: q(net, a).sum())(b.actions))(critic)
        unit = slopes / jnp.linalg.norm(slopes, axis=-1, keepdims=True)
        pairs = jnp.einsum("ika,jka->ijk", unit, unit) * (1.0 - jnp.eye(N))[..., None]
        bellman = jnp.mean((values - y) ** 2, axis=1).sum()
        return bellman + 30.0 * jnp.mean(pairs.sum(axis=(0, 1))) / (N - 1)

    with jax.enable_x64(True):
        critic = doubles(start().trained.critic)
        return jax.device_get(jax.jit(jax.grad(loss))(critic))


# --- tests --------------------------------------------------------------------------------------


def test_losses_are_those_of_the_numpy_version() -> None:
    _, metrics = updated()
    b, trained = doubles(make_batch()), doubles(start().trained)
    pairs = cosines(action_gradients(trained.critic, b.observations, b.actions))
    assert_close(metrics["critic/loss"], critic_total(trained.critic), rtol=1e-5)
    assert_close(metrics["critic/diversity"], np.mean(pairs) / (N - 1), rtol=1e-5)
    assert_close(metrics["policy/loss"], policy_total(trained.actor), rtol=1e-5)


def test_gradient_by_hand_is_that_of_the_loss_as_it_is_written() -> None:
    with jax.enable_x64(True):
        critic, batch, value = doubles((start().trained.critic, make_batch(), next_value()))
        method = make()
        found, _ = jax.jit(method.critic_gradient)(critic, batch, value)
    assert_close(found, written_gradient(), rtol=1e-9, atol=1e-12)


def test_each_part_moves_by_its_own_loss_alone() -> None:
    """The target and, for the policy, the critics are constants to the gradient."""
    taken = Trained(*map(gradients, updated()[0].optimiser))
    trained = doubles(start().trained)
    assert_close(taken.actor, numerical_gradient(policy_total, trained.actor), rtol=1e-4, atol=2e-5)
    _, log_pi = sample(trained.actor, doubles(make_batch()).observations, noise()[0])
    assert_close(taken.log_alpha, A - log_pi.mean(), rtol=1e-5)
    assert_close(taken.critic, written_gradient(), rtol=1e-4, atol=2e-4)


def test_each_part_steps_at_its_own_rate_and_the_target_follows() -> None:
    state, _ = updated()
    for name, rate in (("actor", 1e-3), ("critic", 1e-2), ("log_alpha", 1e-3)):
        old, new = (getattr(s.trained, name) for s in (start(), state))
        moved = jax.tree.map(lambda o, n: float(np.max(np.abs(n - o))), old, new)
        assert max(jax.tree.leaves(moved)) == pytest.approx(rate, rel=1e-2), name
    assert_close(state.target, mixed(start().target, state.trained.critic, 0.1), atol=1e-6)


def test_update_by_groups_of_critics_is_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "GROUP", 2)
    # A function of its own, for that of `compiled` has one group.
    update = jax.jit(lambda *args: make().update(*args))
    state, metrics = update(start(), make_batch(), KEY)
    whole, expected = updated()
    assert_close(state.optimiser, whole.optimiser, rtol=1e-4, atol=1e-6)
    assert_close(metrics, expected, rtol=1e-5)


def test_diversity_term_parts_the_critics_gradients() -> None:
    """Critics that start nearly alike: their gradients point the same way, and then do not."""
    rng = np.random.default_rng(5)
    alike = jax.tree.map(
        lambda x: jnp.float32(x[:1] + 0.01 * rng.normal(size=x.shape)), start().trained.critic
    )
    state = start()._replace(trained=start().trained._replace(critic=alike))
    b = doubles(make_batch())

    def mean_cosine(state: SoftState) -> float:
        slopes = action_gradients(doubles(state.trained.critic), b.observations, b.actions)
        return float(np.mean(cosines(slopes))) / (N * (N - 1))

    def after(update: Callable[..., tuple[SoftState, Metrics]]) -> float:
        moved = state
        for step in range(60):
            moved, _ = update(moved, make_batch(), jax.random.key(step))
        return mean_cosine(moved)

    assert mean_cosine(state) > 0.9
    assert after(jax.jit(make(eta=0.0).update)) > 0.5, "else it is not the term that parts them"
    # The least that N unit vectors can have is −1/(N − 1).
    assert after(compiled()) < 0.0


def test_critics_without_a_slope_are_no_trouble() -> None:
    flat = jnp.zeros((N, ROWS, A))
    value, gradient = jax.value_and_grad(make().diversity)(flat)
    assert value == 0.0
    assert np.all(gradient == 0.0)


@pytest.mark.parametrize(
    ("field", "value", "flag"), [("critics", 1, "--critics"), ("eta", -1.0, "--eta")]
)
def test_impossible_settings_are_refused_by_name(field: str, value: float, flag: str) -> None:
    with pytest.raises(UserError, match=f"^{flag} is "):
        make(**{field: value})
