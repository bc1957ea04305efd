"""SPOT against an independent float64 numpy version; its penalty against the density itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acpo.algorithms.base import Batch, Metrics, Spec
from acpo.algorithms.spot import SPOT
from acpo.algorithms.td3 import TD3State
from acpo.behavior.config import BehaviorConfig
from acpo.behavior.cvae import CVAEDensity, CVAENet
from acpo.commands.train import parse
from acpo.errors import UserError
from acpo.networks import MLP

ROWS, S, A = 16, 3, 2
BETA, DROPOUT = 0.4, 0.25
VARIANCE = BETA / 4
KEYS = [jax.random.key(k) for k in (7, 8)]


def make(**changes: Any) -> SPOT:
    """Every field that these tests rest on, whatever the defaults become."""
    fields: dict[str, Any] = {
        "gamma": 0.9,
        "tau": 0.1,
        "learning_rate": 1e-3,
        "actor_learning_rate": 3e-3,
        "batch_size": ROWS,
        "hidden": (8, 8),
        "lam": 0.6,
        "policy_noise": 0.4,
        "noise_clip": 0.3,
        "policy_freq": 2,
        "dropout": DROPOUT,
        "behavior": BehaviorConfig("cvae-elbo", hidden=(8, 8), beta=BETA, latents=1, every=1),
    }
    return SPOT(**{**fields, **changes})


@cache
def compiled(config: SPOT) -> Callable[..., Any]:
    return jax.jit(config.update)


@cache
def start() -> TD3State:
    """As in the middle of a run: targets that differ, weights large enough to matter."""
    first, second = (make().init(jax.random.key(k), Spec(S, A, 10)) for k in (0, 1))
    nets, target = jax.tree.map(lambda x: 2 * np.asarray(x), (first.nets, second.nets))
    return first._replace(nets=nets, target=target)


@cache
def batch() -> Batch:
    rng = np.random.default_rng(0)
    net = make().density.init(jax.random.key(2), S, A)
    return Batch(
        observations=jnp.float32(rng.normal(size=(ROWS, S))),
        actions=jnp.float32(rng.uniform(-0.9, 0.9, (ROWS, A))),
        rewards=jnp.float32(rng.normal(size=ROWS)),
        next_observations=jnp.float32(rng.normal(size=(ROWS, S))),
        terminals=jnp.float32(np.arange(ROWS) % 3 == 0),
        behavior=jax.tree.map(lambda x: 2 * np.asarray(x), net),
        log_beta=jnp.zeros(ROWS),
    )


@cache
def updated() -> list[tuple[TD3State, Metrics]]:
    """Two updates; the second is one of the policy too."""
    update, state, found = compiled(make()), start(), []
    for key in KEYS:
        found.append(update(state, batch(), key))
        state = found[-1][0]
    return found


# --- the same by numpy ----------------------------------------------------------------------------


def double(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def layers(net: Any, *inputs: np.ndarray, masks: Any = None) -> np.ndarray:
    x = np.concatenate(inputs, axis=-1)
    for i, (w, b) in enumerate(zip(net.weights[:-1], net.biases[:-1], strict=True)):
        x = np.maximum(x @ w + b, 0.0)
        if masks is not None:
            x = x * masks[i] / (1 - DROPOUT)
    return x @ net.weights[-1] + net.biases[-1]


def masks(key: Any) -> list[np.ndarray]:
    return [
        double(jax.random.bernoulli(jax.random.fold_in(key, i), 1 - DROPOUT, (ROWS, 8)))
        for i in range(2)
    ]


def critic_loss(state: Any, key: Any) -> float:
    key_noise, key_target, _ = jax.random.split(key, 3)
    b, target = double(batch()), state.target
    noise = np.clip(0.4 * double(jax.random.normal(key_noise, (ROWS, A))), -0.3, 0.3)
    s2 = b.next_observations
    a2 = np.tanh(layers(target.actor, s2, masks=masks(key_target)))
    a2 = np.clip(a2 + noise, -1, 1)
    next_q = np.minimum(layers(target.critic.q1, s2, a2), layers(target.critic.q2, s2, a2))[:, 0]
    y = np.where(b.terminals == 1, b.rewards, b.rewards + 0.9 * next_q)
    pair = (state.nets.critic.q1, state.nets.critic.q2)
    return sum(np.mean((y - layers(q, b.observations, b.actions)[:, 0]) ** 2) for q in pair)


def elbo(net: Any, s: np.ndarray, a: np.ndarray, noise: np.ndarray) -> np.ndarray:
    mean, log_std = np.split(layers(net.encoder, s, a), 2, axis=-1)
    decoded = np.tanh(layers(net.decoder, s, mean + np.exp(log_std) * noise))
    likelihood = -((a - decoded) ** 2) / (2 * VARIANCE) - 0.5 * np.log(2 * np.pi * VARIANCE)
    kl = 0.5 * (mean**2 + np.exp(2 * log_std) - 1 - 2 * log_std)
    return likelihood.sum(axis=-1) - kl.sum(axis=-1)


def policy_loss(actor: Any, critic: Any, key: Any, size: float) -> float:
    """`size` is mean|Q|, which is a constant to the gradient."""
    key_actor, key_density = jax.random.split(jax.random.split(key, 3)[2])
    b = double(batch())
    a = np.tanh(layers(actor, b.observations, masks=masks(key_actor)))
    q = layers(critic.q1, b.observations, a)
    noise = double(jax.random.normal(key_density, (ROWS, 1, 2 * A)))[:, 0]
    penalty = -BETA / (2 * A) * elbo(b.behavior, b.observations, a, noise).mean()
    return -q.mean() / size + 0.6 * penalty


def test_the_critics_loss_of_two_updates_is_that_by_hand() -> None:
    (first, metrics), (_, metrics2) = updated()
    assert float(metrics["critic/loss"]) == pytest.approx(critic_loss(double(start()), KEYS[0]))
    assert float(metrics2["critic/loss"]) == pytest.approx(critic_loss(double(first), KEYS[1]))


def test_the_actor_follows_its_loss_by_the_new_critics_and_the_divisor_is_a_constant() -> None:
    (first, _), (second, _) = updated()
    # Adam's first moment after its first step is a tenth of the gradient.
    gradient = jax.tree.map(lambda m: 10.0 * np.asarray(m, np.float64), second.actor_optimiser.mu)
    actor, critic = double(first.nets.actor), double(second.nets.critic)
    b, key_actor = double(batch()), jax.random.split(jax.random.split(KEYS[1], 3)[2])[0]
    actions = np.tanh(layers(actor, b.observations, masks=masks(key_actor)))
    size = float(np.abs(layers(critic.q1, b.observations, actions)).mean())
    rng, h = np.random.default_rng(1), 1e-6
    for _ in range(3):
        way = jax.tree.map(lambda x: rng.normal(size=x.shape), actor)

        def at(t: float, way: Any = way) -> float:
            there = jax.tree.map(lambda x, d: x + t * d, actor, way)
            return policy_loss(there, critic, KEYS[1], size)

        products = sum(jax.tree.leaves(jax.tree.map(np.vdot, gradient, way)))
        assert products == pytest.approx((at(h) - at(-h)) / (2 * h), rel=1e-3, abs=1e-4)


def test_the_critics_follow_their_loss() -> None:
    gradient = jax.tree.map(
        lambda m: 10.0 * np.asarray(m, np.float64), updated()[0][0].critic_optimiser.mu
    )
    state, rng, h = double(start()), np.random.default_rng(1), 1e-6
    for _ in range(3):
        way = jax.tree.map(lambda x: rng.normal(size=x.shape), state.nets.critic)

        def at(t: float, way: Any = way) -> float:
            there = jax.tree.map(lambda x, d: x + t * d, state.nets.critic, way)
            nets = state.nets._replace(critic=there)
            return critic_loss(state._replace(nets=nets), KEYS[0])

        products = sum(jax.tree.leaves(jax.tree.map(np.vdot, gradient, way)))
        assert products == pytest.approx((at(h) - at(-h)) / (2 * h), rel=1e-3, abs=1e-4)


def same(a: Any, b: Any) -> bool:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y) for x, y in pairs)


def test_policy_and_targets_move_at_every_second_update_only() -> None:
    (first, _), (second, _) = updated()
    assert same(first.nets.actor, start().nets.actor)
    assert same(first.target, start().target)
    assert not same(first.nets.critic, start().nets.critic)
    assert not same(second.nets.actor, first.nets.actor)
    old, new, online = (jax.tree.leaves(x) for x in (first.target, second.target, second.nets))
    for t0, t1, x in zip(old, new, online, strict=True):
        np.testing.assert_allclose(t1, 0.9 * t0 + 0.1 * x, atol=1e-6)
    third, _ = compiled(make())(second, batch(), KEYS[0])
    assert same((third.nets.actor, third.target), (second.nets.actor, second.target))


def test_the_actor_has_a_step_size_of_its_own() -> None:
    (first, _), (second, _) = updated()
    for name, rate, before, after in (
        ("actor", 3e-3, first, second),
        ("critic", 1e-3, start(), first),
    ):
        old, new = (jax.tree.leaves(getattr(state.nets, name)) for state in (before, after))
        step = max(float(np.abs(x - y).max()) for x, y in zip(old, new, strict=True))
        assert step == pytest.approx(rate, rel=1e-2)  # Adam's first step


def test_nothing_follows_a_terminal_state() -> None:
    q, next_q = jnp.ones((2, ROWS)), jnp.full((2, ROWS), 1e3)
    loss, _ = make().critic_loss(q, batch().rewards, jnp.ones(ROWS), next_q)
    np.testing.assert_allclose(loss, 2 * np.mean((double(batch()).rewards - 1) ** 2), rtol=1e-5)


def test_the_target_is_no_way_for_a_gradient() -> None:
    q, one = jnp.zeros((2, ROWS)), jnp.ones(ROWS)
    gradient = jax.grad(lambda x: make().critic_loss(q, one, 0 * one, x)[0])
    np.testing.assert_array_equal(gradient(jnp.ones((2, ROWS))), 0.0)


# --- the penalty ----------------------------------------------------------------------------------


def density(**changes: Any) -> CVAEDensity:
    return replace(CVAEDensity("elbo", (8, 8), BETA, 1), **changes)


@cache
def penalised(actions: tuple[float, ...]) -> tuple[float, ...]:
    """At actions of all rows: the mean of log πβ as SPOT has it, as the density itself, and as
    numpy; and the auto-encoder's own loss."""

    @jax.jit
    def of_ours(a: Any) -> Any:
        b = batch()
        own = density().log_prob(b.behavior, b.observations, a, KEYS[0])
        found = make().behavior_log_prob(b, a, KEYS[0])
        loss = density().loss(b.behavior, b.observations, a, KEYS[0])
        return found.mean(), own.mean(), loss

    a = np.reshape(actions, (ROWS, A))
    found, own, loss = map(float, of_ours(jnp.float32(a)))
    noise = double(jax.random.normal(KEYS[0], (ROWS, 1, 2 * A)))[:, 0]
    b = double(batch())
    return found, own, elbo(b.behavior, b.observations, a, noise).mean(), loss


