"""Methods side by side: what they share, what differs, and that a stopped comparison goes on."""

import json
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import acpo
from acpo.algorithms import ALGORITHMS
from acpo.algorithms.acpo import ACPO
from acpo.algorithms.bc import BC
from acpo.behavior.config import BehaviorConfig
from acpo.cci import REGIMES
from acpo.cli import main
from acpo.commands.compare import parse
from acpo.data.combine import relabel
from acpo.data.dataset import from_arrays
from acpo.experiments.compare import _digest, compare, configured
from acpo.report import comparison
from acpo.training.loop import TrainConfig
from acpo.training.reporting import Reporter
from harness import TINY, StopsAt, tiny_acpo


def test_methods_share_every_field_but_their_rule():
    config = ACPO(gamma=0.9, tau=0.1, hidden=(8,), learning_rate=1e-3)
    awac, inac, bc = (configured(name, config).algorithm for name in ("awac", "inac", "bc"))
    assert configured("acpo", config).algorithm == config
    assert awac.rule.lam_rate == inac.rule.lam_rate == 0.0
    assert (awac.rule.lam_start, inac.rule.lam_start) == (None, 0.0)
    for field in ("gamma", "tau", "hidden", "learning_rate", "layer_norm", "behavior"):
        assert getattr(awac, field) == getattr(inac, field) == getattr(config, field)
    assert isinstance(bc, BC)
    assert (bc.hidden, bc.learning_rate) == ((8,), 1e-3)


def test_compare_writes_table_picture_and_page_and_goes_on_where_it_stopped(
    tmp_path, monkeypatch, capsys, hopper_file
):
    monkeypatch.chdir(tmp_path)
    words = ["compare", str(hopper_file), "--methods", "bc,acpo", "--out", "c", *TINY]
    words += ["--seeds", "1"]  # the program that other tests have compiled already
    words += ["--report"]
    # Ctrl-C in the second method.
    reporters = iter([Reporter(), StopsAt(100)])
    with monkeypatch.context() as patch:
        patch.setattr("acpo.commands.compare.ConsoleReporter", lambda console: next(reporters))
        assert main(words) == 130
    assert "nothing is lost" in capsys.readouterr().err
    finished = (tmp_path / "c/bc/checkpoints/000000300.npz").stat().st_mtime_ns
    assert not (tmp_path / "c/comparison.json").exists()
    assert main(words) == 0
    assert (tmp_path / "c/bc/checkpoints/000000300.npz").stat().st_mtime_ns == finished
    found = json.loads((tmp_path / "c/comparison.json").read_text())
    assert list(found["methods"]) == ["bc", "acpo"]
    assert found["methods"]["bc"]["lambda"] is None
    assert found["methods"]["acpo"]["lambda"] > 0.0
    # Every number in the table comes from the raw returns in the run directory.
    table = pl.read_parquet(tmp_path / "c/acpo/evaluations.parquet")
    last = table.filter(pl.col("step") == table["step"].max()).sort("seed", "episode")
    scores = last["score"].to_numpy().reshape(1, -1)
    np.testing.assert_allclose(found["methods"]["acpo"]["results"], scores)
    assert found["methods"]["acpo"]["mean"] == pytest.approx(scores.mean())
    assert found["methods"]["acpo"]["std"] == pytest.approx(scores.mean(axis=1).std())
    # One πβ for all.
    (shared,) = (tmp_path / "c").glob("behavior-*")
    assert not (tmp_path / "c/acpo/behavior").exists()
    page = (tmp_path / "c/report.html").read_text()
    assert "data:image/png;base64," in page
    assert "<td>acpo</td>" in page
    assert (tmp_path / "c/comparison.png").stat().st_size > 10_000
    # bc is the fifth of the figure's methods and acpo the first, in whatever order they are given.
    left, right = comparison.draw(found).axes
    assert [line.get_color() for line in left.lines[:2]] == ["C4", "C0"]
    # Whatever stands beside the figure's bands is what the table calls them.
    assert [text.get_text() for text in right.texts] == [r.name for r in REGIMES[:4]]
    # All fifteen methods can be told apart.
    many = {**found, "methods": dict.fromkeys(ALGORITHMS, found["methods"]["bc"])}
    lines = comparison.draw(many).axes[0].lines[:-1]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(ALGORITHMS)
    assert "the data" in capsys.readouterr().out
    assert shared.is_dir()
    # Kept as tables alone, it is shown again and nothing is trained.
    for folder in ("bc/checkpoints", "bc/policies", "acpo/checkpoints", "acpo/policies"):
        shutil.rmtree(tmp_path / "c" / folder)
    assert main(words) == 0
    assert not (tmp_path / "c/acpo/checkpoints").exists()
    assert json.loads((tmp_path / "c/comparison.json").read_text()) == found


