from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import polars as pl
import pytest

import acpo
from acpo.algorithms import ALGORITHMS, choose, find_preset, make_algorithm
from acpo.algorithms.acpo import ACPO
from acpo.algorithms.base import Spec
from acpo.algorithms.bc import BC
from acpo.cli import main
from acpo.commands.train import parse, summary
from acpo.data import DataOptions
from acpo.errors import UserError
from acpo.tasks import PRESETS, TASKS
from acpo.training.loop import TrainConfig

# ε in the last rows of Tab-D4RL-Hyperparameters and Tab-NeoRL2-Hyperparameters.
EPSILON = {
    "paper-d4rl-hopper": -5.0,
    "paper-d4rl-halfcheetah": -0.2,
    "paper-d4rl-antmaze": -0.2,
    "paper-d4rl-walker2d": -0.7,
    "paper-d4rl-kitchen": -1.0,
    "paper-neorl2-simglucose": -5.0,
    "paper-neorl2-pipeline": -5.0,
    "paper-neorl2-safetyhalfcheetah": -10.0,
    "paper-neorl2-rocketrecovery": -10.0,
    "paper-neorl2-fusion": -10.0,
    "paper-neorl2-randomfrictionhopper": -2.0,
    "paper-neorl2-dmsd": -0.5,
}
ALPHA = {"d4rl": 0.1, "neorl2": 0.5}


def first_lambda(algorithm: ACPO) -> float:
    state = replace(algorithm, hidden=(4,), value_start=0.0).init(jax.random.key(0), Spec(2, 1, 1))
    return float(state.lam)


def test_every_preset_is_a_row_of_the_papers_tables() -> None:
    assert set(PRESETS) == set(EPSILON)


def test_the_methods_are_known_by_name() -> None:
    theirs = {"td3_bc", "iql", "eql", "spot", "bcq", "cql", "mcq", "edac", "dtql", "swg"}
    assert set(ALGORITHMS) == {"acpo", "awac", "inac", "wbc", "bc"} | theirs
    for name in ("acpo", "awac", "inac", "wbc"):
        assert isinstance(make_algorithm(name), ACPO)
    assert isinstance(make_algorithm("bc"), BC)
    assert make_algorithm() == make_algorithm("acpo", "default")


@pytest.mark.parametrize("preset", EPSILON)
def test_a_paper_preset_is_the_papers_table(preset: str) -> None:
    algorithm = make_algorithm("acpo", preset)
    alpha = ALPHA[preset.split("-")[1]]
    assert algorithm.hidden == (256, 256)
    assert algorithm.behavior.layers == (512, 512)
    assert algorithm.learning_rate == 5e-4
    assert algorithm.final_learning_rate == 1e-4
    assert algorithm.behavior.learning_rate == 1e-4
    assert algorithm.tau == 5e-3
    assert algorithm.batch_size == 256
    assert algorithm.gamma == 0.99
    assert algorithm.alpha == alpha
    assert algorithm.rule.lam_rate == 1e-5
    assert not algorithm.rule.lam_waits
    assert algorithm.rule.slack_steps == 1
    assert algorithm.rule.epsilon == EPSILON[preset]
    assert first_lambda(algorithm) == pytest.approx(alpha)


@pytest.mark.parametrize("preset", ["paper-d4rl-hopper", "paper-neorl2-dmsd"])
def test_where_the_paper_is_silent_its_presets_take_the_plainest_choice(preset: str) -> None:
    for name in ("acpo", "inac"):
        algorithm = make_algorithm(name, preset)
        assert algorithm.head == "plain"
        assert algorithm.layer_norm is False
        assert algorithm.reward_scale == 1.0
        assert algorithm.advantage_spread_max is None
        assert algorithm.weight_spread is None
        assert algorithm.normalize_weights is False
        assert algorithm.normalize_observations is False
    cloning = make_algorithm("bc", preset)
    assert (cloning.head, cloning.normalize_observations) == ("plain", False)


@pytest.mark.parametrize(
    ("departure", "papers"),
    [
        ("actor_average", 0.0),
        ("tau", 5e-3),
        ("value_start", 0.0),
        ("entropy_price", 1.0),
        ("cloning_share", 0.0),
    ],
)
def test_the_papers_presets_take_none_of_our_departures(departure: str, papers: float) -> None:
    for name in ("acpo", "awac", "inac", "wbc"):
        algorithm = make_algorithm(name, "paper-d4rl-hopper")
        assert getattr(algorithm, departure) == papers


@pytest.mark.parametrize("preset", ["default", "paper-d4rl-hopper", "paper-neorl2-dmsd"])
def test_each_method_has_its_own_lambda_under_every_preset(preset: str) -> None:
    awac, inac, wbc = (make_algorithm(name, preset) for name in ("awac", "inac", "wbc"))
    assert first_lambda(awac) == pytest.approx(awac.alpha)
    assert first_lambda(inac) == 0.0
    assert first_lambda(wbc) == 100.0
    for fixed in (awac, inac, wbc):
        assert fixed.rule.lam_rate == 0.0
    assert make_algorithm("acpo", preset).rule.lam_rate > 0


