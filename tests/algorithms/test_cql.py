"""CQL against an independent float64 numpy version, and Q falling where the data has no actions."""

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
    both_q,
    doubles,
    forward,
    gradients,
    make_batch,
    mixed,
    numerical_gradient,
    shaken,
)

from acpo.algorithms import base
from acpo.algorithms.base import Metrics, Spec
from acpo.algorithms.cql import CQL, Trained
from acpo.algorithms.soft import SoftState
from acpo.errors import UserError
from acpo.networks import MLP, TwinQ

N = 4
KEY = jax.random.key(7)
PLAIN: dict[str, Any] = {"cloning": 0.0}
# Whatever the first case has not: a multiplier, the plain sum, entropy and several actions in the
# target, cloning.
OTHER: dict[str, Any] = {
    "target_gap": 3.0,
    "importance_sampled": False,
    "backup_entropy": True,
    "backup_actions": 3,
    "cloning": 0.5,
}


def make(**changes: Any) -> CQL:
    """Every field that these tests rest on, whatever the defaults become."""
    fields: dict[str, Any] = {
        "gamma": 0.9,
        "tau": 0.1,
        "learning_rate": 1e-2,
        "actor_learning_rate": 1e-3,
        "batch_size": ROWS,
        "hidden": (8, 8),
        "weight": 2.0,
        "samples": N,
    }
    return CQL(**{**fields, **changes})


@cache
def start() -> SoftState:
    """As in the middle of a run: a target that differs, multipliers that are not 1."""
    state = make().init(jax.random.key(0), Spec(S, A, 10))
    trained = state.trained._replace(log_alpha=jnp.float32(-0.5), log_price=jnp.float32(0.4))
    return state._replace(trained=trained, target=shaken(state.target))


@cache
def compiled(other: bool) -> Callable[..., tuple[SoftState, Metrics]]:
    return jax.jit(make(**(OTHER if other else PLAIN)).update)


@cache
def updated(other: bool) -> tuple[SoftState, Metrics]:
    return compiled(other)(start(), make_batch(), KEY)


# --- the numpy version --------------------------------------------------------------------------


@cache
def noise() -> tuple[np.ndarray, np.ndarray]:
    """What the update draws: for the policy at s and s', and uniformly; rows as last but one."""
    key_noise, key_uniform = jax.random.split(KEY)
    normal = jax.random.normal(key_noise, (ROWS, 2, 1 + N, A))
    uniform = jax.random.uniform(key_uniform, (ROWS, N, A), minval=-1.0)
    return doubles((jnp.moveaxis(normal, 0, 2), jnp.moveaxis(uniform, 0, 1)))


def sample(actor: MLP, s: np.ndarray, eps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    output = forward(actor, s)
    mean, log_std = output[:, :A], np.clip(output[:, A:], -5.0, 2.0)
    action = np.tanh(mean + np.exp(log_std) * eps)
    normal = -0.5 * eps**2 - log_std - 0.5 * np.log(2 * np.pi)
    return action, (normal - np.log(1.0 - action**2)).sum(axis=-1)


def log_prob(actor: MLP, s: np.ndarray, action: np.ndarray) -> np.ndarray:
    output = forward(actor, s)
    mean, log_std = output[:, :A], np.clip(output[:, A:], -5.0, 2.0)
    z = (np.arctanh(action) - mean) / np.exp(log_std)
    normal = -0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi)
    return (normal - np.log(1.0 - action**2)).sum(axis=-1)


@cache
def sampled() -> list[tuple[np.ndarray, np.ndarray]]:
    """Actions that stand for log Σ exp Q at s, one per row, and their log-density."""
    b, actor = doubles(make_batch()), doubles(start().trained.actor)
    eps, uniform = noise()
    found = []
    for k in range(N):
        found.append((uniform[k], np.full(ROWS, -A * np.log(2.0))))
        found.append(sample(actor, b.observations, eps[0, 1 + k]))
        found.append(sample(actor, b.next_observations, eps[1, 1 + k]))
    return found


def gaps(critic: TwinQ, other: bool) -> np.ndarray:
    """E[log Σ exp Q − Q(s,a)] of either critic."""
    b = doubles(make_batch())
    q = np.array(both_q(critic, b.observations, b.actions))
    terms = [
        np.exp(np.array(both_q(critic, b.observations, action)) - (0.0 if other else log_density))
        for action, log_density in sampled()
    ]
    if other:
        terms.append(np.exp(q))
    return np.mean(np.log(np.sum(terms, axis=0)) - q, axis=1)


@cache
def bellman_targets(other: bool) -> np.ndarray:
    state, b = doubles(start()), doubles(make_batch())
    values = []
    for eps in noise()[0][1, : 3 if other else 1]:
        action, log_pi = sample(state.trained.actor, b.next_observations, eps)
        value = np.minimum(*both_q(state.target, b.next_observations, action))
        values.append(value - np.exp(-0.5) * log_pi if other else value)
    value = np.max(values, axis=0)
    return b.rewards + 0.9 * np.where(b.terminals == 1.0, 0.0, value)


def bellman(critic: TwinQ, other: bool) -> float:
    b, y = doubles(make_batch()), bellman_targets(other)
    return sum(float(np.mean((q - y) ** 2)) for q in both_q(critic, b.observations, b.actions))


