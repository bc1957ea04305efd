"""acpo evaluate: roll out the policies of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from acpo.errors import UserError
from acpo.evaluation.rollouts import Evaluator, normalized_score
from acpo.files import write_json
from acpo.policy import load_policies


@dataclass(frozen=True)
class EvaluateArguments:
    """Roll out every seed's policy of a run with its deterministic action."""

    run: tyro.conf.Positional[Path]
    """A run directory, or one policy file of it."""
    episodes: int = 10
    """Episodes per policy."""
    seed: int = 0
    """Episode e starts from seed + e."""
    env: str | None = None
    """Gymnasium id; by default the one the policy was trained for."""
    json: Path | None = None
    """Also write the numbers to this file."""


def main(words: list[str]) -> int:
    arguments = tyro.cli(EvaluateArguments, prog="acpo evaluate", args=words)
    if arguments.episodes < 1:
        raise UserError(f"--episodes is {arguments.episodes}; it must be at least 1.")
    policies = load_policies(arguments.run)
    environment = arguments.env or policies[0].info.get("environment")
    if not environment:
        raise UserError(
            f"{arguments.run} was trained on data that names no environment; give one with --env."
        )
    evaluator = Evaluator(environment, arguments.episodes)
    evaluator.check("The policy", policies[0].observation_dim, policies[0].action_dim)
    rollouts = evaluator(policies, arguments.seed)
    per_seed = rollouts.returns.mean(axis=1)
    found: dict[str, Any] = {
        "run": str(arguments.run),
        "environment": environment,
        "episodes": arguments.episodes,
        "seed": arguments.seed,
        "policy_seeds": [policy.info.get("seed") for policy in policies],
        "returns": rollouts.returns.tolist(),
        "lengths": rollouts.lengths.tolist(),
        "return_mean": float(per_seed.mean()),
        "return_std": float(per_seed.std()),
    }
    text = f"return {per_seed.mean():.1f} ± {per_seed.std():.1f}"
    score = normalized_score(environment, per_seed)
    if score is not None:
        found |= {"score_mean": float(score.mean()), "score_std": float(np.std(score))}
        text = f"score {score.mean():.1f} ± {score.std():.1f} ({text})"
    if arguments.run.is_dir():
        stored = arguments.run / f"evaluation-seed{arguments.seed}-x{arguments.episodes}.json"
        write_json(stored, found)
    if arguments.json:
        write_json(arguments.json, found)
    many = f"{len(policies)} policies × " if len(policies) > 1 else ""
    print(f"{text} over {many}{arguments.episodes} episodes of {environment}")
    if arguments.run.is_dir():
        print(f"stored in {stored}")
    return 0
