"""A run on disk: what was asked, what it ran on, what it measured, where it stands.

config.json          what was asked: algorithm, data, seeds, steps; a resumed run must match it
run.json             versions, git commit, dataset fingerprint, what was settled from the data
behavior/            πβ, fitted or half-fitted
checkpoints/         the last two states of the loop
metrics.parquet      one row per seed and log interval
evaluations.parquet  one row per seed, evaluation and episode: raw returns
policies/            one self-contained policy per seed, of the last checkpoint
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from acpo.errors import UserError
from acpo.files import is_leftover, load_arrays, read_json, sweep, write_atomically, write_json
from acpo.storage import restore, save_tree

if TYPE_CHECKING:
    import polars

KEPT_CHECKPOINTS = 2


class RunDirectory:
    """Opens a fresh directory, or one that holds the same run."""

    def __init__(self, path: Path, config: dict[str, Any], resume: bool) -> None:
        self.path = path
        stored = path / "config.json"
        # os.path, unlike Path, also answers for an impossible path (one that is too long, say).
        if os.path.exists(path) and not os.path.isdir(path):
            raise UserError(f"{path} is a file; choose another folder with --out.")
        if os.path.exists(stored) and not resume:
            raise UserError(
                f"{path} already holds a run. Continue it with --resume, or choose another folder "
                "with --out."
            )
        if os.path.exists(stored):
            _require_same(stored, read_json(stored), config)
            sweep(path)
        elif os.path.exists(path) and not all(is_leftover(entry) for entry in path.iterdir()):
            raise UserError(f"{path} exists and holds no run; choose an empty folder with --out.")
        else:
            write_json(stored, config)
        # Also where a run was killed between the two files.
        if not (path / "run.json").exists():
            write_json(path / "run.json", {"versions": versions(), "commit": commit()})

    def note(self, **facts: Any) -> None:
        """Add to run.json."""
        path = self.path / "run.json"
        write_json(path, {**read_json(path), **facts})

    def save_checkpoint(self, step: int, tree: Any) -> Path:
        path = self.path / "checkpoints" / f"{step:09d}.npz"
        save_tree(path, tree, {"step": step})
        for old in self._checkpoints()[:-KEPT_CHECKPOINTS]:
            old.unlink()
        return path

    def load_checkpoint(self, like: Any) -> tuple[int, Any] | None:
        """The newest checkpoint, put into the shape of `like`; None before the first."""
        found = self._checkpoints()
        if not found:
            return None
        try:
            arrays, header = load_arrays(found[-1])
        except UserError as error:
            remedy = (
                f"Delete it to continue from {found[-2].name}."
                if len(found) > 1
                else "Delete it to start the loop anew."
            )
            raise UserError(f"{error} {remedy}") from error
        return header["step"], jax.tree.map(np.asarray, restore(found[-1], arrays, like))

    def last_checkpoint(self) -> Path | None:
        found = self._checkpoints()
        return found[-1] if found else None

    def _checkpoints(self) -> list[Path]:
        return sorted((self.path / "checkpoints").glob("[0-9]*.npz"))

    def write_table(self, name: str, table: polars.DataFrame) -> None:
        write_atomically(self.path / f"{name}.parquet", table.write_parquet)

    def read_table(self, name: str, up_to: int) -> polars.DataFrame | None:
        """Rows up to a step: what a killed run wrote after its last checkpoint comes again."""
        import polars as pl

        path = self.path / f"{name}.parquet"
        if not path.exists():
            return None
        try:
            return pl.read_parquet(path).filter(pl.col("step") <= up_to)
        except (OSError, pl.exceptions.PolarsError) as error:
            raise UserError(
                f"{path} is damaged and cannot be read ({error}). Put back a copy of it, or begin "
                "again: choose another folder with --out."
            ) from error


def as_noted(config: Any, noted: dict[str, Any]) -> Any:
    """A configuration with the values that a run directory notes, which are plain JSON."""

    def value(now: Any, then: Any) -> Any:
        if dataclasses.is_dataclass(now):
            return as_noted(now, then)
        return tuple(then) if isinstance(now, tuple) else then

    fields = (field.name for field in dataclasses.fields(config))
    return dataclasses.replace(
        config, **{name: value(getattr(config, name), noted[name]) for name in fields}
    )


def _require_same(path: Path, stored: dict[str, Any], config: dict[str, Any]) -> None:
    if stored.get("fingerprint") != config["fingerprint"]:
        raise UserError(
            f"{path.parent} was trained on other data: its fingerprint is "
            f"{stored.get('fingerprint')}, {config['dataset']} has {config['fingerprint']}. "
            "Resume with the same dataset, or choose another folder with --out."
        )
    before, now = _flat(stored), _flat(config)
    different = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    # The file may have moved; its contents are the same.
    different = [key for key in different if key != "dataset"]
    if different:
        changes = "; ".join(f"{k}: {before.get(k)} there, {now.get(k)} here" for k in different)
        raise UserError(
            f"{path.parent} was started with another configuration ({changes}). Resume with the "
            "same one, or choose another folder with --out."
        )


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def versions() -> dict[str, str]:
    names = ("acpo", "jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "mujoco", "h5py")
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def commit() -> str | None:
    """The git commit of this source tree, '+' appended if it has changes; None outside git."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    try:
        # An installed copy may lie inside somebody else's repository.
        if not git("ls-files", Path(__file__).name):
            return None
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
