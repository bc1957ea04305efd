"""acpo evaluate: the returns of a run's policies, printed and stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import acpo
from acpo.cli import main
from acpo.evaluation.rollouts import Rollouts
from acpo.policy import load_policy
from harness import run_acpo


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def evaluate(*words: Any) -> int:
    return main(["evaluate", *map(str, words)])


def test_the_real_command_prints_and_stores_raw_returns(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    done = run_acpo("evaluate", run, "--episodes", 3, "--seed", 5, "--json", file)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert json.loads((run / "evaluation-seed5-x3.json").read_text()) == found
    assert f"return {found['return_mean']:.1f} ± 0.0" in done.stdout
    assert "over 3 episodes of Hopper-v4" in done.stdout

    policy, env = acpo.load_policy(run), acpo.make_env("Hopper-v4")
    for episode, total in enumerate(found["returns"][0]):
        observation, _ = env.reset(seed=5 + episode)
        expected, over = 0.0, False
        while not over:
            observation, reward, terminal, timeout, _ = env.step(policy(observation))
            expected, over = expected + float(reward), terminal or timeout
        assert total == pytest.approx(expected, rel=1e-3)
    assert found["return_mean"] == pytest.approx(np.mean(found["returns"]))


def test_the_same_seed_gives_the_same_numbers_and_another_others(run: Path) -> None:
    stored = run / "evaluation-seed3-x2.json"
    assert evaluate(run, "--episodes", 2, "--seed", 3) == 0
    first = json.loads(stored.read_text())
    assert evaluate(run, "--episodes", 2, "--seed", 3) == 0
    assert json.loads(stored.read_text()) == first
    assert evaluate(run, "--episodes", 2, "--seed", 30) == 0
    other = json.loads((run / "evaluation-seed30-x2.json").read_text())
    assert other["returns"] != first["returns"]


def test_a_policy_file_is_enough(run: Path, tmp_path: Path) -> None:
    policy = shutil.copy(run / "policies" / "seed-0.npz", tmp_path / "mine.npz")
    file = tmp_path / "numbers.json"
    assert evaluate(policy, "--episodes", 2, "--json", file) == 0
    assert evaluate(run, "--episodes", 2) == 0
    stored = json.loads((run / "evaluation-seed0-x2.json").read_text())
    assert json.loads(file.read_text())["returns"] == stored["returns"]


def test_several_policies_are_evaluated_and_averaged(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(run)
    policy.info["seed"] = 1
    policy.actor.network.biases[-1][:] += 1
    policy.save(run / "policies" / "seed-1.npz")
    assert evaluate(run, "--episodes", 2) == 0
    assert "over 2 policies × 2 episodes" in capsys.readouterr().out
    found = json.loads((run / "evaluation-seed0-x2.json").read_text())
    per_seed = np.mean(found["returns"], axis=1)
    assert found["policy_seeds"] == [0, 1]
    assert per_seed[0] != per_seed[1]
    assert found["return_mean"] == pytest.approx(per_seed.mean())
    assert found["return_std"] == pytest.approx(per_seed.std())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--episodes", 0], "--episodes is 0"),
        (["--seed", -1], "--seed is -1"),
        (["--env", "Walker2d-v4"], "The policy has 11 observations and 3 actions"),
        (["--env", "Hoper-v4"], "'Hoper-v4' cannot be made"),
        (["--json", "/dev/null/x.json"], "Could not write"),
    ],
)
def test_bad_flags_are_refused(
    words: list[Any], message: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(run, "--episodes", 1, *words) == 2
    assert message in capsys.readouterr().err


def test_an_absent_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(tmp_path / "absent") == 2
    assert str(tmp_path / "absent") in capsys.readouterr().err
    assert evaluate(tmp_path) == 2
    assert "holds no policy" in capsys.readouterr().err


def test_a_policy_without_environment_asks_for_one(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = load_policy(run)
    policy.info["environment"] = None
    policy.save(run / "policies" / "seed-0.npz")
    assert evaluate(run) == 2
    assert "give one with --env" in capsys.readouterr().err
    assert evaluate(run, "--env", "Hopper-v4", "--episodes", 1) == 0


# --- a task by its name --------------------------------------------------------------------------


@pytest.fixture
def official(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real files stand where downloads would."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "datasets").symlink_to(shared_data)
    monkeypatch.setenv("ACPO_HOME", str(home))


def numbers(tmp_path: Path, *words: Any) -> dict[str, Any]:
    file = tmp_path / "numbers.json"
    assert evaluate(*words, "--json", file) == 0
    return json.loads(file.read_text())


def test_random_actions_are_uniform_in_the_box_and_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a loop of one's own over two episodes; Hopper's box is [−1, 1]."""
    name = "d4rl/hopper-medium-v2"
    found = numbers(tmp_path, name, "--policy", "random", "--episodes", 2, "--seed", 3)
    envs = [acpo.make_env("Hopper-v4") for _ in range(2)]
    for e, env in enumerate(envs):
        env.reset(seed=3 + e)
    generator = np.random.default_rng([3, 1])
    totals, running = np.zeros(2), np.ones(2, bool)
    while running.any():
        actions = generator.uniform(-1, 1, (2, 3)).astype(np.float32)
        for e in np.flatnonzero(running):
            _, reward, terminal, timeout, _ = envs[e].step(actions[e])
            totals[e] += float(reward)
            running[e] = not (terminal or timeout)
    np.testing.assert_allclose(found["returns"], [totals], rtol=1e-6)
    error = abs(totals[0] - totals[1]) / 2  # of the mean of two
    assert found["return_mean"] == pytest.approx(totals.mean())
    assert found["return_error"] == pytest.approx(error)
    assert found["score_mean"] == pytest.approx((totals.mean() + 20.272305) / 32.54572305)
    assert found["score_error"] == pytest.approx(error / 32.54572305)
    assert (found["policy"], found["task"]) == ("random", name)
    text = f"score {found['score_mean']:.1f} ± {found['score_error']:.1f} (return "
    assert text in capsys.readouterr().out


