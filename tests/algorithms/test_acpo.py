"""ACPO against an independent float64 numpy version: gradients there are finite differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from by_hand import ROWS, A, S, both_q, forward, numerical_gradient

from acpo import cci
from acpo.algorithms.acpo import ACPO, ACPOState
from acpo.algorithms.base import Batch, Size, Spec
from acpo.behavior.config import BehaviorConfig
from acpo.data.dataset import from_arrays
from acpo.networks import MLP, TwinQ
from acpo.training.prepare import prepare

STEPS = 4
PARTS = ("actor", "value", "critic")


def make(**changes: Any) -> ACPO:
    """Every field that these tests rest on, whatever the defaults become."""
    fields: dict[str, Any] = {
        "alpha": 0.4,
        "rule": cci.dual(epsilon=-1.0, start=0.7, rate=0.05),
        "gamma": 0.9,
        "tau": 0.1,
        "learning_rate": 1e-2,
        "final_learning_rate": 1e-3,
        "batch_size": ROWS,
        "hidden": (8, 8),
        "head": "plain",
        "log_std_min": -5.0,
        "log_std_max": 2.0,
        "log_prob_clip": 20.0,
        "log_weight_max": 4.6,
        "value_target": "target",
        "layer_norm": False,
        "actor_average": 0.0,
        "advantage_spread_max": None,
        "normalize_weights": False,
        "value_start": 0.0,
        "entropy_price": 1.0,
        "weight_spread": None,
    }
    return ACPO(**{**fields, **changes})


FIXED = make(rule=cci.fixed(0.7), layer_norm=True)


@cache
def compiled(config: ACPO) -> Callable[..., Any]:
    return jax.jit(config.update)


@cache
def start(config: ACPO) -> ACPOState:
    """A state whose target differs from its critic, as it does in the middle of a run."""
    state = config.init(jax.random.key(0), Spec(S, A, STEPS))
    return state._replace(target=config.init(jax.random.key(1), Spec(S, A, STEPS)).trained.critic)


def make_batch(seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    fields = {
        "observations": rng.normal(size=(ROWS, S)),
        "actions": rng.uniform(-0.9, 0.9, size=(ROWS, A)),
        "rewards": rng.normal(size=ROWS),
        "next_observations": rng.normal(size=(ROWS, S)),
        "terminals": np.arange(ROWS) % 3 == 0,
        # Mean and log σ of πβ
        "behavior": rng.uniform([-0.5] * A + [-1.0] * A, [0.5] * A + [0.0] * A, (ROWS, 2 * A)),
        "log_beta": rng.normal(size=ROWS),
        "log_beta_typical": rng.normal(size=ROWS),
    }
    return Batch(**{name: jnp.float32(x) for name, x in fields.items() if name in Batch._fields})


def gradients(state: ACPOState) -> dict[str, Any]:
    """What one update from a fresh optimiser took as gradients: Adam's first moment is 0.1 g."""
    moment = optax.tree_utils.tree_get(state.optimiser, "mu")
    return {
        part: jax.tree.map(lambda m: np.asarray(m, np.float64) / 0.1, getattr(moment, part))
        for part in PARTS
    }


# --- the numpy version --------------------------------------------------------------------------


