"""One safetensors header, read and checked against its file before a tensor is read.

A safetensors file is 8 bytes (the header's length, little-endian), a JSON header that gives each tensor's
dtype, shape and byte range, and the tensors, in this order and without gaps. A reader that trusts the header
blindly can end with wrong weights and no error.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gptoss_lab.weights.layout import DTYPE_BYTES, TensorSpec

LARGEST_HEADER = 100_000_000
"""safetensors' own limit, in bytes: a larger number is not a header's length."""

FETCH = "Fetch the file again"
WRITE = "Write the file again"


class CheckpointError(ValueError):
    """A checkpoint that cannot be trusted. The message names the file and the fault."""


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's place: bytes [start, start + spec.nbytes) of `file`, counted from the start of the file."""

    spec: TensorSpec
    file: Path
    start: int


def read_header(path: str | Path) -> list[StoredTensor]:
    """Read one safetensors header and check it against the file's size. No tensor is read.

    Returns the tensors in the order of their bytes. A file without a tensor is valid and gives an empty list.
    Raises CheckpointError for a missing or truncated file, bytes behind the last tensor, a header that is
    cut, larger than the file or not JSON, a name given twice, an unknown dtype, a shape or range that is not
    one, a range whose size is not shape times dtype, a first tensor that is not at offset 0, and ranges that
    overlap or leave a gap.
    """
    path = Path(path)
    header, size, data_start = _read_json_header(path)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ is {metadata!r}, not a map from text to text. {WRITE}")
    entries = [_parse_entry(path, name, entry) for name, entry in header.items()]
    entries.sort(key=lambda entry: entry[1:])
    data_bytes = _require_no_gap(path, entries)
    if data_start + data_bytes != size:
        fault = "is truncated" if size < data_start + data_bytes else "has bytes behind its last tensor"
        raise CheckpointError(f"{path} {fault}: {size} bytes, not the header's {data_start + data_bytes}. {FETCH}")
    return [StoredTensor(spec, path, data_start + begin) for spec, begin, _ in entries]


def parse_json(path: Path, raw: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object in which no key stands twice. Raises CheckpointError otherwise."""

    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise CheckpointError(f"{path}: {name!r} stands twice in {what}. {WRITE}")
            seen.add(name)
        return dict(pairs)

    def refuse_constant(text: str) -> NoReturn:
        raise ValueError(f"{text} is no JSON value")

    try:
        parsed = json.loads(raw.decode(), object_pairs_hook=refuse_twice, parse_constant=refuse_constant)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: {what} is not JSON ({error}). {FETCH}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: {what} is a JSON {type(parsed).__name__}, not an object. {FETCH}")
    return parsed


def _read_json_header(path: Path) -> tuple[dict[str, Any], int, int]:
    """Return the header, the file's size, and the offset where tensor bytes start."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            prefix = file.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8:
                raise CheckpointError(f"{path} is truncated: {size} bytes, the header's length takes 8. {FETCH}")
            if length > LARGEST_HEADER or 8 + length > size:
                raise CheckpointError(
                    f"{path}: the header is cut, or its length is wrong. It should have {length} bytes; the "
                    f"file has {size - 8} after the length, and the limit is {LARGEST_HEADER}. {FETCH}"
                )
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror}): check that it is there") from error
    return parse_json(path, raw, "the header"), size, 8 + length


def _parse_entry(path: Path, name: str, entry: Any) -> tuple[TensorSpec, int, int]:
    """Return a header entry as its spec and its range behind the header."""
    where = f"{path}: tensor {name!r}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise CheckpointError(f"{where} needs dtype, shape and data_offsets, the header has {entry!r}. {WRITE}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        raise CheckpointError(f"{where} has the unknown dtype {dtype!r}: convert it to one of {known}")
    if not _are_sizes(shape):
        raise CheckpointError(f"{where} has the shape {shape!r}, not a list of integers from 0. {WRITE}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{where} has the range {offsets!r}, not two integers, begin <= end. {WRITE}")
    spec = TensorSpec(name, dtype, tuple(shape))
    begin, end = offsets
    if end - begin != spec.nbytes:
        raise CheckpointError(
            f"{where}: {dtype} {shape} needs {spec.nbytes} bytes, its range {offsets} has {end - begin}. {WRITE}"
        )
    return spec, begin, end


def _are_sizes(values: Any) -> bool:
    """Tell whether this is a list of integers from 0 (JSON's true is no integer)."""
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _require_no_gap(path: Path, entries: list[tuple[TensorSpec, int, int]]) -> int:
    """Return the end of the last range, after checking that the sorted ranges touch and start at 0."""
    position, before = 0, ""
    for spec, begin, end in entries:
        where = f"{path}: tensor {spec.name!r} starts at offset {begin}"
        if not before and begin != 0:
            raise CheckpointError(f"{where}, and the first tensor must be at offset 0. {WRITE}")
        if begin > position:
            raise CheckpointError(f"{where} and leaves a gap: {before} ends at {position}. {WRITE}")
        if begin < position:
            raise CheckpointError(f"{where} and overlaps {before}, which ends at {position}. {WRITE}")
        position, before = end, repr(spec.name)
    return position
