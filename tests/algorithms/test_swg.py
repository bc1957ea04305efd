"""SWG against numpy by hand, and its guidance against densities that are known."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from by_hand import ROWS, A, S, both_q, doubles, forward, make_batch, same

from acpo.actors import Denoised, from_arrays, to_arrays
from acpo.algorithms.base import Batch, Spec
from acpo.algorithms.swg import SWG, SWGState
from acpo.denoising import noise_loss
from acpo.errors import UserError
from acpo.networks import MLP

STEPS = 6


def make(**changes: Any) -> SWG:
    """Every field that these tests rest on, whatever the defaults become."""
    given: dict[str, Any] = {
        "gamma": 0.9,
        "tau": 0.1,
        "expectile": 0.8,
        "guidance": 2.0,
        "diffusion_steps": 15,
        "critic_share": 0.5,
        "critic_batch_size": 8,
        "batch_size": ROWS,
        "dropout": 0.0,
        "average": 0.2,
        "decay_steps": 4,
        "weight_decay": 0.5,
        "learning_rate": 1e-2,
        "hidden": (8, 8),
    }
    return SWG(**given | changes)


CONFIG = make()
update = jax.jit(CONFIG.update)


def start(seed: int = 0) -> SWGState:
    return CONFIG.init(jax.random.key(seed), Spec(S, A, STEPS))


@cache
def run() -> list[tuple[SWGState, Any]]:
    """The state before the first update, and each update's: three of critics, then three."""
    states = [(start(), None)]
    for step in range(STEPS):
        states.append(update(states[-1][0], make_batch(step), jax.random.key(step)))
    return states


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def close(one: Any, other: Any, **tolerance: float) -> None:
    for a, b in zip(leaves(one), leaves(other), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


def value64(net: MLP, s: np.ndarray) -> np.ndarray:
    centred = s - s.mean(axis=1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5)
    return forward(doubles(net), normal)[:, 0]


# --- losses -------------------------------------------------------------------------------------


def between(value: MLP, q: np.ndarray, s: np.ndarray) -> MLP:
    """V where actions lie on both sides of it."""
    *biases, last = value.biases
    return MLP(value.weights, (*biases, last + np.median(q - value64(value, s))))


def test_the_losses_of_value_and_critics_are_those_of_numpy_on_the_critics_rows() -> None:
    b = jax.tree.map(lambda x: x[:8], doubles(make_batch()))
    state = start()._replace(target=start(1).target)
    q_target = np.min(both_q(doubles(state.target), b.observations, b.actions), axis=0)
    value = between(state.critics.value, q_target, b.observations)
    state = state._replace(critics=state.critics._replace(value=value))
    q = both_q(doubles(state.critics.critic), b.observations, b.actions)
    u = q_target - value64(value, b.observations)
    assert 0 < (u > 0).mean() < 1
    next_v = value64(value, b.next_observations)
    target = b.rewards + np.where(b.terminals == 1.0, 0.0, 0.9 * next_v)

    after, metrics = update(state, make_batch(), jax.random.key(0))
    assert float(metrics["value/loss"]) == pytest.approx(
        np.mean([(0.8 if x > 0 else 0.2) * x * x for x in u]), rel=1e-4
    )
    expected = 0.5 * sum(np.mean((one - target) ** 2) for one in q)
    assert float(metrics["critic/loss"]) == pytest.approx(expected, rel=1e-4)
    moved = jax.tree.map(lambda t, o: 0.9 * t + 0.1 * o, state.target, after.critics.critic)
    close(after.target, moved, atol=1e-6)
    step = np.abs(after.critics.critic.q1.biases[-1] - state.critics.critic.q1.biases[-1])
    np.testing.assert_allclose(step, 1e-2, rtol=1e-2)


def test_v_gets_no_gradient_from_the_critics_loss_nor_targets_from_values() -> None:
    v, next_v, rewards, terminals = (jnp.arange(4.0) / n for n in (1, 2, 3, 4))
    q = jnp.ones((2, 4))
    assert not jax.grad(lambda q: CONFIG.value_loss(v, q)[0])(q).any()
    assert not jax.grad(lambda n: CONFIG.critic_loss(q, rewards, terminals, n)[0])(next_v).any()
    assert jax.grad(lambda v: CONFIG.value_loss(v, q)[0])(v).any()


def test_the_denoiser_learns_actions_with_the_weight_of_their_side_of_the_expectile() -> None:
    batch, key = make_batch(), jax.random.key(1)
    batch = batch._replace(actions=batch.actions.at[0].set(1.0))
    b, state = doubles(batch), run()[3][0]._replace(target=start(1).target)
    q = np.min(both_q(doubles(state.target), b.observations, b.actions), axis=0)
    value = between(state.critics.value, q, b.observations)
    state = state._replace(critics=state.critics._replace(value=value))
    weight = np.where(q > value64(value, b.observations), 0.8, 0.2)
    assert 0 < (weight == 0.8).mean() < 1
    z = np.concatenate([np.clip(b.actions, -0.99999, 0.99999), weight[:, None]], axis=1)
    key_step, key_noise, _ = jax.random.split(key, 3)
    losses = jax.jit(lambda net, z, s, *given: noise_loss(net, z, s, CONFIG.steps, *given))(
        state.denoiser,
        jnp.float32(z),
        batch.observations,
        jax.random.randint(key_step, (ROWS,), 0, 15),
        jax.random.normal(key_noise, (ROWS, A + 1)),
    )
    _, metrics = update(state, batch, key)
    assert float(metrics["denoiser/loss"]) == pytest.approx(float(losses.sum()), rel=1e-5)
    assert float(metrics["denoiser/weight_loss"]) == pytest.approx(float(losses[-1]), rel=1e-5)


# --- steps --------------------------------------------------------------------------------------


def test_critics_learn_first_and_rest_while_the_denoiser_learns() -> None:
    states = [state for state, _ in run()]
    for before, after in pairwise(states[:4]):
        assert not same(before.critics, after.critics)
        assert same((before.denoiser, before.average), (after.denoiser, after.average))
        assert same(before.optimisers[1], after.optimisers[1])
    for before, after in pairwise(states[3:]):
        assert same((before.critics, before.target), (after.critics, after.target))
        assert same(before.optimisers[0], after.optimisers[0])
        assert not same(before.denoiser, after.denoiser)
    assert [int(state.schedule.step) for state in states] == list(range(STEPS + 1))
    metrics = [metrics for _, metrics in run()[1:]]
    assert all(set(each) == set(metrics[0]) for each in metrics)


def test_the_denoisers_steps_are_adamw_on_a_falling_rate_and_its_average_follows() -> None:
    optimiser = optax.adamw(optax.cosine_decay_schedule(1e-2, 4), weight_decay=0.5)
    resting = run()[3][0]

    @jax.jit
    def step(net: Any, moments: Any, batch: Batch, key: Any) -> Any:
        q = resting.target(batch.observations, batch.actions).min(axis=0)
        weight = CONFIG.weight(q - CONFIG.value(resting.critics.value, batch.observations))
        (loss, _), gradient = jax.value_and_grad(CONFIG.denoiser_loss, has_aux=True)(
            net, batch, weight, key
        )
        dropped = make(dropout=0.5).denoiser_loss(net, batch, weight, key)[0]
        updates, moments = optimiser.update(gradient, moments, net)
        return optax.apply_updates(net, updates), moments, dropped - loss

    net = average = resting.denoiser
    moments = optimiser.init(net)
    for number in (3, 4, 5):
        net, moments, dropping = step(net, moments, make_batch(number), jax.random.key(number))
        average = jax.tree.map(lambda a, o: 0.8 * a + 0.2 * o, average, net)
        assert abs(float(dropping)) > 1e-3
    after = run()[-1][0]
    close(after.denoiser, net, rtol=1e-3, atol=1e-4)
    close(after.average, average, rtol=1e-3, atol=1e-4)


# --- guidance -----------------------------------------------------------------------------------


class Exact:
    """The noise of K modes (a_k, w_k) with deviation v in a and none in w, by Bayes."""

    def __init__(self, config: SWG, modes: np.ndarray, share: np.ndarray, std: float) -> None:
        self.alpha_bar = jnp.asarray(config.steps.alpha_bar)
        self.modes, self.share = jnp.float32(modes), jnp.float32(share)
        self.variance = jnp.array([std**2, 0.0])

    def times(self, count: int) -> Any:
        return self.alpha_bar[:, None]

    def posterior(self, z: Any, kept: Any) -> tuple[Any, Any]:
        """Each mode's probability and E[(a, w) | z_t, mode]."""
        total = kept * self.variance + 1.0 - kept
        off = z[..., None, :] - jnp.sqrt(kept) * self.modes
        log = jnp.log(self.share) - 0.5 * jnp.sum(off**2 / total, axis=-1)
        return jax.nn.softmax(log, axis=-1), self.modes + jnp.sqrt(
            kept
        ) * self.variance / total * off

    def __call__(self, z: Any, observations: Any, time: Any) -> Any:
        mode, mean = self.posterior(z, time[0])
        expected = jnp.sum(mode[..., None] * mean, axis=-2)
        return (z - jnp.sqrt(time[0]) * expected) / jnp.sqrt(1.0 - time[0])


MODES, SHARE = np.array([[-0.5, 0.1], [0.5, 0.9]]), np.array([0.7, 0.3])


@pytest.mark.parametrize("t", [3, 8, 14])
def test_the_guidance_is_the_gradient_of_the_log_of_the_expected_weight(t: int) -> None:
    """Of E[w | z_t] = Σ_k p(k | z_t) w_k, whose gradient is worked out here."""
    config = make(guidance=2.5)
    net: Any = Exact(config, MODES, SHARE, 0.1)
    z = jnp.float32(np.random.default_rng(0).normal(size=(20, 2), scale=[0.5, 0.1]))
    z = z.at[:, 1].add(0.5 * np.sqrt(config.steps.alpha_bar[t]))
    kept = float(config.steps.alpha_bar[t])
    total = kept * np.array([0.01, 0.0]) + 1.0 - kept
    expected = []
    for row in np.asarray(z, np.float64):
        pull = -(row - np.sqrt(kept) * MODES) / total  # ∇ log p(z_t | k)
        density = SHARE * np.exp(-0.5 * np.sum((row - np.sqrt(kept) * MODES) ** 2 / total, axis=1))
        p = density / density.sum()
        by_mode = p * MODES[:, 1]
        expected.append((by_mode @ pull) / by_mode.sum() - p @ pull)
    both = jax.jit(
        lambda z: (config.guided_noise(net, z, z, jnp.int32(t)), net(z, z, net.times(15)[t]))
    )
    found = np.subtract(*both(z))
    np.testing.assert_allclose(
        found, -2.5 * np.sqrt(1.0 - kept) * np.array(expected), rtol=2e-3, atol=1e-4
    )
    assert np.abs(found).max() > 0.09


@pytest.mark.parametrize("guidance", [0.0, 1.0])
def test_guided_samples_follow_the_behaviour_times_the_weight(guidance: float) -> None:
    """πβ has 30 % in the good mode; πβ w has 0.3·0.9 / (0.3·0.9 + 0.7·0.1) = 79 %."""
    config = make(guidance=guidance, diffusion_steps=80)
    net: Any = Exact(config, MODES, SHARE, 0.1)
    rng = np.random.default_rng(1)
    start, noise = (jnp.float32(rng.normal(size=shape)) for shape in ((3000, 2), (80, 3000, 2)))
    act = jax.jit(lambda *given: config.act(net, start, *given))
    z = np.asarray(act(start, noise))
    weighted = SHARE * MODES[:, 1] ** guidance
    good = z[:, 0] > 0
    assert good.mean() == pytest.approx(weighted[1] / weighted.sum(), abs=0.05)
    assert z[good, 0].mean() == pytest.approx(0.5, abs=0.04)
    assert z[good, 0].std() == pytest.approx(0.1, abs=0.03)


# --- the exported actor -------------------------------------------------------------------------


def spread(seed: int = 0) -> SWGState:
    """Weights under which the walk back does not end in a corner of the box, and ŵ is not cut."""
    state = start(seed)
    net = state.average
    into, out = net.last_head.weights
    first, last = net.last_head.biases
    return state._replace(
        average=replace(
            net,
            first=MLP((3.0 * net.first.weights[0],), net.first.biases),
            head=MLP((0.5 * net.head.weights[0],), (0.0 * net.head.biases[0],)),
            last_head=MLP((3.0 * into, out), (first, last - 1.0), False, net.last_head.activation),
        )
    )


def test_the_exported_actor_walks_back_as_jax_does_with_its_gradient() -> None:
    state = spread()
    s = jnp.float32(np.random.default_rng(2).normal(size=(64, S)))
    z = jax.jit(CONFIG.act)(
        state.average, s, jnp.zeros((64, A + 1)), jnp.zeros((CONFIG.diffusion_steps, 1, 1))
    )
    actor = jax.device_get(CONFIG.actor(state))
    found = actor(np.asarray(s))
    np.testing.assert_allclose(found, z[:, :-1], atol=2e-3)
    assert found.dtype == np.float32
    assert (np.abs(found) < 0.999).mean() > 0.3
    np.testing.assert_allclose(actor(np.asarray(s[0])), found[0], atol=1e-4)
    unguided = actor._replace(guidance=actor.guidance * np.float32([0, 1, 1]))
    assert np.abs(unguided(np.asarray(s)) - found).max() > 1e-2


def test_the_gradient_by_hand_is_that_of_jax() -> None:
    state = spread()
    net, actor = state.average, jax.device_get(CONFIG.actor(state))
    rng = np.random.default_rng(3)
    s, z = (rng.normal(size=(32, n)).astype(np.float32) for n in (S, A + 1))

    @jax.jit
    def by_jax(z: Any) -> Any:
        time = net.times(15)[4]
        return net(z, s, time), jax.grad(lambda z: net(z, s, time)[:, -1].sum())(z)

    noise, expected = by_jax(z)
    h = np.concatenate([z, s], axis=1) @ actor.first + actor.times[4]
    by_hand, slope = actor._noise(h)
    np.testing.assert_allclose(by_hand, noise, atol=1e-5)
    np.testing.assert_allclose(slope @ actor.first[: A + 1].T, expected, rtol=1e-4, atol=1e-6)
    assert np.abs(expected).max() > 1e-2


def test_seeds_are_exported_each_for_itself_and_come_back_from_a_file() -> None:
    states = spread(0), spread(1)
    both = CONFIG.actor(jax.tree.map(lambda *x: jnp.stack(x), *states))
    x = np.random.default_rng(4).normal(size=(8, S)).astype(np.float32)
    for k, state in enumerate(states):
        cut = jax.device_get(jax.tree.map(lambda leaf, k=k: leaf[k], both))
        np.testing.assert_allclose(cut(x), jax.device_get(CONFIG.actor(state))(x), atol=1e-3)
        again = from_arrays(Denoised, to_arrays(cut))
        np.testing.assert_array_equal(again(x), cut(x))
        assert again.action_dim == A


def test_diagnosis_is_finite_and_asks_the_policy_itself() -> None:
    state = spread()
    found = jax.jit(CONFIG.diagnose)(state, make_batch(), jax.random.key(0))
    assert all(value.shape == () and np.isfinite(value) for value in found.values())
    s = np.asarray(make_batch().observations)[:8]
    actions = jax.device_get(CONFIG.actor(state))(s)
    distance = np.sqrt(np.mean((actions - np.asarray(make_batch().actions)[:8]) ** 2))
    assert float(found["policy/distance"]) == pytest.approx(distance, rel=1e-3)


# --- settings -----------------------------------------------------------------------------------


def test_settings_name_fields_and_the_defaults_are_the_authors() -> None:
    names = {field.name for field in fields(SWG)} | {"relabel"}
    for given in SWG.settings.values():
        assert set(given) <= names
        SWG(**{name: value for name, value in given.items() if name != "relabel"})
    default = SWG()
    assert (default.expectile, default.diffusion_steps, default.batch_size) == (0.7, 15, 1024)


@pytest.mark.parametrize(
    "bad",
    [
        *({"expectile": 0.0}, {"critic_share": 1.0}, {"dropout": 1.0}, {"diffusion_steps": 0}),
        *({"guidance": -1.0}, {"critic_batch_size": 0}, {"average": 2.0}, {"decay_steps": 0}),
        {"weight_decay": -1.0},
    ],
)
def test_impossible_values_are_refused_by_the_name_of_their_flag(bad: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(bad)).replace('_', '-')} is "):
        SWG(**bad)