def policy(config: ACPO, actor: MLP, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    output = forward(actor, s)
    mean, log_std = output[:, :A], output[:, A:]
    if config.head == "plain":
        mean = np.tanh(mean)
    return mean, np.exp(np.clip(log_std, config.log_std_min, config.log_std_max))


def log_density(config: ACPO, mean: np.ndarray, std: np.ndarray, a: np.ndarray) -> np.ndarray:
    u, correction = a, 0.0
    if config.head == "squashed":
        u, correction = np.arctanh(a), np.log(1.0 - a**2)
    normal = -0.5 * ((u - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    return (normal - correction).sum(axis=1)


def quartile_range(x: np.ndarray) -> float:
    return float(np.subtract(*np.quantile(x, [0.75, 0.25])))


class Reference(NamedTuple):
    """The state of the numpy version."""

    nets: dict[str, Any]
    target: TwinQ
    average: MLP
    lam: float
    slack: float
    waits: bool
    clones: bool
    first: dict[str, Any]
    second: dict[str, Any]
    step: int

    @classmethod
    def of(cls, config: ACPO, state: ACPOState) -> Reference:
        doubles = jax.tree.map(lambda x: np.array(x, np.float64), state)
        nets = {part: getattr(doubles.trained, part) for part in PARTS}
        zeros = jax.tree.map(np.zeros_like, nets)
        dial = float(state.lam), float(state.slack), bool(state.waits), bool(state.clones)
        return cls(nets, doubles.target, config.actor(doubles), *dial, zeros, zeros, 0)


def reference_update(
    config: ACPO, ref: Reference, batch: Batch, noise: np.ndarray
) -> tuple[Reference, dict[str, Any], dict[str, float]]:
    """Algorithm 1, line by line; returns the new state, the gradients and the losses."""
    b = jax.tree.map(lambda x: np.asarray(x, np.float64), batch)
    s, a = b.observations, b.actions
    actor, value, critic = (ref.nets[part] for part in PARTS)

    def clip(x: np.ndarray) -> np.ndarray:
        return np.clip(x, -config.log_prob_clip, config.log_prob_clip)

    mean, std = policy(config, actor, s)
    u = mean + std * noise
    sampled = np.clip(u, -1.0, 1.0) if config.head == "plain" else np.tanh(u)
    log_pi = log_density(config, mean, std, sampled)

    log_beta_sampled = log_density(config, b.behavior[:, :A], np.exp(b.behavior[:, A:]), sampled)
    constraint = clip(log_beta_sampled).mean()
    share = 1 / config.rule.slack_steps
    slack = (1 - share) * ref.slack + share * (constraint - config.epsilon)
    waits = ref.waits and slack < 0 and ref.step < STEPS / 2
    outside = slack < -config.rule.epsilon_margin and ref.step >= STEPS // 4
    clones = ref.clones or (outside and config.cloning_share > 0)
    lam = ref.lam if waits else max(ref.lam - config.rule.lam_rate * slack, 0.0)

    bootstrap = ref.target if config.value_target == "target" else critic
    y_v = np.minimum(*both_q(bootstrap, s, sampled)) - config.alpha * clip(log_pi)
    next_v = forward(value, b.next_observations)[:, 0]
    y_q = b.rewards + config.gamma * np.where(b.terminals == 1.0, 0.0, next_v)
    data_q = np.minimum(*both_q(critic, s, a))
    advantage = data_q - forward(value, s)[:, 0]
    between = data_q - np.minimum(*both_q(bootstrap, s, sampled))
    sums, differences = (quartile_range(advantage + k * between) ** 2 for k in (1, -1))
    trust = np.clip((sums - differences) / (2 * quartile_range(advantage)) ** 2, 0.0, 1.0) ** 4
    log_beta = clip(b.log_beta - b.log_beta_typical if config.normalize_weights else b.log_beta)
    if config.advantage_spread_max is not None:
        bound = config.advantage_spread_max * config.alpha * quartile_range(log_beta)
        advantage = advantage - np.median(advantage)
        advantage *= min(1.0, bound / quartile_range(advantage))
    exponent = (advantage + (lam - config.alpha) * log_beta) / config.alpha
    if config.weight_spread is None:
        weight = np.exp(np.minimum(exponent, config.log_weight_max))
    else:
        z = 1.349 * (exponent - np.median(exponent)) / quartile_range(exponent)
        edge = config.log_weight_max / config.weight_spread
        edge += config.sharpening * (0.0 if clones else min(max(slack, 0.0), 2.0))
        ordered = np.exp(config.weight_spread * np.minimum(z, edge))
        weighed = np.exp(np.minimum(config.trusted_spread * z, config.log_weight_max))
        weight = ordered ** (1 - trust) * weighed**trust
    if config.normalize_weights:
        weight = weight / weight.mean()
    if clones:
        weight = (1 - config.cloning_share) * weight + config.cloning_share

    def value_loss(net: MLP) -> float:
        return 0.5 * ((forward(net, s)[:, 0] - y_v) ** 2).mean()

    def critic_loss(net: TwinQ) -> float:
        return sum(0.5 * ((q - y_q) ** 2).mean() for q in both_q(net, s, a))

    def policy_loss(net: MLP) -> float:
        return -(weight * log_density(config, *policy(config, net, s), a)).mean()

    losses = {"actor": policy_loss, "value": value_loss, "critic": critic_loss}
    gradient = {part: numerical_gradient(losses[part], ref.nets[part]) for part in PARTS}
    values = {part: losses[part](ref.nets[part]) for part in PARTS}

    share = min(ref.step / STEPS, 1.0)
    span = config.learning_rate - config.final_learning_rate
    rate = config.final_learning_rate + span * (1 + np.cos(np.pi * share)) / 2
    t = ref.step + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, ref.first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, ref.second, gradient)
    nets = jax.tree.map(
        lambda p, m, v: p - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8),
        ref.nets,
        first,
        second,
    )
    target = jax.tree.map(
        lambda old, new: (1 - config.tau) * old + config.tau * new, ref.target, nets["critic"]
    )
    share = 1.0 / (1.0 + config.actor_average * ref.step)
    average = jax.tree.map(
        lambda old, new: (1 - share) * old + share * new, ref.average, nets["actor"]
    )
    metrics = {**values, "lambda": lam, "constraint": constraint}
    after = Reference(nets, target, average, lam, slack, waits, clones, first, second, t)
    return after, gradient, metrics


def assert_close(found: Any, expected: Any, rtol: float = 0.0, atol: float = 1e-5) -> None:
    for f, e in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(f, e, rtol=rtol, atol=atol)


def noise_of(key: jax.Array) -> np.ndarray:
    return np.asarray(jax.random.normal(key, (ROWS, A)), np.float64)


VARIANTS = {
    "plain": make(),
    "squashed with layer norm": make(head="squashed", layer_norm=True),
    "online critics in V's target": make(value_target="online"),
    "departures from the paper": make(
        rule=cci.dual(epsilon=-1.0, start=0.7, rate=0.05, waits=True, slack_steps=3),
        actor_average=0.2,
        advantage_spread_max=0.3,
        weight_spread=5.0,
        trusted_spread=1.5,
        normalize_weights=True,
    ),
    "slack that sharpens": make(
        rule=cci.dual(epsilon=-9.0, start=0.7, rate=0.05, slack_steps=8),
        weight_spread=5.0,
        log_weight_max=1.0,
        sharpening=0.2,
        normalize_weights=True,
    ),
    "a policy that leaves the data": make(
        rule=cci.dual(epsilon=9.0, start=0.7, rate=0.05),
        weight_spread=5.0,
        log_weight_max=1.0,
        sharpening=0.2,
        normalize_weights=True,
        cloning_share=0.4,
    ),
    "a constraint soon met": make(
        rule=cci.dual(-99.0, start=0.7, rate=1e-3, waits=True, slack_steps=2)
    ),
    "bounds that nothing breaks": make(
        rule=cci.dual(epsilon=-1e3, start=0.7, rate=0.05), advantage_spread_max=1e3
    ),
}


@pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS)
def test_updates_equal_the_numpy_version(config: ACPO) -> None:
    state = start(config)
    reference = Reference.of(config, state)
    for step in range(3):
        batch, key = make_batch(step), jax.random.key(10 + step)
        state, metrics = compiled(config)(state, batch, key)
        reference, gradient, expected = reference_update(config, reference, batch, noise_of(key))
        if step == 0:
            assert_close(gradients(state), gradient, rtol=1e-4, atol=2e-5)
        # Adam divides by a gradient's size, and so makes much of the rounding of small ones.
        for part in PARTS:
            assert_close(getattr(state.trained, part), reference.nets[part], atol=3e-5)
        assert_close(state.target, reference.target)
        assert_close(config.actor(state), reference.average, atol=3e-5)
        assert float(state.lam) == pytest.approx(reference.lam, abs=1e-5)
        assert float(state.slack) == pytest.approx(reference.slack, rel=1e-4)
        assert bool(state.clones) == reference.clones
        for name, value in {
            "value/loss": expected["value"],
            "critic/loss": expected["critic"],
            "policy/loss": expected["actor"],
            "dial/lambda": expected["lambda"],
            "dial/constraint": expected["constraint"],
        }.items():
            assert float(metrics[name]) == pytest.approx(value, rel=1e-4), name


