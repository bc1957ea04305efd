"""Datasets: load one by path or by name with `load_dataset`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from acpo.data import d4rl, neorl2
from acpo.data.checks import readable_file
from acpo.data.dataset import Dataset, from_arrays
from acpo.data.options import ConstantColumns
from acpo.errors import UserError

__all__ = ["DEFAULT", "NAMES", "ConstantColumns", "Dataset", "from_arrays", "load_dataset"]

DEFAULT = "builtin/hopper-replay"

_LOADERS: dict[str, Callable[..., Dataset]] = {
    ".hdf5": d4rl.load,
    ".h5": d4rl.load,
    ".npz": neorl2.load,
}
_SIGNATURES: dict[bytes, Callable[..., Dataset]] = {
    b"\x89HDF\r\n\x1a\n": d4rl.load,
    b"PK\x03\x04": neorl2.load,
}


def _hopper_replay(*, constant_columns: ConstantColumns = "refuse") -> Dataset:
    path = Path(__file__).parent / "builtin" / "hopper-replay.hdf5"
    if not path.exists():
        raise UserError(f"{DEFAULT} is missing from this installation: no {path}. Reinstall acpo.")
    return replace(d4rl.load(path, constant_columns=constant_columns), name=DEFAULT, source=DEFAULT)


# Every name takes the keyword `constant_columns`, as `load_dataset` does.
NAMES: dict[str, Callable[..., Dataset]] = {DEFAULT: _hopper_replay}


def load_dataset(
    path_or_name: str | os.PathLike[str], *, constant_columns: ConstantColumns = "refuse"
) -> Dataset:
    """Load a dataset by one of `NAMES`, or from an HDF5 (D4RL) or NPZ (NeoRL2) file.

    Args:
        path_or_name: A name wins over a file of the same name.
        constant_columns: "keep" accepts observation columns that never change, which are refused
            otherwise because they usually are a mistake.

    Raises:
        UserError: if there is no such name or file, or if its contents are refused.
    """
    text = os.fspath(path_or_name)
    if text in NAMES:
        return NAMES[text](constant_columns=constant_columns)
    path = Path(os.path.expanduser(text))
    near = difflib.get_close_matches(text, NAMES, n=1)
    looks_like_path = path.suffix.lower() in _LOADERS or (os.path.dirname(text) and not near)
    if not looks_like_path and not os.path.exists(path):
        hint = f"; did you mean '{near[0]}'?" if near else "."
        raise UserError(
            f"No dataset is named '{text}', and there is no such file{hint} "
            f"Names: {', '.join(NAMES)}. A file is given by its path (.hdf5, .h5 or .npz)."
        )
    readable_file(path)
    return _loader(path)(path, constant_columns=constant_columns)


def _loader(path: Path) -> Callable[..., Dataset]:
    if path.suffix.lower() in _LOADERS:
        return _LOADERS[path.suffix.lower()]
    with path.open("rb") as file:
        start = file.read(8)
    for signature, loader in _SIGNATURES.items():
        if start.startswith(signature):
            return loader
    raise UserError(
        f"{path} is in no supported format; these are D4RL's HDF5 layout (.hdf5, .h5) and NPZ with "
        "NeoRL2's or D4RL's keys (.npz)."
    )