def some_actions(seed: int) -> tuple[float, ...]:
    return tuple(np.random.default_rng(seed).uniform(-1, 1, ROWS * A))


def test_the_penalty_is_the_negative_log_density_of_the_cvae() -> None:
    found, own, by_hand, _ = penalised(some_actions(0))
    assert found == own == pytest.approx(by_hand, rel=1e-5)
    loss, _ = make().policy_loss(jnp.full(ROWS, -2.0), jnp.full(ROWS, found), A)
    assert float(loss) == pytest.approx(1.0 - 0.6 * BETA / (2 * A) * by_hand, rel=1e-5)


def test_with_the_elbo_the_penalty_is_the_authors_but_for_a_constant() -> None:
    """They take error² + β KL, each averaged over its dimensions: the auto-encoder's own loss."""
    for seed in range(2):
        log_beta, _, _, loss = penalised(some_actions(seed))
        constant = BETA / 4 * np.log(2 * np.pi * VARIANCE)
        assert -make().scale(A) * log_beta - loss == pytest.approx(constant, rel=1e-4)


def test_other_densities_count_as_they_are() -> None:
    config = make(behavior=BehaviorConfig("cvae-is", hidden=(8, 8), beta=BETA, latents=4))
    assert config.scale(A) == make(behavior=BehaviorConfig()).scale(A) == 1.0

    @jax.jit
    def both() -> Any:
        b, some = batch(), slice(None, None, 4)  # every fourth row estimates the same mean
        own = density(estimator="is", latents=4)
        expected = own.log_prob(b.behavior, b.observations[some], b.actions[some], KEYS[0])
        return config.behavior_log_prob(b, b.actions, KEYS[0]), expected

    np.testing.assert_array_equal(*both())


