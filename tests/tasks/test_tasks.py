"""The table of tasks: what stands in it is what the benchmarks, the paper and the makers say."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import acpo
from acpo.cli import main
from acpo.data import catalogue
from acpo.errors import UserError
from acpo.tasks import AUTHORS, PRESETS, TASKS, Task, dimensions, find_task, reference

# Rows of Tab-D4RL and Tab-NeoRL2, as printed.
PAPER = """
halfcheetah-medium-v2 52.5 0.76, hopper-medium-v2 97.9 2.14, walker2d-medium-v2 88.0 1.1,
halfcheetah-medium-replay-v2 47.5 0.54, hopper-medium-replay-v2 100.6 0.54,
walker2d-medium-replay-v2 93.6 1.86, halfcheetah-medium-expert-v2 97.2 1.24,
hopper-medium-expert-v2 112.3 0.72, walker2d-medium-expert-v2 113.1 0.22,
antmaze-umaze-v2 90.0 3.0, antmaze-umaze-diverse-v2 86.0 3.4, antmaze-medium-play-v2 76.0 4.24,
antmaze-medium-diverse-v2 76.0 4.24, antmaze-large-play-v2 56.0 4.94,
antmaze-large-diverse-v2 48.0 4.98, kitchen-mixed-v0 72.5 5.5, kitchen-partial-v0 64.0 15.52,
Pipeline 95.2 4.62, Simglucose 94.9 12.73, RocketRecovery 84.6 10.23,
RandomFrictionHopper 33.7 0.37, DMSD 74.9 5.67, Fusion 61.8 2.07, SafetyHalfCheetah 67.1 6.90
"""
# One task per environment: those of a body, and AntMaze's play and diverse, share theirs.
ENVIRONMENTS = list({t.environment.replace("diverse", "play"): t for t in TASKS.values()}.values())

# Scores and raw returns that robomimic's documentation reports for D4RL's tasks (BC, BCQ, CQL).
D4RL_PUBLISHED = [
    ("halfcheetah-medium-v2", 4791, 40.8),
    ("halfcheetah-medium-v2", 4497, 38.5),
    ("halfcheetah-medium-v2", 4902, 41.7),
    ("halfcheetah-medium-expert-v2", 9016, 74.9),
    ("halfcheetah-medium-expert-v2", 2389, 21.5),
    ("halfcheetah-medium-expert-v2", 9578, 79.4),
    ("hopper-medium-v2", 1181, 36.9),
    ("hopper-medium-v2", 980, 30.7),
    ("hopper-medium-v2", 3167, 97.9),
    ("hopper-medium-expert-v2", 2708, 83.8),
    ("hopper-medium-expert-v2", 3614, 111.7),
    ("hopper-medium-expert-v2", 3631, 112.2),
    ("walker2d-medium-v2", 3050, 66.4),
    ("walker2d-medium-v2", 2996, 65.2),
    ("walker2d-medium-v2", 3537, 77.0),
    ("walker2d-medium-expert-v2", 3224, 70.2),
    ("walker2d-medium-expert-v2", 3554, 77.4),
    ("walker2d-medium-expert-v2", 4683, 102.0),
]


def made(task: Task) -> Any:
    if not task.runs_here:
        pytest.skip(f"{task.name} needs {task.needs}")
    return acpo.make_env(task.name)


@pytest.mark.parametrize("task", ENVIRONMENTS, ids=lambda task: task.name)
def test_the_environment_of_a_task_has_the_sizes_in_the_table(task: Task) -> None:
    env = made(task)
    assert dimensions(env) == task.sizes[:2]
    batched = getattr(env.unwrapped, "batched", None)
    if batched is not None:
        assert batched.horizon == task.sizes.horizon
        return
    wrapped = env.has_wrapper_attr("_max_episode_steps")
    counted = sys.modules[type(env).__module__]  # NeoRL2's MuJoCo tasks count steps themselves
    limit = env.get_wrapper_attr("_max_episode_steps") if wrapped else counted.HORIZON  # type: ignore[attr-defined]
    assert limit == task.sizes.horizon


@pytest.mark.parametrize("name", ["neorl2/SafetyHalfCheetah", "neorl2/DMSD"])
def test_an_episode_that_nothing_else_ends_is_cut_at_the_horizon(name: str) -> None:
    env, steps, over = acpo.make_env(name), 0, False
    env.reset(seed=0)
    still = np.zeros(env.action_space.shape, np.float32)  # type: ignore[arg-type]
    while not over:
        _, _, terminal, over, _ = env.step(still)
        assert not terminal
        steps += 1
    assert steps == TASKS[name].sizes.horizon


def test_the_papers_24_tasks_have_its_scores_and_no_other_has() -> None:
    rows = dict(re.findall(r"(\S+) ([\d.]+ [\d.]+)", PAPER))
    printed = {name: tuple(map(float, row.split())) for name, row in rows.items()}
    assert len(printed) == 24
    assert {t.name.split("/")[1]: tuple(t.paper) for t in TASKS.values() if t.paper} == printed
    # The totals printed below the rows.
    for kind, total in (("medium", 802.7), ("antmaze", 432.0), ("kitchen", 136.5), ("", 512.2)):
        suite = "d4rl/" if kind else "neorl2/"
        chosen = [
            t.paper.mean
            for t in TASKS.values()
            if t.paper
            and t.name.startswith(suite)
            and kind in t.name
            and ("antmaze" in t.name) == (kind == "antmaze")
        ]
        assert sum(chosen) == pytest.approx(total, abs=0.05)


def test_every_dataset_is_a_task_but_for_validation_sets() -> None:
    assert sorted(TASKS) == sorted(n for n in catalogue.ENTRIES if not n.endswith("-val"))
    for name, task in TASKS.items():
        assert catalogue.ENTRIES[name].environment == task.environment
        assert find_task(f"{name}-val") is task


@pytest.mark.parametrize(("name", "episode_return", "score"), D4RL_PUBLISHED)
def test_d4rl_scores_are_those_published_with_their_returns(
    name: str, episode_return: float, score: float
) -> None:
    scale = TASKS[f"d4rl/{name}"].reference
    # Both are printed rounded: the return to 1, the score to 0.1 (some cut, not rounded).
    tolerance = 0.1 + scale.score(0.5) - scale.score(0.0)
    assert scale.score(episode_return) == pytest.approx(score, abs=tolerance)


def test_sparse_tasks_count_successes_in_percent() -> None:
    np.testing.assert_allclose(TASKS["d4rl/antmaze-umaze-v2"].reference.score(0.65), 65)
    np.testing.assert_allclose(TASKS["d4rl/kitchen-mixed-v0"].reference.score(2), 50)


def test_references_are_found_by_task_environment_authors_and_validation_set() -> None:
    dmsd = TASKS["neorl2/DMSD"].reference
    assert dmsd == (30.60, 849.51)
    assert reference("neorl2/DMSD") == reference(f"{AUTHORS}DMSD") == dmsd
    assert reference(None, "neorl2/DMSD-val") == dmsd
    assert reference("Hopper-v4") == reference("d4rl/hopper-medium-v2") == (-20.272305, 3234.3)
    assert reference("Hopper-v4", "neorl2/DMSD") == reference("Hopper-v4")
    assert reference("Pendulum-v1") is None
    assert reference(None) is None


def test_every_preset_belongs_to_a_task() -> None:
    assert {task.preset.name for task in TASKS.values()} == set(PRESETS)
    for task in TASKS.values():
        antmaze = "antmaze" in task.name
        assert task.preset.episodes == (50 if antmaze else 10)
        assert task.preset.relabel == ("reward - 1" if antmaze else None)
        assert not task.preset.normalize_observations


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("Pipeline", -296, 751),
        ("Simglucose", 9.75, 475),
        ("RocketRecovery", -176, 208),
        ("RandomFrictionHopper", -3, 503),
        ("DMSD", 30.60, 849.51),
        ("Fusion", -107.601, 98.05),
        ("SafetyHalfCheetah", -283, 2507),
    ],
)
def test_neorl2_scores_are_by_the_published_constants(name: str, least: float, most: float) -> None:
    scale = reference(f"neorl2/{name}")
    assert scale is not None
    assert scale.score(np.array([least, (least + most) / 2, most])) == pytest.approx([0, 50, 100])


def test_data_that_goes_on_after_success_has_no_score() -> None:
    kinds = {task.name.split("-")[0] for task in TASKS.values() if not task.data_comparable}
    assert kinds == {"d4rl/antmaze", "d4rl/kitchen"}


def test_a_task_of_gymnasium_s_is_made_by_its_own_name() -> None:
    for name in ("d4rl/walker2d-medium-replay-v2", "builtin/hopper-replay"):
        env = acpo.make_env(name)
        assert env.spec is not None
        assert env.spec.id == TASKS[name].environment


def test_a_name_that_is_almost_a_task_s_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no task has that name\. Did you mean neorl2/DMSD"):
        acpo.make_env("neorl2/DMDS")
    with pytest.raises(UserError, match="antmaze-umaze-v2"):
        acpo.make_env("d4rl/antmaze-umaze-v0")


# --- the authors' environments -------------------------------------------------------------------


def test_the_authors_environment_needs_their_source() -> None:
    if importlib.util.find_spec("neorl2") is not None:
        pytest.skip("NeoRL2's source is importable here")
    with pytest.raises(UserError, match="git clone https://github"):
        acpo.make_env(f"{AUTHORS}DMSD")


THEIRS = """
import gymnasium, numpy as np

