from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from jax import Array

from acpo.behavior import fitting
from acpo.behavior.config import BehaviorConfig
from acpo.behavior.fitting import Behavior, FitState
from acpo.behavior.gaussian import GaussianDensity
from acpo.errors import Diverged
from acpo.networks import MLP, Head

# One configuration and one set of shapes for all tests, so that each head is compiled once.
CONFIG = BehaviorConfig(
    hidden=(32, 32), batch_size=128, max_steps=2_000, check_every=100, patience=5, min_gain=0.02
)
ROWS = 5_000


class Data(NamedTuple):
    """Rows drawn from a known πβ(a|s), the first nine tenths to train on."""

    observations: np.ndarray
    actions: np.ndarray
    true_log_density: np.ndarray
    train_rows: np.ndarray = np.arange(ROWS * 9 // 10)
    held_rows: np.ndarray = np.arange(ROWS * 9 // 10, ROWS)


@cache
def draw(kind: str) -> Data:
    """a = mean(s) + σ(s)·noise, through tanh for the squashed kind."""
    rng = np.random.default_rng(0)
    observations = rng.uniform(-1, 1, size=(ROWS, 2))
    mean = 0.5 * np.stack([np.sin(2 * observations[:, 0]), observations[:, 1]], axis=1)
    std = 0.15 + 0.1 * observations[:, :1] ** 2 + np.zeros((1, 2))
    if kind == "squashed":
        mean, std = 2.0 * mean, 3.0 * std
    noise = rng.normal(size=(ROWS, 2))
    u = mean + std * noise
    log_density = (-0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    actions = u
    if kind == "squashed":
        actions = np.tanh(u)
        log_density = log_density - np.log(1.0 - actions**2).sum(axis=1)
    return Data(observations.astype(np.float32), actions.astype(np.float32), log_density)


def fit(
    data: Data,
    kind: str = "plain",
    state: FitState | None = None,
    looks: list[FitState] | None = None,
    config: BehaviorConfig = CONFIG,
) -> Behavior:
    return fitting.fit(
        config,
        Head(kind),
        *(data.observations, data.actions, data.train_rows, data.held_rows, jax.random.key(0)),
        state=state,
        on_check=lambda behavior: looks.append(behavior.state) if looks is not None else None,
    )


@cache
def fitted(kind: str) -> tuple[Behavior, list[FitState]]:
    looks: list[FitState] = []
    return fit(draw(kind), kind, looks=looks), looks


def untrained() -> FitState:
    return fitting.init(CONFIG, Head(), jax.random.key(0), 2, 2)


def density(kind: str) -> GaussianDensity:
    return GaussianDensity(Head(kind), CONFIG.layers)


@partial(jax.jit, static_argnums=1)
def mean_log_prob(net: MLP, kind: str, observations: Array, actions: Array) -> Array:
    return -density(kind).loss(net, observations, actions, jax.random.key(0))


def held_out_mean(net: MLP, kind: str, data: Data) -> float:
    rows = data.held_rows
    return float(mean_log_prob(net, kind, data.observations[rows], data.actions[rows]))


def assert_same_tree(left: Any, right: Any) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(a, b)


def differs(left: Any, right: Any) -> bool:
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return any(not np.array_equal(a, b) for a, b in pairs)


def test_loss_is_minus_the_mean_log_density_by_hand() -> None:
    data = draw("plain")
    net = untrained().net
    output = np.asarray(net(data.observations), np.float64)
    mean, std = np.tanh(output[:, :2]), np.exp(output[:, 2:])
    density = np.exp(-((data.actions - mean) ** 2) / (2 * std**2)) / np.sqrt(2 * np.pi * std**2)
    by_hand = np.log(density).sum(axis=1)[data.held_rows].mean()
    assert held_out_mean(net, "plain", data) == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_a_gradient_step_lowers_the_loss(kind: str) -> None:
    data, net = draw(kind), untrained().net

    @jax.jit
    def loss_and_gradient(net: MLP) -> tuple[Array, MLP]:
        return jax.value_and_grad(density(kind).loss)(
            net, data.observations, data.actions, jax.random.key(0)
        )

    before, gradient = loss_and_gradient(net)
    rate = 1e-2
    after, _ = loss_and_gradient(jax.tree.map(lambda p, g: p - rate * g, net, gradient))
    squared_norm = sum(float(np.sum(np.square(g))) for g in jax.tree.leaves(gradient))
    # To first order a step of size η lowers the loss by η‖∇‖².
    assert float(before - after) == pytest.approx(rate * squared_norm, rel=0.2)


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_fit_recovers_the_density_the_data_came_from(kind: str) -> None:
    data = draw(kind)
    behavior, _ = fitted(kind)
    truth = data.true_log_density[data.held_rows].mean()
    assert held_out_mean(untrained().net, kind, data) < truth - 1.0
    assert behavior.held_out_log_prob == pytest.approx(truth, abs=0.05)
    assert held_out_mean(behavior.net, kind, data) == pytest.approx(
        behavior.held_out_log_prob, abs=1e-4
    )


def test_the_matching_head_is_the_likelier_one() -> None:
    data = draw("squashed")
    mismatched = fit(data, "plain")
    assert fitted("squashed")[0].held_out_log_prob > mismatched.held_out_log_prob + 0.05


def noise() -> Data:
    """Twenty rows to learn by heart: the held-out likelihood soon falls for good."""
    rng = np.random.default_rng(1)
    return Data(
        rng.normal(size=(ROWS, 2)).astype(np.float32),
        rng.uniform(-1, 1, size=(ROWS, 2)).astype(np.float32),
        np.zeros(ROWS),
        train_rows=np.resize(np.arange(20), ROWS * 9 // 10),
    )


def test_early_stopping_ends_the_fit_and_keeps_the_best_net() -> None:
    data = noise()
    looks: list[FitState] = []
    behavior = fit(data, looks=looks)
    held = [held_out_mean(look.net, "plain", data) for look in looks]
    best = int(np.argmax(held))
    assert behavior.steps == CONFIG.check_every * len(looks) < CONFIG.max_steps
    assert best == len(looks) - 1 - CONFIG.patience
    assert_same_tree(behavior.net, looks[best].net)
    assert differs(behavior.net, looks[-1].net)
    assert behavior.held_out_log_prob == pytest.approx(max(held), abs=1e-4)


@pytest.mark.parametrize(("gain", "counts"), [(0.5, False), (1.5, True)])
def test_only_a_gain_above_min_gain_counts_as_an_improvement(gain: float, counts: bool) -> None:
    first = fitted("plain")[1][0]
    # The first look again, with a best so far just below what it is about to find.
    best = first.best_log_prob - gain * CONFIG.min_gain
    looks: list[FitState] = []
    fit(draw("plain"), state=untrained()._replace(best_log_prob=best), looks=looks)
    assert int(looks[0].checks_since_best) == (0 if counts else 1)
    assert_same_tree(looks[0].best_net, first.net if counts else untrained().net)


def test_without_patience_all_steps_are_taken_and_the_last_net_is_kept() -> None:
    data, looks = noise(), []
    config = replace(CONFIG, patience=0, max_steps=1_500)
    behavior = fit(data, looks=looks, config=config)
    held = [held_out_mean(look.net, "plain", data) for look in looks]
    assert behavior.steps == config.max_steps == config.check_every * len(looks)
    assert_same_tree(behavior.net, looks[-1].net)
    assert behavior.held_out_log_prob == pytest.approx(held[-1], abs=1e-4) != max(held)


def test_patience_counts_looks_without_improvement() -> None:
    unbeatable = untrained()._replace(best_log_prob=np.float32(1e6))
    looks: list[FitState] = []
    behavior = fit(draw("plain"), state=unbeatable, looks=looks)
    assert len(looks) == CONFIG.patience
    assert_same_tree(behavior.net, untrained().net)


def test_the_cap_on_steps_ends_a_fit_that_still_improves() -> None:
    nearly = untrained()._replace(step=np.int32(CONFIG.max_steps - 2 * CONFIG.check_every))
    looks: list[FitState] = []
    behavior = fit(draw("plain"), state=nearly, looks=looks)
    assert len(looks) == 2
    assert behavior.steps == CONFIG.max_steps


def test_a_resumed_fit_equals_the_uninterrupted_one_bit_for_bit() -> None:
    whole, looks = fitted("plain")
    # As a checkpoint would store it: plain numpy arrays.
    halfway = jax.tree.map(np.asarray, looks[len(looks) // 2])
    resumed = fit(draw("plain"), state=halfway)
    assert differs(halfway.net, whole.state.net)
    assert_same_tree(resumed.state, whole.state)
    assert_same_tree(resumed.net, whole.net)
    assert resumed.held_out_log_prob == whole.held_out_log_prob


def test_batches_differ_from_one_look_to_the_next() -> None:
    later = untrained()._replace(step=np.int32(CONFIG.check_every))
    looks: list[FitState] = []
    fit(draw("plain"), state=later, looks=looks)
    assert differs(looks[0].net, fitted("plain")[1][0].net)


def test_a_fit_that_is_never_a_number_is_no_density() -> None:
    data = draw("plain")
    bad = data._replace(actions=np.full_like(data.actions, np.nan))
    with pytest.raises(Diverged, match=r"in 500 steps .* never a finite number"):
        fit(bad)


def test_a_finished_fit_is_not_continued() -> None:
    whole, _ = fitted("plain")
    looks: list[FitState] = []
    again = fit(draw("plain"), state=whole.state, looks=looks)
    assert not looks
    assert_same_tree(again.net, whole.net)


def test_batches_are_drawn_from_the_training_rows_only() -> None:
    data = draw("plain")

    def first_net(spoiled_rows: np.ndarray) -> MLP:
        actions = data.actions.copy()
        actions[spoiled_rows] = 0.9
        looks: list[FitState] = []
        fit(data._replace(actions=actions), looks=looks)
        return looks[0].net

    untouched = fitted("plain")[1][0].net
    assert_same_tree(first_net(data.held_rows), untouched)
    assert differs(first_net(data.train_rows), untouched)


@pytest.mark.parametrize("kind", ["plain", "squashed"])
def test_annotation_is_the_net_evaluated_at_each_row(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, (behavior, _) = draw(kind), fitted(kind)
    # Seven parts that do not divide the rows evenly, so that the last overlaps.
    assert ROWS % 7
    monkeypatch.setattr(fitting, "ROWS_AT_ONCE", ROWS // 7 + 1)
    annotation = behavior.annotate(data.observations, data.actions)
    assert annotation.shape == (ROWS, 6)
    assert annotation.dtype == np.float32
    direct = behavior.head.parameters(behavior.net(data.observations))
    log_prob = behavior.head.log_prob(direct, data.actions)
    np.testing.assert_allclose(annotation[:, 4], log_prob, atol=1e-4)
    typical = behavior.head.typical_log_prob(direct, data.actions)
    np.testing.assert_allclose(annotation[:, 5], typical, atol=1e-4)
    if kind == "squashed":
        u = np.arctanh(np.clip(data.actions.astype(np.float64), -1 + 1e-6, 1 - 1e-6))
        z = (u - np.asarray(direct.mean)) / np.exp(np.asarray(direct.log_std))
        likely = -0.5 * (z**2 - 1).sum(axis=1)
        np.testing.assert_allclose(annotation[:, 4] - annotation[:, 5], likely, atol=2e-3)
    np.testing.assert_allclose(annotation[:, :2], direct.mean, atol=1e-5)
    np.testing.assert_allclose(annotation[:, 2:4], direct.log_std, atol=1e-5)
    read = density(kind).log_prob_given(annotation[:, :4], data.actions)
    np.testing.assert_allclose(read, log_prob, atol=1e-4)
