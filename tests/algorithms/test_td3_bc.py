"""TD3+BC against an independent float64 numpy version, and its two limits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

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
    numerical_gradient,
    same,
    shaken,
)

from acpo.algorithms.base import Spec
from acpo.algorithms.td3 import Nets, TD3State
from acpo.algorithms.td3_bc import TD3BC
from acpo.errors import UserError
from acpo.tasks import TASKS

CONFIG = TD3BC(
    gamma=0.9, tau=0.1, learning_rate=1e-2, hidden=(8, 8), policy_noise=0.5, noise_clip=0.4
)


@cache
def compiled(config: TD3BC) -> Any:
    return jax.jit(config.update)


@cache
def start() -> TD3State:
    """A state whose targets differ from its networks, as they do in the middle of a run."""
    state = CONFIG.init(jax.random.key(0), Spec(S, A, 4))
    return state._replace(target=CONFIG.init(jax.random.key(1), Spec(S, A, 4)).nets)


def at_actor_s_turn() -> TD3State:
    return start()._replace(schedule=start().schedule.next())


def noise_of(key: jax.Array) -> np.ndarray:
    drawn = 0.5 * np.asarray(jax.random.normal(jax.random.split(key, 3)[0], (ROWS, A)), np.float64)
    assert (np.abs(drawn) > 0.4).any()
    return np.clip(drawn, -0.4, 0.4)


def test_updates_equal_the_numpy_version() -> None:
    state = start()
    ref = doubles(state)
    actor, critic = map(Adam.start, ref.nets)
    target = ref.target
    for step in range(4):
        batch, key = make_batch(step), jax.random.key(10 + step)
        b = doubles(batch)
        s, a = b.observations, b.actions
        after = np.tanh(forward(target.actor, b.next_observations)) + noise_of(key)
        next_q = np.minimum(*both_q(target.critic, b.next_observations, np.clip(after, -1, 1)))
        y = b.rewards + 0.9 * np.where(b.terminals == 1.0, 0.0, next_q)

        def critic_loss(net: Any, s: Any = s, a: Any = a, y: Any = y) -> float:
            return float(sum(((q - y) ** 2).mean() for q in both_q(net, s, a)))

        expected = critic_loss(critic.parameters)
        critic = critic.moved(critic_loss, 1e-2)
        if step % 2 == 1:
            first_q = critic.parameters.q1

            def q_of(net: Any, s: Any = s, first_q: Any = first_q) -> Any:
                chosen = np.tanh(forward(net, s))
                return chosen, forward(first_q, np.concatenate([s, chosen], axis=1))[:, 0]

            lam = 2.5 / np.abs(q_of(actor.parameters)[1]).mean()

            def policy_loss(net: Any, q_of: Any = q_of, a: Any = a, lam: float = lam) -> float:
                chosen, q = q_of(net)
                return float(-lam * q.mean() + ((chosen - a) ** 2).mean())

            actor = actor.moved(policy_loss, 1e-2)
            target = mixed(target, Nets(actor.parameters, critic.parameters), 0.1)

        state, metrics = compiled(CONFIG)(state, batch, key)
        assert_close(state.nets.critic, critic.parameters)
        assert_close(state.nets.actor, actor.parameters)
        assert_close(state.target, target)
        assert float(metrics["critic/loss"]) == pytest.approx(expected, rel=1e-4)


def test_actor_and_targets_wait_for_the_critics() -> None:
    first, _ = compiled(CONFIG)(start(), make_batch(), jax.random.key(0))
    assert same(first.nets.actor, start().nets.actor)
    assert same(first.target, start().target)
    second, _ = compiled(CONFIG)(first, make_batch(), jax.random.key(0))
    assert not same(second.nets.actor, first.nets.actor)
    assert not same(second.target.actor, first.target.actor)
    assert not same(second.target.critic, first.target.critic)


def test_critic_loss_by_hand_masks_terminals_only() -> None:
    q, next_q = jnp.array([[1.0, 1.0], [2.0, 0.0]]), jnp.array([[10.0, 10.0], [20.0, 5.0]])
    rewards, terminals = jnp.array([1.0, -1.0]), jnp.array([0.0, 1.0])

    def total(q: jax.Array, next_q: jax.Array) -> jax.Array:
        return CONFIG.critic_loss(q, rewards, terminals, next_q)[0]

    # targets: 1 + 0.9·10 = 10 where the episode goes on (or hit a time limit), −1 where it ended
    assert float(total(q, next_q)) == pytest.approx((9.0**2 + 8.0**2 + 2.0**2 + 1.0**2) / 2)
    to_q, to_next = jax.jit(jax.grad(total, argnums=(0, 1)))(q, next_q)
    np.testing.assert_allclose(to_q, np.array([[-9.0, 2.0], [-8.0, 1.0]]), rtol=1e-5)
    assert not np.any(to_next)


def test_policy_loss_by_hand_with_q_scaled_to_its_own_size() -> None:
    chosen, actions = jnp.array([[0.5, 0.0], [0.0, 1.0]]), jnp.array([[0.0, 0.0], [0.0, 0.0]])
    q = jnp.array([3.0, -1.0])
    loss, metrics = CONFIG.policy_loss(chosen, actions, q)
    # λ = 2.5 / 2; mean Q = 1; distance (0.25 + 1) / 4
    assert float(metrics["policy/lambda"]) == pytest.approx(1.25)
    assert float(loss) == pytest.approx(0.3125 - 1.25)

    slope = jax.jit(jax.grad(lambda q: CONFIG.policy_loss(chosen, actions, q)[0]))
    np.testing.assert_allclose(slope(q), [-0.625, -0.625], rtol=1e-5)
    # A thousand times the reward, a thousand times Q: the same push on the action.
    np.testing.assert_allclose(1000 * slope(1000 * q), slope(q), rtol=1e-5)


def test_without_alpha_it_is_behaviour_cloning() -> None:
    cloning = replace(CONFIG, alpha=0.0)
    slope = jax.jit(jax.grad(lambda *given: cloning.policy_loss_of(*given, jax.random.key(0))[0]))
    (actor, critic), batch = start().nets, make_batch()
    b = doubles(batch)

    def regression(net: Any) -> float:
        return float(((np.tanh(forward(net, b.observations)) - b.actions) ** 2).mean())

    found = slope(actor, critic, batch)
    assert_close(found, numerical_gradient(regression, doubles(actor)))
    # … whatever the critics say
    assert same(slope(actor, shaken(critic), batch), found)


@pytest.mark.parametrize(
    ("what", "trains"),
    [
        ("rewards", {"actor", "critic"}),
        ("next_observations", {"actor", "critic"}),
        ("terminals", {"actor", "critic"}),
        ("key", {"actor", "critic"}),
        ("target", {"actor", "critic"}),
        ("actor", {"actor"}),
        ("critic", {"actor", "critic"}),
    ],
)
def test_each_input_reaches_only_what_it_should(what: str, trains: set[str]) -> None:
    """In an update where the actor's step follows the critics', as in every second one."""

    def after(what: str) -> Nets:
        state, batch, key = at_actor_s_turn(), make_batch(), jax.random.key(10)
        if what == "terminals":
            batch = batch._replace(terminals=1.0 - batch.terminals)
        elif what in batch._fields:
            batch = batch._replace(**{what: shaken(getattr(batch, what))})
        elif what in Nets._fields:
            net = shaken(getattr(state.nets, what))
            state = state._replace(nets=state.nets._replace(**{what: net}))
        elif what == "target":
            state = state._replace(target=shaken(state.target))
        elif what == "key":
            key = jax.random.key(11)
        state, _ = compiled(CONFIG)(state, batch, key)
        return Nets(gradients(state.actor_optimiser), gradients(state.critic_optimiser))

    before, now = after(""), after(what)
    changed = {n for n in Nets._fields if not same(getattr(before, n), getattr(now, n))}
    assert changed == trains


def test_diagnosis_by_hand() -> None:
    found = jax.jit(CONFIG.diagnose)(start(), make_batch(), jax.random.key(0))
    ref, b = doubles(start().nets), doubles(make_batch())
    q = np.array(both_q(ref.critic, b.observations, b.actions))
    chosen = np.tanh(forward(ref.actor, b.observations))
    own = both_q(ref.critic, b.observations, chosen)[0]
    lam, distance = 2.5 / np.abs(own).mean(), ((chosen - b.actions) ** 2).mean()
    expected = {
        "policy/loss": distance - lam * own.mean(),
        "policy/lambda": lam,
        "policy/distance": distance,
        "advantage/mean": (own - q[0]).mean(),
        "advantage/std": (own - q[0]).std(),
        "critic/q_min": q.min(),
        "critic/q_max": q.max(),
        "critic/disagreement": np.abs(q[0] - q[1]).mean(),
    }
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-4), name


def test_every_task_of_neorl2_has_the_settings_of_its_benchmark() -> None:
    assert (TD3BC().alpha, TD3BC().policy_noise, TD3BC().normalize_observations) == (2.5, 0.2, True)
    tasks = {name.split("/")[1] for name in TASKS if name.startswith("neorl2/")}
    assert tasks == set(TD3BC.settings) - {"antmaze"}
    for task in tasks:
        config = replace(TD3BC(), **TD3BC.settings[task])
        assert config.alpha in (0.05, 0.1, 0.2)
        assert config.policy_noise in (0.5, 1.5, 2.5)
    assert TD3BC.settings["antmaze"] == {"relabel": "reward - 1"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"alpha": -1.0}, "--alpha is -1; it must be 0 or more."),
        ({"policy_noise": -0.2}, "--policy-noise is -0.2; it must be 0 or more."),
        ({"noise_clip": -0.5}, "--noise-clip is -0.5; it must be 0 or more."),
        ({"policy_freq": 0}, "--policy-freq is 0; it must be at least 1."),
    ],
)
def test_impossible_values_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        TD3BC(**fields)
    assert str(error.value) == says
