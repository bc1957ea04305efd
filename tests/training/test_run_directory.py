"""The run directory: what it refuses, what it keeps, how it survives damage."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import acpo
from acpo.cli import main
from acpo.data import d4rl
from acpo.errors import UserError
from acpo.training.run_directory import KEPT_CHECKPOINTS, RunDirectory
from harness import SETTINGS, TINY, assert_same_run, contents, tiny_acpo

CONFIG: dict[str, Any] = {
    "algorithm": "ACPO",
    "algorithm_config": {"hidden": (16, 16), "rule": {"lam_rate": 1e-5}},
    "dataset": "a.hdf5",
    "fingerprint": "0123",
}


def refusal(path: Path, config: dict[str, Any], resume: bool) -> str:
    with pytest.raises(UserError) as caught:
        RunDirectory(path, config, resume)
    return str(caught.value)


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A finished run of its own for each test to spoil."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


# --- what the command refuses: exit code 2, one sentence, nothing changed on disk ---------------


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *words: Any) -> str:
    before = contents(folder)
    assert main(["train", *map(str, words)]) == 2
    assert contents(folder) == before
    errors = capsys.readouterr().err
    assert errors.startswith("acpo: ")
    assert "Traceback" not in errors
    return errors


def test_an_existing_run_is_not_overwritten(
    run: Path, hopper_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(run, capsys, hopper_file, *TINY, "--out", run)
    assert "already holds a run" in message
    assert "--resume" in message


def test_resuming_with_another_configuration_names_the_fields(
    run: Path, hopper_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (hopper_file, *TINY, "--out", run, "--resume", "--alpha", "0.3", "--seeds", "2")
    message = refused(run, capsys, *words)
    assert "algorithm_config.alpha: 0.1 there, 0.3 here" in message
    assert "training.seeds: 1 there, 2 here" in message
    assert "gamma" not in message


def test_resuming_with_another_algorithm_names_it(
    run: Path, hopper_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--algorithm", "bc", "--hidden", "16", "16", "--out", run, "--resume")
    assert "algorithm: ACPO there, BC here" in refused(run, capsys, hopper_file, *words)


def test_resuming_with_other_data_names_both_fingerprints(
    run: Path, hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = acpo.load_dataset(hopper_file)
    other = tmp_path / "other.hdf5"
    fields = {k: getattr(data, k) for k in ("observations", "actions", "rewards", "terminals")}
    fields["rewards"] = fields["rewards"] + 1
    timeouts = np.zeros(len(data), bool)
    d4rl.save(other, **fields, timeouts=timeouts, attrs={"env": "Hopper-v4"})
    message = refused(run, capsys, other, *TINY, "--out", run, "--resume")
    assert data.fingerprint in message
    assert acpo.load_dataset(other).fingerprint in message


def test_the_same_data_may_lie_elsewhere(run: Path, hopper_file: Path, tmp_path: Path) -> None:
    moved = shutil.copy(hopper_file, tmp_path / "moved.hdf5")
    assert main(["train", str(moved), *TINY, "--out", str(run), "--resume"]) == 0


@pytest.mark.parametrize("resume", [[], ["--resume"]])
def test_a_folder_with_other_things_is_left_alone(
    resume: list[str], hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.tex").write_text("dear to somebody")
    message = refused(tmp_path, capsys, hopper_file, *TINY, "--out", tmp_path, *resume)
    assert "choose an empty folder" in message


def test_a_file_is_no_run_directory(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    assert "is a file" in refused(tmp_path, capsys, hopper_file, *TINY, "--out", file)
    below = refused(tmp_path, capsys, hopper_file, *TINY, "--out", file / "run")
    assert "Could not write" in below
    assert "choose another place" in below


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    words = (hopper_file, *TINY, "--out", closed / "run")
    assert "Permission denied" in refused(tmp_path, capsys, *words)


# --- damage -------------------------------------------------------------------------------------


def test_a_truncated_checkpoint_is_named_and_its_remedy_works(
    run: Path, hopper_file: Path, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (hopper_file, *TINY, "--out", run, "--resume")
    newest = max((run / "checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:1000])
    message = refused(run, capsys, *words)
    assert str(newest) in message
    assert "truncated or damaged" in message
    assert "Delete it" in message
    newest.unlink()
    assert main(["train", *map(str, words)]) == 0
    assert_same_run(finished_run, run)


def test_the_remedy_for_a_damaged_checkpoint_says_what_is_left(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", CONFIG, resume=False)
    tree = {"x": np.arange(3.0)}
    first = directory.save_checkpoint(10, tree)
    second = directory.save_checkpoint(20, tree)
    second.write_bytes(b"")
    with pytest.raises(UserError, match=r"Delete it to continue from 000000010\.npz"):
        directory.load_checkpoint(tree)
    second.unlink()
    assert directory.load_checkpoint(tree)[0] == 10  # type: ignore[index]
    first.write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match="Delete it to start the loop anew"):
        directory.load_checkpoint(tree)


def test_a_damaged_table_is_named_with_a_remedy(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", CONFIG, resume=False)
    (tmp_path / "run" / "metrics.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"metrics\.parquet .* choose another folder"):
        directory.read_table("metrics", up_to=10)


@pytest.mark.parametrize("name", ["metrics", "evaluations"])
@pytest.mark.parametrize("rows", [None, 1])
def test_a_table_that_was_lost_is_missed(
    run: Path, hopper_file: Path, capsys: pytest.CaptureFixture[str], name: str, rows: int | None
) -> None:
    """Else the run would go on and its first part be gone for ever."""
    table = pl.read_parquet(run / f"{name}.parquet")
    (run / f"{name}.parquet").unlink()
    if rows:
        table.head(rows).write_parquet(run / f"{name}.parquet")
    words = [hopper_file, *TINY, "--out", run, "--resume"]
    assert f"{name}.parquet is missing or ends before the checkpoint at step 300" in refused(
        run, capsys, *words
    )


@pytest.mark.parametrize("file", ["config.json", "run.json"])
def test_a_file_without_fields_is_named(
    run: Path, hopper_file: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    (run / file).write_text("[]")
    words = [hopper_file, *TINY, "--out", run, "--resume"]
    assert f"{run / file} is damaged: it holds no fields" in refused(run, capsys, *words)


def test_a_name_that_no_disk_takes_is_refused(
    tmp_path: Path, hopper_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = refused(tmp_path, capsys, hopper_file, *TINY, "--out", tmp_path / ("x" * 300))
    assert "Could not write" in found
    assert "name too long" in found


def test_what_a_killed_writer_left_is_no_obstacle_and_is_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / ".config.json.123.part").write_text("{")
    RunDirectory(run, CONFIG, resume=True)
    (run / "run.json").unlink()
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / ".000000010.npz.123.part").write_text("PK")
    RunDirectory(run, CONFIG, resume=True)
    assert sorted(contents(run)) == ["config.json", "run.json"]


# --- what is kept -------------------------------------------------------------------------------


def test_a_stored_configuration_equals_itself(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "run", CONFIG, resume=False)
    RunDirectory(tmp_path / "run", CONFIG, resume=True)
    changed = {**CONFIG, "algorithm_config": {"hidden": (16, 32), "rule": {"lam_rate": 1e-5}}}
    message = refusal(tmp_path / "run", changed, resume=True)
    assert "algorithm_config.hidden: [16, 16] there, [16, 32] here" in message


def test_only_the_last_checkpoints_are_kept(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", CONFIG, resume=False)
    assert directory.last_checkpoint() is None
    assert directory.load_checkpoint({}) is None
    for step in (5, 50, 500, 5000):
        directory.save_checkpoint(step, {"x": np.float32(step)})
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["000000500.npz", "000005000.npz"]
    assert len(kept) == KEPT_CHECKPOINTS
    assert directory.load_checkpoint({"x": np.float32(0)}) == (5000, {"x": np.float32(5000)})


def test_a_table_is_read_up_to_the_checkpoint(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path / "run", CONFIG, resume=False)
    assert directory.read_table("metrics", up_to=10) is None
    directory.write_table("metrics", pl.DataFrame({"step": [10, 20, 30], "x": [1.0, 2.0, 3.0]}))
    found = directory.read_table("metrics", up_to=20)
    assert found is not None
    assert found["step"].to_list() == [10, 20]


def test_a_run_is_described_by_its_files(finished_run: Path, hopper_file: Path) -> None:
    config = json.loads((finished_run / "config.json").read_text())
    facts = json.loads((finished_run / "run.json").read_text())
    fingerprint = acpo.load_dataset(hopper_file).fingerprint
    assert config["training"] == {**config["training"], **SETTINGS}
    assert config["algorithm_config"]["alpha"] == tiny_acpo().alpha
    assert config["fingerprint"] == facts["fingerprint"] == fingerprint
    assert {"python", "acpo", "jax", "numpy", "gymnasium", "mujoco"} <= facts["versions"].keys()
    assert facts["commit"] is None or len(facts["commit"].rstrip("+")) == 40
    # What was open in the configuration is settled in the facts.
    assert config["algorithm_config"]["head"] == "auto"
    assert facts["algorithm_config"]["head"] in ("plain", "squashed")
    assert config["algorithm_config"]["rule"]["epsilon"] == "auto"
    assert isinstance(facts["algorithm_config"]["rule"]["epsilon"], float)
    assert set(contents(finished_run)) >= {
        "metrics.parquet",
        "evaluations.parquet",
        "policies/seed-0.npz",
        "checkpoints/000000300.npz",
        "summary.json",
    }