def test_a_gaussian_is_read_from_beside_the_rows() -> None:
    mean, log_std = np.full((ROWS, A), 0.2), np.full((ROWS, A), -1.0)
    b = batch()._replace(behavior=jnp.float32(np.concatenate([mean, log_std], axis=1)))
    config = make(behavior=BehaviorConfig("gaussian", hidden=(8, 8)))
    gradient = jax.jit(jax.grad(lambda a: config.behavior_log_prob(b, a, KEYS[0]).sum()))(b.actions)
    np.testing.assert_allclose(gradient, (0.2 - b.actions) * np.exp(2.0), rtol=1e-4, atol=1e-5)


def certain(action: float) -> CVAENet:
    """πβ = N(action, β/4) whatever the state: a decoder and an encoder that ignore their inputs."""
    net = jax.tree.map(lambda x: np.zeros_like(x), batch().behavior)
    decoder = net.decoder
    last = jnp.full(A, np.arctanh(action))
    return net._replace(decoder=MLP(decoder.weights, (*decoder.biases[:-1], last)))


def test_the_penaltys_gradient_points_from_the_data_outwards() -> None:
    b, config = batch()._replace(behavior=certain(0.4)), make()

    def penalty(a: Any) -> Any:
        return -config.scale(A) * config.behavior_log_prob(b, a, KEYS[0]).sum()

    # c (a − 0.4)/σ² with c = β/(2 a_dim) and σ² = β/4
    np.testing.assert_allclose(
        jax.jit(jax.grad(penalty))(b.actions), 2 / A * (b.actions - 0.4), rtol=1e-4
    )


