from __future__ import annotations

import jax
import numpy as np
import pytest

from acpo import cci


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# --- the weight ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lam", [0.0, 0.2, 0.5, 3.0])
def test_log_weight_is_the_general_formula(rng: np.random.Generator, lam: float) -> None:
    advantage, log_beta = rng.normal(size=(2, 50))
    found = cci.log_weight(advantage, log_beta, lam, 0.5)
    np.testing.assert_allclose(
        found,
        [(a + (lam - 0.5) * b) / 0.5 for a, b in zip(advantage, log_beta, strict=True)],
        rtol=1e-5,
        atol=1e-5,
    )


def test_log_weight_of_numbers_worked_by_hand() -> None:
    # A/α = 1/0.5 = 2; (λ − α)/α = (0.75 − 0.5)/0.5 = 0.5; 0.5 · (−3) = −1.5
    assert float(cci.log_weight(1.0, -3.0, 0.75, 0.5)) == pytest.approx(0.5)
    # Between support and density the sign turns: (0.25 − 0.5)/0.5 · (−3) = +1.5
    assert float(cci.log_weight(1.0, -3.0, 0.25, 0.5)) == pytest.approx(3.5)


def test_lambda_zero_is_the_weight_of_inac(rng: np.random.Generator) -> None:
    advantage, log_beta = rng.normal(size=(2, 50))
    weight = np.exp(cci.log_weight(advantage, log_beta, 0.0, 0.7))
    np.testing.assert_allclose(weight, np.exp(advantage / 0.7) / np.exp(log_beta), rtol=1e-5)


def test_lambda_alpha_is_the_weight_of_awac(rng: np.random.Generator) -> None:
    advantage, log_beta = rng.normal(size=(2, 50))
    weight = np.exp(cci.log_weight(advantage, log_beta, 0.7, 0.7))
    np.testing.assert_allclose(weight, np.exp(advantage / 0.7), rtol=1e-5)


