from __future__ import annotations

from dataclasses import replace

import jax
import pytest

from acpo.algorithms import ALGORITHMS, PRESETS, make_algorithm
from acpo.algorithms.acpo import ACPO
from acpo.algorithms.base import Spec
from acpo.algorithms.bc import BC
from acpo.errors import UserError

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
    state = replace(algorithm, hidden=(4,)).init(jax.random.key(0), Spec(2, 1, 1))
    return float(state.lam)


def test_every_preset_is_one_of_the_papers_tasks_or_ours() -> None:
    assert set(PRESETS) == {"default", *EPSILON}


def test_the_five_methods_are_known_by_name() -> None:
    assert set(ALGORITHMS) == {"acpo", "awac", "inac", "wbc", "bc"}
    for name in ("acpo", "awac", "inac", "wbc"):
        assert isinstance(make_algorithm(name), ACPO)
    assert isinstance(make_algorithm("bc"), BC)
    assert make_algorithm() == make_algorithm("acpo", "default")


@pytest.mark.parametrize("preset", EPSILON)
def test_a_paper_preset_is_the_papers_table(preset: str) -> None:
    algorithm = make_algorithm("acpo", preset)
    alpha = ALPHA[preset.split("-")[1]]
    assert algorithm.hidden == (256, 256)
    assert algorithm.behavior.hidden == (512, 512)
    assert algorithm.learning_rate == 5e-4
    assert algorithm.final_learning_rate == 1e-4
    assert algorithm.behavior.learning_rate == 1e-4
    assert algorithm.tau == 5e-3
    assert algorithm.batch_size == 256
    assert algorithm.gamma == 0.99
    assert algorithm.alpha == alpha
    assert algorithm.rule.lam_rate == 1e-5
    assert algorithm.rule.epsilon == EPSILON[preset]
    assert first_lambda(algorithm) == pytest.approx(alpha)


@pytest.mark.parametrize("preset", ["paper-d4rl-hopper", "paper-neorl2-dmsd"])
def test_where_the_paper_is_silent_its_presets_take_the_plainest_choice(preset: str) -> None:
    for name in ("acpo", "inac"):
        algorithm = make_algorithm(name, preset)
        assert algorithm.head == "plain"
        assert algorithm.layer_norm is False
        assert algorithm.reward_scale == 1.0
        assert algorithm.normalize_observations is False
    cloning = make_algorithm("bc", preset)
    assert (cloning.head, cloning.normalize_observations) == ("plain", False)


@pytest.mark.parametrize(
    ("departure", "papers"),
    [("actor_average", 1.0), ("tau", 5e-3)],
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
    ],
)
def test_an_unknown_name_suggests_the_nearest(name: str, preset: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        make_algorithm(name, preset)
    assert message in str(caught.value)


def test_a_name_unlike_any_is_answered_with_the_list() -> None:
    with pytest.raises(UserError) as caught:
        make_algorithm("dreamer")
    assert "Did you mean" not in str(caught.value)
    assert "acpo, awac, inac, wbc, bc" in str(caught.value)
