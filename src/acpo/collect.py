"""Make datasets the way D4RL does: train SAC online, then record what it did.

random   actions drawn uniformly from the box
replay   the learner's own replay buffer, from the first step to the last
medium   stochastic roll-outs of the first snapshot that reaches a third of the best return
expert   stochastic roll-outs of the snapshot with the best return
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from acpo.algorithms.base import Batch, Spec
from acpo.algorithms.sac import SAC, SACState
from acpo.data import d4rl
from acpo.errors import UserError
from acpo.evaluation.rollouts import ActionBox, Evaluator
from acpo.files import load_arrays, write_json
from acpo.storage import restore, save_tree
from acpo.tasks import dimensions, make_env

RECIPES = {
    "random": {"random": 1.0},
    "replay": {"replay": 1.0},
    "medium": {"medium": 1.0},
    "expert": {"expert": 1.0},
    "medium-expert": {"medium": 0.5, "expert": 0.5},
    "mixture": {"replay": 0.4, "medium": 0.4, "expert": 0.2},
}
MEDIUM_SHARE = 1.0 / 3.0
RANDOM_STEPS = 5_000  # uniform actions before SAC's own, so that the buffer covers the box
SNAPSHOT_EVERY = 5_000
SNAPSHOT_EPISODES = 5
SNAPSHOT_SEED = 10_000
UPDATES_PER_CALL = 50  # environment steps taken with one policy, then as many scanned updates

Act = Callable[[np.ndarray, np.random.Generator], np.ndarray]


class Rows(NamedTuple):
    """Consecutive transitions in D4RL's order; the arrays share their first axis."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_observations: np.ndarray
    terminals: np.ndarray
    timeouts: np.ndarray

    @classmethod
    def empty(cls, rows: int, observation_dim: int, action_dim: int) -> Rows:
        wide = partial(np.zeros, dtype=np.float32)
        flags = partial(np.zeros, dtype=bool)
        return cls(
            wide((rows, observation_dim)),
            wide((rows, action_dim)),
            wide(rows),
            wide((rows, observation_dim)),
            flags(rows),
            flags(rows),
        )

    def take(self, index: slice | np.ndarray) -> Rows:
        return Rows(*(array[index] for array in self))

    @classmethod
    def concatenate(cls, parts: list[Rows]) -> Rows:
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Training:
    """What one SAC training leaves behind; every recipe draws from it."""

    buffer: Rows
    steps: np.ndarray  # step of each snapshot
    returns: np.ndarray  # its deterministic mean return
    actors: Any  # pytree of actors, snapshots on the first axis

    def snapshot(self, kind: str) -> int:
        if kind == "expert":
            return int(np.argmax(self.returns))
        # Returns of a short training may be negative: a third of the way from worst to best.
        worst, best = self.returns.min(), self.returns.max()
        return int(np.argmax(self.returns >= worst + MEDIUM_SHARE * (best - worst)))


def _roll(environment: str, act: Act, seed: int) -> Iterator[tuple[Any, ...]]:
    """Endless transitions (s, a, r, s', terminal, timeout), a in [−1, 1]; seeded once."""
    env = make_env(environment)
    box = ActionBox(environment, env.action_space)
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    while True:
        action = act(observation, rng)
        following, reward, terminal, timeout, _ = env.step(box(action))
        yield observation, action, reward, following, terminal, timeout and not terminal
        observation = env.reset()[0] if terminal or timeout else following


def _record(environment: str, act: Act, rows: int, seed: int, action_dim: int) -> Rows:
    roll = _roll(environment, act, seed)
    first = next(roll)
    recorded = Rows.empty(rows, len(first[0]), action_dim)
    for i in range(rows):
        for array, value in zip(recorded, first if i == 0 else next(roll), strict=True):
            array[i] = value
    return recorded


