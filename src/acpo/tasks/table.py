"""The tasks by name, and the rows of the paper's tables that belong to each."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

# Environments of NeoRL2's authors, where their source is importable: neorl2-authors/DMSD.
AUTHORS = "neorl2-authors/"


class Reference(NamedTuple):
    """Returns that count as 0 and as 100."""

    minimum: float
    maximum: float

    def score(self, episode_return: Any) -> Any:
        """100 · (R − min) / (max − min)."""
        return 100.0 * (episode_return - self.minimum) / (self.maximum - self.minimum)


class Sizes(NamedTuple):
    """Numbers in an observation and in an action, and the steps after which an episode is cut."""

    observations: int
    actions: int
    horizon: int


class PaperScore(NamedTuple):
    """ACPO's normalised score in the paper's tables, over five seeds on D4RL, three on NeoRL2."""

    mean: float
    deviation: float


class Preset(NamedTuple):
    """What the paper sets by task (Tab-D4RL-Hyperparameters, Tab-NeoRL2-Hyperparameters)."""

    name: str
    alpha: float
    """α, the temperature."""
    epsilon: float
    """ε, the bound on E[log πβ(a|s)]."""
    episodes: int = 10
    """Episodes per evaluation."""
    relabel: str | None = None
    """Reward to train on, as an expression; None: the recorded one. The paper does not say; −1 in
    AntMaze is the field's habit."""
    normalize_observations: bool = False
    """Z-score observations. The paper does not say; raw is the plainest."""


PRESETS = {
    preset.name: preset
    for preset in (
        Preset("paper-d4rl-hopper", 0.1, -5.0),
        Preset("paper-d4rl-halfcheetah", 0.1, -0.2),
        Preset("paper-d4rl-antmaze", 0.1, -0.2, episodes=50, relabel="reward - 1"),
        Preset("paper-d4rl-walker2d", 0.1, -0.7),
        Preset("paper-d4rl-kitchen", 0.1, -1.0),
        Preset("paper-neorl2-simglucose", 0.5, -5.0),
        Preset("paper-neorl2-pipeline", 0.5, -5.0),
        Preset("paper-neorl2-safetyhalfcheetah", 0.5, -10.0),
        Preset("paper-neorl2-rocketrecovery", 0.5, -10.0),
        Preset("paper-neorl2-fusion", 0.5, -10.0),
        Preset("paper-neorl2-randomfrictionhopper", 0.5, -2.0),
        Preset("paper-neorl2-dmsd", 0.5, -0.5),
    )
}


@dataclass(frozen=True)
class Task:
    """An environment, the data recorded in it, its scores and the paper's settings by one name.

    Args:
        name: "suite/task"; its dataset in `acpo data list` has the same.
        environment: What `acpo.make_env` makes for it.
        reference: Returns that score 0 and 100.
        preset: The paper's settings; of Hopper for data of our own from Hopper.
        paper: The paper's result, where the task is one of its 24.
        needs: Package, or folder in a package, that the environment needs beyond this one's own
            dependencies.
        data_comparable: Whether recorded returns can be scored like a policy's. In AntMaze and
            Kitchen they cannot: recorded trajectories go on after success.
    """

    name: str
    environment: str
    sizes: Sizes
    reference: Reference
    preset: Preset
    paper: PaperScore | None = None
    needs: str | None = None
    data_comparable: bool = True

    @property
    def suite(self) -> str:
        """mujoco, antmaze, kitchen or neorl2: what other methods' settings are known by."""
        kind = self.name.partition("/")[2].split("-")[0]
        if kind in ("antmaze", "kitchen"):
            return kind
        return "neorl2" if self.name.startswith("neorl2/") else "mujoco"

    @property
    def runs_here(self) -> bool:
        """Whether its environment can be made here; nothing is imported to find out."""
        if self.needs is None:
            return True
        package, _, folder = self.needs.partition("/")
        spec = importlib.util.find_spec(package)
        roots = spec.submodule_search_locations if spec else None
        return any((Path(root) / folder).is_dir() for root in roots or ())