def test_random_actions_reach_the_ends_of_another_box(tmp_path: Path) -> None:
    """Pendulum's box is [−2, 2], its cost of an action a is a²/1000: at most 0.004."""
    found = numbers(tmp_path, "Pendulum-v1", "--policy", "random", "--episodes", 1)
    env = acpo.make_env("Pendulum-v1")
    env.reset(seed=0)
    generator = np.random.default_rng([0, 1])
    total = sum(
        float(env.step(2 * generator.uniform(-1, 1, 1).astype(np.float32))[1]) for _ in range(200)
    )
    assert found["returns"][0][0] == pytest.approx(total, rel=1e-3)
    assert found["return_error"] == 0.0
    assert "score_mean" not in found


def test_random_numbers_repeat_with_their_seed_and_differ_with_another(tmp_path: Path) -> None:
    words = ("neorl2/DMSD", "--policy", "random", "--episodes", 3)
    first = numbers(tmp_path, *words)
    assert numbers(tmp_path, *words) == first
    other = numbers(tmp_path, *words, "--seed", 100)
    assert set(other["returns"][0]).isdisjoint(first["returns"][0])


@pytest.mark.parametrize(
    ("name", "episodes"),
    [
        ("neorl2/DMSD", 200),
        ("neorl2/RandomFrictionHopper", 50),
        ("d4rl/walker2d-medium-v2", 50),
        ("d4rl/halfcheetah-medium-v2", 5),
    ],
)
def test_random_actions_score_about_nothing(name: str, episodes: int, tmp_path: Path) -> None:
    found = numbers(tmp_path, name, "--policy", "random", "--episodes", episodes)
    assert abs(found["score_mean"]) < 1 + 2 * found["score_error"] < 4


@pytest.mark.parametrize(
    ("name", "score", "episodes"),
    [
        ("neorl2/DMSD", 56.6, 1000),
        ("neorl2/DMSD-val", 55.0, 200),
        ("neorl2/Simglucose", 73.9, 280),
        ("neorl2/SafetyHalfCheetah", 73.6, 18),
    ],
)
def test_the_official_data_has_the_score_that_neorl2_publishes(
    name: str, score: float, episodes: int, official: None, tmp_path: Path
) -> None:
    found = numbers(tmp_path, name, "--policy", "data")
    assert found["score_mean"] == pytest.approx(score, abs=0.05)
    assert found["episodes"] == episodes == len(found["returns"][0]) == len(found["lengths"][0])


def test_the_data_is_its_recorded_episodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = acpo.load_dataset("builtin/hopper-replay")
    found = numbers(tmp_path, "builtin/hopper-replay", "--policy", "data")
    assert found["returns"] == [data.episode_returns.tolist()]
    assert found["lengths"] == [data.episode_lengths.tolist()]
    deviation = np.sqrt(np.sum((data.episode_returns - data.mean_return) ** 2) / 610)
    assert found["return_error"] == pytest.approx(deviation / np.sqrt(611))
    assert found["environment"] == "Hopper-v4"
    assert "score 18.1 ± 0.7 (return 569.8" in capsys.readouterr().out


def test_kitchen_s_data_has_returns_but_no_score(
    official: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = numbers(tmp_path, "d4rl/kitchen-complete-v0", "--policy", "data")
    assert "score_mean" not in found
    assert found["episodes"] == 19
    assert "no score: recorded trajectories go on after success" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "usual"), [("neorl2/DMSD", 10), ("d4rl/antmaze-umaze-v2", 50)])
def test_a_task_has_its_usual_number_of_episodes(
    name: str, usual: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Evaluator:
        def __init__(self, environment: str, episodes: int) -> None:
            self.episodes = episodes

        def __call__(self, policies: Any, seed: int) -> Rollouts:
            return Rollouts(np.zeros((1, self.episodes)), np.ones((1, self.episodes), int))

    monkeypatch.setattr("acpo.commands.evaluate.Evaluator", Evaluator)
    assert numbers(tmp_path, name, "--policy", "random")["episodes"] == usual


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["neorl2/DMSD"], "say which policy: --policy random, or --policy data"),
        (["{run}", "--policy", "random"], "A run is evaluated without --policy"),
        (["{run}", "--policy", "data"], "A run is evaluated without --policy"),
        (["neorl2/DMSD", "--policy", "random", "--env", "Hopper-v4"], "Leave --env out"),
        (["neorl2/DMSD", "--policy", "data", "--episodes", "3"], "gives all recorded episodes"),
        (["neorl2/DMSD", "--policy", "data", "--seed", "3"], "gives all recorded episodes"),
        (["neorl2/DMDS", "--policy", "data"], "Did you mean neorl2/DMSD"),
        (["neorl2/DMDS", "--policy", "random"], "Did you mean neorl2/DMSD"),
        (["Hopper-v4", "--policy", "data"], "'Hopper-v4' is none"),
        (["Hoper-v4", "--policy", "random"], "'Hoper-v4' cannot be made"),
        (["CartPole-v1", "--policy", "random"], "only flat continuous"),
        (["neorl2/DMSD", "--policy", "random", "--episodes", "0"], "--episodes is 0"),
    ],
)
def test_mixtures_are_refused(
    words: list[str], message: str, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(*(word.format(run=finished_run) for word in words)) == 2
    assert message in capsys.readouterr().err
