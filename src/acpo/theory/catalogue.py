"""Every statement of the paper that can be checked exactly: as printed and, where that fails, as
it has to be corrected; and what turned out to hold beyond the print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from acpo.theory.mdp import Array, Problem
from acpo.theory.statements import cloning, dial, framework, performance
from acpo.theory.statements.base import Check

Form = Literal["printed", "corrected", "stronger"]


@dataclass(frozen=True)
class Statement:
    """One row of `acpo theory`."""

    key: str
    claim: str
    where: str
    """The paper's equation, theorem or table."""
    check: Callable[[Problem, Array], Check]
    form: Form = "printed"
    """stronger: not in the paper, but true and tighter than what is."""
    holds: bool = True
    """Whether it should hold on every problem; a printed one that should not has a counterexample
    in counterexamples.py."""
    assumes: str = ""
    """What it needs and the paper does not say."""
    over_lambda: bool = True
    """Checked at every λ, or once because λ does not enter."""
    tolerance: float = 1e-8


_SUPPORT = "πβ > 0, or everything read inside its support"

STATEMENTS: tuple[Statement, ...] = (
    # --- the closed form
    Statement(
        "closed_form",
        "π*_λ maximises the Lagrangian, with value Z_λ",
        "Eq-CCI-ClosedForm",
        framework.closed_form_is_optimal,
        assumes=_SUPPORT,
    ),
    Statement(
        "support",
        "π*_0 stays in the support of πβ",
        "Eq-CCI-ClosedForm, λ = 0",
        framework.support_is_kept_literally,
        holds=False,
    ),
    Statement(
        "support_corrected",
        "… with πβ^{λ/α} = 0 where πβ = 0 (the limit λ ↓ 0)",
        "Eq-CCI-ClosedForm, λ = 0",
        framework.support_is_kept,
        "corrected",
    ),
    Statement(
        "normaliser",
        "Z_λ = V",
        "text before Eq-CCI-ClosedForm-Appendix",
        framework.normaliser_is_value,
        holds=False,
    ),
    Statement(
        "normaliser_corrected",
        "… + λ g_s(λ): equal at λ = 0 only",
        "text before Eq-CCI-ClosedForm-Appendix",
        framework.normaliser_is_value_and_density,
        "corrected",
    ),
    # --- the weight
    Statement(
        "regression",
        "w_λ-regression on data recovers π*_λ",
        "Eq-CCI-Obj",
        framework.regression_recovers_the_optimum,
        assumes="a policy class that holds π*_λ",
    ),
    Statement(
        "shared",
        "w_λ-regression is the KL projection of π*_λ",
        "Eq-CCI-Reverse-KL-Appendix",
        framework.regression_projects_shared,
        holds=False,
    ),
    Statement(
        "shared_corrected",
        "… with Z_λ in the weight instead of V",
        "Eq-CCI-Reverse-KL-Appendix",
        framework.regression_projects_shared_corrected,
        "corrected",
    ),
    Statement("table", "rows of Table 1 are w_λ", "Tab-CCI-Lambda", framework.table_of_regimes),
    Statement(
        "appendix_regime",
        "weight for 0 < λ < α: +(α−λ)/α log πβ",
        "Appendix A, regime 2",
        framework.appendix_regime,
        holds=False,
    ),
    Statement(
        "sac",
        "E[exp(A/α − log πθ)] is SAC's objective",
        "Appendix A, SAC",
        framework.sac_objective,
        holds=False,
        over_lambda=False,
    ),
    Statement(
        "sac_corrected",
        "… without the exponential",
        "Appendix A, SAC",
        framework.sac_objective_corrected,
        "corrected",
        over_lambda=False,
    ),
    # --- λ
    Statement(
        "derivative",
        "g_s'(λ) = Var(log πβ)/α",
        "Proposition 1",
        dial.derivative_of_density,
        assumes=_SUPPORT,
    ),
    Statement("monotone", "g(λ) does not decrease", "Proposition 1", dial.density_increases),
    Statement(
        "limit",
        "λ → ∞: max log πβ − g_s ≤ (span Q + α log A)/λ",
        "—",
        dial.density_limit,
        "stronger",
    ),
    Statement("dual_slope", "the dual's slope is g(λ) − ε", "Eq-lambda-descend", dial.dual_slope),
    Statement(
        "dual_step",
        "a λ step never raises the dual, η ≤ 4α/range²",
        "Eq-lambda-descend",
        dial.dual_step_descends,
        "stronger",
    ),
    Statement(
        "duality",
        "the dual's minimum is the constrained optimum",
        "Eq-CCI-Dual",
        dial.strong_duality,
        assumes="ε < E_D[max_a log πβ] (Slater, named in the paper)",
        over_lambda=False,
        # Where two actions are nearly tied under πβ, λ* is 10⁴ α and cancellation costs digits.
        tolerance=1e-6,
    ),
    # --- practical wBC
    Statement(
        "advantage",
        "|A^π| ≤ 2(R_max + αC_max)/(1−γ)",
        "Eq:A_bound_maxent",
        cloning.advantage_bound,
    ),
    Statement(
        "ratio",
        "|A/log πβ| ≤ |A|/(C_min + δ) ≤ …",
        "Eq:A_over_logpb_bound_maxent",
        cloning.advantage_ratio_bound,
        holds=False,
        over_lambda=False,
    ),
    Statement(
        "ratio_corrected",
        "… with C_min alone",
        "Eq:A_over_logpb_bound_maxent",
        cloning.advantage_ratio_bound_corrected,
        "corrected",
        assumes="C_min > 0: πβ(a|s) ≠ 1 everywhere",
        over_lambda=False,
    ),
    Statement(
        "pointwise",
        "λ ≫ α + A/log πβ: the wBC term outweighs A",
        "Tab-CCI-Lambda, last row",
        cloning.wbc_pointwise,
        holds=False,
        over_lambda=False,
    ),
    Statement(
        "pointwise_corrected",
        "… with |A|/|log πβ|",
        "Tab-CCI-Lambda, last row",
        cloning.wbc_pointwise_corrected,
        "corrected",
        over_lambda=False,
    ),
    Statement(
        "wbc",
        "λ ≫ its bound: w_λ ≈ πβ^{(λ−α)/α}",
        "Eq:wBC_sufficient_condition_main",
        cloning.wbc_sufficient,
        holds=False,
        over_lambda=False,
    ),
    Statement(
        "wbc_corrected",
        "D_TV to it ≤ (A−1) exp((span Q − λ·gap)/α)",
        "Eq:wBC_sufficient_condition_main",
        cloning.wbc_sufficient_corrected,
        "corrected",
        assumes="informative only if πβ has one likeliest action per state",
    ),
    # --- the lemma and the steps of the proofs
    Statement(
        "standard_difference",
        "performance difference, standard RL",
        "Eq-Per-Dif-Standard",
        performance.standard_difference,
        over_lambda=False,
    ),
    Statement(
        "lemma",
        "maximum-entropy performance difference",
        "Lemma 1",
        performance.soft_difference,
        assumes="supp π ⊆ supp πβ",
        over_lambda=False,
    ),
    Statement(
        "lemma_anywhere",
        "… for any two stationary policies",
        "Lemma 1",
        performance.soft_difference_anywhere,
        holds=False,
        over_lambda=False,
    ),
    Statement(
        "lemma_corrected",
        "… with Q^πβ − α log π − V^πβ for Ã − α KL",
        "Lemma 1",
        performance.soft_difference_corrected,
        "corrected",
        over_lambda=False,
    ),
    Statement(
        "mean_advantage",
        "E_πβ[A^πβ] = 0, A of the reward r",
        "proof of Theorem 1",
        performance.mean_advantage,
        over_lambda=False,
    ),
    Statement(
        "occupancy",
        "‖d_π − d_πβ‖₁ ≤ 2γ/(1−γ) Δ_TV",
        "proof of Theorem 1",
        performance.occupancy_shift,
        over_lambda=False,
    ),
    Statement(
        "shaping_shift",
        "|E_π[Ã − A]| ≤ 4αB/(1−γ) D_TV",
        "proof of Theorem 1",
        performance.shaping_shift,
        over_lambda=False,
    ),
    Statement(
        "density_shift",
        "|Δ E[log πβ]| ≤ 2B D_TV",
        "proof of Theorem 1",
        performance.density_shift,
        over_lambda=False,
    ),
    # --- the bounds
    *(
        Statement(
            f"theorem_1_{reading}",
            f"lower bound of J(π*_λ), {name}",
            "Theorem 1",
            partial(performance.theorem_1, reading=reading),  # type: ignore[arg-type]
            assumes=_SUPPORT,
        )
        for reading, name in (
            ("plain", "Q of r"),
            ("soft", "soft Q^πβ"),
            ("shaped", "Q̃^πβ"),
            ("own", "soft Q of π*_λ"),
        )
    ),
    Statement(
        "stronger_soft",
        "… soft Q^πβ: 2Bλ/(1−γ) Δ_TV + shift is enough",
        "Theorem 1",
        performance.theorem_1_soft,
        "stronger",
    ),
    Statement(
        "stronger_shaped",
        "… Q̃^πβ: the 4αB term is not needed",
        "Theorem 1",
        performance.theorem_1_shaped,
        "stronger",
    ),
    Statement(
        "stronger_own",
        "… soft Q of π*_λ: λ/(1−γ) E[Δg_s] is enough",
        "Theorem 1",
        performance.theorem_1_own,
        "stronger",
        assumes="π*_λ is the fixed point",
    ),
    Statement(
        "gap",
        "δ^sub ≥ 0 (π*_λ of Q of r, F_λ with Ã)",
        "Eq-subopt-gap-def",
        partial(performance.gap_is_positive, made_of="plain", measured_by="shaped"),
        holds=False,
    ),
    Statement(
        "gap_soft",
        "δ^sub ≥ 0 (π*_λ of soft Q^πβ, F_λ with Ã)",
        "Eq-subopt-gap-def",
        partial(performance.gap_is_positive, made_of="soft", measured_by="shaped"),
        holds=False,
    ),
    Statement(
        "gap_corrected",
        "δ^sub ≥ 0 (π*_λ of Q̃^πβ, F_λ with Ã)",
        "Eq-subopt-gap-def",
        partial(performance.gap_is_positive, made_of="shaped", measured_by="shaped"),
        "corrected",
        assumes="π*_λ is made of Q̃^πβ",
    ),
    Statement(
        "theorem_2",
        "lower bound of J(πθ) (Q of r, F_λ with Ã)",
        "Theorem 2",
        partial(performance.theorem_2, made_of="plain", measured_by="shaped"),
        holds=False,
    ),
    Statement(
        "theorem_2_soft",
        "lower bound of J(πθ) (soft Q^πβ, F_λ with Ã)",
        "Theorem 2",
        partial(performance.theorem_2, made_of="soft", measured_by="shaped"),
        holds=False,
    ),
    Statement(
        "theorem_2_shaped",
        "… π*_λ of Q̃^πβ, F_λ with Ã",
        "Theorem 2",
        partial(performance.theorem_2, made_of="shaped", measured_by="shaped"),
        "corrected",
        assumes="π*_λ is made of Q̃^πβ",
    ),
    Statement(
        "theorem_2_plain",
        "… π*_λ of Q of r, F_λ with A",
        "Theorem 2",
        partial(performance.theorem_2, made_of="plain", measured_by="plain"),
        "corrected",
        assumes="F_λ has the advantage that π*_λ is made of",
    ),
    Statement(
        "stronger_2",
        "… Q̃^πβ and Ã: the 4αB term is not needed",
        "Theorem 2",
        partial(performance.theorem_2, made_of="shaped", measured_by="shaped", shaping=False),
        "stronger",
    ),
)