# D4RL's references are for gymnasium's v4 tasks, whose rewards match its own.
_BODIES = {
    "halfcheetah": ("HalfCheetah-v4", Sizes(17, 6, 1000), Reference(-280.178953, 12135.0)),
    "hopper": ("Hopper-v4", Sizes(11, 3, 1000), Reference(-20.272305, 3234.3)),
    "walker2d": ("Walker2d-v4", Sizes(17, 6, 1000), Reference(1.629008, 4592.3)),
}
_NEORL2 = {
    "Pipeline": (Sizes(52, 1, 1000), Reference(-296, 751)),
    "Simglucose": (Sizes(31, 1, 480), Reference(9.75, 475)),
    "RocketRecovery": (Sizes(7, 2, 500), Reference(-176, 208)),
    "RandomFrictionHopper": (Sizes(13, 3, 1000), Reference(-3, 503)),
    "DMSD": (Sizes(6, 2, 100), Reference(30.60, 849.51)),
    "Fusion": (Sizes(15, 6, 100), Reference(-107.601, 98.05)),
    "SafetyHalfCheetah": (Sizes(18, 6, 1000), Reference(-283, 2507)),
}
# Tab-D4RL and Tab-NeoRL2, last columns; kitchen-complete is not in them.
_PAPER_SCORES = {
    "d4rl/halfcheetah-medium-v2": PaperScore(52.5, 0.76),
    "d4rl/hopper-medium-v2": PaperScore(97.9, 2.14),
    "d4rl/walker2d-medium-v2": PaperScore(88.0, 1.1),
    "d4rl/halfcheetah-medium-replay-v2": PaperScore(47.5, 0.54),
    "d4rl/hopper-medium-replay-v2": PaperScore(100.6, 0.54),
    "d4rl/walker2d-medium-replay-v2": PaperScore(93.6, 1.86),
    "d4rl/halfcheetah-medium-expert-v2": PaperScore(97.2, 1.24),
    "d4rl/hopper-medium-expert-v2": PaperScore(112.3, 0.72),
    "d4rl/walker2d-medium-expert-v2": PaperScore(113.1, 0.22),
    "d4rl/antmaze-umaze-v2": PaperScore(90.0, 3.0),
    "d4rl/antmaze-umaze-diverse-v2": PaperScore(86.0, 3.4),
    "d4rl/antmaze-medium-play-v2": PaperScore(76.0, 4.24),
    "d4rl/antmaze-medium-diverse-v2": PaperScore(76.0, 4.24),
    "d4rl/antmaze-large-play-v2": PaperScore(56.0, 4.94),
    "d4rl/antmaze-large-diverse-v2": PaperScore(48.0, 4.98),
    "d4rl/kitchen-mixed-v0": PaperScore(72.5, 5.5),
    "d4rl/kitchen-partial-v0": PaperScore(64.0, 15.52),
    "d4rl/kitchen-complete-v0": None,
    "neorl2/Pipeline": PaperScore(95.2, 4.62),
    "neorl2/Simglucose": PaperScore(94.9, 12.73),
    "neorl2/RocketRecovery": PaperScore(84.6, 10.23),
    "neorl2/RandomFrictionHopper": PaperScore(33.7, 0.37),
    "neorl2/DMSD": PaperScore(74.9, 5.67),
    "neorl2/Fusion": PaperScore(61.8, 2.07),
    "neorl2/SafetyHalfCheetah": PaperScore(67.1, 6.90),
}


def _tasks() -> Iterator[Task]:
    yield Task("builtin/hopper-replay", *_BODIES["hopper"], PRESETS["paper-d4rl-hopper"])
    for name, paper in _PAPER_SCORES.items():
        suite, _, rest = name.partition("/")
        kind = rest.split("-")[0]
        preset = PRESETS[f"paper-{suite}-{kind.lower()}"]
        if suite == "neorl2":
            needs = "neorl2/envs/data/fusion_lstm/weights" if kind == "Fusion" else None
            yield Task(name, name, *_NEORL2[kind], preset, paper, needs)
        elif kind == "antmaze":
            sizes = Sizes(29, 8, 700 if "umaze" in rest else 1000)
            scale = Reference(0.0, 1.0)
            yield Task(name, name, sizes, scale, preset, paper, data_comparable=False)
        elif kind == "kitchen":
            sizes, scale = Sizes(60, 9, 280), Reference(0.0, 4.0)
            yield Task(name, name, sizes, scale, preset, paper, "gymnasium_robotics", False)
        else:
            yield Task(name, *_BODIES[kind], preset, paper)


TASKS: dict[str, Task] = {task.name: task for task in _tasks()}


def find_task(name: str) -> Task | None:
    """The task of a name: its own, or that of its validation data or of its environment.

    Where an environment has several tasks it is the first: they share all but data and scores.
    """
    name = name.replace(AUTHORS, "neorl2/").removesuffix("-val")
    return TASKS.get(name) or next((t for t in TASKS.values() if t.environment == name), None)


def reference(environment: str | None, dataset: str = "") -> Reference | None:
    """The reference returns of an environment or task, or else those of a dataset by name."""
    task = find_task(environment or "") or find_task(dataset)
    return task.reference if task else None


def suggestion(name: str) -> str:
    """What to say of a name that no task has."""
    from acpo.data.catalogue import similar

    near = [known for known in similar(name) if known in TASKS]
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return f"{hint}acpo tasks lists the names."
