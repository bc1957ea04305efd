"""MCQ against an independent float64 numpy version, and Q of the policy's actions at its target."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

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
from acpo.algorithms.mcq import MCQ, Trained
from acpo.algorithms.soft import SoftState
from acpo.behavior.cvae import CVAENet
from acpo.errors import UserError
from acpo.networks import MLP, TwinQ

N, Z = 4, 2 * A
KEY = jax.random.key(7)


def make(**changes: Any) -> MCQ:
    """Every field that these tests rest on, whatever the defaults become."""
    fields: dict[str, Any] = {
        "gamma": 0.9,
        "tau": 0.1,
        "learning_rate": 1e-2,
        "vae_learning_rate": 1e-3,
        "batch_size": ROWS,
        "hidden": (8, 8),
        "vae_hidden": (8, 8),
        "lam": 0.3,
        "samples": N,
        "floor": None,
        "margin": None,
        "alpha": None,
    }
    return MCQ(**{**fields, **changes})


@cache
def start() -> SoftState:
    """As in the middle of a run: a target that differs, a temperature that is not 1."""
    state = make().init(jax.random.key(0), Spec(S, A, 10))
    trained = state.trained._replace(log_alpha=jnp.float32(-0.5))
    return state._replace(trained=trained, target=shaken(state.target))


@cache
def compiled() -> Callable[..., tuple[SoftState, Metrics]]:
    return jax.jit(make().update)


@cache
def updated() -> tuple[SoftState, Metrics]:
    return compiled()(start(), make_batch(), KEY)


# --- the numpy version --------------------------------------------------------------------------


class Noise(NamedTuple):
    here: np.ndarray
    there: np.ndarray
    drawn: np.ndarray
    latents: np.ndarray
    vae: np.ndarray


@cache
def noise() -> Noise:
    """What the update draws."""
    key_noise, key_drawn, key_latent, key_vae = jax.random.split(KEY, 4)
    drawn, latents = (
        np.concatenate([numbers[:, 0], numbers[:, 1]])  # first at s, then at s'
        for numbers in doubles(
            (
                jax.random.normal(key_drawn, (ROWS, 2, N, A)),
                jax.random.normal(key_latent, (ROWS, 2, N, Z)),
            )
        )
    )
    return Noise(
        *doubles(jnp.moveaxis(jax.random.normal(key_noise, (ROWS, 2, A)), 1, 0)),
        drawn=drawn.swapaxes(0, 1),
        latents=latents.clip(-0.5, 0.5),
        vae=doubles(jax.random.normal(key_vae, (ROWS, 1, Z)))[:, 0],
    )


def sample(actor: MLP, s: np.ndarray, eps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    output = forward(actor, s)
    mean, log_std = output[:, :A], np.clip(output[:, A:], -5.0, 2.0)
    action = np.tanh(mean + np.exp(log_std) * eps)
    normal = -0.5 * eps**2 - log_std - 0.5 * np.log(2 * np.pi)
    return action, (normal - np.log(1.0 - action**2)).sum(axis=-1)


@cache
def pseudo_targets(floor: float | None) -> np.ndarray:
    """max(floor, min_i max_k Q_i(s, â_k)), a state at a time."""
    b, trained = doubles(make_batch()), doubles(start().trained)
    targets = []
    for s, z in zip(
        np.concatenate([b.observations, b.next_observations]), noise().latents, strict=True
    ):
        states = np.tile(s, (N, 1))
        proposed = np.tanh(forward(trained.vae.decoder, np.concatenate([states, z], axis=1)))
        best = min(q.max() for q in both_q(trained.critic, states, proposed))
        targets.append(best if floor is None else max(floor, best))
    return np.array(targets)


@cache
def bellman_targets() -> np.ndarray:
    state, b = doubles(start()), doubles(make_batch())
    action, log_pi = sample(state.trained.actor, b.next_observations, noise().there)
    value = np.minimum(*both_q(state.target, b.next_observations, action)) - np.exp(-0.5) * log_pi
    return b.rewards + 0.9 * np.where(b.terminals == 1.0, 0.0, value)


@cache
def drawn() -> tuple[np.ndarray, list[np.ndarray]]:
    """The states s and s', and N times an action of the policy at each."""
    b, actor = doubles(make_batch()), doubles(start().trained.actor)
    states = np.concatenate([b.observations, b.next_observations])
    return states, [sample(actor, states, eps)[0] for eps in noise().drawn]


