"""What IQL and EQL share, against an independent float64 numpy version of the whole update."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import (
    ROWS,
    A,
    Adam,
    S,
    assert_close,
    both_q,
    doubles,
    forward,
    gradients,
    make_batch,
    mixed,
    same,
    shaken,
)

from acpo.algorithms.base import Spec
from acpo.algorithms.eql import EQL
from acpo.algorithms.in_sample import HEAD, InSample, InSampleState, Policy
from acpo.algorithms.iql import IQL
from acpo.errors import UserError

STEPS = 4
COMMON: dict[str, Any] = {
    "gamma": 0.9,
    "tau": 0.1,
    "learning_rate": 1e-2,
    "hidden": (8, 8),
    "weight_max": 1.1,  # low enough that some weights are clipped
}
METHODS: dict[str, InSample] = {
    "iql": IQL(expectile=0.8, beta=3.0, dropout=0.3, **COMMON),
    "eql": EQL(alpha=0.3, sharpness=2.0, **COMMON),
}
CONFIG = METHODS["iql"]
each_method = pytest.mark.parametrize("config", METHODS.values(), ids=METHODS)


@cache
def compiled(config: InSample) -> Any:
    return jax.jit(config.update)


@cache
def start(config: InSample) -> InSampleState:
    """A state whose target differs from its critic, as it does in the middle of a run."""
    state = config.init(jax.random.key(0), Spec(S, A, STEPS))
    other = config.init(jax.random.key(1), Spec(S, A, STEPS))
    policy = state.policy._replace(log_std=jnp.array([-0.3, 0.2]))
    state = state._replace(target=other.values.critic, policy=policy)
    # V near Q', so that weights lie on both sides of their clip
    ref, batch = doubles(state), doubles(make_batch())
    q = np.minimum(*both_q(ref.target, batch.observations, batch.actions))
    shift = (q - forward(ref.values.value, batch.observations)[:, 0]).mean()
    bias = jnp.float32(ref.values.value.biases[-1] + shift)
    return eqx.tree_at(lambda state: state.values.value.biases[-1], state, bias)


def masks(config: InSample, key: jax.Array) -> list[np.ndarray]:
    """Factors on the actor's hidden layers: 0 where a unit is dropped, 1/(1 − rate) elsewhere."""
    keep = 1.0 - config.dropout
    drawn = (jax.random.bernoulli(jax.random.fold_in(key, i), keep, (ROWS, 8)) for i in range(2))
    return [np.asarray(d) / keep for d in drawn]


