"""Fashion-MNIST, cut into one share per client."""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

Images = npt.NDArray[np.uint8]
"""(count, 28, 28)"""
Labels = npt.NDArray[np.uint8]
"""(count,)"""

NUM_CLASSES = 10
HUB_NAME = "zalando-datasets/fashion_mnist"
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
PARTS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
HOW_TO_GET_IT = f"""Fashion-MNIST was not found, and the Hugging Face hub could not be reached. Either
  - connect to the internet, so that "{HUB_NAME}" can be downloaded once, or
  - on Debian or Ubuntu: apt install dataset-fashion-mnist, or
  - download the four files {PARTS[0]}.gz, … from https://github.com/zalandoresearch/fashion-mnist
    and set SECUREAFL_DATA to their folder where the clients and the server run."""


def load_share(
    partition_id: int, num_partitions: int, non_iid: float = 0.5, seed: int = 0
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The training images and labels of one client."""
    images, labels = load_split("train")
    mine = owners(labels, num_partitions, non_iid, seed) == partition_id
    return images[mine], labels[mine]


def owners(labels: Labels, num_partitions: int, non_iid: float, seed: int) -> npt.NDArray[np.int64]:
    """The client that gets each image, as in the paper.

    Clients are shuffled into one group per class. An image of class q goes to group q with probability `non_iid`, to
    each other group with equal shares of the rest, and to any client of its group. With fewer clients than classes
    there are fewer groups, and several classes call the same group their own.
    """
    rng = np.random.default_rng(seed)
    num_groups = min(NUM_CLASSES, num_partitions)
    groups = np.array_split(rng.permutation(num_partitions), num_groups)
    home = labels.astype(np.int64) % num_groups
    elsewhere = rng.integers(1, num_groups, len(labels)) if num_groups > 1 else 0
    group = np.where(rng.random(len(labels)) < non_iid, home, (home + elsewhere) % num_groups)
    sizes = np.array([len(members) for members in groups])
    starts = np.cumsum(sizes) - sizes
    place = starts[group] + rng.integers(0, sizes[group])
    return np.concatenate(groups)[place]


@functools.cache
def load_split(split: str) -> tuple[Images, Labels]:
    """All images and labels of "train" or "test", mapped from a file that the first call writes."""
    folder = _local_folder()
    cache = _cache_folder(folder)
    paths = [cache / f"{split}-{what}.npy" for what in ("images", "labels")]
    if not all(path.exists() for path in paths):
        arrays = _read_hub(split) if folder is None else _read_folder(folder, split)
        for path, array in zip(paths, arrays, strict=True):
            _write(path, array)
    images, labels = (np.load(path, mmap_mode="r") for path in paths)
    return images, labels


def _local_folder() -> Path | None:
    """Where the four files lie, or None if the hub must be asked: in SECUREAFL_DATA, else where Debian puts them."""
    named = os.environ.get("SECUREAFL_DATA")
    places = [Path(named), Path(named, "fashion-mnist")] if named else []
    for place in [*places, DEBIAN_FOLDER]:
        if all(_find(place, part) for part in PARTS):
            return place
    if named:
        raise FileNotFoundError(f"SECUREAFL_DATA={named} does not hold {', '.join(PARTS)}, as they are or with .gz")
    return None


def _find(folder: Path, part: str) -> Path | None:
    candidates = (folder / part, folder / f"{part}.gz")
    return next((path for path in candidates if path.is_file()), None)


def _cache_folder(source: Path | None) -> Path:
    """A folder of its own for every source, beside Flower's own files."""
    stats = [path.stat() for part in PARTS if (path := _find(source, part))] if source else []
    key = hashlib.sha256(repr([(str(source), stat.st_size, stat.st_mtime_ns) for stat in stats]).encode()).hexdigest()
    home = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
    folder = home / "secureafl-quickstart" / key[:12]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write(path: Path, array: npt.NDArray[np.uint8]) -> None:
    """Whole or not at all: many clients may do this at the same time."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        np.save(file, array)
    Path(file.name).replace(path)


def _read_folder(folder: Path, split: str) -> tuple[Images, Labels]:
    prefix = "train" if split == "train" else "t10k"
    images, labels = (_read_idx(folder, part) for part in PARTS if part.startswith(prefix))
    return images, labels


def _read_idx(folder: Path, part: str) -> npt.NDArray[np.uint8]:
    path = _find(folder, part)
    assert path is not None
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    shape = np.frombuffer(raw, ">u4", count=raw[3], offset=4)  # the fourth byte counts the dimensions
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def _read_hub(split: str) -> tuple[Images, Labels]:
    from flwr_datasets import FederatedDataset  # takes seconds to import, and once is enough

    try:
        rows = FederatedDataset(dataset=HUB_NAME, partitioners={}).load_split(split)
    except Exception as error:
        raise FileNotFoundError(HOW_TO_GET_IT) from error
    return np.stack([np.asarray(image, np.uint8) for image in rows["image"]]), np.asarray(rows["label"], np.uint8)