def critic_total(critic: TwinQ) -> float:
    b, y, best = doubles(make_batch()), bellman_targets(), pseudo_targets(None)
    states, actions = drawn()
    known = np.array(both_q(critic, b.observations, b.actions)) - y
    away = np.array([both_q(critic, states, a) for a in actions]) - best
    return float(np.sum(0.3 * np.mean(known**2, axis=1) + 0.7 * np.mean(away**2, axis=(0, 2))))


def policy_total(actor: MLP) -> float:
    b, critic = doubles(make_batch()), doubles(start().trained.critic)
    action, log_pi = sample(actor, b.observations, noise().here)
    q = np.minimum(*both_q(critic, b.observations, action))
    return float(np.mean(np.exp(-0.5) * log_pi - q))


def vae_total(vae: CVAENet) -> float:
    """Both terms added over dimensions, as the authors do."""
    b = doubles(make_batch())
    output = forward(vae.encoder, np.concatenate([b.observations, b.actions], axis=1))
    mean, log_std = output[:, :Z], np.clip(output[:, Z:], -4.0, 15.0)
    z = mean + np.exp(log_std) * noise().vae
    decoded = np.tanh(forward(vae.decoder, np.concatenate([b.observations, z], axis=1)))
    divergence = 0.5 * (mean**2 + np.exp(2 * log_std) - 1.0 - 2.0 * log_std)
    return float(np.mean(((b.actions - decoded) ** 2).sum(axis=1) + divergence.sum(axis=1)))


# --- tests --------------------------------------------------------------------------------------


def test_losses_are_those_of_the_numpy_version() -> None:
    _, metrics = updated()
    trained = doubles(start().trained)
    assert_close(metrics["critic/loss"], critic_total(trained.critic), rtol=1e-5)
    assert_close(metrics["critic/q_proposed"], pseudo_targets(None).mean(), rtol=1e-5)
    assert_close(metrics["policy/loss"], policy_total(trained.actor), rtol=1e-5)
    assert_close(metrics["behavior/loss"], vae_total(trained.vae), rtol=1e-5)


def test_each_part_moves_by_its_own_loss_alone() -> None:
    """Targets, sampled actions and, for the policy, the critics are constants to the gradient."""
    taken = Trained(*map(gradients, updated()[0].optimiser))
    trained = doubles(start().trained)
    for part, total in (("critic", critic_total), ("actor", policy_total), ("vae", vae_total)):
        expected = numerical_gradient(total, getattr(trained, part))
        assert_close(getattr(taken, part), expected, rtol=1e-4, atol=2e-5)
    _, log_pi = sample(trained.actor, doubles(make_batch()).observations, noise().here)
    assert_close(taken.log_alpha, A - log_pi.mean(), rtol=1e-5)


def test_each_part_steps_at_its_own_rate_and_the_target_follows() -> None:
    state, _ = updated()
    for name, rate in (("actor", 1e-2), ("critic", 1e-2), ("vae", 1e-3), ("log_alpha", 1e-2)):
        old, new = (getattr(s.trained, name) for s in (start(), state))
        moved = jax.tree.map(lambda o, n: float(np.max(np.abs(n - o))), old, new)
        assert max(jax.tree.leaves(moved)) == pytest.approx(rate, rel=1e-2), name
    assert_close(state.target, mixed(start().target, state.trained.critic, 0.1), atol=1e-6)


def test_update_by_blocks_of_rows_is_the_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "BLOCK_INPUTS", 4 * (2 * N))
    # A function of its own, for that of `compiled` has one block.
    update = jax.jit(lambda *args: make().update(*args))
    state, metrics = update(start(), make_batch(), KEY)
    whole, expected = updated()
    assert_close(state.optimiser, whole.optimiser, rtol=1e-4, atol=1e-6)
    assert_close(metrics, expected, rtol=1e-5)


def test_floor_bounds_the_pseudo_targets_and_can_be_left_out() -> None:
    low = pseudo_targets(None)
    assert low.min() < 0.0, "else the floor is not felt here"
    q, drawn = jnp.zeros((2, ROWS)), jnp.zeros((2, N, 2 * ROWS))
    proposed = jnp.broadcast_to(jnp.float32(low), drawn.shape)
    for floor in (None, 0.0, 0.5):
        losses = make(floor=floor).critic_loss(q, make_batch(), q[0], drawn, proposed, drawn[0])
        _, metrics = losses
        assert_close(metrics["critic/q_proposed"], pseudo_targets(floor).mean(), rtol=1e-5)


