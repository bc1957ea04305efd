"""A run that was stopped, by whatever, and resumed equals one that was not, bit for bit."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

import acpo
from acpo import files
from acpo.errors import UserError
from acpo.training import loop
from acpo.training.loop import Interrupted
from harness import (
    EAGER,
    SECONDS,
    SETTINGS,
    TINY,
    StopsAt,
    assert_same_run,
    checkpointed_step,
    contents,
    run_acpo,
    start_acpo,
    tiny_acpo,
    wait_until,
)

Moment = Callable[[Path], Any]

MOMENTS: dict[str, Moment] = {
    "the directory is made": lambda run: run.exists(),
    "the first πβ is being fitted": lambda run: (run / "behavior").exists(),
    "the second πβ is being fitted": lambda run: (run / "behavior" / "squashed.npz").exists(),
    "the loop has begun": lambda run: (run / "metrics.parquet").exists(),
    "a checkpoint is being written": lambda run: (
        checkpointed_step(run) >= 60 and list((run / "checkpoints").glob(".*.part"))
    ),
    "the loop is half through": lambda run: checkpointed_step(run) >= 150,
}


def test_a_run_killed_again_and_again_ends_as_if_never_interrupted(
    hopper_file: Path, finished_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ("train", hopper_file, *TINY, "--out", run, "--resume")
    for moment in MOMENTS.values():
        process = start_acpo(*words, script=EAGER)
        wait_until(lambda moment=moment: moment(run), process)
        process.kill()
        process.communicate(timeout=SECONDS)
        assert process.returncode == -signal.SIGKILL
    done = run_acpo(*words)
    assert done.returncode == 0, done.stderr
    assert_same_run(finished_run, run)
    assert not list(run.rglob(".*.part"))


class Killed(BaseException):
    """Stands for SIGKILL between two system calls: nothing in acpo may catch it."""


def test_a_run_that_dies_before_any_of_its_writes_resumes(
    hopper_file: Path, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt lives one write longer, so deaths fall between every pair of files."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    data, replace = acpo.load_dataset(hopper_file), files.os.replace
    deaths = []
    for lifetime in (0, 1, 2, 3, 4, 5, 7, None):
        writes = 0

        def mortal_replace(source: Any, target: Any, lifetime: int | None = lifetime) -> None:
            nonlocal writes
            if writes == lifetime:
                deaths.append(Path(target).name)
                raise Killed
            writes += 1
            replace(source, target)

        monkeypatch.setattr(files.os, "replace", mortal_replace)
        try:
            acpo.train(data, tiny_acpo(), out=tmp_path / "run", resume=True, **SETTINGS)
        except Killed:
            continue
    assert len(deaths) == 7
    assert {"config.json", "run.json", "metrics.parquet", "seed-0.npz"} <= set(deaths)
    assert_same_run(finished_run, tmp_path / "run")


def test_ctrl_c_prints_the_command_that_continues_the_run(
    hopper_file: Path, finished_run: Path, tmp_path: Path
) -> None:
    """Without --out: the command must also name the directory that was chosen."""
    process = start_acpo("train", hopper_file, *TINY, script=EAGER, cwd=tmp_path)
    wait_until(lambda: list(tmp_path.glob("runs/*/checkpoints/[0-9]*.npz")), process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "nothing is lost" in errors
    (run,) = tmp_path.glob("runs/*")
    assert 0 < checkpointed_step(run) < SETTINGS["steps"]

    program, *words = shlex.split(errors.strip().splitlines()[-1])
    assert program == "acpo"
    done = run_acpo(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert_same_run(finished_run, run)


def test_sigterm_while_fitting_stops_cleanly_too(
    hopper_file: Path, finished_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    words = ("train", hopper_file, *TINY, "--out", run)
    process = start_acpo(*words)
    wait_until(lambda: (run / "config.json").exists(), process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert f"--out {run} --resume" in errors
    done = run_acpo(*words, "--resume")
    assert done.returncode == 0, done.stderr
    assert_same_run(finished_run, run)


def test_several_seeds_resume_together(hopper_file: Path, tmp_path: Path) -> None:
    data, settings = acpo.load_dataset(hopper_file), {**SETTINGS, "steps": 60, "seeds": 2}
    algorithm = acpo.BC(hidden=(16, 16), head="plain")
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    acpo.train(data, algorithm, out=whole, **settings)
    with pytest.raises(Interrupted, match="at step 30"):
        acpo.train(data, algorithm, out=halved, reporter=StopsAt(30), **settings)
    acpo.train(data, algorithm, out=halved, resume=True, **settings)
    assert_same_run(whole, halved)


def test_resuming_a_finished_run_changes_nothing_and_gives_its_results(
    hopper_file: Path, finished_run: Path
) -> None:
    before = contents(finished_run)
    data = acpo.load_dataset(hopper_file)
    run = acpo.train(data, tiny_acpo(), out=finished_run, resume=True, **SETTINGS)
    assert contents(finished_run) == before
    assert run.metrics["step"].max() == SETTINGS["steps"]
    assert run.final_returns is not None
    assert len(run.final_returns) == 1


def test_a_finished_run_kept_as_tables_alone_gives_its_results(
    hopper_file: Path, finished_run: Path, tmp_path: Path
) -> None:
    asked = (acpo.load_dataset(hopper_file), tiny_acpo())
    whole = acpo.train(*asked, out=finished_run, resume=True, **SETTINGS)
    kept = Path(shutil.copytree(finished_run, tmp_path / "kept"))
    # A run with checkpoints is resumed, and so is one that has not begun.
    assert loop.kept_results(*asked, out=kept, **SETTINGS) is None
    assert loop.kept_results(*asked, out=tmp_path / "nothing", **SETTINGS) is None
    assert not (tmp_path / "nothing").exists()
    for folder in ("checkpoints", "behavior", "policies"):
        shutil.rmtree(kept / folder)
    before = contents(kept)
    run = loop.kept_results(*asked, out=kept, **SETTINGS)
    assert run is not None
    assert contents(kept) == before
    assert run.algorithm == whole.algorithm
    assert_frame_equal(run.metrics, whole.metrics)
    assert_frame_equal(run.evaluations, whole.evaluations)
    np.testing.assert_array_equal(run.final_returns, whole.final_returns)
    with pytest.raises(UserError, match="another configuration"):
        loop.kept_results(asked[0], tiny_acpo(alpha=0.3), out=kept, **SETTINGS)
    # Tables that end too early are no result.
    table = pl.read_parquet(kept / "metrics.parquet")
    table.filter(pl.col("step") < SETTINGS["steps"]).write_parquet(kept / "metrics.parquet")
    assert loop.kept_results(*asked, out=kept, **SETTINGS) is None


def test_a_kept_run_whose_notes_lack_a_field_is_refused_by_name(
    hopper_file: Path, finished_run: Path, tmp_path: Path
) -> None:
    kept = Path(shutil.copytree(finished_run, tmp_path / "kept"))
    shutil.rmtree(kept / "checkpoints")
    noted = json.loads((kept / "run.json").read_text())
    del noted["algorithm_config"]["alpha"]
    (kept / "run.json").write_text(json.dumps(noted))
    with pytest.raises(UserError, match=r"run.json lacks 'alpha'; put back a copy"):
        loop.kept_results(acpo.load_dataset(hopper_file), tiny_acpo(), out=kept, **SETTINGS)
