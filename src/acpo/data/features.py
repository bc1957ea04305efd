"""What the numbers of a dataset mean outside: names, categories, and actions in their own units."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acpo.errors import UserError

PIECE_ROWS = 8_192


@dataclass(frozen=True)
class Features:
    """Empty where a source says nothing; stored with datasets and with the policies they train.

    Args:
        observations: Columns that make up an observation, in order. A categorical column stands
            here once, and takes as many numbers as it has categories.
        categories: Values of each categorical column, in the order of their one-hot numbers.
        actions: Names of the action's numbers.
        action_low: What −1 stands for, per number of the action; empty if actions have no units.
        action_high: What 1 stands for.
    """

    observations: tuple[str, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    actions: tuple[str, ...] = ()
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()

    @property
    def observation_names(self) -> tuple[str, ...]:
        """One name per number: a column's own, or "column=category"."""
        return tuple(
            name
            for column in self.observations
            for name in (
                [f"{column}={value}" for value in self.categories[column]]
                if column in self.categories
                else [column]
            )
        )

    def to_units(self, unit: NDArray[Any]) -> NDArray[Any]:
        """Actions in [−1, 1] in the units of the source: low + (u + 1)/2 · (high − low)."""
        if not self.action_low:
            return unit
        low, high = np.asarray(self.action_low), np.asarray(self.action_high)
        return (low + (unit + 1.0) / 2.0 * (high - low)).astype(np.float32)

    def to_unit_range(self, actions: Any) -> NDArray[np.float32]:
        """The inverse of `to_units`: 2 (a − low)/(high − low) − 1."""
        if not self.action_low:
            return np.asarray(actions)
        low, high = np.asarray(self.action_low), np.asarray(self.action_high)
        actions = np.asarray(actions)
        unit = np.empty(actions.shape, dtype=np.float32)
        # In float64, piece by piece: a large array of it would cost more than the arithmetic.
        for first in range(0, len(actions), PIECE_ROWS):
            piece = slice(first, first + PIECE_ROWS)
            scaled = 2.0 * (actions[piece].astype(np.float64) - low) / (high - low) - 1.0
            unit[piece] = np.clip(scaled, -1.0, 1.0)
        return unit

    def with_range(self, source: str, low: NDArray[Any], high: NDArray[Any]) -> Features:
        """With the least and largest actions of the data as what −1 and 1 stand for."""
        flat = np.flatnonzero(low == high)
        if len(flat):
            shown = ", ".join(
                f"'{self.actions[i]}'" if self.actions else str(i) for i in flat.tolist()
            )
            raise UserError(
                f"{source}: the action {shown} never changes (always {low[flat[0]]:g}), so nothing "
                "can be learnt about it. Leave it out of the actions."
            )
        bounds = (tuple(float(x) for x in bound) for bound in (low, high))
        action_low, action_high = bounds
        return dataclasses.replace(self, action_low=action_low, action_high=action_high)

    def encode(self, record: Mapping[str, Any]) -> NDArray[np.float32]:
        """The observation of one record, by column name; categories become one-hot numbers."""
        if not self.observations:
            raise UserError("The data had no column names; give the observation as numbers.")
        numbers: list[float] = []
        for column in self.observations:
            if column not in record:
                raise UserError(f"The record lacks the column '{column}'.")
            if column not in self.categories:
                numbers.append(float(record[column]))
                continue
            values = self.categories[column]
            if str(record[column]) not in values:
                raise UserError(
                    f"'{record[column]}' is no category of '{column}'; the data had "
                    f"{', '.join(values)}."
                )
            numbers += [float(str(record[column]) == value) for value in values]
        return np.asarray(numbers, dtype=np.float32)

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in dataclasses.asdict(self).items() if value}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Features:
        def texts(name: str) -> tuple[str, ...]:
            return tuple(str(value) for value in stored.get(name, ()))

        def numbers(name: str) -> tuple[float, ...]:
            return tuple(float(value) for value in stored.get(name, ()))

        return cls(
            texts("observations"),
            {k: tuple(map(str, v)) for k, v in stored.get("categories", {}).items()},
            texts("actions"),
            numbers("action_low"),
            numbers("action_high"),
        )
