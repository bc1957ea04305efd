"""Datasets: load one by name, from files or from arrays with `load_dataset`."""

from __future__ import annotations

from acpo.data.dataset import Dataset, from_arrays
from acpo.data.options import ConstantColumns, DataOptions
from acpo.data.registry import DEFAULT, load_dataset

__all__ = [
    "DEFAULT",
    "ConstantColumns",
    "DataOptions",
    "Dataset",
    "from_arrays",
    "load_dataset",
]
