"""Methods side by side: what they share, what differs, and that a stopped comparison goes on."""

import json

import numpy as np
import polars as pl
import pytest

from acpo.algorithms.acpo import ACPO
from acpo.algorithms.bc import BC
from acpo.cli import main
from acpo.experiments.compare import configured
from acpo.training.reporting import Reporter
from harness import TINY, StopsAt


def test_methods_share_every_field_but_their_rule():
    config = ACPO(gamma=0.9, tau=0.1, hidden=(8,), learning_rate=1e-3)
    awac, inac, bc = (configured(name, config) for name in ("awac", "inac", "bc"))
    assert configured("acpo", config) == config
    assert awac.rule.lam_rate == inac.rule.lam_rate == 0.0
    assert (awac.rule.lam_start, inac.rule.lam_start) == (None, 0.0)
    for field in ("gamma", "tau", "hidden", "learning_rate", "layer_norm", "behavior"):
        assert getattr(awac, field) == getattr(inac, field) == getattr(config, field)
    assert isinstance(bc, BC)
    assert (bc.hidden, bc.learning_rate) == ((8,), 1e-3)


def test_compare_writes_table_picture_and_page_and_goes_on_where_it_stopped(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ["compare", "--methods", "acpo,inac,bc", "--out", "c", "--seeds", "2", *TINY]
    words += ["--report"]
    # Ctrl-C in the second method.
    reporters = iter([Reporter(), StopsAt(100)])
    with monkeypatch.context() as patch:
        patch.setattr("acpo.commands.compare.ConsoleReporter", lambda console: next(reporters))
        assert main(words) == 130
    assert "nothing is lost" in capsys.readouterr().err
    assert not (tmp_path / "c/bc").exists()
    finished = (tmp_path / "c/acpo/checkpoints/000000300.npz").stat().st_mtime_ns
    assert main(words) == 0
    assert (tmp_path / "c/acpo/checkpoints/000000300.npz").stat().st_mtime_ns == finished
    found = json.loads((tmp_path / "c/comparison.json").read_text())
    assert list(found["methods"]) == ["acpo", "inac", "bc"]
    assert found["methods"]["bc"]["lambda"] is None
    assert found["methods"]["inac"]["lambda"] == 0.0
    # Every number in the table comes from the raw returns in the run directory.
    table = pl.read_parquet(tmp_path / "c/inac/evaluations.parquet")
    last = table.filter(pl.col("step") == table["step"].max()).sort("seed", "episode")
    scores = last["score"].to_numpy().reshape(2, -1)
    np.testing.assert_allclose(found["methods"]["inac"]["results"], scores)
    assert found["methods"]["inac"]["mean"] == pytest.approx(scores.mean())
    assert found["methods"]["inac"]["std"] == pytest.approx(scores.mean(axis=1).std())
    # One πβ for all.
    (shared,) = (tmp_path / "c").glob("behavior-*")
    assert not (tmp_path / "c/acpo/behavior").exists()
    page = (tmp_path / "c/report.html").read_text()
    assert "data:image/png;base64," in page
    assert "inac" in page
    assert (tmp_path / "c/comparison.png").stat().st_size > 10_000
    assert "the data" in capsys.readouterr().out
    # Of another way to fit it, another.
    words[words.index("acpo,inac,bc")] = "awac"
    assert main([*words, "--behavior.learning-rate", "0.01"]) == 0
    assert len(list((tmp_path / "c").glob("behavior-*"))) == 2
    assert main(words) == 2  # awac was trained with the other one
    assert "another configuration" in capsys.readouterr().err
    assert shared.is_dir()


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