def test_a_margin_presses_down_only_what_is_above_it_and_far_from_the_proposed_action() -> None:
    """By loops over critics, draws and states, against the update as a whole."""
    margin = 0.05
    _, metrics = make(margin=margin).update(start(), make_batch(), KEY)
    b, trained, best = doubles(make_batch()), doubles(start().trained), pseudo_targets(None)
    states, actions = drawn()
    known = np.array(both_q(trained.critic, b.observations, b.actions)) - bellman_targets()
    total, met = 0.3 * np.mean(known**2, axis=1).sum(), set()
    for k, drawn_actions in enumerate(actions):
        inputs = np.concatenate([states, noise().latents[:, k]], axis=1)
        proposed = np.tanh(forward(trained.vae.decoder, inputs))
        for q in both_q(trained.critic, states, drawn_actions):
            for i in range(2 * ROWS):
                far = np.sum((drawn_actions[i] - proposed[i]) ** 2) >= 0.1
                above = q[i] - (best[i] - margin)
                met.add((bool(far), bool(above > 0)))
                if far and above > 0:
                    total += 0.7 * above**2 / (N * 2 * ROWS)
    assert met >= {(False, True), (True, False), (True, True)}, "else a case is not felt here"
    assert_close(metrics["critic/loss"], total, rtol=1e-5)


def test_given_temperature_stays() -> None:
    method = make(alpha=0.2)
    state = method.init(jax.random.key(0), Spec(S, A, 10))
    gradient, metrics = jax.grad(method.temperature_loss, has_aux=True)(
        state.trained.log_alpha, jnp.ones(ROWS), A
    )
    assert gradient == 0.0
    assert_close(metrics["policy/alpha"], 0.2)


def test_q_of_the_policys_actions_comes_to_the_best_of_the_proposed_ones() -> None:
    """With Q itself free to move at each action, and not through a network's weights."""
    rng = np.random.default_rng(2)
    q, proposed = jnp.zeros((2, ROWS)), rng.normal(size=(2, N, 2 * ROWS)).astype(np.float32)
    drawn_q = jnp.float32(rng.normal(size=(2, N, 2 * ROWS)))

    def loss(drawn_q: jax.Array) -> jax.Array:
        return make().critic_loss(q, make_batch(), q[0], drawn_q, proposed, drawn_q[0])[0]

    count = N * 2 * ROWS
    drawn_q = drawn_q - count / (2 * 0.7) * jax.grad(loss)(drawn_q)  # Newton's step
    expected = np.minimum(proposed[0].max(axis=0), proposed[1].max(axis=0))
    assert_close(drawn_q, np.broadcast_to(expected, drawn_q.shape))


@pytest.mark.parametrize("slope", [-3.0, 3.0])
def test_q_of_the_policys_actions_nears_its_target_from_either_side(slope: float) -> None:
    """Through the networks: a policy in the corner of the box, Q rising or falling towards it."""
    trained = start().trained
    *biases, _ = trained.actor.biases
    actor = MLP(trained.actor.weights, (*biases, jnp.float32([2.0, 2.0, -3.0, -3.0])))

    def steep(net: MLP) -> MLP:
        first, second, last = net.weights
        first = jnp.asarray(first).at[S:].set(jnp.abs(first[S:]))
        return MLP((first, jnp.abs(second), slope * jnp.abs(last)), net.biases)

    critic = TwinQ(steep(trained.critic.q1), steep(trained.critic.q2))
    # Policy, auto-encoder and target are held, so that what Q is regressed to does not run away.
    held = start()._replace(target=critic)
    distances = []
    for step in range(40):
        held = held._replace(trained=trained._replace(actor=actor, critic=critic))
        state, metrics = compiled()(held, make_batch(), jax.random.key(step))
        held, critic = held._replace(optimiser=state.optimiser), state.trained.critic
        distances.append(float(metrics["critic/q_policy"] - metrics["critic/q_proposed"]))
    assert distances[0] * slope > 1.0
    assert abs(distances[-1]) < 0.2 * abs(distances[0])


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("lam", 0.0, "--lam"),
        ("lam", 1.5, "--lam"),
        ("samples", 0, "--samples"),
        ("alpha", 0.0, "--alpha"),
        ("margin", -1.0, "--margin"),
    ],
)
def test_impossible_settings_are_refused_by_name(field: str, value: float, flag: str) -> None:
    with pytest.raises(UserError, match=f"^{flag} is "):
        make(**{field: value})