def test_the_loss_does_not_depend_on_the_unit_of_reward() -> None:
    q, log_beta = jnp.linspace(-1.0, 3.0, ROWS), jnp.zeros(ROWS)
    loss, _ = make().policy_loss(q, log_beta, A)
    assert float(loss) == pytest.approx(float(make().policy_loss(1e3 * q, log_beta, A)[0]))
    assert float(loss) == pytest.approx(-np.mean(q) / np.mean(np.abs(q)))


# --- what else it is made of ----------------------------------------------------------------------


def test_dropout_zeroes_a_share_scales_the_rest_and_needs_a_key() -> None:
    net = MLP((jnp.zeros((1, 100)), jnp.eye(100)), (jnp.ones(100), jnp.zeros(100)))
    found = np.asarray(net(jnp.zeros((40, 1)), 0.25, KEYS[0]))
    np.testing.assert_allclose(np.unique(found), [0.0, 1 / 0.75], rtol=1e-6)
    assert np.mean(found == 0.0) == pytest.approx(0.25, abs=0.03)
    np.testing.assert_array_equal(net(jnp.zeros((40, 1)), 0.25), 1.0)


def test_the_policy_that_is_saved_drops_nothing() -> None:
    config, actor = make(), start().nets.actor
    assert config.actor(start()) is actor
    expected = np.tanh(layers(double(actor), double(batch()).observations))
    np.testing.assert_allclose(config.act(actor, batch().observations), expected, atol=1e-5)


