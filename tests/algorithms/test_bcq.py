"""BCQ against an independent float64 numpy version, and the box that its policy cannot leave."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from acpo.actors import BestOf, from_arrays, to_arrays
from acpo.algorithms.base import Batch, Metrics, Spec
from acpo.algorithms.bcq import BCQ, BCQState
from acpo.errors import UserError

ROWS, S, A, N = 16, 3, 2, 5
Z = 2 * A
KEY = jax.random.key(7)


def make(**changes: Any) -> BCQ:
    """Every field that these tests rest on, whatever the defaults become."""
    fields: dict[str, Any] = {
        "gamma": 0.9,
        "tau": 0.1,
        "learning_rate": 1e-3,
        "batch_size": ROWS,
        "hidden": (8, 8),
        "vae_hidden": (8, 8),
        "phi": 0.3,
        "lam": 0.7,
        "candidates": N,
        "acting_candidates": 20,
        "beta": 0.4,
    }
    return BCQ(**{**fields, **changes})


@cache
def start() -> BCQState:
    """As in the middle of a run: targets that differ, weights large enough to matter."""
    first, second = (make().init(jax.random.key(k), Spec(S, A, 10)) for k in (0, 1))
    trained, target = jax.tree.map(lambda x: 2 * np.asarray(x), (first.trained, second.target))
    return first._replace(trained=trained, target=target)


@cache
def batch() -> Batch:
    rng = np.random.default_rng(0)
    return Batch(
        observations=jnp.float32(rng.normal(size=(ROWS, S))),
        actions=jnp.float32(rng.uniform(-0.9, 0.9, (ROWS, A))),
        rewards=jnp.float32(rng.normal(size=ROWS)),
        next_observations=jnp.float32(rng.normal(size=(ROWS, S))),
        terminals=jnp.float32(np.arange(ROWS) % 3 == 0),
    )


@cache
def updated() -> tuple[BCQState, Metrics]:
    return jax.jit(make().update)(start(), batch(), KEY)


# --- the same by numpy ----------------------------------------------------------------------------


def double(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def layers(net: Any, *inputs: np.ndarray) -> np.ndarray:
    x = np.concatenate(inputs, axis=-1)
    for w, b in zip(net.weights[:-1], net.biases[:-1], strict=True):
        x = np.maximum(x @ w + b, 0.0)
    return x @ net.weights[-1] + net.biases[-1]


def draws() -> list[np.ndarray]:
    """The latents' noise of an update: for the auto-encoder, for s' and for s."""
    keys = jax.random.split(KEY, 3)
    shapes = ((ROWS, 1, Z), (ROWS, N, Z), (ROWS, 1, Z))
    return [double(jax.random.normal(k, s)) for k, s in zip(keys, shapes, strict=True)]


def moved(config: BCQ, xi: Any, s: np.ndarray, a: np.ndarray) -> np.ndarray:
    return np.clip(a + config.phi * np.tanh(layers(xi, s, a)), -1, 1)


def losses(trained: Any, config: BCQ) -> dict[str, float]:
    """Each loss at these weights, one row at a time; everything else as at the start."""
    frozen, target, b = double(start().trained), double(start().target), double(batch())
    noise_vae, noise_next, noise_now = draws()
    found: dict[str, list[float]] = {"vae/loss": [], "critic/loss": [], "policy/loss": []}
    for i in range(ROWS):
        s, a, s2 = b.observations[i], b.actions[i], b.next_observations[i]
        mean, log_std = np.split(layers(trained.vae.encoder, s, a), 2)
        z = mean + np.exp(log_std) * noise_vae[i, 0]
        error = a - np.tanh(layers(trained.vae.decoder, s, z))
        kl = 0.5 * (mean**2 + np.exp(2 * log_std) - 1 - 2 * log_std)
        found["vae/loss"].append(np.mean(error**2) + config.beta * np.mean(kl))

        best = -np.inf
        for z in np.clip(noise_next[i], -0.5, 0.5):
            a2 = np.tanh(layers(frozen.vae.decoder, s2, z))
            a2 = moved(config, target.perturbation, s2, a2)
            q = [layers(net, s2, a2)[0] for net in (target.critic.q1, target.critic.q2)]
            best = max(best, config.lam * min(q) + (1 - config.lam) * max(q))
        y = b.rewards[i] + (0.0 if b.terminals[i] else config.gamma * best)
        pair = (trained.critic.q1, trained.critic.q2)
        found["critic/loss"].append(sum((y - layers(net, s, a)[0]) ** 2 for net in pair))

        proposed = np.tanh(layers(frozen.vae.decoder, s, np.clip(noise_now[i, 0], -0.5, 0.5)))
        action = moved(config, trained.perturbation, s, proposed)
        found["policy/loss"].append(-layers(frozen.critic.q1, s, action)[0])
    return {name: float(np.mean(values)) for name, values in found.items()}


def test_the_losses_of_an_update_are_those_by_hand() -> None:
    _, metrics = updated()
    for name, value in losses(double(start().trained), make()).items():
        assert float(metrics[name]) == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize(
    ("part", "loss"),
    [("vae", "vae/loss"), ("critic", "critic/loss"), ("perturbation", "policy/loss")],
)
def test_each_part_follows_the_gradient_of_its_own_loss_alone(part: str, loss: str) -> None:
    # Adam's first moment after one step is a tenth of the gradient.
    gradient = jax.tree.map(lambda m: 10.0 * np.asarray(m, np.float64), updated()[0].optimiser.mu)
    trained, rng, h = double(start().trained), np.random.default_rng(1), 1e-6
    for _ in range(3):
        way = jax.tree.map(lambda x: rng.normal(size=x.shape), getattr(trained, part))

        def at(t: float, way: Any = way) -> float:
            there = jax.tree.map(lambda x, d: x + t * d, getattr(trained, part), way)
            return losses(trained._replace(**{part: there}), make())[loss]

        products = jax.tree.map(np.vdot, getattr(gradient, part), way)
        slope = (at(h) - at(-h)) / (2 * h)
        assert sum(jax.tree.leaves(products)) == pytest.approx(slope, rel=1e-3, abs=1e-4)


def test_the_targets_follow_what_was_trained_by_tau() -> None:
    before, (after, _) = start(), updated()
    for name in ("perturbation", "critic"):
        old, new, online = (
            jax.tree.leaves(getattr(part, name))
            for part in (before.target, after.target, after.trained)
        )
        for t0, t1, x in zip(old, new, online, strict=True):
            np.testing.assert_allclose(t1, 0.9 * t0 + 0.1 * x, atol=1e-6)


def test_nothing_follows_a_terminal_state() -> None:
    q, next_q = jnp.ones((2, ROWS)), jnp.full((2, ROWS, N), 1e3)
    loss, _ = make().critic_loss(q, batch().rewards, jnp.ones(ROWS), next_q)
    np.testing.assert_allclose(loss, 2 * np.mean((double(batch()).rewards - 1) ** 2), rtol=1e-5)


def test_the_target_weighs_the_smaller_q_by_lambda_and_takes_the_best_candidate() -> None:
    next_q = jnp.array([[[1.0, 5.0, 0.0]], [[2.0, -3.0, 4.0]]])  # mixed by λ: 1.3, −0.6, 1.2
    loss, _ = make().critic_loss(jnp.zeros((2, 1)), jnp.ones(1), jnp.zeros(1), next_q)
    np.testing.assert_allclose(loss, 2 * (1 + 0.9 * 1.3) ** 2, rtol=1e-5)


def test_the_target_is_no_way_for_a_gradient() -> None:
    q, one = jnp.zeros((2, ROWS)), jnp.ones(ROWS)
    gradient = jax.grad(lambda x: make().critic_loss(q, one, 0 * one, x)[0])
    np.testing.assert_array_equal(gradient(jnp.ones((2, ROWS, N))), 0.0)


# --- the policy -----------------------------------------------------------------------------------


def acting(config: BCQ, state: BCQState) -> BestOf:
    return jax.tree.map(np.asarray, config.actor(state))


def proposals(actor: BestOf, s: np.ndarray) -> np.ndarray:
    """[n, a] what the auto-encoder proposes at a state."""
    return np.array([np.tanh(layers(actor.decoder, s, z)) for z in actor.latents])


def test_the_policy_takes_the_candidate_with_the_largest_q1() -> None:
    config, observations = make(), np.asarray(batch().observations)
    actor, trained = acting(config, start()), double(start().trained)
    for s, found in zip(observations, actor(observations), strict=True):
        candidates = [moved(config, trained.perturbation, s, a) for a in proposals(actor, s)]
        best = max(candidates, key=lambda a: layers(trained.critic.q1, s, a)[0])
        np.testing.assert_allclose(found, best, atol=1e-5)


def test_the_policy_never_leaves_its_box_however_much_is_to_be_gained() -> None:
    wild = start()._replace(trained=jax.tree.map(lambda x: 30 * np.asarray(x), start().trained))
    gentle = start().trained.vae
    wild = wild._replace(trained=wild.trained._replace(vae=gentle))
    actor, config = acting(make(), wild), make()
    observations = np.random.default_rng(2).normal(size=(200, S)).astype(np.float32)
    actions = actor(observations)
    assert np.abs(actions).max() <= 1.0
    distances = [
        np.abs(proposals(actor, s) - a).max(axis=1).min()
        for s, a in zip(observations, actions, strict=True)
    ]
    assert max(distances) <= config.phi + 1e-6
    assert max(distances) > 0.9 * config.phi  # and the bound is what holds it
    xi, states = wild.trained.perturbation, jnp.asarray(observations)
    inside = config.perturb(xi, states, jnp.asarray(actions))
    assert jnp.abs(inside - actions).max() <= config.phi + 1e-6


def test_without_a_box_the_policy_plays_what_the_auto_encoder_proposes() -> None:
    actor = acting(make(phi=0.0), start())
    for s in np.asarray(batch().observations):
        assert np.abs(proposals(actor, s) - actor(s)).max(axis=1).min() < 1e-6


def test_latents_are_cut_and_the_same_at_every_export() -> None:
    first, again = (acting(make(), start()) for _ in range(2))
    assert first.latents.shape == (20, Z)
    np.testing.assert_array_equal(first.latents, again.latents)
    assert np.abs(first.latents).max() == 0.5
    assert np.unique(first.latents).size > 20


def test_an_action_depends_on_its_own_state_alone_whatever_the_shape() -> None:
    actor = acting(make(), start())
    observations = np.random.default_rng(3).normal(size=(150, S)).astype(np.float32)
    actions = actor(observations)
    np.testing.assert_array_equal(actor(observations.reshape(3, 50, S)).reshape(150, A), actions)
    np.testing.assert_array_equal(actor(observations[149]), actions[149])
    assert actor(observations[:0]).shape == (0, A)
    assert actor.action_dim == A


def test_the_policies_of_stacked_seeds_are_those_of_each() -> None:
    states = [make().init(jax.random.key(k), Spec(S, A, 10)) for k in range(2)]
    together = acting(make(), jax.tree.map(lambda *x: jnp.stack(x), *states))
    for k, state in enumerate(states):
        mine = to_arrays(jax.tree.map(lambda x, k=k: x[k], together))
        alone = to_arrays(acting(make(), state))
        assert mine.keys() == alone.keys()
        for name, array in alone.items():
            np.testing.assert_array_equal(mine[name], array, err_msg=name)
        x = np.asarray(batch().observations)
        np.testing.assert_array_equal(from_arrays(BestOf, mine)(x), acting(make(), state)(x))


def test_the_diagnosis_sees_how_far_actions_are_moved() -> None:
    config = make(phi=1e-3)
    state = start()
    last = state.trained.perturbation.biases[-1] + 1e3
    far = state.trained.perturbation
    far = type(far)(far.weights, (*far.biases[:-1], last))
    state = state._replace(trained=state.trained._replace(perturbation=far))
    found = jax.jit(config.diagnose)(state, batch(), KEY)
    assert float(found["policy/moved"]) == pytest.approx(1e-3, rel=0.01)
    q = np.concatenate(
        [
            layers(net, double(batch()).observations, double(batch()).actions)
            for net in (double(state.trained.critic.q1), double(state.trained.critic.q2))
        ]
    )
    assert float(found["critic/q_min"]) == pytest.approx(q.min(), rel=1e-4)
    assert float(found["critic/q_max"]) == pytest.approx(q.max(), rel=1e-4)


@pytest.mark.parametrize(
    ("field", "value", "flag"),
    [
        ("lam", 1.5, "--lam is 1.5"),
        ("phi", -0.1, "--phi is -0.1"),
        ("beta", 0.0, "--beta is 0"),
        ("vae_hidden", (8, 0), "--vae-hidden is 8 0"),
        ("candidates", 0, "--candidates is 0"),
        ("acting_candidates", 0, "--acting-candidates is 0"),
    ],
)
def test_impossible_settings_are_refused_by_their_flag(field: str, value: Any, flag: str) -> None:
    with pytest.raises(UserError, match=flag):
        make(**{field: value})
