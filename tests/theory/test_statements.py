"""Which statements hold, which fail, and that a false one is noticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from acpo.theory import bounds, check, mdp
from acpo.theory.catalogue import STATEMENTS, Statement
from acpo.theory.counterexamples import COUNTEREXAMPLES
from acpo.theory.policies import closed_form, optimum
from acpo.theory.statements import cloning, framework, performance
from acpo.theory.statements.base import at_least, at_most, identity

BY_KEY = {statement.key: statement for statement in STATEMENTS}
FAILING = [statement.key for statement in STATEMENTS if not statement.holds]


@pytest.fixture(scope="module")
def problems() -> list[mdp.Problem]:
    return list(check.batches(40, 4, 3, seed=5).values())


@pytest.mark.parametrize(
    "statement", [s for s in STATEMENTS if s.holds], ids=lambda statement: statement.key
)
def test_what_should_hold_holds(statement: Statement, problems: list[mdp.Problem]) -> None:
    (row,) = check.check(problems, [statement])
    assert row.violation <= statement.tolerance
    assert row.violated == 0.0
    assert row.as_expected


# --- counterexamples ----------------------------------------------------------------------------


def _violation(key: str) -> float:
    problem, lam, _ = COUNTEREXAMPLES[key]
    return float(BY_KEY[key].check(problem, np.array([lam])).violation[0])


def test_exactly_the_failing_statements_have_a_counterexample() -> None:
    assert sorted(FAILING) == sorted(COUNTEREXAMPLES)
    assert all(BY_KEY[key].form == "printed" for key in FAILING)


@pytest.mark.parametrize("key", FAILING)
def test_each_counterexample_violates_its_statement(key: str) -> None:
    assert _violation(key) > 0.02
    assert COUNTEREXAMPLES[key].problem.rewards.shape[-2:] in {(1, 2), (2, 2)}


@pytest.mark.parametrize(
    ("key", "corrections"),
    [
        ("support", ["support_corrected"]),
        ("normaliser", ["normaliser_corrected"]),
        ("shared", ["shared_corrected"]),
        ("sac", ["sac_corrected"]),
        ("ratio", ["ratio_corrected"]),
        ("pointwise", ["pointwise_corrected"]),
        ("wbc", ["wbc_corrected"]),
        ("lemma_anywhere", ["lemma_corrected"]),
        ("gap", ["gap_corrected"]),
        ("theorem_2", ["theorem_2_shaped", "theorem_2_plain", "stronger_2"]),
    ],
)
def test_on_its_counterexample_the_correction_holds(key: str, corrections: list[str]) -> None:
    problem, lam, _ = COUNTEREXAMPLES[key]
    for correction in corrections:
        found = BY_KEY[correction].check(problem, np.array([lam]))
        assert found.violation[0] < 1e-12


def test_the_counterexamples_numbers_are_those_worked_by_hand() -> None:
    def relative(value: float, error: float) -> float:
        return error / (1 + abs(value))

    assert _violation("support") == pytest.approx(0.5)
    assert _violation("normaliser") == pytest.approx(np.log(2))
    # exp(g_s) = ½ and 0.9^0.9 · 0.1^0.1: each state's share of the regression.
    shares = np.array([0.5, 0.9**0.9 * 0.1**0.1])
    regressed = (shares * [0.5, 0.9]).sum() / shares.sum()
    assert regressed == pytest.approx(0.736, abs=5e-4)
    assert _violation("shared") == pytest.approx((regressed - 0.7) / 1.3, abs=1e-9)
    distance = 0.9 * np.log(1.8) + 0.1 * np.log(0.2)
    assert _violation("sac") == pytest.approx(relative(distance, distance))
    # V = log 2, as π is uniform: A = 1 − log 2 at the first action.
    least, advantage = -np.log(0.9999), 1 - np.log(2)
    ratio = advantage / least
    assert ratio == pytest.approx(3068.4, abs=0.1)
    assert _violation("ratio") == pytest.approx(relative(ratio, ratio - advantage / (least + 0.01)))
    # A = log 4 − log 2 at the first action. At the second A = −3 log 2 has the sign of log πβ, and
    # the wBC term is far larger.
    assert 1 + np.log(2) / np.log(0.5) == 0
    assert _violation("pointwise") == pytest.approx(relative(np.log(2), np.log(2)))
    assert _violation("wbc") == pytest.approx(1 / (1 + np.exp(-1)) - 0.5)
    assert _violation("lemma_anywhere") == np.inf


def test_the_ratio_s_counterexample_exceeds_the_whole_printed_bound() -> None:
    problem = COUNTEREXAMPLES["ratio"].problem
    divisor = np.array([-np.log(0.9999) + 0.01])
    by_hand = 2 * (1 - np.log(0.0001)) / divisor[0]
    assert by_hand == pytest.approx(2022, abs=0.5)
    assert cloning.ratio_bound(problem, divisor)[0] == pytest.approx(by_hand)
    assert (1 - np.log(2)) / -np.log(0.9999) > by_hand


def test_the_appendix_s_sign_and_the_right_one_lead_to_the_optima_worked_by_hand() -> None:
    # πβ w ∝ πβ^{3/2} = (8, 1)/√125 as the appendix prints it, πβ^{1/2} = (2, 1)/√5 with w_λ.
    problem, lam, _ = COUNTEREXAMPLES["appendix_regime"]
    dial = np.array([lam])
    printed = framework.appendix_log_weight(problem, dial)
    right = framework.log_weight(problem, dial, problem.soft[1])
    for weight, optimum_ in ((printed, [8 / 9, 1 / 9]), (right, [2 / 3, 1 / 3])):
        found = framework.regression_optimum(problem, weight)
        np.testing.assert_allclose(found[0, 0], optimum_, rtol=1e-12)
    np.testing.assert_allclose(closed_form(problem, problem.rewards, dial)[0][0, 0], [2 / 3, 1 / 3])
    # |1/3 − 1/9|, relative to 1 + 1/3.
    assert _violation("appendix_regime") == pytest.approx(1 / 6)


def test_the_appendix_s_weight_has_the_advantage_over_alpha() -> None:
    # πβ = (½, ½): A = (1, 0) − ½ − 2 log 2 at α = 2, and (α−λ)/α = ¾ at λ = ½.
    problem = mdp.bandit([1.0, 0.0], [0.5, 0.5], alpha=2.0)
    found = framework.appendix_log_weight(problem, np.array([0.5]))[0, 0]
    advantage = np.array([0.5, -0.5]) - 2 * np.log(2)
    np.testing.assert_allclose(found, advantage / 2 - 0.75 * np.log(2))


@pytest.mark.parametrize("policy", [[0.5, 0.5], [0.9, 0.1], [0.001, 0.999]])
def test_the_printed_sac_objective_is_the_same_for_every_policy(policy: list[float]) -> None:
    problem = COUNTEREXAMPLES["sac"].problem
    advantage = bounds.advantage(problem, "soft")
    np.testing.assert_allclose(advantage, -np.log(2))
    found = framework.printed_sac(advantage, np.array([[policy]]))
    assert found[0, 0] == pytest.approx(1.0)
    # Σ_a exp(A/α) for another advantage.
    found = framework.printed_sac(np.log([[[3.0, 2.0]]]), np.array([[policy]]))
    assert found[0, 0] == pytest.approx(5.0)


def test_the_soft_advantage_of_the_behaviour_has_the_mean_of_minus_its_entropy() -> None:
    problem = mdp.bandit([0, 0], [0.5, 0.5], alpha=2.0)
    mean = mdp.expect(problem.behavior, bounds.advantage(problem, "soft"))
    assert mean[0, 0] == pytest.approx(-2 * np.log(2))


def test_theorem_2_fails_by_the_divergence_where_f_and_the_optimum_disagree() -> None:
    problem, lam, _ = COUNTEREXAMPLES["theorem_2"]
    dial = np.array([lam])
    star, _ = closed_form(problem, problem.rewards, dial)
    np.testing.assert_allclose(star[0, 0], [0.9, 0.1])
    divergence = 0.9 * np.log(0.9 / 0.75) + 0.1 * np.log(0.1 / 0.25)
    best = bounds.surrogate(problem, star, dial, "shaped")
    gap = best - bounds.surrogate(problem, problem.behavior, dial, "shaped")
    assert gap[0] == pytest.approx(-divergence)
    allowed = bounds.loss(problem, problem.behavior, dial, gap).total
    assert allowed[0] == pytest.approx(-0.0725, abs=1e-4)
    # J(πβ) = H(πβ), so that the violation is relative to 1 + H.
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert _violation("theorem_2") >= divergence / (1 + entropy) - 1e-12


# --- the bounds ---------------------------------------------------------------------------------


def test_the_terms_of_the_bound_by_hand() -> None:
    # One state, γ = ½, r = (1, 0), α = 1, πβ = (½, ½), π = (0.9, 0.1), λ = 3: B = log 2, Δ = 0.4.
    # Ã = ±½, because entropy is the same for both actions: ε_β = |0.9·½ − 0.1·½| = 0.4.
    problem = mdp.single(
        np.ones((1, 2, 1)), [[1.0, 0.0]], [[0.5, 0.5]], gamma=0.5, other=[[0.9, 0.1]]
    )
    loss = bounds.loss(problem, problem.other, np.array([3.0]), gap=np.array([0.25]))
    log2, divergence = np.log(2), 0.9 * np.log(1.8) + 0.1 * np.log(0.2)
    assert loss.density[0] == pytest.approx(2 * log2 * 2 * 2 * 0.4)
    assert loss.shaping[0] == pytest.approx(4 * log2 * 4 * 0.4)
    assert loss.shift[0] == pytest.approx(2 * 0.5 * (0.4 + divergence) * 4 * 0.4)
    assert loss.gap[0] == pytest.approx(0.5)
    parts = loss.density + loss.shaping + loss.shift + loss.gap
    assert loss.total[0] == pytest.approx(parts[0])


def test_f_is_what_the_optimum_of_its_own_reading_maximises() -> None:
    problem = mdp.random(50, 3, 3, np.random.default_rng(7))
    lam = 2.0 * problem.alpha
    for reading in ("plain", "soft", "shaped"):
        star, _ = optimum(problem, lam, reading)  # type: ignore[arg-type]
        best = bounds.surrogate(problem, star, lam, reading)  # type: ignore[arg-type]
        for share in (0.01, 0.5, 1.0):
            nearby = (1 - share) * star + share * problem.other
            assert (bounds.surrogate(problem, nearby, lam, reading) < best).all()  # type: ignore[arg-type]


def test_at_lambda_zero_its_own_policy_never_loses_against_the_behaviour() -> None:
    problem = mdp.random(200, 4, 3, np.random.default_rng(8), holes=True)
    policy, _ = optimum(problem, np.zeros(200), "own")
    gained = mdp.soft_return(problem, policy) - mdp.soft_return(problem, problem.behavior)
    assert (gained >= -1e-10).all()


def test_the_stronger_bound_implies_the_printed_one() -> None:
    problem = mdp.random(200, 4, 3, np.random.default_rng(9))
    for multiple in (0.0, 0.5, 1.0, 5.0):
        lam = multiple * problem.alpha
        policy, _ = optimum(problem, lam, "own")
        printed = bounds.loss(problem, policy, lam).total
        assert (performance.own_loss(problem, policy, lam) <= printed + 1e-10).all()


# --- the checks themselves ----------------------------------------------------------------------


def test_an_identity_an_inequality_and_a_lower_bound_by_hand() -> None:
    found = identity(np.array([[1.0, 3.0]]), np.array([[1.0, 2.0]]))
    assert found.violation[0] == pytest.approx(1 / 4)
    found = at_most(np.array([[1.0, 3.0]]), np.array([[4.0, 2.0]]))
    assert (found.violation[0], found.tightness[0]) == (pytest.approx(1 / 4), 1.5)
    found = at_least(np.array([4.0]), np.array([6.0]), np.array([8.0]))
    assert (found.violation[0], found.tightness[0]) == (0.0, 0.25)
    found = at_least(np.array([4.0]), np.array([6.0]), np.array([1.0]))
    assert found.violation[0] == pytest.approx(1 / 5)
    assert at_most(np.array([np.inf]), np.array([1.0])).violation[0] == np.inf


def test_a_false_statement_is_reported_as_violated(problems: list[mdp.Problem]) -> None:
    wrong = replace(BY_KEY["gap"], holds=True)
    (row,) = check.check(problems, [wrong])
    assert not row.as_expected
    assert 0 < row.violated < 1
