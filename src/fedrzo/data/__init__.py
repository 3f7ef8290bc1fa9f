"""Data sets for experiments, and ways to split them over clients.

`load` finds or downloads a set; `iid`, `dirichlet` and `by_sizes` give each client its sample indices;
`even_odd` and `animals_vehicles` turn ten classes into two. Nothing here reads a pickle.

Example:
    digits = load("digits")
    parts = dirichlet(digits.y_train, clients=8, alpha=0.5, seed=0)
    labels = even_odd(digits.y_train)
    clients = [(digits.x_train[part], labels[part]) for part in parts]
"""

import os

from fedrzo.data.datasets import Dataset, animals_vehicles, embedded, even_odd, from_files
from fedrzo.data.files import find
from fedrzo.data.sources import EMBEDDED, SOURCES
from fedrzo.data.splits import by_sizes, dirichlet, iid
from fedrzo.errors import InputError, nearest

__all__ = ["NAMES", "Dataset", "animals_vehicles", "by_sizes", "dirichlet", "even_odd", "iid", "load"]

NAMES: tuple[str, ...] = (*EMBEDDED, *SOURCES)
"""Every name that `load` knows."""


def load(name: str, root: str | os.PathLike[str] | None = None, download: bool = True) -> Dataset:
    """Load a data set by name; a second call in the same process returns the same object.

    | name | train + test | features | `x` | `y` |
    | --- | --- | --- | --- | --- |
    | `digits` | 1,437 + 360 | 64 | 8x8 images, in [0, 1] | 0..9 |
    | `breast-cancer` | 455 + 114 | 30 | standardised by the training part | -1 malignant, +1 benign |
    | `mnist` | 60,000 + 10,000 | 784 | 28x28 images, in [0, 1] | 0..9 |
    | `cifar10` | 50,000 + 10,000 | 3,072 | images in [0, 1]; `x.reshape(-1, 3, 32, 32)` | 0..9 |
    | `a9a` | 32,561 + 16,281 | 123 | 0 or 1 | -1, +1 |
    | `w8a` | 49,749 + 14,951 | 300 | 0 or 1 | -1, +1 |

    `digits` and `breast-cancer` come with scikit-learn and need no file. Their split uses no random numbers:
    with the samples sorted by class (and in their original order within a class), every fifth one, from the
    first, is for testing. The test part of `w8a` is empty, of shape `(0, 300)`, where a folder holds `w8a`
    but not `w8a.t`.

    Files are looked for in `root` alone if it is given; otherwise in the folder named by the environment
    variable `FEDRZO_DATA`, then in the cache (`$XDG_CACHE_HOME/fedrzo`, by default `~/.cache/fedrzo`), and
    are otherwise downloaded into the cache. A folder may hold them directly or in a sub-folder: `mnist/`,
    `cifar10/` or `cifar-10-batches-bin/`, `libsvm/`. What has a published checksum or row count is checked
    against it.

    Args:
        name: one of `NAMES`.
        root: the only folder to look in; nothing is downloaded then.
        download: whether the network may be used for files found nowhere.

    Returns:
        The data set; its arrays are read-only, since all callers share them.

    Raises:
        InputError: the name is unknown, a file is missing or corrupt, or the download failed.
        MissingExtraError: the set needs scikit-learn, which is not installed.
    """
    if name in EMBEDDED:
        return embedded(name)
    if name not in SOURCES:
        raise InputError(f"name={name!r} is not a data set{nearest(str(name), NAMES)}")
    return from_files(name, tuple(find(name, root, download).items()))
