"""Pytrees in NPZ files: checkpoints, behaviour models, SAC trainings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from acpo.errors import UserError
from acpo.files import load_arrays, save_arrays

T = TypeVar("T")


def save_tree(path: Path, tree: Any, header: Mapping[str, Any]) -> None:
    """Store the leaves of a pytree, named by their place in it."""
    leaves = jax.tree_util.tree_flatten_with_path(jax.device_get(tree))[0]
    arrays = {jax.tree_util.keystr(place): np.asarray(leaf) for place, leaf in leaves}
    save_arrays(path, arrays, header)


def restore(path: Path, arrays: Mapping[str, np.ndarray], like: T) -> T:
    """Put stored leaves back into the structure of `like`, which gives their shapes and types."""
    places, structure = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for place, leaf in places:
        name = jax.tree_util.keystr(place)
        found = arrays.get(name)
        if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
            what = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
            raise UserError(
                f"{path} was written by another configuration: it holds {what} for {name}, "
                f"this one needs {leaf.dtype}{list(leaf.shape)}."
            )
        leaves.append(found)
    return jax.tree_util.tree_unflatten(structure, leaves)


def load_tree(path: Path, like: T) -> tuple[T, dict[str, Any]]:
    arrays, header = load_arrays(path)
    return restore(path, arrays, like), header
