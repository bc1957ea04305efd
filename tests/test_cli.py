"""The command line: what it answers to good and to bad words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from acpo.cli import COMMANDS, main
from harness import run_acpo


def test_help_is_quick_because_it_imports_nothing_heavy() -> None:
    script = (
        "import sys; from acpo.cli import main; code = main(['--help'])\n"
        "print(sorted({'jax', 'numpy', 'tyro', 'rich', 'gymnasium'} & set(sys.modules)))\n"
        "sys.exit(code)"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    *usage, imported = done.stdout.splitlines()
    assert imported == "[]"
    for command in COMMANDS:
        assert any(line.startswith(f"  {command}") for line in usage)


def test_no_words_show_the_usage_as_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: acpo" in capsys.readouterr().out


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("acpo")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code = main([command, "--help"])
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    assert code == 0
    assert f"acpo {command}" in capsys.readouterr().out


def test_a_reader_that_leaves_gets_no_traceback() -> None:
    words = [sys.executable, "-m", "acpo.cli", "train", "--help"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        complaint = process.stderr.read()
    assert complaint == b""
    assert process.returncode == 141


def test_an_unknown_command_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "no command 'trian'. Did you mean 'train'?" in capsys.readouterr().err


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["train", "--lerning-rate", "1"])
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    assert "--lerning-rate" in captured.out + captured.err


def test_bad_input_gives_one_sentence_and_no_traceback(tmp_path: Path) -> None:
    done = run_acpo("train", tmp_path / "absent.hdf5", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("acpo: ")
    assert str(tmp_path / "absent.hdf5") in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


BAD_TRAINING = {
    "not an HDF5 file": (["{text}"], "cannot be read as HDF5"),
    "an unknown dataset": (["hoper-replay"], "No dataset is named 'hoper-replay'"),
    "a misspelt dataset": (["builtin/hoper-replay"], "did you mean 'builtin/hopper-replay'"),
    "an unknown algorithm": (["{data}", "--algorithm", "awacs"], "Did you mean 'awac'?"),
    "an unknown preset": (["{data}", "--preset", "paper-d4rl-hoper"], "'paper-d4rl-hopper'?"),
    "a flag without value": (["{data}", "--algorithm"], "--algorithm needs a value"),
    "no steps": (["{data}", "--steps", "0"], "--steps is 0; it must be at least 1"),
    "a dial turned the wrong way": (
        ["{data}", "--rule.lam-rate", "-1"],
        "--rule.lam-rate is -1; it must be 0 or more",
    ),
    "no seeds": (["{data}", "--seeds", "0"], "--seeds is 0"),
    "an unknown environment": (["{data}", "--env", "Hoper-v4"], "'Hoper-v4' cannot be made"),
    "an environment that was moved": (["{data}", "--env", "Hopper-v2"], "'Hopper-v2' cannot be"),
    "an environment of no module": (["{data}", "--env", "foo:Bar-v0"], "'foo:Bar-v0' cannot be"),
    "an environment of other sizes": (
        ["{data}", "--env", "Walker2d-v4"],
        "The data has 11 observations and 3 actions per step, but Walker2d-v4 has 17 and 6",
    ),
    "a discrete environment": (["{data}", "--env", "CartPole-v1"], "only flat continuous"),
    "resuming nothing": (["{data}", "--resume"], "--resume needs to know which run"),
}


@pytest.mark.parametrize("case", BAD_TRAINING)
def test_bad_training_words_are_refused_before_anything_is_written(
    case: str,
    hopper_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    text = tmp_path / "text.hdf5"
    text.write_text("no HDF5")
    words, message = BAD_TRAINING[case]
    assert main(["train", *(w.format(text=text, data=hopper_file) for w in words)]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("acpo: ")
    assert message in errors
    assert list(tmp_path.iterdir()) == [text]


def test_a_dataset_without_environment_trains_without_evaluation(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import acpo

    data = acpo.load_dataset(hopper_file)
    path = tmp_path / "anonymous.npz"
    names = ("observations", "actions", "rewards", "terminals", "next_observations")
    arrays = {name: getattr(data, name) for name in names}
    np.savez(path, **arrays, timeouts=np.zeros(len(data), bool))
    flags = ["--algorithm", "bc", "--hidden", "16", "16", "--head", "plain", "--steps", "10"]
    out = tmp_path / "run[1]"
    assert main(["train", str(path), *flags, "--log-every", "10", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "not evaluated: the data names no environment" in printed
    # A path in brackets is printed as it is.
    assert f"again     acpo evaluate {out}" in printed


def test_training_ends_with_a_summary_for_a_person_and_for_a_program(
    finished_run: Path, hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import json
    import shutil

    from harness import TINY

    run, file = shutil.copytree(finished_run, tmp_path / "run"), tmp_path / "summary.json"
    words = [str(hopper_file), *TINY, "--out", str(run), "--resume", "--json", str(file)]
    assert main(["train", *words]) == 0
    found = json.loads(file.read_text())
    assert found == json.loads((Path(run) / "summary.json").read_text())
    assert found["seeds"] == [0]
    assert found["steps"] == 300
    assert found["checkpoint"] == "last"
    assert found["returns"] == [found["return_mean"]]
    printed = capsys.readouterr().out
    assert f"score {found['score_mean']:.1f} ± 0.0" in printed
    assert f"λ = {found['lambda']:.3g}" in printed
    assert "E[log πβ] =" in printed


def test_training_says_where_weights_alone_did_not_hold_the_policy(
    hopper_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness import TINY

    words = [str(hopper_file), *TINY, "--steps", "20", "--env", "none", "--epsilon", "15"]
    for share in ("0.5", "0"):
        out = str(tmp_path / share)
        assert main(["train", *words, "--cloning-share", share, "--out", out]) == 0
        printed = capsys.readouterr().out
        assert ("held      50% of the loss is plain cloning" in printed) == (share == "0.5")


def test_data_whose_rewards_its_task_counts_otherwise_gets_no_score_from_a_file_either(
    hopper_file: Path,
) -> None:
    from dataclasses import replace

    import polars as pl

    import acpo
    from acpo.commands.train import summary
    from acpo.training.loop import Run

    data = replace(acpo.load_dataset(hopper_file), name="demonstrations", environment=None)
    rows = pl.DataFrame({"seed": [0], "step": [1]})
    for environment, scored in (("d4rl/kitchen-complete-v0", False), ("Hopper-v4", True)):
        run = Run(None, data, environment, [], rows, pl.DataFrame(), {}, None)
        assert ("data_mean_score" in summary(run)) == scored