def test_far_above_alpha_the_weight_is_that_of_behaviour_cloning(
    rng: np.random.Generator,
) -> None:
    alpha = 0.1
    advantage, log_beta = rng.normal(size=50), rng.uniform(-4, -1, 50)

    def relative_gap(lam: float) -> float:
        cloning = (lam - alpha) / alpha * log_beta
        exponent = np.asarray(cci.log_weight(advantage, log_beta, lam, alpha))
        return float(np.abs(exponent / cloning - 1.0).max())

    gaps = [relative_gap(lam) for lam in (1.0, 10.0, 100.0, 1000.0)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0.3
    assert gaps[-1] < 0.01


# --- the dual step ------------------------------------------------------------------------------


def test_dual_step_is_projected_gradient_descent(rng: np.random.Generator) -> None:
    log_beta = rng.normal(size=40)
    for lam in (0.0, 0.3, 2.0):
        for epsilon in (-1.0, 0.0, 1.0):
            expected = max(lam - 0.5 * (log_beta.mean() - epsilon), 0.0)
            found = float(cci.dual_step(lam, log_beta.mean() - epsilon, 0.5))
            assert found == pytest.approx(expected, abs=1e-6)


def test_lambda_rises_when_the_constraint_is_violated_and_falls_when_it_is_slack() -> None:
    for slack, expected in [(-4.0, 1.4), (0.0, 1.0), (2.0, 0.8)]:
        assert float(cci.dual_step(1.0, slack, 0.1)) == pytest.approx(expected)


def test_lambda_never_falls_below_zero() -> None:
    assert float(cci.dual_step(0.1, 100.0, 0.1)) == 0.0
    # … and leaves zero again as soon as the constraint is violated.
    assert float(cci.dual_step(0.0, -1.0, 0.1)) == pytest.approx(0.1)


# --- the closed form ----------------------------------------------------------------------------


def policy_by_hand(q: np.ndarray, beta: np.ndarray, lam: float, alpha: float) -> np.ndarray:
    unnormalised = np.exp(q / alpha) * beta ** (lam / alpha)
    return unnormalised / unnormalised.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("lam", [0.0, 0.2, 0.5, 4.0])
def test_closed_form_is_the_optimal_policy(rng: np.random.Generator, lam: float) -> None:
    q, beta = rng.normal(size=(6, 4)), rng.dirichlet(np.ones(4), size=6)
    found = np.asarray(cci.closed_form(q, np.log(beta), lam, 0.5))
    np.testing.assert_allclose(found.sum(axis=-1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(found, policy_by_hand(q, beta, lam, 0.5), rtol=1e-4, atol=1e-6)


def test_closed_form_maximises_the_lagrangian(rng: np.random.Generator) -> None:
    alpha, lam = 0.5, 0.8
    q, beta = rng.normal(size=5), rng.dirichlet(np.ones(5))

    def lagrangian(policy: np.ndarray) -> float:
        return float(policy @ (q - alpha * np.log(policy) + lam * np.log(beta)))

    best = lagrangian(np.asarray(cci.closed_form(q, np.log(beta), lam, alpha), np.float64))
    others = [lagrangian(policy) for policy in rng.dirichlet(np.ones(5), size=500)]
    assert best > max(others)


@pytest.mark.parametrize("lam", [0.0, 0.5, 2.0])
def test_actions_outside_the_support_keep_probability_zero(lam: float) -> None:
    q = np.array([[1.0, 50.0, 2.0]])
    beta = np.array([[0.25, 0.0, 0.75]])
    with np.errstate(divide="ignore"):
        found = np.asarray(cci.closed_form(q, np.log(beta), lam, 0.5))
    assert found[0, 1] == 0.0
    seen = [0, 2]
    by_hand = policy_by_hand(q[:, seen], beta[:, seen], lam, 0.5)
    np.testing.assert_allclose(found[:, seen], by_hand, rtol=1e-4)


def test_the_constraint_grows_with_lambda_at_the_rate_of_the_variance(
    rng: np.random.Generator,
) -> None:
    """Proposition 1: g(λ) = E_{π*_λ}[log πβ] has g'(λ) = Var_{π*_λ}[log πβ] / α ≥ 0."""
    alpha = 0.5
    q, beta = rng.normal(size=6), rng.dirichlet(np.ones(6))
    log_beta = np.log(beta)
    with jax.enable_x64(True):

        def policy(lam: float) -> np.ndarray:
            return np.asarray(cci.closed_form(q, log_beta, lam, alpha))

        grid = np.linspace(0.0, 5.0, 21)
        g = np.array([policy(lam) @ log_beta for lam in grid])
        assert (np.diff(g) > 0).all()
        for lam in (0.01, 0.5, 2.0):
            slope = (policy(lam + 1e-5) - policy(lam - 1e-5)) @ log_beta / 2e-5
            mean = policy(lam) @ log_beta
            variance = policy(lam) @ (log_beta - mean) ** 2
            assert variance > 1e-2
            assert slope == pytest.approx(variance / alpha, rel=1e-6)


# --- words and rules ----------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(
    ("multiple", "words"),
    [
        (0.0, "support constraint"),
        (0.5, "between support and density constraint"),
        (0.9, "between support and density constraint"),
        (0.99, "KL-density constraint"),
        (1.0, "KL-density constraint"),
        (1.01, "KL-density constraint"),
        (1.1, "between density constraint and weighted behaviour cloning"),
        (10.0, "between density constraint and weighted behaviour cloning"),
        (cci.WBC_MULTIPLE * 1.01, "practical weighted behaviour cloning"),
    ],
)
def test_regime_names_the_band_of_lambda(alpha: float, multiple: float, words: str) -> None:
    assert cci.regime(multiple * alpha, alpha) == words


def test_the_papers_wbc_lambda_is_in_the_cloning_regime_at_both_its_temperatures() -> None:
    for alpha in (0.1, 0.5):
        assert cci.regime(100.0, alpha) == "practical weighted behaviour cloning"


def test_dual_is_a_rule_that_moves() -> None:
    rule = cci.dual(epsilon=-2.0, start=0.3, rate=1e-3)
    assert (rule.epsilon, rule.lam_start, rule.lam_rate) == (-2.0, 0.3, 1e-3)
    assert cci.dual().lam_rate > 0
    assert cci.dual().epsilon == "auto"
    assert cci.dual().lam_start is None


def test_fixed_is_a_rule_that_does_not_move() -> None:
    for lam in (None, 0.0, 100.0):
        rule = cci.fixed(lam)
        assert rule.lam_start == lam
        assert rule.lam_rate == 0.0


@pytest.mark.parametrize("kappa", [0.5, 1.0, 2.0])
def test_the_share_that_weights_leave_is_that_of_drawn_ones(kappa: float) -> None:
    weights = np.exp(np.minimum(kappa * np.random.default_rng(0).normal(size=1_000_000), 4.6))
    drawn = weights.sum() ** 2 / (weights**2).sum() / len(weights)
    assert cci.effective_share(kappa, 4.6) == pytest.approx(drawn, rel=0.02)
    # Without a clip it has a closed form: the variance of a lognormal.
    assert cci.effective_share(kappa, np.inf) == pytest.approx(np.exp(-(kappa**2)), rel=1e-3)
