"""What a statement answers, and the two forms a statement takes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from acpo.theory.mdp import Array


class Check(NamedTuple):
    """Per problem: the violation, relative to 1 + the size of what is bounded; the tightness, 1
    where an inequality is attained and NaN for an identity. A NaN violation was not checked."""

    violation: Array
    tightness: Array

    def only(self, checked: Array) -> Check:
        """The same on some of the problems; the others count as not checked."""
        return Check(*(np.where(checked, part, np.nan) for part in self))


def identity(left: Array, right: Array) -> Check:
    """left = right, over all axes but the first."""
    error = _worst(np.abs(left - right) / (1.0 + np.abs(left)))
    return Check(error, np.full(len(error), np.nan))


def at_most(value: Array, bound: Array) -> Check:
    """value ≤ bound, over all axes but the first."""
    excess = np.maximum(value - bound, 0.0)
    finite = np.isfinite(excess)
    relative = np.where(finite, excess, 0.0) / (1.0 + np.abs(np.where(finite, value, 0.0)))
    excess = _worst(np.where(finite, relative, np.inf))
    positive = bound > 0
    ratio = np.where(positive, value / np.where(positive, bound, 1.0), -np.inf)
    ratio = _worst(ratio)
    return Check(excess, np.where(np.isfinite(ratio), ratio, np.nan))


def at_least(value: Array, base: Array, allowed: Array) -> Check:
    """value ≥ base − allowed; the tightness is the share of the allowed loss that was lost."""
    loss = base - value
    violation = np.maximum(loss - allowed, 0.0) / (1.0 + np.abs(value))
    known = allowed > 1e-9
    return Check(violation, np.where(known, loss / np.where(known, allowed, 1.0), np.nan))


def _worst(values: Array) -> Array:
    return values.reshape(len(values), -1).max(axis=-1)


def worst_of(checks: list[Check]) -> Check:
    """The largest violation and the largest tightness, per problem."""
    violations = np.stack([check.violation for check in checks])
    tightness = np.stack([check.tightness for check in checks])
    known = np.isfinite(tightness)
    tightest = np.where(known, tightness, -np.inf).max(axis=0)
    return Check(violations.max(axis=0), np.where(known.any(axis=0), tightest, np.nan))
