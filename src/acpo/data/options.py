"""How a dataset is read; every field is a keyword of `load_dataset` and a flag."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ConstantColumns = Literal["refuse", "keep"]


@dataclass(frozen=True)
class DataOptions:
    """How to read the data. A field that a kind of source has no use for must be left alone."""

    constant_columns: ConstantColumns = "refuse"
    """What to do with observation columns that never change."""
    scale_actions: bool = False
    """Scale actions to [−1, 1] by their least and largest values, undone in the policy; tables
    (CSV, Parquet, frames) always do."""
    observation: tuple[str, ...] = ()
    """Tables: columns of the observation, names or patterns ('obs_*'), in the order given."""
    action: tuple[str, ...] = ()
    """Tables: columns of the action, names or patterns."""
    next_observation: tuple[str, ...] = ()
    """Tables: columns of the next observation, if they are stored."""
    reward: str | None = None
    """Tables: column of the reward, or an expression over columns ('power - 0.1*abs(u_1)')."""
    episode: str | None = None
    """Tables: column whose value tells episodes apart."""
    time: str | None = None
    """Tables: column of the time; rows are sorted by it, and a gap begins a new episode."""
    gap: float | None = None
    """Tables: a longer pause than this, in the time column's unit (seconds for dates), is a gap;
    by default ten times the usual step."""
    terminal: str | None = None
    """Tables: column that is true where the system really ended."""
    timeout: str | None = None
    """Tables: column that is true where the recording was cut."""
    categorical: tuple[str, ...] = ()
    """Tables: numeric columns to read as categories too; columns of text always are."""
    all_trajectories: bool = False
    """NeoRL2: keep all trajectories of RocketRecovery and Fusion, of which its own loader takes
    only the first."""
    relabel: str | None = None
    """Replace the reward by an expression over reward, terminal, the data's own columns, or
    observation_0, action_0 (within −1 and 1), next_observation_0, … ('reward - 1')."""
    take: float = 1.0
    """Share of the episodes to use, drawn at random (seed 0)."""
    top: float = 100.0
    """Use only the best so many percent of the episodes by return."""
    validation: float = 0.0
    """Share of the episodes to hold out for validation."""

    @property
    def choose_episodes(self) -> bool:
        """Whether any episode is left out."""
        return (self.take, self.top, self.validation) != (1.0, 100.0, 0.0)
