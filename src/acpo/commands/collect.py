"""acpo collect: make a dataset with SAC."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import tyro

from acpo.collect import collect


@dataclass(frozen=True)
class CollectArguments:
    """Train SAC in a Gymnasium task and record what it did, in D4RL's HDF5 layout.

    The training is kept beside the dataset (OUT.sac.npz): the same command with another --recipe
    records again without training again.
    """

    environment: tyro.conf.Positional[str]
    """Gymnasium id, such as Hopper-v4."""
    out: Path
    """HDF5 file to write."""
    recipe: str = "replay"
    """random, replay, medium, expert, medium-expert, mixture, or shares: medium:0.7+expert:0.3."""
    steps: int = 200_000
    """Environment steps of the SAC training, one update each."""
    rows: int = 100_000
    """Rows to record."""
    seed: int = 0
    """Seed of training and recording."""


def main(words: list[str]) -> int:
    arguments = tyro.cli(CollectArguments, prog="acpo collect", args=words)
    started = time.monotonic()

    def report(step: int, mean_return: float) -> None:
        seconds = time.monotonic() - started
        print(
            f"step {step:,} of {arguments.steps:,}: return {mean_return:.0f}, "
            f"{step / seconds:.0f} steps/s",
            flush=True,
        )

    summary = collect(
        arguments.environment,
        arguments.out,
        steps=arguments.steps,
        rows=arguments.rows,
        recipe=arguments.recipe,
        seed=arguments.seed,
        report=report,
    )
    print(
        f"{summary['rows']:,} rows in {arguments.out}; "
        f"medium snapshot {summary['medium_return']:.0f}, "
        f"expert {summary['expert_return']:.0f}"
    )
    return 0