def _uniform(action_dim: int, observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return rng.uniform(-1.0, 1.0, (action_dim,)).astype(np.float32)


def _actor_act(algorithm: SAC, actor: Any) -> Act:
    """Stochastic actions of one actor, one observation at a time."""

    @jax.jit
    def sample(observation: jax.Array, noise: jax.Array) -> jax.Array:
        return algorithm.head.sample(algorithm.policy(actor, observation[None]), noise)[0]

    action_dim = actor.biases[-1].shape[0] // 2

    def act(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        noise = rng.standard_normal((1, action_dim), dtype=np.float32)
        return np.asarray(sample(observation.astype(np.float32), noise))

    return act


def _mean_return(evaluator: Evaluator, algorithm: SAC, actor: Any) -> float:
    mode = jax.jit(lambda s: algorithm.head.mode(algorithm.policy(actor, s)))

    def policy(observations: np.ndarray) -> np.ndarray:
        return np.asarray(mode(observations.astype(np.float32)))

    return float(evaluator([policy], seed=SNAPSHOT_SEED).returns.mean())


def train_sac(
    environment: str,
    steps: int,
    seed: int,
    *,
    algorithm: SAC | None = None,
    report: Callable[[int, float], None] = lambda step, mean_return: None,
) -> Training:
    """Train SAC, one update per environment step, and keep a snapshot every so often."""
    algorithm = algorithm or SAC()
    observation_dim, action_dim = dimensions(make_env(environment))
    evaluator = Evaluator(environment, SNAPSHOT_EPISODES)
    key = jax.random.key(seed)
    state = algorithm.init(key, Spec(observation_dim, action_dim, steps))
    buffer = Rows.empty(steps, observation_dim, action_dim)
    rng = np.random.default_rng(seed)

    @jax.jit
    def updates(state: SACState, batches: Batch, key: jax.Array) -> SACState:
        def step(state: SACState, xs: tuple[Batch, jax.Array]) -> tuple[SACState, None]:
            return algorithm.update(state, *xs)[0], None

        return jax.lax.scan(step, state, (batches, jax.random.split(key, len(batches.rewards))))[0]

    @jax.jit
    def sample(actor: Any, observation: jax.Array, noise: jax.Array) -> jax.Array:
        return algorithm.head.sample(algorithm.policy(actor, observation[None]), noise)[0]

    size = 0

    def explore(observation: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if size < min(RANDOM_STEPS, steps // 4):
            return _uniform(action_dim, observation, rng)
        noise = rng.standard_normal((1, action_dim), dtype=np.float32)
        return np.asarray(sample(state.actor, observation.astype(np.float32), noise))

    roll = _roll(environment, explore, seed)
    snapshots: list[tuple[int, float, Any]] = []
    while size < steps:
        for _ in range(min(UPDATES_PER_CALL, steps - size)):
            for array, value in zip(buffer, next(roll), strict=True):
                array[size] = value
            size += 1
        if size >= min(RANDOM_STEPS, steps // 4):
            index = rng.integers(0, size, (UPDATES_PER_CALL, algorithm.batch_size))
            batches = Batch(*(jnp.asarray(array[index], dtype=jnp.float32) for array in buffer[:5]))
            state = updates(state, batches, jax.random.fold_in(key, size))
        if size % SNAPSHOT_EVERY == 0 or size == steps:
            mean_return = _mean_return(evaluator, algorithm, state.actor)
            snapshots.append((size, mean_return, jax.device_get(state.actor)))
            report(size, mean_return)
    return Training(
        buffer,
        np.array([s for s, _, _ in snapshots]),
        np.array([r for _, r, _ in snapshots]),
        jax.tree.map(lambda *leaves: np.stack(leaves), *(a for _, _, a in snapshots)),
    )


def load_training(path: Path, header: dict[str, Any]) -> Training | None:
    """The training stored at `path`, if there is one; it must have been made alike."""
    if not path.exists():
        return None
    try:
        arrays, found = load_arrays(path)
    except UserError as error:
        raise UserError(f"{error} Delete it to train again.") from error
    if {name: found.get(name) for name in header} != header:
        raise UserError(
            f"{path} holds a training with other settings ({found}); delete it, or choose "
            "another --out."
        )
    n = len(arrays["['steps']"])
    observation_dim, action_dim = found["dims"]
    actor = SAC().init(jax.random.key(0), Spec(observation_dim, action_dim, 1)).actor
    like = Training(
        Rows.empty(header["steps"], observation_dim, action_dim),
        np.zeros(n, dtype=np.int64),
        np.zeros(n),
        jax.tree.map(lambda leaf: np.zeros((n, *leaf.shape), np.float32), actor),
    )
    return Training(**restore(path, arrays, like.__dict__))


def parse_recipe(recipe: str) -> dict[str, float]:
    """A recipe's name, or shares such as 'medium:0.7+expert:0.3'."""
    if recipe in RECIPES:
        return RECIPES[recipe]
    parts: dict[str, float] = {}
    for part in recipe.split("+"):
        kind, _, share = part.partition(":")
        try:
            parts[kind] = float(share)
        except ValueError:
            parts[kind] = -1.0
        if kind not in ("random", "replay", "medium", "expert") or parts[kind] <= 0:
            raise UserError(
                f"Recipe {recipe!r} is not understood at {part!r}: name one of "
                f"{', '.join(RECIPES)}, or give shares of random, replay, medium and expert such "
                "as 'medium:0.7+expert:0.3'."
            )
    return parts


def record(environment: str, training: Training, recipe: str, rows: int, seed: int) -> Rows:
    """Draw a dataset of about `rows` rows from a finished training, in whole parts."""
    shares = parse_recipe(recipe)
    total = sum(shares.values())
    action_dim = training.buffer.actions.shape[1]
    algorithm = SAC()
    parts = []
    for number, (kind, share) in enumerate(shares.items()):
        wanted = max(1, round(rows * share / total))
        if kind == "replay":
            parts.append(_spread_episodes(training.buffer, wanted))
            continue
        act: Act = partial(_uniform, action_dim)
        if kind != "random":
            index = training.snapshot(kind)
            act = _actor_act(algorithm, jax.tree.map(lambda x, i=index: x[i], training.actors))
        part = _record(environment, act, wanted, seed + 1000 * (number + 1), action_dim)
        # The part may stop inside an episode: that row is a cut, not an end of the task.
        part.timeouts[-1] = not part.terminals[-1]
        parts.append(part)
    return Rows.concatenate(parts)


def _spread_episodes(buffer: Rows, rows: int) -> Rows:
    """Whole episodes, evenly spaced over the buffer's history, adding up to about `rows`."""
    last = buffer.terminals | buffer.timeouts
    ends = np.flatnonzero(last)
    if not len(ends):
        raise UserError(
            f"No episode ended within the {len(last):,} steps of the training, so there is nothing "
            "to replay. Train longer with --steps."
        )
    starts = np.concatenate([[0], ends[:-1] + 1])
    keep_every = max(1.0, len(buffer.rewards) / rows)
    chosen = np.unique(np.floor(np.arange(0, len(ends), keep_every)).astype(int))
    index = np.concatenate([np.arange(starts[e], ends[e] + 1) for e in chosen])
    return buffer.take(index)


def _check(environment: str, out: Path, steps: int, rows: int, recipe: str) -> None:
    """Everything that can be refused before hours of training."""
    parse_recipe(recipe)
    for flag, number in (("steps", steps), ("rows", rows)):
        if number < 1:
            raise UserError(f"--{flag} is {number}; it must be at least 1.")
    ActionBox(environment, make_env(environment).action_space)
    if out.suffix not in (".hdf5", ".h5"):
        raise UserError(f"--out {out} must end in .hdf5: the dataset is written in D4RL's layout.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{out.parent} cannot be made: {error.strerror or error}. Choose another --out."
        ) from error
    if not os.access(out.parent, os.W_OK):
        raise UserError(f"{out.parent} cannot be written to. Choose another --out.")


def collect(
    environment: str,
    out: Path,
    *,
    steps: int,
    rows: int,
    recipe: str,
    seed: int,
    report: Callable[[int, float], None] = lambda step, mean_return: None,
) -> dict[str, Any]:
    """Train (or reuse `OUT.sac.npz`), record, write `out` and a summary beside it."""
    _check(environment, out, steps, rows, recipe)
    header = {"environment": environment, "steps": steps, "seed": seed}
    stored = out.with_suffix(".sac.npz")
    training = load_training(stored, header)
    if training is None:
        training = train_sac(environment, steps, seed, report=report)
        dims = [training.buffer.observations.shape[1], training.buffer.actions.shape[1]]
        save_tree(stored, training.__dict__, {**header, "dims": dims})
    recorded = record(environment, training, recipe, rows, seed)
    d4rl.save(
        out,
        observations=recorded.observations,
        actions=recorded.actions,
        rewards=recorded.rewards,
        terminals=recorded.terminals,
        timeouts=recorded.timeouts,
        attrs={
            "env": environment,
            "made_by": f"acpo collect: SAC, {steps} steps, seed {seed}; not an official D4RL file",
            "recipe": recipe,
        },
    )
    summary = {
        **header,
        "recipe": parse_recipe(recipe),
        "rows": len(recorded.rewards),
        "snapshots": dict(zip(training.steps.tolist(), training.returns.tolist(), strict=True)),
        "medium_return": float(training.returns[training.snapshot("medium")]),
        "expert_return": float(training.returns[training.snapshot("expert")]),
    }
    write_json(out.with_suffix(".json"), summary)
    return summary
