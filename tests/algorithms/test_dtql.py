"""DTQL against numpy by hand; its trust region is tested in tests/test_denoising.py."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import ROWS, A, S, assert_close, doubles, make_batch, numerical_gradient, same

from acpo.algorithms.base import Batch, Schedule, Spec
from acpo.algorithms.dtql import DTQL, DTQLState
from acpo.denoising import SigmaNet, denoising_loss, draw_sigma
from acpo.errors import UserError
from acpo.networks import MLP, TwinQ

STEPS = 10
WAITS = 3


def make(**changes: Any) -> DTQL:
    """Every field that these tests rest on, whatever the defaults become."""
    given: dict[str, Any] = {
        "gamma": 0.9,
        "alpha": 2.0,
        "likelihood": 0.5,
        "expectile": 0.8,
        "pretraining": WAITS / STEPS,
        "learning_rate": 1e-2,
        "critic_learning_rate": 3e-2,
        "decay": True,
        "batch_size": ROWS,
        "hidden": (8, 8),
    }
    return DTQL(**given | changes)


CONFIG = make()
update = jax.jit(CONFIG.update)
policy_loss = jax.jit(CONFIG.policy_loss)


def start(seed: int = 0) -> DTQLState:
    return CONFIG.init(jax.random.key(seed), Spec(S, A, STEPS))


@cache
def run() -> list[tuple[DTQLState, Any]]:
    """The state before the first update, and each update's."""
    states = [(start(), None)]
    for step in range(STEPS):
        states.append(update(states[-1][0], make_batch(step), jax.random.key(step)))
    return states


def draws(key: Any) -> tuple[Any, Any]:
    """σ and noise of an update: of the denoiser, then of the policy."""
    key_sigma, key_noise = jax.random.split(key)
    return draw_sigma(key_sigma, (2, ROWS)), jax.random.normal(key_noise, (3, ROWS, A))


def mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(np.log1p(np.exp(x)))


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def forward(net: MLP, x: np.ndarray, activation: Any) -> np.ndarray:
    net = doubles(net)
    for weight, bias in zip(net.weights[:-1], net.biases[:-1], strict=True):
        x = x @ weight + bias
        if net.layer_norm:
            centred = x - x.mean(axis=1, keepdims=True)
            x = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
        x = activation(x)
    return x @ net.weights[-1] + net.biases[-1]


def both_q(critic: TwinQ, s: np.ndarray, a: np.ndarray) -> np.ndarray:
    x = np.concatenate([s, a], axis=1)
    return np.stack([forward(q, x, mish)[:, 0] for q in (critic.q1, critic.q2)])


# --- losses -------------------------------------------------------------------------------------


def test_the_losses_of_value_critics_and_denoiser_are_those_of_numpy() -> None:
    batch, b = make_batch(), doubles(make_batch())
    value, critic = start().critics
    q = both_q(critic, b.observations, b.actions)
    # V where actions lie on both sides of it
    *biases, last = value.biases
    value = MLP(value.weights, (*biases, last + q.mean()), False, value.activation)
    v = forward(value, b.observations, mish)[:, 0]
    next_v = forward(value, b.next_observations, mish)[:, 0]
    u = q.min(axis=0) - v
    assert 0 < (u > 0).mean() < 1
    expected_value = np.mean([(0.8 if x > 0 else 0.2) * x * x for x in u])
    target = b.rewards + np.where(b.terminals == 1.0, 0.0, 0.9 * next_v)
    expected_critic = np.mean((q[0] - target) ** 2) + np.mean((q[1] - target) ** 2)

    state = start()._replace(critics=start().critics._replace(value=value))
    _, metrics = update(state, batch, jax.random.key(0))
    assert float(metrics["value/loss"]) == pytest.approx(expected_value, rel=1e-4)
    assert float(metrics["critic/loss"]) == pytest.approx(expected_critic, rel=1e-4)
    assert float(metrics["value/v"]) == pytest.approx(v.mean(), rel=1e-4)
    assert float(metrics["critic/q"]) == pytest.approx(q.mean(), rel=1e-4)
    sigma, noise = draws(jax.random.key(0))
    loss = denoising_loss(state.denoiser, batch.actions, batch.observations, sigma[0], noise[0])
    assert float(metrics["denoiser/loss"]) == pytest.approx(float(loss), rel=1e-4)