def test_another_density_or_other_data_is_fitted_in_another_folder(hopper_file):
    data, config = acpo.load_dataset(hopper_file), ACPO()
    others = [
        (data, replace(config, behavior=replace(config.behavior, learning_rate=0.01))),
        (data, replace(config, normalize_observations=False)),
        (acpo.load_dataset(hopper_file, relabel="reward - 1"), config),
    ]
    digests = {_digest(data, config), *(_digest(*other) for other in others)}
    assert len(digests) == 4
    assert _digest(data, replace(config, gamma=0.9)) == _digest(data, config)


def test_each_method_finds_the_density_it_asks_for(hopper_file):
    """Cloning compares two Gaussian heads whatever πβ is; SPOT's CVAE is not ACPO's."""
    data = acpo.load_dataset(hopper_file)
    config = ACPO(behavior=BehaviorConfig("cvae-elbo", beta=0.3))
    bc, spot, awac = (configured(name, config).algorithm for name in ("bc", "spot", "awac"))
    assert bc.behavior == BehaviorConfig("gaussian")
    assert awac.behavior == config.behavior
    assert _digest(data, awac) == _digest(data, config) != _digest(data, spot)
    plain = configured("bc", ACPO()).algorithm
    assert _digest(data, plain) == _digest(data, ACPO()), "one fit serves both"


def test_a_method_that_diverges_is_named_and_the_others_are_compared(
    tmp_path, monkeypatch, capsys, hopper_file
):
    words = ["compare", str(hopper_file), "--methods", "acpo,bc", "--seeds", "1", *TINY]
    words += ["--out", str(tmp_path / "c"), "--report"]
    monkeypatch.setattr(ACPO, "q_range", lambda self, rewards: (-1e-9, 1e-9))
    assert main(words) == 2
    captured = capsys.readouterr()
    assert "acpo has no result. Q diverged: at step 10" in captured.err
    assert "diverged" in captured.out
    found = json.loads((tmp_path / "c/comparison.json").read_text())
    assert list(found["methods"]) == ["bc"]
    assert list(found["stopped"]) == ["acpo"]
    assert "<td>acpo</td><td>diverged</td>" in (tmp_path / "c/report.html").read_text()
    # With nothing left to compare there is no table.
    words[3] = "acpo"
    assert main([*words[:-3], "--out", str(tmp_path / "alone")]) == 2
    assert "acpo: Q diverged" in capsys.readouterr().err
    assert not (tmp_path / "alone/comparison.json").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "acpo,awak"], "Did you mean 'awac'"),
        (["--methods", "bc,bc"], "twice"),
        (["--methods", ","], "empty"),
        (["--env", "none"], "no environment"),
    ],
)
def test_bad_input(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *words]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_task_with_a_reward_of_its_own_trains_on_it_and_keeps_the_datas_score(tmp_path):
    """AntMaze: methods learn from reward − 1, scores count whether the goal is reached."""
    rng = np.random.default_rng(0)
    ends = np.arange(60) % 20 == 19
    reached = np.arange(60) == 39  # the trajectory goes on to row 59
    data = from_arrays(
        observations=rng.normal(size=(60, 29)),
        actions=rng.uniform(-1, 1, (60, 8)),
        rewards=reached.astype(float),
        terminals=reached,
        timeouts=ends & ~reached,
        next_observations=rng.normal(size=(60, 29)),
        name="d4rl/antmaze-umaze-v2",
        source="x",
        environment="d4rl/antmaze-umaze-v2",
    )
    settings = TrainConfig(steps=20, seeds=1, log_every=10, eval_every=20, episodes=1)
    arguments = (["bc"], tiny_acpo(), settings)
    found = compare(data, *arguments, tmp_path / "own", lambda _: Reporter())
    assert found.quantity == "score"
    assert found.data == pytest.approx(50.0)
    config = json.loads((tmp_path / "own/bc/config.json").read_text())
    assert config["fingerprint"] == relabel(data, "reward - 1").fingerprint != data.fingerprint
    replaced = compare(data, *arguments, tmp_path / "given", lambda _: Reporter(), False)
    assert replaced.data is None
    config = json.loads((tmp_path / "given/bc/config.json").read_text())
    assert config["fingerprint"] == data.fingerprint


def test_a_task_has_its_own_number_of_episodes():
    assert parse(["d4rl/antmaze-umaze-v2"]).training.episodes == 50
    assert parse(["d4rl/antmaze-umaze-v2", "--episodes", "3"]).training.episodes == 3
    assert parse([]).training == TrainConfig(steps=100_000, seeds=3)