def log_density(
    policy: Policy, s: np.ndarray, a: np.ndarray, factors: list[np.ndarray]
) -> np.ndarray:
    x = s
    for weight, bias, factor in zip(policy.mean.weights, policy.mean.biases, factors, strict=False):
        x = np.maximum(x @ weight + bias, 0.0) * factor
    mean = np.tanh(x @ policy.mean.weights[-1] + policy.mean.biases[-1])
    std = np.exp(np.clip(policy.log_std, -5.0, 2.0))
    normal = np.exp(-0.5 * ((a - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
    return np.log(normal).sum(axis=1)


def value_loss(config: InSample, v: np.ndarray, q: np.ndarray, largest: float) -> float:
    if isinstance(config, IQL):
        share = np.where(q < v, 1 - config.expectile, config.expectile)
        return float((share * (q - v) ** 2).mean())
    assert isinstance(config, EQL)
    exponent = np.minimum((q - v) / config.alpha, 5.0)
    return float((np.exp(-largest) * (np.exp(exponent) + v / config.alpha)).mean())


def reference_losses(
    config: InSample, value: Any, target: Any, batch: Any, factors: list[np.ndarray]
) -> dict[str, Callable[[Any], float]]:
    """The three losses, as functions of the network that each trains."""
    s, a = batch.observations, batch.actions
    q_target = np.minimum(*both_q(target, s, a))
    v = forward(value, s)[:, 0]
    next_v = forward(value, batch.next_observations)[:, 0]
    y = batch.rewards + config.gamma * np.where(batch.terminals == 1.0, 0.0, next_v)
    scale = config.beta if isinstance(config, IQL) else config.sharpness / config.alpha
    unclipped = np.exp(scale * (q_target - v))
    weight = np.minimum(unclipped, config.weight_max)
    assert 0 < (unclipped > config.weight_max).sum() < ROWS
    largest = 0.0
    if isinstance(config, EQL):
        largest = max(min(((q_target - v) / config.alpha).max(), 5.0), -1.0)
    return {
        "value/loss": lambda net: value_loss(config, forward(net, s)[:, 0], q_target, largest),
        "critic/loss": lambda net: float(sum(((q - y) ** 2).mean() for q in both_q(net, s, a))),
        "policy/loss": lambda p: float(-(weight * log_density(p, s, a, factors)).mean()),
    }


@each_method
def test_updates_equal_the_numpy_version(config: InSample) -> None:
    state = start(config)
    ref = doubles(state)
    policy, value, critic = map(Adam.start, (ref.policy, *ref.values))
    target = ref.target
    for step in range(3):
        batch, key = make_batch(step), jax.random.key(10 + step)
        factors = masks(config, key) if config.dropout else [np.ones((ROWS, 8))] * 2
        losses = reference_losses(config, value.parameters, target, doubles(batch), factors)
        expected = {
            name: losses[name](net.parameters)
            for name, net in zip(losses, (value, critic, policy), strict=True)
        }
        value = value.moved(losses["value/loss"], 1e-2)
        critic = critic.moved(losses["critic/loss"], 1e-2)
        policy = policy.moved(losses["policy/loss"], 1e-2 * (1 + np.cos(np.pi * step / STEPS)) / 2)
        target = mixed(target, critic.parameters, config.tau)

        state, metrics = compiled(config)(state, batch, key)
        assert_close(state.policy, policy.parameters)
        assert_close(state.values, (value.parameters, critic.parameters))
        assert_close(state.target, target)
        for name, loss in expected.items():
            assert float(metrics[name]) == pytest.approx(loss, rel=1e-4), name


# --- one step, seen from outside ----------------------------------------------------------------


def perturbed(what: str) -> dict[str, Any]:
    """Gradients of one update with one input changed."""
    state, batch, key = start(CONFIG), make_batch(), jax.random.key(10)
    if what == "terminals":
        batch = batch._replace(terminals=1.0 - batch.terminals)
    elif what in batch._fields:
        batch = batch._replace(**{what: shaken(getattr(batch, what))})
    elif what in ("value", "critic"):
        net = shaken(getattr(state.values, what))
        state = state._replace(values=state.values._replace(**{what: net}))
    elif what == "key":
        key = jax.random.key(11)
    elif what:
        state = state._replace(**{what: shaken(getattr(state, what))})
    state, _ = compiled(CONFIG)(state, batch, key)
    values = gradients(state.values_optimiser)
    policy = gradients(state.policy_optimiser)
    return {"policy": policy, "value": values.value, "critic": values.critic}


@pytest.mark.parametrize(
    ("what", "trains"),
    [
        ("rewards", {"critic"}),
        ("terminals", {"critic"}),
        ("next_observations", {"critic"}),
        ("actions", {"policy", "value", "critic"}),
        ("target", {"policy", "value"}),
        ("value", {"policy", "value", "critic"}),
        ("critic", {"critic"}),
        ("policy", {"policy"}),
        ("key", {"policy"}),  # dropout
    ],
)
def test_each_input_reaches_only_what_it_should(what: str, trains: set[str]) -> None:
    before, after = perturbed(""), perturbed(what)
    assert {name for name in before if not same(before[name], after[name])} == trains


def test_no_loss_pushes_what_it_takes_as_given() -> None:
    numbers = jnp.array([0.3, -0.2, 0.5])

    def value_to_q(q: jax.Array) -> jax.Array:
        return sum((c.value_loss(numbers, q)[0] for c in METHODS.values()), jnp.float32(0))

    def critic_to_v(v: jax.Array) -> jax.Array:
        q = jnp.stack([numbers, numbers])
        return CONFIG.critic_loss(q, numbers, jnp.zeros(3), v)[0]

    def policy_to_advantage(advantage: jax.Array) -> jax.Array:
        return CONFIG.policy_loss(numbers, advantage)[0]

    for loss in (value_to_q, critic_to_v, policy_to_advantage):
        assert not np.any(jax.jit(jax.grad(loss))(numbers + 0.1))


def test_critic_loss_by_hand_masks_terminals_only() -> None:
    q = jnp.array([[1.0, 1.0], [2.0, 0.0]])
    rewards, terminals = jnp.array([1.0, -1.0]), jnp.array([0.0, 1.0])
    # targets: 1 + 0.9·10 = 10 where the episode goes on (or hit a time limit), −1 where it ended
    loss, _ = CONFIG.critic_loss(q, rewards, terminals, jnp.array([10.0, 10.0]))
    assert float(loss) == pytest.approx((9.0**2 + 8.0**2 + 2.0**2 + 1.0**2) / 2)


def test_the_exponent_is_clipped_before_it_could_overflow() -> None:
    def total(log_pi: jax.Array) -> jax.Array:
        return IQL(weight_max=100.0).policy_loss(log_pi, jnp.array([1e30, 1e4, -1e30]))[0]

    np.testing.assert_allclose(
        jax.grad(total)(jnp.ones(3)), -np.array([100.0, 100.0, 0.0]) / 3, rtol=1e-5
    )


def test_only_the_actor_s_rate_falls_and_to_zero() -> None:
    state = start(CONFIG)
    end = state._replace(schedule=state.schedule._replace(step=jnp.int32(STEPS)))
    after, _ = compiled(CONFIG)(end, make_batch(), jax.random.key(0))
    assert_close(after.policy, state.policy, atol=1e-8)
    first, _ = compiled(CONFIG)(state, make_batch(), jax.random.key(0))
    assert same(after.values, first.values)
    assert not same(first.values, state.values)


def test_the_exported_actor_is_the_policy_for_one_seed_and_for_several() -> None:
    state, observations = start(CONFIG), make_batch().observations
    policy = jax.jit(lambda s: HEAD.parameters(CONFIG.actor(state)(s)))(observations)
    expected = np.tanh(forward(doubles(state.policy.mean), doubles(observations)))
    np.testing.assert_allclose(HEAD.mode(policy), expected, atol=1e-6)
    np.testing.assert_allclose(policy.log_std, np.tile([-0.3, 0.2], (ROWS, 1)), rtol=1e-6)

    stacked = jax.tree.map(lambda x: np.stack([x, 2 * np.asarray(x)]), state)
    both = jax.device_get(CONFIG.actor(stacked))
    first = jax.tree.map(lambda x: x[0], both)
    second = jax.tree.map(lambda x: x[1], both)
    assert same(first, CONFIG.actor(state))
    assert same(second, jax.tree.map(lambda x: 2 * x, first))


def test_diagnosis_by_hand() -> None:
    state, batch = start(CONFIG), make_batch()
    found = jax.jit(CONFIG.diagnose)(state, batch, jax.random.key(0))
    ref, b = doubles(state), doubles(batch)
    q = np.array(both_q(ref.values.critic, b.observations, b.actions))
    v = forward(ref.values.value, b.observations)[:, 0]
    advantage = np.minimum(*both_q(ref.target, b.observations, b.actions)) - v
    weight = np.exp(3.0 * advantage)
    clipped = np.minimum(weight, 1.1)
    entropy = (0.5 * np.log(2 * np.pi * np.e * np.exp([-0.3, 0.2]) ** 2)).sum()
    log_pi = log_density(ref.policy, b.observations, b.actions, [np.ones((ROWS, 8))] * 2)
    expected = {
        "weights/clipped": (weight > 1.1).mean(),
        "weights/effective_sample_size": clipped.sum() ** 2 / (clipped**2).sum() / ROWS,
        "advantage/mean": advantage.mean(),
        "advantage/std": advantage.std(),
        "critic/q_min": q.min(),
        "critic/q_max": q.max(),
        "critic/disagreement": np.abs(q[0] - q[1]).mean(),
        "policy/entropy": entropy,
        "policy/log_std": -0.05,
        "policy/log_prob_data": log_pi.mean(),
    }
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"dropout": 1.0}, "--dropout is 1; it must be at least 0 and below 1."),
        ({"dropout": -0.1}, "--dropout is -0.1; it must be at least 0 and below 1."),
        ({"weight_max": 0.0}, "--weight-max is 0; it must be above 0."),
    ],
)
@pytest.mark.parametrize("method", [IQL, EQL])
def test_impossible_values_are_refused(method: Any, fields: dict[str, float], says: str) -> None:
    with pytest.raises(UserError) as error:
        method(**fields)
    assert str(error.value) == says