def trust_region(
    net: SigmaNet, actions: np.ndarray, s: np.ndarray, sigma: np.ndarray, noise: np.ndarray
) -> float:
    """E[‖(D(a + σε; s, σ) − a) / c_out‖²], D preconditioned for data of deviation ½."""
    sigma = sigma[:, None]
    variance = sigma**2 + 0.25
    waves = 0.25 * np.log(sigma) * 1e4 ** (-np.arange(8) / 7)
    time = forward(net.time, np.concatenate([np.sin(waves), np.cos(waves)], axis=1), mish)
    noisy = actions + sigma * noise
    inputs = np.concatenate([noisy / np.sqrt(variance), s, time], axis=1)
    c_out = 0.5 * sigma / np.sqrt(variance)
    denoised = 0.25 / variance * noisy + c_out * forward(net.trunk, inputs, mish)
    return float(np.mean(((np.clip(denoised, -1.0, 1.0) - actions) / c_out) ** 2))


def policy_terms(policy: MLP, batch: Batch, key: Any) -> tuple[float, float, float]:
    """Trust region, Q and log-likelihood of the initial networks' policy loss, by numpy."""
    state, b = start(), doubles(batch)
    sigma, noise = doubles(draws(key))
    mean, log_std = np.split(forward(policy, b.observations, relu), 2, axis=1)
    std = np.exp(np.clip(log_std, -5.0, 2.0))
    actions = np.tanh(mean + std * noise[1])
    trust = trust_region(state.denoiser, actions, b.observations, sigma[1], noise[2])
    q = both_q(state.critics.critic, b.observations, actions).min(axis=0).mean()
    z = (np.arctanh(b.actions / 1.001) - mean) / std
    log_likelihood = np.sum(np.log(np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) / std), axis=1)
    return trust, q, log_likelihood.mean()


def test_the_policy_loss_and_its_gradient_are_those_of_numpy() -> None:
    """Trust region less Q less likelihood; all three reach the policy through its action."""
    batch, key = make_batch(), jax.random.key(3)
    batch = batch._replace(actions=batch.actions.at[0].set(1.0))  # no finite atanh
    state, (sigma, noise) = start(), draws(key)
    (loss, metrics), gradient = jax.value_and_grad(policy_loss, has_aux=True)(
        state.policy, state.critics.critic, state.denoiser, batch, sigma[1], noise[1:]
    )
    trust, q, log_likelihood = policy_terms(state.policy, batch, key)
    assert float(metrics["policy/trust"]) == pytest.approx(trust, rel=1e-4)
    assert float(metrics["policy/q"]) == pytest.approx(q, rel=1e-3)
    assert float(loss) == pytest.approx(2.0 * trust - q - 0.5 * log_likelihood, rel=1e-4)

    def total(policy: MLP) -> float:
        trust, q, log_likelihood = policy_terms(policy, batch, key)
        return 2.0 * trust - q - 0.5 * log_likelihood

    assert_close(gradient, numerical_gradient(total, doubles(state.policy)), atol=2e-5, rtol=1e-3)


def test_q_is_no_parameter_of_values_loss_nor_v_of_the_critics() -> None:
    v, next_v, rewards, terminals = (jnp.arange(4.0) / n for n in (1, 2, 3, 4))
    q = jnp.ones((2, 4))
    by_q = jax.grad(lambda q: CONFIG.value_loss(v, q)[0])(q)
    by_v = jax.grad(lambda n: CONFIG.critic_loss(q, rewards, terminals, n)[0])(next_v)
    assert not by_q.any()
    assert not by_v.any()
    assert jax.grad(lambda v: CONFIG.value_loss(v, q)[0])(v).any()


def test_what_the_policy_is_moves_neither_critics_nor_denoiser() -> None:
    late = run()[WAITS + 1][0]
    other = late._replace(policy=start(1).policy)
    one, two = (update(state, make_batch(), jax.random.key(0))[0] for state in (late, other))
    assert same((one.critics, one.denoiser), (two.critics, two.denoiser))
    assert not same(one.critics, late.critics)