def test_the_learning_rate_falls_by_a_cosine_and_stays_there() -> None:
    schedule = start(FIXED).schedule
    rates = []
    for _ in range(STEPS + 3):
        rates.append(float(schedule.cosine(1.0, 0.2)))
        schedule = schedule.next()
    middle = 0.2 + 0.8 * (1 + np.sqrt(0.5)) / 2
    expected = [1.0, middle, 0.6, 1.2 - middle, 0.2, 0.2, 0.2]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


# --- the losses, by hand ------------------------------------------------------------------------


def test_value_loss_by_hand() -> None:
    config = make(alpha=2.0, entropy_price=0.25, log_prob_clip=3.0)
    q = jnp.array([[1.0, 4.0, 0.0], [2.0, 3.0, 0.0]])
    log_pi = jnp.array([2.0, -1.0, -50.0])
    v = jnp.array([1.0, 1.0, 1.0])
    # Y = (1 − 0.5·2, 3 + 0.5·1, 0 + 0.5·3) = (0, 3.5, 1.5)
    loss, _ = config.value_loss(v, q, log_pi)
    assert float(loss) == pytest.approx(0.5 * (1.0 + 2.5**2 + 0.5**2) / 3)
    through = jax.grad(lambda *x: config.value_loss(*x)[0], argnums=(0, 1, 2))(v, q, log_pi)
    np.testing.assert_allclose(through[0], np.array([1.0, -2.5, -0.5]) / 3, rtol=1e-5)
    assert not np.any(through[1])
    assert not np.any(through[2])


def test_critic_loss_by_hand_masks_terminals_only() -> None:
    config = make(gamma=0.9)
    q = jnp.array([[1.0, 1.0], [2.0, 0.0]])
    next_v = jnp.array([10.0, 10.0])
    terminals = jnp.array([0.0, 1.0])
    rewards = jnp.array([1.0, -1.0])
    # targets: 1 + 0.9·10 = 10 where the episode goes on (or hit a time limit), −1 where it ended
    loss, _ = config.critic_loss(q, rewards, terminals, next_v)
    assert float(loss) == pytest.approx(0.5 * (9.0**2 + 8.0**2 + 2.0**2 + 1.0**2) / 2)

    def total(q: jax.Array, next_v: jax.Array) -> jax.Array:
        return config.critic_loss(q, rewards, terminals, next_v)[0]

    to_q, to_v = jax.grad(total, argnums=(0, 1))(q, next_v)
    np.testing.assert_allclose(to_q, np.array([[-9.0, 2.0], [-8.0, 1.0]]) / 2, rtol=1e-5)
    assert not np.any(to_v)


def test_policy_loss_by_hand_and_only_the_policy_is_pushed() -> None:
    config = make(alpha=0.5)
    log_pi = jnp.array([-1.0, -2.0])
    advantage = jnp.array([0.5, -0.5])
    log_beta = jnp.array([-2.0, 1.0])
    lam = jnp.float32(0.25)
    # exponents: 1 + (−0.5)(−2) = 2 and −1 − 0.5 = −1.5
    weight = np.exp([2.0, -1.5])
    loss, _ = config.policy_loss(log_pi, advantage, log_beta, lam)
    assert float(loss) == pytest.approx((weight[0] + 2 * weight[1]) / 2, rel=1e-5)

    def total(*x: jax.Array) -> jax.Array:
        return config.policy_loss(*x)[0]

    to_log_pi, *others = jax.grad(total, argnums=(0, 1, 2, 3))(log_pi, advantage, log_beta, lam)
    np.testing.assert_allclose(to_log_pi, -weight / 2, rtol=1e-5)
    for gradient in others:
        assert not np.any(gradient)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("lam", [0.0, 0.2, 0.5, 1.3])