@pytest.mark.parametrize("name", TASKS)
def test_the_preset_paper_is_the_row_of_the_task(name: str) -> None:
    suite, _, task = name.replace("builtin/", "d4rl/").partition("/")
    row = f"paper-{suite}-{task.split('-')[0].lower()}"
    for method in ("acpo", "bc"):
        assert make_algorithm(method, "paper", name) == make_algorithm(method, row)
    assert make_algorithm("acpo", "paper", name).rule.epsilon == EPSILON[row]


def test_a_row_by_its_name_is_preferred_to_that_of_the_task() -> None:
    assert find_preset("paper-d4rl-hopper", "neorl2/DMSD") == PRESETS["paper-d4rl-hopper"]
    assert find_preset("default", "neorl2/DMSD-val") == PRESETS["paper-neorl2-dmsd"]
    assert find_preset("default", "mine.hdf5") is None


def test_joined_tasks_have_a_row_if_they_share_it() -> None:
    mazes = "d4rl/antmaze-umaze-v2+d4rl/antmaze-large-play-v2"
    assert find_preset("paper", mazes) == PRESETS["paper-d4rl-antmaze"]
    for mixed in ("d4rl/hopper-medium-v2+d4rl/walker2d-medium-v2", "d4rl/hopper-medium-v2+x.hdf5"):
        assert find_preset("default", mixed) is None
        with pytest.raises(UserError, match="is not one"):
            find_preset("paper", mixed)


@pytest.mark.parametrize("dataset", [None, "mine.hdf5"])
def test_the_preset_paper_without_a_task_names_the_choices(dataset: str | None) -> None:
    with pytest.raises(UserError) as caught:
        make_algorithm("acpo", "paper", dataset)
    assert "(acpo tasks)" in str(caught.value)
    assert all(row in str(caught.value) for row in EPSILON)


# --- the same as flags ---------------------------------------------------------------------------


def test_a_preset_gives_the_defaults_of_the_flags() -> None:
    arguments = parse(["d4rl/antmaze-umaze-v2", "--preset", "paper", "--steps", "7"])
    assert arguments.config == make_algorithm("acpo", "paper-d4rl-antmaze")
    assert arguments.data == DataOptions(relabel="reward - 1")
    assert arguments.training == TrainConfig(episodes=50, steps=7)


def test_every_field_of_a_preset_can_be_overridden() -> None:
    flags = "--alpha 0.3 --epsilon -1.5 --episodes 4 --relabel reward --normalize-observations"
    words = ["--hidden", "8", "8", "--preset=paper", *flags.split(), "--env", "neorl2/DMSD"]
    arguments = parse([*words, "--seeds", "2", "--", "d4rl/antmaze-umaze-v2"])
    assert arguments.dataset == "d4rl/antmaze-umaze-v2"
    expected = make_algorithm("acpo", "paper-d4rl-antmaze")
    rule = replace(expected.rule, epsilon=-1.5)
    changed = {"alpha": 0.3, "rule": rule, "normalize_observations": True, "hidden": (8, 8)}
    assert arguments.config == replace(expected, **changed)
    assert (arguments.training.episodes, arguments.data.relabel) == (4, "reward")


def test_by_default_a_task_has_its_own_evaluation_and_reward_but_our_algorithm() -> None:
    arguments = parse(["d4rl/antmaze-large-diverse-v2"])
    assert arguments.config == make_algorithm("acpo")
    assert (arguments.training.episodes, arguments.data.relabel) == (50, "reward - 1")
    assert parse(["d4rl/antmaze-large-diverse-v2", "--relabel", "None"]).data.relabel is None
    for words in ([], ["mine.hdf5"], ["neorl2/DMSD"]):
        arguments = parse(words)
        assert (arguments.training, arguments.data) == (TrainConfig(), DataOptions())


@pytest.mark.parametrize(
    ("methods", "reward"),
    [
        ("acpo awac inac wbc bc td3_bc iql eql spot mcq dtql swg", "reward - 1"),
        ("cql", "4*reward - 2"),
        ("bcq edac", None),
    ],
)
def test_in_antmaze_a_method_learns_from_the_reward_of_its_own_source(
    methods: str, reward: str | None
) -> None:
    for method in methods.split():
        assert choose(method, "default", "d4rl/antmaze-umaze-v2").relabel == reward
        if not isinstance(ALGORITHMS[method], ACPO | BC):
            assert choose(method, "antmaze").relabel == reward, "a suite by name is no other"


def test_where_rewards_may_be_negative_mcq_has_no_floor() -> None:
    for preset in ("antmaze", "neorl2", "antmaze-umaze-v2", "DMSD"):
        assert make_algorithm("mcq", preset).floor is None
    assert make_algorithm("mcq").floor == 0.0