class Theirs(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (6,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(6, np.float32), {}

    def step(self, action):
        return np.zeros(6, np.float32), 8.4951, False, False, {}
"""
REGISTRATION = """
import gymnasium
gymnasium.register("DMSD", entry_point="neorl2.envs:Theirs", max_episode_steps=100)
"""


def test_the_authors_environment_is_evaluated_by_its_name_and_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for their package, which registers with Gymnasium as theirs does."""
    if importlib.util.find_spec("neorl2") is not None:
        pytest.skip("NeoRL2's own source is importable here")
    import gymnasium

    (tmp_path / "neorl2").mkdir()
    (tmp_path / "neorl2" / "__init__.py").write_text(REGISTRATION)
    (tmp_path / "neorl2" / "envs.py").write_text(THEIRS)
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "numbers.json"
    words = [f"{AUTHORS}DMSD", "--policy", "random", "--episodes", "2", "--json", str(file)]
    try:
        assert main(["evaluate", *words]) == 0
    finally:
        for module in ("neorl2", "neorl2.envs"):
            sys.modules.pop(module, None)
        gymnasium.registry.pop("DMSD", None)
    found = json.loads(file.read_text())
    assert found["lengths"] == [[100, 100]]
    assert found["return_mean"] == pytest.approx(849.51)
    assert found["score_mean"] == pytest.approx(100.0)


# --- acpo tasks ----------------------------------------------------------------------------------


def test_the_table_names_every_task_in_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    rows = {line.split()[0]: line.split() for line in lines if "/" in line.split(" ")[0]}
    assert set(rows) >= set(TASKS)
    assert rows["neorl2/DMSD"][1:10] == [
        *("6/2/100", "30.6…849.51", "74.9", "±", "5.67", "0.5", "-0.5", "10", "raw"),
    ]
    assert rows["d4rl/antmaze-umaze-v2"][7:12] == ["-0.2", "50", "r", "-", "1"]
    assert rows["builtin/hopper-replay"][-2:] == ["data", "env"]


def test_the_table_says_what_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACPO_HOME", str(tmp_path))
    for name in ("gymnasium_robotics", "neorl2"):  # None: as if it were not installed
        monkeypatch.setitem(sys.modules, name, None)
    file = tmp_path / "tasks.json"

    def listed() -> dict[str, Any]:
        assert main(["tasks", "--json", str(file)]) == 0
        return {task["name"]: task for task in json.loads(file.read_text())["tasks"]}

    before = listed()
    data = tmp_path / "datasets" / "neorl2" / "DMSD-train.npz"
    data.parent.mkdir(parents=True)
    data.write_bytes(b"")
    after = listed()
    assert before["neorl2/DMSD"]["data_here"] is None
    assert after["neorl2/DMSD"]["data_here"] == str(data)
    assert after["neorl2/Pipeline"]["data_here"] is None
    absent = {name for name, task in after.items() if not task["environment_here"]}
    assert absent == {"neorl2/Fusion", *(name for name in TASKS if "kitchen" in name)}
    assert after["neorl2/DMSD"]["preset"]["epsilon"] == -0.5
    assert after["neorl2/DMSD"]["horizon"] == 100


def test_a_package_without_the_folder_that_a_task_needs_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NeoRL2's wheel lacks its data."""
    if importlib.util.find_spec("neorl2") is not None:
        pytest.skip("NeoRL2's own source is importable here")
    (tmp_path / "neorl2").mkdir()
    (tmp_path / "neorl2" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert not TASKS["neorl2/Fusion"].runs_here
    (tmp_path / str(TASKS["neorl2/Fusion"].needs)).mkdir(parents=True)
    assert TASKS["neorl2/Fusion"].runs_here


def test_one_task_shows_all_its_facts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACPO_HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    assert main(["tasks", "d4rl/kitchen-mixed-v0"]) == 0
    printed = capsys.readouterr().out
    for fact in (
        "60 observations, 9 actions, at most 280 steps",
        "return 0 scores 0, 4 scores 100",
        "ACPO scores 72.5 ± 5.5 (deviation over 5 seeds)",
        "10 episodes, the reward as recorded",
        "α 0.1, ε -1, observations raw",
        "--preset paper-d4rl-kitchen",
        "not here: needs gymnasium_robotics (pip install 'acpo[robotics]')",
        "not here; fetched when it is first used",
    ):
        assert fact in printed
    assert main(["tasks", "neorl2/Simglucose"]) == 0
    assert "--env neorl2-authors/Simglucose" in capsys.readouterr().out
    assert main(["tasks", "d4rl/antmaze-umaze-v2"]) == 0
    assert "50 episodes, the reward trained on 'reward - 1'" in capsys.readouterr().out


def test_an_unknown_task_is_answered_with_near_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks", "DMDS"]) == 2
    assert "No task is named 'DMDS'. Did you mean neorl2/DMSD?" in capsys.readouterr().err


def test_listing_tasks_imports_no_simulator_and_no_jax() -> None:
    script = (
        "import sys; from acpo.cli import main; code = main(['tasks'])\n"
        "print(sorted({'jax', 'gymnasium', 'mujoco', 'polars', 'h5py'} & set(sys.modules)))\n"
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
