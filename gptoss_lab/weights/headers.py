"""Whatever may be streamed or planned, as a list of shards: which tensors lie in each, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gptoss_lab.weights.checkpoint import Checkpoint, read_checkpoint, read_header
from gptoss_lab.weights.layout import TensorSpec, file_order

Files = str | Path | Checkpoint | Sequence[str | Path]
Source = Files | Sequence[TensorSpec] | Sequence[Sequence[TensorSpec]]

LENGTH_BYTES = 8  # a safetensors file starts with the length of its header


@dataclass(frozen=True)
class Shard:
    """One safetensors file: its tensors in the order of their bytes. `path` is None if there is no file."""

    label: str
    specs: tuple[TensorSpec, ...]
    path: Path | None = None
    header_bytes: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors."""
        return sum(spec.nbytes for spec in self.specs)


def read_shards(source: Source) -> list[Shard]:
    """Turn a folder, a `Checkpoint`, files or `TensorSpec`s into shards. Of files only headers are read.

    A list of `TensorSpec`s is one shard, a list of such lists one shard each. They are put in the order in
    which safetensors lays them out in a file.

    Raises:
        CheckpointError: a file that is missing, truncated or inconsistent, or that its index does not fit.
    """
    if isinstance(source, Checkpoint):
        return [read_shard(file) for file in source.files]
    if isinstance(source, str | Path):
        path = Path(source)
        return read_shards(read_checkpoint(path)) if path.is_dir() else [read_shard(path)]
    items = list(source)
    if items and isinstance(items[0], TensorSpec):
        items = [items]
    return [
        read_shard(item) if isinstance(item, str | Path) else Shard(f"shard {number}", tuple(file_order(item)))
        for number, item in enumerate(items, start=1)
    ]


def read_shard(file: str | Path) -> Shard:
    """Read one file's header; the file is checked against it."""
    path = Path(file)
    specs = tuple(tensor.spec for tensor in read_header(path))
    with path.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    return Shard(str(path), specs, path, max(header_bytes, LENGTH_BYTES))
