"""acpo evaluate: roll out the policies of a run, or see what chance or the data get."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from acpo.data import DataOptions
from acpo.data.catalogue import ENTRIES
from acpo.data.registry import load
from acpo.errors import UserError
from acpo.evaluation.rollouts import Evaluator, normalized_score
from acpo.files import write_json
from acpo.policy import load_policies
from acpo.tasks import Reference, dimensions, find_task, make_env, reference, suggestion

EPISODES = 10


@dataclass(frozen=True)
class EvaluateArguments:
    """Roll out every seed's policy of a run with its deterministic action.

    With --policy, the same numbers for a task by name (acpo tasks) without anything learned.
    """

    target: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN|TASK")]
    """A run directory or one policy file of it; with --policy a task or an environment."""
    policy: Literal["random", "data"] | None = None
    """random: uniform actions, rolled out. data: the recorded episodes of the task's dataset. By
    default the policies of the run."""
    episodes: int | None = None
    """Episodes per policy; by default 10, in AntMaze 50."""
    seed: int = 0
    """Episode e starts from seed + e."""
    env: str | None = None
    """Task or Gymnasium id to evaluate a run in; by default the one it was trained for."""
    json: Path | None = None
    """Also write the numbers to this file."""


def main(words: list[str]) -> int:
    arguments = tyro.cli(EvaluateArguments, prog="acpo evaluate", args=words)
    if arguments.episodes is not None and arguments.episodes < 1:
        raise UserError(f"--episodes is {arguments.episodes}; it must be at least 1.")
    if arguments.seed < 0:
        raise UserError(f"--seed is {arguments.seed}; it must be at least 0.")
    _refuse_mixtures(arguments)
    if arguments.policy is None:
        found, text = _run(arguments)
    elif arguments.policy == "random":
        found, text = _random(arguments)
    else:
        found, text = _data(arguments)
    # Before any file: what took long to find is not lost where one cannot be written.
    print(text)
    if arguments.policy is None and Path(arguments.target).is_dir():
        where = f"-{arguments.env.replace('/', '-')}" if arguments.env else ""
        name = f"evaluation{where}-seed{found['seed']}-x{found['episodes']}.json"
        stored = Path(arguments.target) / name
        write_json(stored, found)
        print(f"stored in {stored}")
    if arguments.json:
        write_json(arguments.json, found)
    return 0


def _refuse_mixtures(arguments: EvaluateArguments) -> None:
    target, policy = arguments.target, arguments.policy
    if policy is None:
        if not Path(target).exists():
            raise UserError(
                f"There is no run directory or policy file {target}. For a task or an environment "
                "of that name say which policy: --policy random, or --policy data."
            )
    elif Path(target).exists() and find_task(target) is None:
        raise UserError(
            f"{target} is a file or folder, but --policy {policy} is for a task or an environment "
            "by its name (acpo tasks). A run is evaluated without --policy."
        )
    elif arguments.env is not None:
        raise UserError(f"--env is for a run; here {target} says it already. Leave --env out.")
    if policy == "data" and (arguments.episodes is not None or arguments.seed):
        raise UserError(
            "--policy data gives all recorded episodes; leave out --episodes and --seed."
        )


def _run(arguments: EvaluateArguments) -> tuple[dict[str, Any], str]:
    """Every seed's policy of a run; ± is the deviation over policies."""
    policies = load_policies(arguments.target)
    environment = arguments.env or policies[0].info.get("environment")
    if not environment:
        raise UserError(
            f"{arguments.target} was trained on data that names no environment; give one with "
            "--env."
        )
    episodes = arguments.episodes or _usual_episodes(environment)
    evaluator = Evaluator(environment, episodes)
    evaluator.check("The policy", policies[0].observation_dim, policies[0].action_dim)
    rollouts = evaluator(policies, arguments.seed)
    per_seed = rollouts.returns.mean(axis=1)
    found: dict[str, Any] = {
        "run": arguments.target,
        "environment": environment,
        "episodes": episodes,
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
    many = f"{len(policies)} policies × " if len(policies) > 1 else ""
    return found, f"{text} over {many}{episodes} episodes of {environment}"


def _random(arguments: EvaluateArguments) -> tuple[dict[str, Any], str]:
    """Uniform actions in the environment's box."""
    environment = arguments.target
    _, action_dim = dimensions(make_env(environment))
    episodes = arguments.episodes or _usual_episodes(environment)
    # A stream of its own: some tasks draw an episode's start from the seed alone.
    generator = np.random.default_rng([arguments.seed, 1])

    def uniform(observations: np.ndarray) -> np.ndarray:
        return generator.uniform(-1.0, 1.0, (len(observations), action_dim))

    rollouts = Evaluator(environment, episodes)([uniform], arguments.seed)
    found = {
        "task": environment,
        "policy": "random",
        "environment": environment,
        "episodes": episodes,
        "seed": arguments.seed,
    }
    numbers, text = _over_episodes(rollouts.returns, rollouts.lengths, reference(environment))
    where = f"{episodes} episodes of {environment}, uniform actions"
    return found | numbers, f"{text} over {where}; ± is the standard error"


def _data(arguments: EvaluateArguments) -> tuple[dict[str, Any], str]:
    """The episodes of a task's dataset, as they were recorded."""
    name = arguments.target
    if name not in ENTRIES:
        raise UserError(
            f"--policy data needs the name of a task, and {name!r} is none. {suggestion(name)} "
            "For a file there is acpo data info."
        )
    data = load(name, DataOptions())
    task = find_task(name)
    scale = task.reference if task and task.data_comparable else None
    found = {
        "task": name,
        "policy": "data",
        "environment": data.environment,
        "episodes": data.num_episodes,
    }
    returns, lengths = data.episode_returns[None], data.episode_lengths[None]
    numbers, text = _over_episodes(returns, lengths, scale)
    if scale is None:
        text += " (no score: recorded trajectories go on after success)"
    where = f"the {data.num_episodes:,} recorded episodes of {name}"
    return found | numbers, f"{text} over {where}; ± is the standard error"


def _over_episodes(
    returns: np.ndarray, lengths: np.ndarray, scale: Reference | None
) -> tuple[dict[str, Any], str]:
    """Numbers and text of one policy; ± is the standard error over its episodes."""
    count = returns.size
    mean, error = returns.mean(), returns.std(ddof=min(count - 1, 1)) / np.sqrt(count)
    found = {
        "returns": returns.tolist(),
        "lengths": lengths.tolist(),
        "return_mean": float(mean),
        "return_error": float(error),
    }
    text = f"return {mean:.1f} ± {error:.1f}"
    if scale is not None:
        score = scale.score(mean)
        spread = scale.score(mean + error) - score
        found |= {"score_mean": float(score), "score_error": float(spread)}
        text = f"score {score:.1f} ± {spread:.1f} ({text})"
    return found, text


def _usual_episodes(environment: str) -> int:
    task = find_task(environment)
    return task.preset.episodes if task else EPISODES