# --- steps --------------------------------------------------------------------------------------


def test_the_policy_waits_while_critics_and_denoiser_learn_and_then_starts_afresh() -> None:
    states = [state for state, _ in run()]
    for state in states[: WAITS + 1]:
        assert same(state.policy, states[0].policy)
        assert same(state.optimisers[2], states[0].optimisers[2])
    for before, after in pairwise(states):
        assert not same(before.critics, after.critics)
        assert not same(before.denoiser, after.denoiser)
    for before, after in pairwise(states[WAITS:]):
        assert not same(before.policy, after.policy)
    # Adam's first step is its rate, and each part has its own.
    for net, number, rate in (
        (lambda state: state.critics.critic.q1, 1, 3e-2),
        (lambda state: state.denoiser.trunk, 1, 1e-2),
        (lambda state: state.policy, WAITS + 1, 1e-2),
    ):
        step = np.abs(net(states[number]).biases[-1] - net(states[number - 1]).biases[-1])
        np.testing.assert_allclose(step, rate, rtol=1e-2)


def test_step_sizes_fall_to_zero_by_a_cosine_once_the_policy_learns() -> None:
    for step in range(STEPS + 1):
        schedule = Schedule(jnp.int32(step), jnp.int32(STEPS))
        waiting, factor = CONFIG.progress(schedule)
        assert bool(waiting) == (step < WAITS)
        share = max(step - WAITS, 0) / (STEPS - WAITS)
        assert float(factor) == pytest.approx(np.cos(np.pi / 2 * share) ** 2, abs=1e-6)
        assert make(decay=False).progress(schedule)[1] == 1.0
    last = run()[-1][0]
    after, _ = update(last, make_batch(), jax.random.key(0))
    for part in ("critics", "denoiser", "policy"):
        assert same(getattr(after, part), getattr(last, part))


def test_the_policys_step_sees_the_new_critics_and_denoiser() -> None:
    before, (after, metrics) = run()[WAITS][0], run()[WAITS + 1]
    sigma, noise = draws(jax.random.key(WAITS))
    _, expected = policy_loss(
        before.policy, after.critics.critic, after.denoiser, make_batch(WAITS), sigma[1], noise[1:]
    )
    for name, value in expected.items():
        assert float(metrics[name]) == pytest.approx(float(value), rel=1e-4)
    assert all(set(each) == set(metrics) for _, each in run()[1:])


def test_a_rate_for_target_critics_that_there_are_not_is_refused() -> None:
    with pytest.raises(UserError, match=r"--tau is 0.3; it must be left out: DTQL has no target"):
        make(tau=0.3)


def test_the_exported_network_is_the_policy_and_diagnosis_tells_what_q_makes_of_it() -> None:
    state, b = run()[-1][0], doubles(make_batch())
    assert CONFIG.actor(state) is state.policy
    assert CONFIG.head == "squashed"
    found = jax.jit(CONFIG.diagnose)(state, make_batch(), jax.random.key(0))
    assert all(value.shape == () and np.isfinite(value) for value in found.values())
    mean = np.tanh(forward(state.policy, b.observations, relu)[:, :A])
    critic = state.critics.critic
    gain = both_q(critic, b.observations, mean).min(axis=0)
    gain = gain - both_q(critic, b.observations, b.actions).min(axis=0)
    assert float(found["policy/gain"]) == pytest.approx(gain.mean(), abs=1e-4)


# --- settings -----------------------------------------------------------------------------------


def test_settings_name_fields_and_the_defaults_are_the_authors_for_gym() -> None:
    names = {field.name for field in fields(DTQL)} | {"relabel"}
    for given in DTQL.settings.values():
        assert set(given) <= names
        DTQL(**{name: value for name, value in given.items() if name != "relabel"})
    assert (DTQL().alpha, DTQL().expectile, DTQL().batch_size) == (5.0, 0.7, 256)


@pytest.mark.parametrize(
    "bad", [{"expectile": 1.5}, {"pretraining": 1.0}, {"alpha": -1.0}, {"likelihood": -0.1}]
)
def test_impossible_values_are_refused_by_the_name_of_their_flag(bad: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(bad))} is "):
        DTQL(**bad)  # type: ignore[arg-type]
