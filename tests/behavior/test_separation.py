from __future__ import annotations

import numpy as np
import pytest

from acpo.behavior.separation import Perturbed, Separation, auroc, judge, perturb, separate


def test_auroc_counts_pairs_and_half_the_ties() -> None:
    rng = np.random.default_rng(0)
    positive, negative = rng.integers(0, 5, 40), rng.integers(-1, 4, 30)
    pairs = [(p > n) + 0.5 * (p == n) for p in positive for n in negative]
    assert auroc(positive, negative) == pytest.approx(np.mean(pairs))


def test_perturbed_actions_move_along_one_direction_and_stay_in_the_box() -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    z = np.random.default_rng(7).standard_normal((50, 2))
    for xi in (0.1, 0.8):
        expected = np.clip(actions + xi * z, -1, 1)
        np.testing.assert_allclose(perturb(actions, xi, seed=7), expected, rtol=1e-6)
    assert np.abs(perturb(actions, 0.8, seed=7)).max() == 1.0


def test_a_known_density_is_asked_about_the_right_actions() -> None:
    actions = np.linspace(-0.5, 0.5, 101)[:, None]
    found = separate("flat", lambda a: -np.abs(a[:, 0]), actions, (0.2, 0.6), seed=3)
    np.testing.assert_allclose(found.log_prob, -np.abs(actions[:, 0]))
    threshold = np.quantile(-np.abs(actions), 0.1)
    for xi, one in zip((0.2, 0.6), found.perturbed, strict=True):
        outside = -np.abs(perturb(actions, xi, 3)[:, 0])
        assert one.xi == xi
        assert one.passing == np.mean(outside >= threshold)
        assert one.auroc == auroc(found.log_prob, outside)
    assert found.perturbed[0].passing > found.perturbed[1].passing


def asked(model: str, *passing: float) -> Separation:
    none = np.zeros(1)
    sweep = tuple(Perturbed(0.1 * i, none, 0.75, share) for i, share in enumerate(passing, 1))
    return Separation(model, none, sweep)


def test_the_verdict_follows_the_numbers() -> None:
    strict, close, lenient = judge(
        [asked("strict", 0.6, 0.2), asked("close", 0.65, 0.29), asked("lenient", 0.75, 0.25)]
    )
    assert [v.too_much for v in (strict, close, lenient)] == [False, False, True]
    assert "ξ = 0.1, 75%" in lenient.because
    assert "60% with strict" in lenient.because
    assert "ξ = 0.2, 29%" in close.because
    assert "with" not in strict.because


def test_a_model_alone_gives_too_much_if_most_far_actions_pass() -> None:
    (verdict,) = judge([asked("alone", 0.9, 0.51)])
    assert verdict.too_much
    assert "even at ξ = 0.2, 51%" in verdict.because
    assert not judge([asked("alone", 0.9, 0.49)])[0].too_much
