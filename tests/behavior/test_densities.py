"""Every density against data whose conditional density is known."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from scipy.stats import norm

from acpo.behavior import fitting
from acpo.behavior.config import MODELS, BehaviorConfig
from acpo.behavior.density import MEAN_SAMPLES
from acpo.behavior.fitting import Behavior
from acpo.behavior.mixture import EDGE
from acpo.networks import Head

ROWS, HELD = 8_000, 1_000


class Known(NamedTuple):
    """Rows of two observations and one action, and their true log-density."""

    observations: np.ndarray
    actions: np.ndarray
    log_density: np.ndarray

    @property
    def truth(self) -> float:
        return float(self.log_density[-HELD:].mean())


@cache
def draw(kind: str) -> Known:
    rng = np.random.default_rng(0)
    s = rng.uniform(-1, 1, size=(ROWS, 2))
    noise = rng.normal(size=ROWS)
    mean = 0.3 * s[:, 0]
    if kind == "gaussian":
        std = 0.15 + 0.05 * s[:, 1]
        actions = mean + std * noise
        density = norm.pdf(actions, mean, std)
    elif kind == "two modes":
        # Which mode is likelier depends on the state.
        upper = 1 / (1 + np.exp(-2 * s[:, 1]))
        actions = mean + np.where(rng.uniform(size=ROWS) < upper, 0.4, -0.4) + 0.1 * noise
        density = upper * norm.pdf(actions, mean + 0.4, 0.1)
        density += (1 - upper) * norm.pdf(actions, mean - 0.4, 0.1)
    else:
        # Clipped at 1: what lies beyond is mass on the bound, here spread over the edge's strip.
        clipped = norm(0.7 + mean, 0.4)
        actions = np.minimum(0.7 + mean + 0.4 * noise, 1.0)
        density = np.where(actions >= 1 - EDGE, clipped.sf(1 - EDGE) / EDGE, clipped.pdf(actions))
    return Known(s.astype(np.float32), actions.astype(np.float32)[:, None], np.log(density))


@cache
def fit(model: str, kind: str) -> Behavior:
    own = {"beta": 0.04, "latents": 16} if model.startswith("cvae") else {}
    config = BehaviorConfig(
        model=model,  # type: ignore[arg-type]
        hidden=(32, 32),
        max_steps=2_000,
        check_every=500,
        **own,  # type: ignore[arg-type]
    )
    data = draw(kind)
    rows = np.arange(ROWS)
    return fitting.fit(
        config,
        Head("plain"),
        *(data.observations, data.actions, rows[:-HELD], rows[-HELD:], jax.random.key(0)),
    )


def held_out(behavior: Behavior, kind: str) -> np.ndarray:
    data = draw(kind)
    return behavior.log_prob(data.observations[-HELD:], data.actions[-HELD:])


@pytest.mark.parametrize(
    ("model", "kind", "short"),
    [
        ("gaussian", "gaussian", 0.05),
        ("mixture", "gaussian", 0.05),
        ("mixture", "two modes", 0.08),
        ("mixture", "mass at a bound", 0.08),
        # A decoder of fixed σ blurs, so it may fall short by more.
        ("cvae-is", "two modes", 0.3),
        ("cvae-elbo", "two modes", 0.4),
        # Not where the data is wider than the decoder, whose σ is 0.1.
        ("cvae-is", "gaussian", 0.05),
        ("cvae-elbo", "gaussian", 0.05),
    ],
)
def test_a_fit_comes_near_the_true_log_density(model: str, kind: str, short: float) -> None:
    found, truth = held_out(fit(model, kind), kind), draw(kind).log_density[-HELD:]
    # No density beats the truth in the mean, but for the chance of a thousand rows.
    assert -short < found.mean() - truth.mean() < 0.03
    assert np.median(np.abs(found - truth)) < 3 * short
    assert fit(model, kind).held_out_log_prob == pytest.approx(found.mean(), abs=1e-4)


def test_a_gaussian_at_a_bound_comes_near_the_best_one() -> None:
    """The best has the moments of min(X, 1), here in closed form for X ~ N(m, 0.4²)."""
    kind = "mass at a bound"
    data = draw(kind)
    m, s = 0.7 + 0.3 * data.observations[-HELD:, 0].astype(float), 0.4
    at = (1 - m) / s
    below, height = norm.cdf(at), norm.pdf(at)
    mean = m * below - s * height + (1 - below)
    square = (m**2 + s**2) * below - s * (m + 1) * height + (1 - below)
    best = norm.logpdf(data.actions[-HELD:, 0], mean, np.sqrt(square - mean**2))
    found = held_out(fit("gaussian", kind), kind)
    assert abs(found.mean() - best.mean()) < 0.03
    assert np.median(np.abs(found - best)) < 0.1
    assert found.mean() < data.truth


@pytest.mark.parametrize(("model", "short"), [("cvae-is", 0.05), ("cvae-elbo", 0.1)])
def test_a_cvae_at_a_bound_is_as_sharp_as_its_decoder(model: str, short: float) -> None:
    """Near min(X, 1) + σz, X ~ N(m, 0.4²): a mass of width σ, and a blurred Gaussian below it."""
    kind = "mass at a bound"
    data, behavior = draw(kind), fit(model, kind)
    a = data.actions[-HELD:, 0].astype(float)
    m, s = 0.7 + 0.3 * data.observations[-HELD:, 0].astype(float), 0.4
    sigma = np.sqrt(behavior.config.own("beta") / 4)
    wide = np.hypot(s, sigma)
    given = norm((m * sigma**2 + a * s**2) / wide**2, s * sigma / wide)
    blurred = norm.sf(1, m, s) * norm.pdf(a, 1, sigma) + norm.pdf(a, m, wide) * given.cdf(1)
    found = held_out(behavior, kind)
    assert -short < found.mean() - np.log(blurred).mean() < 0.05
    assert np.median(np.abs(found - np.log(blurred))) < 0.25
    assert found.mean() < data.truth


def test_one_gaussian_cannot_have_two_modes() -> None:
    # The best Gaussian for modes 0.8 apart: its entropy exceeds the mixture's by this much.
    assert held_out(fit("gaussian", "two modes"), "two modes").mean() < (
        draw("two modes").truth - 0.4
    )


def test_the_elbo_lies_below_the_importance_sampled_estimate_of_the_same_net() -> None:
    sampled = fit("cvae-is", "two modes")
    bound = sampled._replace(config=sampled.config.of("cvae-elbo"))
    gap = held_out(sampled, "two modes").mean() - held_out(bound, "two modes").mean()
    assert 0.005 < gap < 0.5


# The CVAE's prior and its encodings differ, so that its modes are less well balanced.
@pytest.mark.parametrize(("model", "near"), [("mixture", 0.04), ("cvae-is", 0.12)])
def test_samples_fall_into_both_modes(model: str, near: float) -> None:
    data, behavior = draw("two modes"), fit(model, "two modes")
    sampled = behavior.sample(data.observations)[:, 0] - 0.3 * data.observations[:, 0]
    actual = data.actions[:, 0] - 0.3 * data.observations[:, 0]
    for at in (-0.3, 0.0, 0.3):
        assert np.mean(sampled < at) == pytest.approx(np.mean(actual < at), abs=near)


def test_the_mixture_puts_the_true_mass_on_the_bound() -> None:
    data, behavior = draw("mass at a bound"), fit("mixture", "mass at a bound")
    sampled = behavior.sample(data.observations)
    assert np.mean(sampled == 1.0) == pytest.approx(np.mean(data.actions == 1.0), abs=0.03)


@pytest.mark.parametrize("model", MODELS)
def test_a_saved_density_comes_back_the_same(model: str, tmp_path: Path) -> None:
    behavior = fit("cvae-is" if model == "cvae-elbo" else model, "two modes")
    behavior = behavior._replace(config=behavior.config.of(model))  # type: ignore[arg-type]
    behavior.save(tmp_path / "πβ.npz")
    loaded = fitting.load(tmp_path / "πβ.npz")
    assert loaded.config == behavior.config
    assert loaded.held_out_log_prob == behavior.held_out_log_prob
    data = draw("two modes")
    some = data.observations[:50], data.actions[:50]
    np.testing.assert_array_equal(loaded.log_prob(*some), behavior.log_prob(*some))
    np.testing.assert_array_equal(loaded.sample(some[0]), behavior.sample(some[0]))


def test_an_estimate_does_not_depend_on_the_rows_asked_for_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behavior, data = fit("cvae-is", "two modes"), draw("two modes")
    whole = behavior.annotate(data.observations[:300], data.actions[:300])
    monkeypatch.setattr(fitting, "ESTIMATES_AT_ONCE", 64)
    parts = [
        behavior.annotate(data.observations[part], data.actions[part], first=part.start)
        for part in (slice(0, 100), slice(100, 300))
    ]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-4)
    # Rows do draw their own latents.
    same = np.repeat(data.observations[:1], 9, axis=0), np.repeat(data.actions[:1], 9, axis=0)
    assert np.ptp(behavior.log_prob(*same)) > 1e-4


def test_a_resumed_estimated_fit_equals_the_uninterrupted_one() -> None:
    data, rows = draw("gaussian"), np.arange(ROWS)
    config = BehaviorConfig(
        model="cvae-elbo", hidden=(8, 8), max_steps=150, check_every=50, batch_size=32
    )
    looks: list[Behavior] = []

    def run(state: fitting.FitState | None = None) -> Behavior:
        return fitting.fit(
            config,
            Head("plain"),
            *(data.observations, data.actions, rows[:-HELD], rows[-HELD:], jax.random.key(0)),
            state=state,
            on_check=looks.append,
        )

    whole = run()
    resumed = run(jax.tree.map(np.asarray, looks[0].state))
    assert whole.held_out_log_prob == resumed.held_out_log_prob
    assert not np.array_equal(looks[0].net.decoder.weights[0], whole.net.decoder.weights[0])
    np.testing.assert_array_equal(whole.net.decoder.weights[0], resumed.net.decoder.weights[0])


@pytest.mark.parametrize("model", MODELS)
def test_rows_carry_the_mean_that_log_beta_has_at_their_state(model: str) -> None:
    behavior, data = fit(model, "two modes"), draw("two modes")
    observations = data.observations[:40]
    found = behavior.annotate(observations, data.actions[:40])[:, -1]
    many = np.repeat(observations, 200, axis=0)
    samples = behavior.log_prob(many, behavior.sample(many)).reshape(40, 200)
    error = samples.std(axis=1) * (1 / 200 + 1 / MEAN_SAMPLES) ** 0.5
    assert np.mean(np.abs(found - samples.mean(axis=1)) < 3 * error + 0.02) > 0.9
    assert found.mean() == pytest.approx(samples.mean(), abs=0.1)
