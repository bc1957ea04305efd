"""All statements over many problems: the worst violation, the tightness, and what was found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from acpo.theory import mdp
from acpo.theory.catalogue import STATEMENTS, Statement
from acpo.theory.mdp import Problem
from acpo.theory.statements.base import Check

MULTIPLES = (0.0, 0.3, 1.0, 3.0, 30.0, 1000.0)
"""λ as multiples of α: both ends, the density constraint, and between them."""


@dataclass(frozen=True)
class Row:
    """What became of one statement."""

    statement: Statement
    violation: float
    """The largest, relative to 1 + the size of what is bounded; ∞ where a side is undefined."""
    tightness: float
    """1: an inequality was attained; of a lower bound, the largest share of the allowed loss that
    was lost, negative where every policy improved on πβ. NaN for an identity."""
    violated: float
    """Share of the problems that violate it at some λ."""
    skipped: int
    """Pairs of problem and λ on which it could not be checked: a side is not defined there, or the
    fixed point was not found."""

    @property
    def as_expected(self) -> bool:
        """A statement that should hold does; one that should not needs no luck here."""
        return not self.statement.holds or self.violation <= self.statement.tolerance


def batches(count: int, states: int, actions: int, seed: int) -> dict[str, Problem]:
    """`count` random problems, and as many more of four special kinds together, roughly."""
    rng = np.random.default_rng(seed)
    few, side = max(count // 20, 3), 4
    return {
        "random": mdp.random(count, states, actions, rng),
        "πβ with holes": mdp.random(max(count // 2, 3), states, actions, rng, holes=True),
        "πβ uniform": mdp.with_uniform_behavior(mdp.random(few, states, actions, rng)),
        "gridworld": mdp.gridworld(few, side, rng),
        "chain": mdp.chain(few, 6, rng),
    }


def check(problems: Iterable[Problem], statements: Iterable[Statement] = STATEMENTS) -> list[Row]:
    """Every statement on every problem, at every λ where λ enters."""
    problems = list(problems)
    return [_row(statement, problems) for statement in statements]


def _row(statement: Statement, problems: list[Problem]) -> Row:
    found = [_over_lambda(statement, problem) for problem in problems]
    every = np.concatenate([check.violation for check in found], axis=-1)
    tightness = np.concatenate([check.tightness for check in found], axis=-1)
    # Over λ; not-a-number only where no λ could be checked.
    violation = np.fmax.reduce(every, axis=0)
    known = ~np.isnan(violation)
    finite = tightness[np.isfinite(tightness)]
    return Row(
        statement=statement,
        violation=float(violation[known].max(initial=0.0)),
        tightness=float(finite.max()) if len(finite) else float("nan"),
        violated=float((violation[known] > statement.tolerance).mean()) if known.any() else 0.0,
        skipped=int(np.isnan(every).sum()),
    )


def _over_lambda(statement: Statement, problem: Problem) -> Check:
    """One row per λ, one column per problem."""
    multiples = MULTIPLES if statement.over_lambda else (1.0,)
    checks = [statement.check(problem, multiple * problem.alpha) for multiple in multiples]
    return Check(
        np.stack([check.violation for check in checks]),
        np.stack([check.tightness for check in checks]),
    )