def critic_total(critic: TwinQ, other: bool) -> float:
    price, gap = (np.exp(0.4), 3.0) if other else (1.0, 0.0)
    penalty = sum(price * (2.0 * found - gap) for found in gaps(critic, other))
    return bellman(critic, other) + penalty


def policy_total(actor: MLP, other: bool) -> float:
    b, critic = doubles(make_batch()), doubles(start().trained.critic)
    action, log_pi = sample(actor, b.observations, noise()[0][0, 0])
    worth = np.minimum(*both_q(critic, b.observations, action))
    if other:
        worth = log_prob(actor, b.observations, b.actions)
    return float(np.mean(np.exp(-0.5) * log_pi - worth))


# --- tests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [False, True])
def test_losses_are_those_of_the_numpy_version(other: bool) -> None:
    _, metrics = updated(other)
    trained = doubles(start().trained)
    assert_close(metrics["critic/loss"], bellman(trained.critic, other), rtol=1e-5)
    assert_close(metrics["critic/gap"], np.mean(gaps(trained.critic, other)), rtol=1e-5)
    assert_close(metrics["policy/loss"], policy_total(trained.actor, other), rtol=1e-5)


@pytest.mark.parametrize("other", [False, True])
def test_each_part_moves_by_its_own_loss_alone(other: bool) -> None:
    """Targets, sampled actions and, for the policy, the critics are constants to the gradient."""
    taken = Trained(*map(gradients, updated(other)[0].optimiser))
    trained = doubles(start().trained)
    assert_close(
        taken.critic,
        numerical_gradient(lambda critic: critic_total(critic, other), trained.critic),
        atol=2e-5,
        rtol=1e-4,
    )
    assert_close(
        taken.actor,
        numerical_gradient(lambda actor: policy_total(actor, other), trained.actor),
        atol=2e-5,
        rtol=1e-4,
    )
    _, log_pi = sample(trained.actor, doubles(make_batch()).observations, noise()[0][0, 0])
    assert_close(taken.log_alpha, A - log_pi.mean(), rtol=1e-5)
    excess = sum(2.0 * found - 3.0 for found in gaps(trained.critic, other))
    assert_close(taken.log_price, -0.5 * np.exp(0.4) * excess if other else 0.0, rtol=1e-5)


def test_each_part_steps_at_its_own_rate_and_the_target_follows() -> None:
    state, _ = updated(True)
    for name, rate in (("actor", 1e-3), ("critic", 1e-2), ("log_alpha", 1e-3), ("log_price", 1e-2)):
        old, new = (getattr(s.trained, name) for s in (start(), state))
        moved = jax.tree.map(lambda o, n: float(np.max(np.abs(n - o))), old, new)
        assert max(jax.tree.leaves(moved)) == pytest.approx(rate, rel=1e-2), name
    assert_close(state.target, mixed(start().target, state.trained.critic, 0.1), atol=1e-6)


@pytest.mark.parametrize("other", [False, True])
def test_update_by_blocks_of_rows_is_the_update(
    other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "BLOCK_INPUTS", 4 * (1 + 3 * N))
    # A function of its own, for that of `compiled` has one block.
    update = jax.jit(lambda *args: make(**(OTHER if other else PLAIN)).update(*args))
    state, metrics = update(start(), make_batch(), KEY)
    whole, expected = updated(other)
    assert_close(state.optimiser, whole.optimiser, rtol=1e-4, atol=1e-6)
    assert_close(metrics, expected, rtol=1e-5)


def test_policy_clones_first_and_follows_q_later() -> None:
    later = start()._replace(schedule=start().schedule._replace(step=jnp.int32(5)))
    _, metrics = compiled(True)(later, make_batch(), KEY)
    expected = policy_total(doubles(start().trained.actor), other=False)
    assert_close(metrics["policy/loss"], expected, rtol=1e-5)


def test_q_falls_below_the_data_where_the_data_has_no_actions() -> None:
    rng = np.random.default_rng(3)
    near = jnp.float32(0.5 + 0.1 * rng.normal(size=(ROWS, A)))
    batch = make_batch()._replace(actions=near)

    def lead(state: SoftState) -> float:
        """How far Q at the data's actions lies above Q at actions of the opposite sign."""
        q = [state.trained.critic(batch.observations, a).mean() for a in (near, -near)]
        return float(q[0] - q[1])

    def after(weight: float) -> float:
        state, update = start(), jax.jit(make(**PLAIN, weight=weight).update)
        for step in range(60):
            state, _ = update(state, batch, jax.random.key(step))
        return lead(state)

    assert lead(start()) < 0.5
    assert after(weight=0.0) < 0.5, "else it is not the gap that presses Q down"
    assert after(weight=2.0) > 2.0


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("weight", -1.0, "--weight"),
        ("target_gap", -1.0, "--target-gap"),
        ("samples", 0, "--samples"),
        ("backup_actions", 0, "--backup-actions"),
        ("cloning", 1.0, "--cloning"),
    ],
)
def test_impossible_settings_are_refused_by_name(field: str, value: float, flag: str) -> None:
    with pytest.raises(UserError, match=f"^{flag} is "):
        make(**{field: value})
