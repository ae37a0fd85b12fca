"""A checkpoint on disk, read and checked before a tensor is read.

An index file says which file holds which tensor, and each file's header says the same once more. A loader
that trusts one of them blindly can end with missing or stale weights and no error (SGLang's pull request
38988 is such a case), so all of it is compared here. The names of `layout`, `parsing` and `writing` can be
imported from here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gptoss_lab.weights.layout import (
    DTYPE_BYTES,
    GPT_OSS_20B,
    GPT_OSS_120B,
    SHARD_LIMIT,
    TINY,
    TensorSpec,
    file_bytes,
    file_order,
    shard,
    shard_names,
    tensor_specs,
)
from gptoss_lab.weights.parsing import FETCH, CheckpointError, StoredTensor, parse_json, read_header
from gptoss_lab.weights.writing import config_json, write_checkpoint, write_random_checkpoint

__all__ = [
    "DTYPE_BYTES", "GPT_OSS_120B", "GPT_OSS_20B", "SHARD_LIMIT", "TINY", "Checkpoint", "CheckpointError",
    "StoredTensor", "TensorSpec", "config_json", "file_bytes", "file_order", "read_checkpoint", "read_header",
    "shard", "shard_names", "tensor_specs", "write_checkpoint", "write_random_checkpoint",
]  # fmt: skip

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A checked checkpoint. `files` are sorted by name, `tensors` are in the order of their bytes."""

    folder: Path
    files: list[Path]
    tensors: dict[str, StoredTensor]

    @property
    def total_bytes(self) -> int:
        """The bytes of all tensors, headers not counted."""
        return sum(stored.spec.nbytes for stored in self.tensors.values())


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Read the index and the headers of a folder and compare them with each other. No tensor is read.

    A folder without an index must hold one file, `model.safetensors`.
    Raises CheckpointError, which names the file and the fault: an index or a shard that is missing or
    unreadable, a shard that the index does not name, a tensor in one of the two only, in two shards, or in
    another shard than the index says, and all that `read_header` refuses.
    """
    folder = Path(folder)
    index = _read_index(folder)
    names = sorted(set(index.values())) if index is not None else [SINGLE]
    _require_same_files(folder, names, INDEX if index is not None else "the list of a folder without index")
    tensors: dict[str, StoredTensor] = {}
    for stored in (stored for name in names for stored in read_header(folder / name)):
        other = tensors.setdefault(stored.spec.name, stored)
        if other is not stored:
            raise CheckpointError(
                f"{stored.file}: tensor {stored.spec.name!r} is in {other.file.name} as well: remove the stale one"
            )
    if index is not None:
        _require_same_tensors(folder, index, tensors)
    return Checkpoint(folder, [folder / name for name in names], tensors)


def _read_index(folder: Path) -> dict[str, str] | None:
    """Return the index's map from tensor to file, or None where the checkpoint is one file."""
    path = folder / INDEX
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: give the one that holds {INDEX}")
    if not path.is_file():
        if (folder / SINGLE).is_file():
            return None
        raise CheckpointError(f"{path} is missing, and there is no {SINGLE}: fetch the whole checkpoint")
    weight_map = parse_json(path, path.read_bytes(), "the index").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map from tensor to file. {FETCH}")
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{path} puts tensor {tensor!r} into {file!r}, not a .safetensors file of its folder. {FETCH}"
            )
    return weight_map


def _require_same_files(folder: Path, names: list[str], source: str) -> None:
    """Raise CheckpointError unless the folder's safetensors files are the named ones."""
    for name in names:
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is missing, {source} names it: fetch it")
    for path in sorted(folder.glob("*.safetensors")):
        if path.name not in names:
            raise CheckpointError(
                f"{path} is not in {source}: remove it if it is stale, or fetch the index that belongs to it"
            )


def _require_same_tensors(folder: Path, index: dict[str, str], tensors: dict[str, StoredTensor]) -> None:
    """Raise CheckpointError unless index and headers name the same tensors in the same files."""
    for name, file in index.items():
        if name not in tensors:
            raise CheckpointError(f"{folder / file} lacks tensor {name!r}, which {INDEX} puts there. {FETCH}")
        held_by = tensors[name].file.name
        if held_by != file:
            raise CheckpointError(
                f"{folder / INDEX} puts tensor {name!r} into {file}, but it is in {held_by}: fetch the index "
                "that belongs to these files"
            )
    for name, stored in tensors.items():
        if name not in index:
            raise CheckpointError(
                f"{stored.file} holds tensor {name!r}, which {INDEX} does not name: fetch the index that belongs to it"
            )