def test_help_shows_the_numbers_of_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        parse(["d4rl/antmaze-umaze-v2", "--help", "--preset", "paper"])
    assert stopped.value.code == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "Episodes per evaluation and seed. (default: 50)" in shown
    assert "(default: 'reward - 1')" in shown


def test_the_reward_of_a_preset_is_trained_on_and_has_no_score(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--algorithm", "bc", "--hidden", "16", "16", "--steps", "10", "--log-every", "10"]
    row = ["--preset", "paper-d4rl-antmaze", "--episodes", "1", "--out", str(tmp_path / "run")]
    assert main(["train", str(hopper_file), *flags, *row]) == 0
    found = json.loads((tmp_path / "run" / "summary.json").read_text())
    data = acpo.load_dataset(hopper_file)
    expected = np.sum(data.rewards - 1.0, dtype=np.float64) / data.num_episodes
    assert found["data_mean_return"] == pytest.approx(expected, rel=1e-5)
    assert found["relabel"] == "reward - 1"
    assert "data_mean_score" not in found
    assert "score_mean" in found
    printed = capsys.readouterr().out
    assert "reward    reward - 1" in printed
    assert f"data      return {expected:.0f} of 'reward - 1'" in printed


@pytest.mark.parametrize(
    ("name", "scored"), [("d4rl/kitchen-complete-v0", False), ("neorl2/DMSD", True)]
)
def test_a_summary_scores_data_only_where_that_means_something(name: str, scored: bool) -> None:
    data = SimpleNamespace(name=name, mean_return=849.51, fingerprint="")
    metrics = pl.DataFrame({"seed": [0], "step": [10]})
    run: Any = SimpleNamespace(
        **{"algorithm": None, "data": data, "environment": name, "directory": None},
        **{"metrics": metrics, "final_returns": np.array([2.0])},
    )
    found = summary(run)
    assert "score_mean" in found
    assert found.get("data_mean_score") == (pytest.approx(100.0) if scored else None)


def test_returns_of_another_environment_have_no_score_of_the_datas_task() -> None:
    data = SimpleNamespace(name="builtin/hopper-replay", mean_return=600.0, fingerprint="")
    metrics = pl.DataFrame({"seed": [0], "step": [10]})
    run: Any = SimpleNamespace(
        **{"algorithm": None, "data": data, "environment": "Hopper-v5", "directory": None},
        **{"metrics": metrics, "final_returns": np.array([2.0])},
    )
    found = summary(run)
    assert "data_mean_score" in found
    assert "score_mean" not in found


def test_the_methods_share_everything_but_the_rule() -> None:
    dial = make_algorithm("acpo")
    for name in ("awac", "inac", "wbc"):
        method = make_algorithm(name)
        assert method.rule != dial.rule
        assert replace(method, rule=dial.rule) == dial


@pytest.mark.parametrize(
    ("name", "preset", "message"),
    [
        ("acpoo", "default", "No algorithm is named 'acpoo'. Did you mean 'acpo'?"),
        ("AWAC", "default", "No algorithm is named 'AWAC'. Did you mean 'awac'?"),
        ("acpo", "paper-d4rl-hoper", "Did you mean 'paper-d4rl-hopper'?"),
        ("acpo", "paper-d4rl-Walker2D", "Did you mean 'paper-d4rl-walker2d'?"),
        ("acpo", "antmaze", "No preset of ACPO and BC is named 'antmaze'"),
        ("cql", "paper", "No preset of CQL is named 'paper'"),
        ("iql", "foo/hopper-medium-v2", "No preset of IQL is named 'foo/hopper-medium-v2'"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name: str, preset: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_algorithm(name, preset)
    assert message in str(caught.value)


def test_a_task_is_a_preset_with_or_without_its_suite() -> None:
    by_name = make_algorithm("edac", "hopper-medium-v2")
    assert by_name == make_algorithm("edac", "d4rl/hopper-medium-v2") != make_algorithm("edac")


@pytest.mark.parametrize(
    ("name", "preset", "known"),
    [
        ("iql", "neorl2", False),
        ("iql", "DMSD", False),
        ("edac", "DMSD", True),
        ("td3_bc", "DMSD", True),
        ("bcq", "kitchen", True),
        ("spot", "hopper-medium-v2", True),
    ],
)
def test_a_method_says_where_its_settings_are_those_for_another_suite(
    name: str, preset: str, known: bool
) -> None:
    note = f"no settings for {preset} were found: those for Gym-MuJoCo"
    assert choose(name, preset).note == (None if known else note)


def test_a_name_unlike_any_is_answered_with_the_list() -> None:
    with pytest.raises(UserError) as caught:
        make_algorithm("dreamer")
    assert "Did you mean" not in str(caught.value)
    assert "acpo, awac, inac, wbc, bc" in str(caught.value)