def test_the_weights_of_a_states_actions_make_the_closed_form(normalize: bool, lam: float) -> None:
    """Actions as often as πβ takes them, times their weights: π*_λ, normalised weights or not."""
    config = make(alpha=0.5, normalize_weights=normalize)
    counts = np.array([1, 3, 5, 11])
    action = np.repeat(np.arange(4), counts)
    log_beta = np.log(counts / counts.sum())
    q = np.array([0.4, -0.2, 0.1, 0.3])
    batch = make_batch()._replace(
        log_beta=jnp.asarray(log_beta[action]), log_beta_typical=jnp.full(len(action), -1.7)
    )
    advantage = jnp.asarray(q[action] - 0.9)

    def loss(log_pi: jax.Array) -> jax.Array:
        lam_now = jnp.float32(lam)
        return config.policy_loss(log_pi, advantage, config.data_log_beta(batch), lam_now)[0]

    weight = -np.asarray(jax.grad(loss)(jnp.zeros(len(action)))) * len(action)
    if normalize:
        assert weight.mean() == pytest.approx(1.0, rel=1e-5)
    found = np.bincount(action, weight)
    expected = cci.closed_form(q, log_beta, lam, 0.5)
    np.testing.assert_allclose(found / found.sum(), expected, rtol=1e-5)


def test_weights_that_all_vanish_leave_the_step_finite() -> None:
    """wBC's exponents are hundreds of nats apart; of a batch far below 0 some row must count."""
    config = make(alpha=0.1, normalize_weights=True)
    exponents = jnp.array([-900.0, -500.0, -2000.0])

    def loss(log_pi: jax.Array) -> jax.Array:
        return config.policy_loss(log_pi, 0.1 * exponents, jnp.zeros(3), jnp.float32(0.1))[0]

    np.testing.assert_allclose(jax.grad(loss)(jnp.zeros(3)), [0.0, -1.0, 0.0], atol=1e-6)


def test_scaled_weights_rank_rows_whatever_their_tails() -> None:
    """Median 1, quartiles −1 and 3: z = 1.349 (x − 1) / 4, and an advantage far out counts no more
    than others at the clip."""
    config = make(weight_spread=3.0, normalize_weights=True)
    exponents = np.array([-9.0, -1.0, 1.0, 3.0, 800.0])

    def loss(log_pi: jax.Array) -> jax.Array:
        advantage = jnp.asarray(0.4 * exponents)
        return config.policy_loss(log_pi, advantage, jnp.zeros(5), jnp.float32(0.4))[0]

    weight = np.exp(np.minimum(3.0 * 1.349 * (exponents - 1.0) / 4.0, 4.6))
    found = jax.grad(loss)(jnp.zeros(5))
    np.testing.assert_allclose(found, -weight / weight.sum(), rtol=1e-5)