def test_last_layers_start_within_their_bound() -> None:
    config = make(actor_last_layer=1e-3, critic_last_layer=3e-3)
    actor, critic = config.init(jax.random.key(0), Spec(S, A, 10)).nets
    for network, bound in ((actor, 1e-3), (critic.q1, 3e-3), (critic.q2, 3e-3)):
        assert 0.5 * bound < np.abs(network.weights[-1]).max() <= bound * 1.0001
        assert np.abs(network.biases[-1]).max() <= bound * 1.0001
        assert np.abs(network.weights[1]).max() > 0.2  # the layers before are left alone


def test_the_diagnosis_compares_the_policys_actions_with_the_datas() -> None:
    b = batch()._replace(behavior=certain(0.4), log_beta=jnp.arange(ROWS, dtype=jnp.float32))
    found = jax.jit(make().diagnose)(start(), b, KEYS[0])
    actions = np.tanh(layers(double(start().nets.actor), double(b).observations))
    at = -((actions - 0.4) ** 2) / (2 * VARIANCE) - 0.5 * np.log(2 * np.pi * VARIANCE)
    q10 = np.percentile(at.sum(axis=1), 10)
    assert float(found["behavior/log_beta_policy_q10"]) == pytest.approx(q10, rel=1e-4)
    assert float(found["behavior/log_beta_data_q50"]) == pytest.approx(7.5)
    distance = np.mean((actions - double(b).actions) ** 2)
    assert float(found["policy/distance"]) == pytest.approx(distance, rel=1e-4)
    penalty = -BETA / (2 * A) * at.sum(axis=1).mean()
    assert float(found["policy/penalty"]) == pytest.approx(penalty, rel=1e-4)
    q = layers(double(start().nets.critic.q1), double(b).observations, actions)
    loss = 0.6 * penalty - q.mean() / np.abs(q).mean()
    assert float(found["policy/loss"]) == pytest.approx(loss, rel=1e-4)


# configs/offline of the authors' repository: task and lambd.
AUTHORS = """
antmaze-umaze 0.25, antmaze-umaze-diverse 0.25, antmaze-medium-play 0.05,
antmaze-medium-diverse 0.025, antmaze-large-play 0.025, antmaze-large-diverse 0.025,
halfcheetah-medium 0.05, halfcheetah-medium-replay 0.05, halfcheetah-medium-expert 1.0,
hopper-medium 0.1, hopper-medium-replay 0.1, hopper-medium-expert 0.2,
walker2d-medium 0.2, walker2d-medium-replay 0.2, walker2d-medium-expert 0.5
"""


def test_another_density_is_chosen_by_its_flag_alone() -> None:
    """What only the CVAE can use is left out, and not held against the user."""
    found = parse(["--algorithm", "spot", "--behavior", "mixture"]).config.behavior
    assert found == BehaviorConfig("mixture", max_steps=100_000)
    with pytest.raises(UserError, match=r"--behavior.components is for mixture; cvae-is has no"):
        parse(["--algorithm", "spot", "--behavior=cvae-is", "--behavior.components", "3"])


def test_lambda_by_task_is_the_authors() -> None:
    for row in AUTHORS.replace("\n", " ").split(","):
        task, lam = row.split()
        suite = SPOT.settings["antmaze"] if "antmaze" in task else {}
        found = {"lam": SPOT().lam, **suite, **SPOT.settings.get(f"{task}-v2", {})}["lam"]
        assert found == float(lam), task


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("lam", -1.0, "--lam is -1"),
        ("dropout", 1.0, "--dropout is 1"),
        ("policy_freq", 0, "--policy-freq is 0"),
        ("policy_noise", -0.1, "--policy-noise is -0.1"),
        ("noise_clip", -0.1, "--noise-clip is -0.1"),
        ("critic_last_layer", 0.0, "--critic-last-layer is 0"),
    ],
)
def test_impossible_settings_are_refused_by_their_flag(field: str, value: Any, flag: str) -> None:
    with pytest.raises(UserError, match=flag):
        make(**{field: value})