def test_where_a_is_vs_error_rows_are_ordered_and_else_they_are_weighed() -> None:
    """Q differs between a state's actions by a normal z; V's error is as large, or none, and so is
    what ã adds, which must not matter."""
    rng = np.random.default_rng(0)
    z, error, other = rng.normal(size=(3, 100_000))
    config = make(weight_spread=12.0)
    for of_v, share in ((0.0, 1.0), (1.0, 0.5), (3.0, 0.1)):
        for of_action in (0.0, 1.0):
            a, b = jnp.asarray(z + of_v * error), jnp.asarray(z + of_action * other)
            assert float(config.trust(a, b)) == pytest.approx(share**4, abs=0.05)
    assert float(config.trust(jnp.asarray(z), jnp.asarray(-z))) == 0.0
    exponents = 0.4 * jnp.asarray([-2.0, -1.0, 0.0, 1.0, 2.0])
    ordered, weighed, half = (
        np.asarray(config.log_weight(exponents, jnp.zeros(5), jnp.float32(0.4), trust))
        for trust in (0.0, 1.0, 0.5)
    )
    scale = 1.349 / 2
    np.testing.assert_allclose(
        ordered, scale * np.array([-24, -12, 0, 99, 99]).clip(max=4.6 / scale), rtol=1e-5
    )
    np.testing.assert_allclose(weighed, scale * np.array([-4.0, -2, 0, 2, 4]), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(half, (ordered + weighed) / 2, rtol=1e-5, atol=1e-6)


def test_slack_leaves_fewer_rows_at_the_clip() -> None:
    config = make(weight_spread=12.0, log_weight_max=4.6, sharpening=0.45)
    z = jnp.asarray(np.random.default_rng(0).normal(size=100_000))

    def share(slack: float) -> float:
        """Of the rows, that whose weight is the largest."""
        log_weight = config.log_weight(0.4 * z, jnp.zeros(z.shape), jnp.float32(0.4), slack=slack)
        return float(jnp.mean(log_weight > log_weight.max() - 1e-3))

    found = [share(slack) for slack in (-1.0, 0.0, 1.0, 2.0, 9.0)]
    # Of a normal distribution, what lies beyond 4.6 / 12, and 0.45 and 0.9 further out.
    np.testing.assert_allclose(found, [0.351, 0.351, 0.202, 0.0995, 0.0995], atol=0.005)


def test_a_batch_of_equal_advantages_is_cloned() -> None:
    config = make(weight_spread=12.0, advantage_spread_max=2.0, normalize_weights=True)

    def loss(log_pi: jax.Array) -> jax.Array:
        advantage = config.bounded(jnp.full(4, 0.3), jnp.zeros(4))
        return config.policy_loss(log_pi, advantage, jnp.zeros(4), jnp.float32(0.4))[0]

    np.testing.assert_allclose(jax.grad(loss)(jnp.zeros(4)), -np.full(4, 0.25), rtol=1e-5)


def test_epsilon_is_the_datas_mean_less_a_margin_clipped_as_the_constraint_is() -> None:
    rule = cci.Rule(epsilon_margin=0.25)
    settled = make(rule=rule).settled("plain", np.array([-30.0, 2.0, 50.0]), Size(ROWS, S, 4))
    assert settled.epsilon == pytest.approx((-20.0 + 2.0 + 20.0) / 3 - 0.25)
    given = make(rule=cci.dual(epsilon=-3.0)).settled("plain", np.zeros(1), Size(ROWS, S, 4))
    assert given.epsilon == -3.0


def test_weights_on_few_rows_are_softer() -> None:
    def settled(rows: int, effective_rows: int = 500, kappa: float | None = 12.0) -> ACPO:
        config = make(weight_spread=kappa, trusted_spread=2.0, effective_rows=effective_rows)
        return config.settled("plain", np.zeros(1), Size(rows, 18, 6))

    def kappa(*args: Any, **options: Any) -> float | None:
        return settled(*args, **options).weight_spread

    # Of normal log w those at 12 leave 0.40 of the rows.
    assert kappa(1_000_000) == kappa(12_000 * 5 // 2 + 300) == 12.0
    # exp(−κ²) = 500 (18 + 6) / 18,000, where the weights' clip is far away.
    assert kappa(18_000) == pytest.approx(np.sqrt(np.log(18 / 12)), abs=0.01)
    assert kappa(100) == kappa(1_000) == pytest.approx(np.sqrt(-np.log(0.95)), abs=0.01)
    assert kappa(18_000, kappa=0.1) == 0.1
    assert kappa(18_000, kappa=None) is None
    assert kappa(100, effective_rows=0) == 12.0
    # Those at 2 leave 0.13.
    assert settled(1_000_000).trusted_spread == settled(96_000).trusted_spread == 2.0
    assert settled(30_300).trusted_spread == pytest.approx(np.sqrt(np.log(30.3 / 12)), abs=0.01)


def test_slack_sharpens_no_further_than_the_rows_allow() -> None:
    z = np.random.default_rng(0).normal(size=400_000)

    def settled(rows: int) -> ACPO:
        config = make(weight_spread=12.0, log_weight_max=4.6, sharpening=0.45, effective_rows=1_000)
        return config.settled("plain", np.zeros(1), Size(rows, 11, 3))

    def effective(config: ACPO) -> float:
        """Rows, at all the slack that counts."""
        weight = np.exp(12.0 * np.minimum(z, 4.6 / 12.0 + 2.0 * config.sharpening))
        return float(weight.mean() ** 2 / (weight**2).mean())

    assert settled(1_000_000).sharpening == settled(114_000).sharpening == 0.45
    few = settled(50_000)
    assert few.weight_spread == 12.0
    assert 0.0 < few.sharpening < 0.45
    assert effective(few) == pytest.approx(14_000 / 50_000, abs=0.005)
    assert effective(settled(114_000)) > 14_000 / 114_000


def test_the_exponent_is_clipped_before_it_could_overflow() -> None:
    config = make(alpha=0.1, log_weight_max=2.0)
    advantage = jnp.array([1e30, 1e4, -1e30])
    zero = jnp.zeros(3)

    def total(log_pi: jax.Array) -> jax.Array:
        return config.policy_loss(log_pi, advantage, zero, jnp.float32(0.1))[0]

    gradient = np.asarray(jax.grad(total)(jnp.ones(3)))
    np.testing.assert_allclose(gradient, -np.array([np.exp(2), np.exp(2), 0.0]) / 3, rtol=1e-5)


# --- one step, seen from outside ----------------------------------------------------------------


def shaken(tree: Any) -> Any:
    rng = np.random.default_rng(7)
    return jax.tree.map(
        lambda x: jnp.asarray(x + 0.1 * rng.normal(size=np.shape(x)), jnp.float32), tree
    )


def with_net(state: ACPOState, part: str) -> ACPOState:
    net = shaken(getattr(state.trained, part))
    return state._replace(trained=state.trained._replace(**{part: net}))


def perturbed(what: str, config: ACPO) -> dict[str, Any]:
    """Gradients, λ and nothing else after one update with one input changed."""
    state, batch, key = start(config), make_batch(), jax.random.key(10)
    if what == "sampling noise":
        key = jax.random.key(11)
    elif what == "lam":
        state = state._replace(lam=jnp.float32(1.3))
    elif what == "target":
        state = state._replace(target=shaken(state.target))
    elif what in PARTS:
        state = with_net(state, what)
    elif what == "terminals":
        batch = batch._replace(terminals=1.0 - batch.terminals)
    elif what:
        batch = batch._replace(**{what: shaken(getattr(batch, what))})
    state, _ = compiled(config)(state, batch, key)
    return {**gradients(state), "lam": np.asarray(state.lam)}


def changed(what: str, config: ACPO) -> set[str]:
    before, after = perturbed("", config), perturbed(what, config)

    def same(name: str) -> bool:
        pairs = zip(jax.tree.leaves(before[name]), jax.tree.leaves(after[name]), strict=True)
        return all(np.array_equal(a, b) for a, b in pairs)

    return {name for name in before if not same(name)}


@pytest.mark.parametrize(
    ("what", "trains"),
    [
        ("rewards", {"critic"}),
        ("terminals", {"critic"}),
        ("next_observations", {"critic"}),
        ("actions", {"critic", "actor"}),
        ("log_beta", {"actor"}),
        ("behavior", set()),
        ("target", {"value"}),
        # Nothing flows back through the sampled action: π's regression never hears of it.
        ("sampling noise", {"value"}),
        ("lam", {"actor", "lam"}),
        ("actor", {"actor", "value"}),
        ("value", {"actor", "value", "critic"}),
        ("critic", {"actor", "critic"}),
    ],
)
def test_at_a_fixed_lambda_an_input_reaches_only_the_gradients_it_should(
    what: str, trains: set[str]
) -> None:
    assert changed(what, FIXED) == trains


@pytest.mark.parametrize(
    ("what", "trains"),
    [
        # πβ's parameters act through λ alone, and λ through the policy's weights.
        ("behavior", {"actor", "lam"}),
        ("sampling noise", {"value", "actor", "lam"}),
        # The dual step looks at sampled actions, not at the dataset's.
        ("actions", {"critic", "actor"}),
        ("log_beta", {"actor"}),
        ("actor", {"actor", "value", "lam"}),
    ],
)
def test_under_the_dual_rule_lambda_hears_of_the_policys_samples_only(
    what: str, trains: set[str]
) -> None:
    assert changed(what, VARIANTS["plain"]) == trains


def test_online_critics_in_the_values_target_replace_the_target_networks() -> None:
    online = VARIANTS["online critics in V's target"]
    assert changed("target", online) == set()
    assert changed("critic", online) == {"actor", "critic", "value"}


def test_what_follows_a_terminal_is_never_looked_at() -> None:
    batch = make_batch()
    elsewhere = batch.next_observations + 1.0

    def critic_gradient(terminal: float, following: jax.Array) -> Any:
        terminals = jnp.full_like(batch.terminals, terminal)
        changed_batch = batch._replace(terminals=terminals, next_observations=following)
        state, _ = compiled(FIXED)(start(FIXED), changed_batch, jax.random.key(10))
        return gradients(state)["critic"]

    assert_close(critic_gradient(1.0, batch.next_observations), critic_gradient(1.0, elsewhere), 0)
    going_on = [critic_gradient(0.0, x).q1.biases[-1] for x in (batch.next_observations, elsewhere)]
    assert abs(going_on[0] - going_on[1]).max() > 1e-3


def test_a_time_limit_in_the_data_keeps_bootstrapping() -> None:
    rng = np.random.default_rng(0)
    terminals, timeouts = np.zeros(30, bool), np.zeros(30, bool)
    terminals[9] = timeouts[19] = timeouts[29] = True
    data = from_arrays(
        observations=rng.normal(size=(30, S)),
        next_observations=rng.normal(size=(30, S)),
        actions=rng.uniform(-1, 1, size=(30, A)),
        rewards=rng.normal(size=30),
        terminals=terminals,
        timeouts=timeouts,
        name="toy",
        source="toy",
    )
    behavior = BehaviorConfig(hidden=(8, 8), batch_size=ROWS, max_steps=1, check_every=1)
    prepared = prepare(data, make(behavior=behavior))
    batch = prepared.layout.unpack(jnp.asarray(prepared.rows))
    assert np.flatnonzero(batch.terminals).tolist() == [9]
    np.testing.assert_allclose(batch.observations, prepared.normalizer(data.observations))
    np.testing.assert_allclose(batch.next_observations, prepared.normalizer(data.next_observations))


def test_a_huge_advantage_leaves_the_step_finite() -> None:
    state = start(FIXED)
    critic = jax.tree.map(lambda x: x + 1e8 if x.shape == (1,) else x, state.trained.critic)
    state = state._replace(trained=state.trained._replace(critic=critic))
    batch = make_batch()
    after, metrics = compiled(FIXED)(state, batch, jax.random.key(10))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((after, metrics)))
    # Every weight is at the cap, so the loss is that of cloning, so many times over.
    s, a = np.asarray(batch.observations), np.asarray(batch.actions)
    log_pi = log_density(FIXED, *policy(FIXED, Reference.of(FIXED, state).nets["actor"], s), a)
    cap = np.exp(FIXED.log_weight_max)
    assert float(metrics["policy/loss"]) == pytest.approx(-cap * log_pi.mean(), rel=1e-4)


def test_log_beta_is_clipped_inside_the_weight() -> None:
    def actor_gradient(log_beta: float) -> list[np.ndarray]:
        batch = make_batch()
        batch = batch._replace(log_beta=jnp.full_like(batch.log_beta, log_beta))
        state, _ = compiled(FIXED)(start(FIXED), batch, jax.random.key(10))
        return jax.tree.leaves(gradients(state)["actor"])

    for beyond, at_the_clip in zip(actor_gradient(-1e9), actor_gradient(-20.0), strict=True):
        np.testing.assert_array_equal(beyond, at_the_clip)
        assert np.any(at_the_clip)


def test_the_dual_step_sees_clipped_log_probabilities() -> None:
    config = VARIANTS["plain"]
    # A πβ so narrow and so far away that log πβ of every sample is far below the clip.
    narrow = jnp.asarray([[9.0] * A + [-5.0] * A] * ROWS, jnp.float32)
    batch = make_batch()._replace(behavior=narrow)
    after, _ = compiled(config)(start(config), batch, jax.random.key(10))
    expected = 0.7 - 0.05 * (-20.0 - -1.0)
    assert float(after.lam) == pytest.approx(expected, rel=1e-5)


def test_lambda_starts_where_its_rule_says_and_a_fixed_one_stays() -> None:
    spec = Spec(S, A, STEPS)
    for rule, expected in [
        (cci.fixed(), 0.4),
        (cci.dual(epsilon=0.0), 0.4),
        (cci.fixed(0.0), 0.0),
        (cci.dual(epsilon=0.0, start=2.0), 2.0),
    ]:
        assert float(make(rule=rule).init(jax.random.key(0), spec).lam) == pytest.approx(expected)
    after, _ = compiled(FIXED)(start(FIXED), make_batch(), jax.random.key(10))
    assert float(after.lam) == pytest.approx(0.7)


def test_lambda_waits_until_the_constraint_is_met_and_then_moves_either_way() -> None:
    config = make(rule=cci.dual(-5.0, start=0.7, rate=0.05, waits=True, slack_steps=2))
    near = make_batch()._replace(behavior=jnp.zeros((ROWS, 2 * A)))
    far = near._replace(behavior=jnp.asarray([[9.0] * A + [-5.0] * A] * ROWS, jnp.float32))
    state = config.init(jax.random.key(0), Spec(S, A, 100))
    slack, waits, moves = float(state.slack), True, []
    for batch in (far, far, near, near, near, near, far, far):
        before = float(state.lam)
        state, metrics = compiled(config)(state, batch, jax.random.key(10))
        slack = (slack + float(metrics["dial/constraint"]) + 5.0) / 2
        waits = waits and slack < 0
        moves.append(float(state.lam) - before)
        assert float(state.slack) == pytest.approx(slack, rel=1e-4)
        assert moves[-1] == pytest.approx(0.0 if waits else -0.05 * slack, abs=1e-4)
    # A policy that begins outside is not answered; one that leaves again is.
    assert moves[:3] == [0.0, 0.0, 0.0]
    assert moves[-3] < 0 < moves[-1]


def test_lambda_answers_a_constraint_that_is_not_met_in_half_the_run() -> None:
    # An ε that cloning does not reach needs λ > α; it must not wait for ever.
    config = make(rule=cci.dual(epsilon=9.0, start=0.7, rate=0.05, waits=True))
    state = config.init(jax.random.key(0), Spec(S, A, 6))
    lams = [float(state.lam)]
    for step in range(6):
        state, _ = compiled(config)(state, make_batch(step), jax.random.key(step))
        lams.append(float(state.lam))
    moves = np.diff(lams)
    np.testing.assert_array_equal(moves[:3], 0.0)
    assert np.all(moves[3:] > 0.1)


def test_a_policy_far_outside_clones_from_a_quarter_of_the_run_on_to_its_end() -> None:
    rule = replace(cci.dual(-5.0, start=0.7, rate=0.05), epsilon_margin=3.0)
    near = make_batch()._replace(behavior=jnp.zeros((ROWS, 2 * A)))
    far = near._replace(behavior=jnp.asarray([[9.0] * A + [-5.0] * A] * ROWS, jnp.float32))
    # E[log πβ] is −20 of the far batch and above −5 of the near one.
    for batches, expected in [
        ((far, far, near, near, near, near), [False] * 6),
        ((far, far, far, near, near, near), [False, False, True, True, True, True]),
        ((near, near, near, near, near, far), [False] * 5 + [True]),
    ]:
        for share in (0.5, 0.0):
            config = make(rule=rule, cloning_share=share)
            state = config.init(jax.random.key(0), Spec(S, A, 8))
            found = []
            for batch in batches:
                state, _ = compiled(config)(state, batch, jax.random.key(10))
                found.append(bool(state.clones))
            assert found == [share > 0 and x for x in expected]
    fixed = make(rule=replace(cci.fixed(0.7), epsilon=9.0))
    state = fixed.init(jax.random.key(0), Spec(S, A, STEPS))
    for _ in range(STEPS):
        state, _ = compiled(fixed)(state, far, jax.random.key(10))
    assert not state.clones


def test_a_long_run_asks_after_5000_steps_whether_the_policy_is_held() -> None:
    config = make(rule=cci.dual(9.0, start=0.7))
    for step in (4_999, 5_000):
        state = config.init(jax.random.key(0), Spec(S, A, 1_000_000))
        state = state._replace(schedule=state.schedule._replace(step=jnp.int32(step)))
        state, _ = compiled(config)(state, make_batch(), jax.random.key(10))
        assert bool(state.clones) == (step == 5_000)


def test_a_policy_outside_by_less_than_the_margin_does_not_clone() -> None:
    for margin in (1e-3, 1e3):
        config = make(rule=replace(cci.dual(9.0, start=0.7), epsilon_margin=margin))
        state = config.init(jax.random.key(0), Spec(S, A, STEPS))
        for _ in range(2):
            state, _ = compiled(config)(state, make_batch(), jax.random.key(10))
        assert bool(state.clones) == (margin < 1)


def test_a_policy_that_clones_spends_no_slack() -> None:
    config = VARIANTS["slack that sharpens"]
    found = {}
    for slack, clones in ((2.0, False), (2.0, True), (0.0, True)):
        state = start(config)._replace(slack=jnp.float32(slack), clones=jnp.bool(clones))
        metrics = jax.jit(config.diagnose)(state, make_batch(), jax.random.key(10))
        found[slack, clones] = [float(metrics[f"weights/{x}"]) for x in ("clipped", "cloning")]
        found[slack, clones].append(float(metrics["weights/effective_sample_size"]))
    assert found[2.0, True] == found[0.0, True] != found[2.0, False]
    assert [x[1] for x in found.values()] == [0.0, 0.5, 0.5]
    assert found[2.0, True][2] > found[2.0, False][2]


def test_an_epsilon_that_was_never_settled_is_refused() -> None:
    with pytest.raises(ValueError, match="settled"):
        _ = make(rule=cci.dual()).epsilon


def test_q_and_v_start_higher_by_the_value_start() -> None:
    spec, rows = Spec(S, A, STEPS), make_batch()
    high, low = (make(value_start=c).init(jax.random.key(0), spec) for c in (30.0, 0.0))
    pairs = [
        (state.target(rows.observations, rows.actions), state.trained.value(rows.observations))
        for state in (high, low)
    ]
    for raised, plain in zip(*pairs, strict=True):
        np.testing.assert_allclose(raised, plain + 30.0, rtol=1e-5)
    assert_close(high.trained.actor, low.trained.actor, atol=0.0)


def test_an_entropy_price_that_was_never_settled_is_refused() -> None:
    with pytest.raises(ValueError, match="entropy_price"):
        make(entropy_price=None).value_loss(jnp.zeros(1), jnp.zeros((2, 1)), jnp.zeros(1))


def test_a_value_start_that_was_never_settled_is_refused() -> None:
    with pytest.raises(ValueError, match="value_start"):
        make(value_start=None).init(jax.random.key(0), Spec(S, A, STEPS))


def test_targets_begin_as_the_critics() -> None:
    state = make().init(jax.random.key(0), Spec(S, A, STEPS))
    assert_close(state.target, state.trained.critic, atol=0.0)


# --- diagnostics --------------------------------------------------------------------------------


def test_diagnostics_count_the_rows_beyond_the_edge_wherever_slack_has_moved_it() -> None:
    config = replace(VARIANTS["slack that sharpens"], sharpening=0.5)
    batch = make_batch()
    found = {}
    for slack in (0.0, 1.0, 2.0):
        state = start(config)._replace(slack=jnp.float32(slack))
        found[slack] = jax.jit(config.diagnose)(state, batch, jax.random.key(10))
        ref = Reference.of(config, state)
        b = jax.tree.map(lambda x: np.asarray(x, np.float64), batch)
        q = np.minimum(*both_q(ref.nets["critic"], b.observations, b.actions))
        advantage = q - forward(ref.nets["value"], b.observations)[:, 0]
        exponent = advantage / 0.4 + (0.7 - 0.4) / 0.4 * (b.log_beta - b.log_beta_typical)
        z = 1.349 * (exponent - np.median(exponent)) / quartile_range(exponent)
        beyond = (5.0 * z > 1.0 + 5.0 * 0.5 * slack).mean()
        assert float(found[slack]["weights/clipped"]) == pytest.approx(beyond)
    assert found[2.0]["weights/clipped"] < found[0.0]["weights/clipped"]


def test_diagnostics_measure_the_weights_and_the_advantage() -> None:
    config = FIXED
    state, batch = start(config), make_batch()
    found = jax.jit(config.diagnose)(state, batch, jax.random.key(10))
    nets = Reference.of(FIXED, state).nets
    b = jax.tree.map(lambda x: np.asarray(x, np.float64), batch)
    q = both_q(nets["critic"], b.observations, b.actions)
    advantage = np.minimum(*q) - forward(nets["value"], b.observations)[:, 0]
    exponent = (advantage + (0.7 - 0.4) * b.log_beta) / 0.4
    weight = np.exp(np.minimum(exponent, 4.6))
    mean, std = policy(config, nets["actor"], b.observations)
    sample = np.clip(mean + std * noise_of(jax.random.key(10)), -1, 1)
    for name, value in {
        "advantage/mean": advantage.mean(),
        "advantage/std": advantage.std(),
        "weights/effective_sample_size": weight.sum() ** 2 / (ROWS * (weight**2).sum()),
        "weights/clipped": (exponent > 4.6).mean(),
        "critic/q_max": np.max(q),
        "critic/disagreement": np.abs(q[0] - q[1]).mean(),
        "policy/entropy": -log_density(config, mean, std, sample).mean(),
        "policy/log_prob_data": log_density(config, mean, std, b.actions).mean(),
        "behavior/log_beta_data_q50": np.median(b.log_beta),
    }.items():
        assert float(found[name]) == pytest.approx(value, rel=1e-4, abs=1e-5), name
