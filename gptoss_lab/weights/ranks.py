"""Distributed streaming: several processes read a checkpoint together, each a part, and broadcast it to the others.

Up to 0.16.1 the streamer gives each process (a *rank*) two buffers on the device of the stream. In a round, a rank
fills its `data_buffer` with what it read, and then the ranks broadcast theirs in turn. A rank's own tensors are views
of its data buffer, everyone else's are views of its one received buffer, which every broadcast fills from offset 0.

`plan_rounds` tells the rounds from sizes alone, `run_ranks` runs them: real processes, the real streamer, gloo on a CPU
or NCCL on GPUs. Each rank drains the stream and says which tensors are wrong.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from runai_model_streamer import SafetensorsStreamer
from runai_model_streamer.distributed_streamer.partition import partition
from runai_model_streamer.file_streamer import FileChunks
from safetensors.torch import load_file

from gptoss_lab.weights.checkpoint import Checkpoint
from gptoss_lab.weights.compare import differing
from gptoss_lab.weights.headers import read_shards
from gptoss_lab.weights.keeper import Kept, die_with_the_parent
from gptoss_lab.weights.layout import TensorSpec
from gptoss_lab.weights.limits import StreamingError
from gptoss_lab.weights.plan import Slot

BUFFER_VARIABLE = "RUNAI_STREAMER_DIST_BUFFER_MIN_BYTESIZE"
DEFAULT_BUFFER = 2**30  # the streamer's own, in bytes, twice on each rank
ALIGNMENT = 512  # bytes, between two tensors of a broadcast
MOST_IN_A_ROUND = 256  # tensors of one rank
KEPT_AS = {
    "views": lambda tensor: tensor,
    "device copies": lambda tensor: tensor.detach().clone(),
    "host copies": lambda tensor: tensor.detach().to("cpu", copy=True),
}


class RanksError(RuntimeError):
    """Ranks that failed, or that took too long."""


@dataclass(frozen=True)
class RankResult:
    """What one rank saw of a stream.

    `names` are in the order in which they came, `wrong` are those whose bytes were not the file's when the stream had
    ended, sorted. `buffers` is how many different storages the yielded tensors lay in, `device` where. `copied_bytes`
    are the bytes that the rank copied for itself, `peak_bytes` the most GPU memory that it held (0 on a CPU).
    """

    rank: int
    names: list[str]
    wrong: list[str]
    buffers: int
    device: str
    copied_bytes: int
    peak_bytes: int


# ---- the plan ------------------------------------------------------------------------------------------------------


def plan_rounds(checkpoint: Checkpoint, ranks: int, buffer_bytes: int = DEFAULT_BUFFER) -> list[list[list[Slot]]]:
    """Tell what each rank broadcasts in each round: `rounds[r][rank]` are slots, in the order of the broadcast.

    The assignment of tensors to ranks is the streamer's own function. A slot's interval is its place in the buffer of
    the sender and in that of every receiver, its `request` the round. Exact where each rank reads with one thread, as
    `run_ranks` does, since then tensors are ready in the order of the files. Raises StreamingError for fewer than two.
    """
    _require_several(ranks)
    shards = read_shards(checkpoint)
    chunks = [FileChunks(at, shard.label, 0, [spec.nbytes for spec in shard.specs]) for at, shard in enumerate(shards)]
    largest = max((spec.nbytes for shard in shards for spec in shard.specs), default=0)
    batches = []
    for part in partition(chunks, ranks):
        places = [(file, number) for _, source in part for file, number, _ in source.values()]
        specs = [shards[file].specs[number] for file, number in places]
        batches.append(list(_pack(specs, max(buffer_bytes, largest))))
    rounds = max((slots[-1].request + 1 for slots in batches if slots), default=0)
    return [[[slot for slot in slots if slot.request == at] for slots in batches] for at in range(rounds)]


def _require_several(ranks: int) -> None:
    if ranks < 2:
        raise StreamingError(f"ranks={ranks}: give 2 or more, since one rank broadcasts nothing (`plan` is for one)")


def _pack(specs: Sequence[TensorSpec], buffer_bytes: int) -> Iterator[Slot]:
    """Give each tensor of one rank its place: aligned, and in a new round when one does not fit or there are many."""
    at = stop = count = 0
    for spec in specs:
        start = -(-stop // ALIGNMENT) * ALIGNMENT
        if start + spec.nbytes > buffer_bytes or count == MOST_IN_A_ROUND:
            at, start, count = at + 1, 0, 0
        stop, count = start + spec.nbytes, count + 1
        yield Slot(spec.name, at, start, stop)


def lost_names(rounds: Sequence[Sequence[Sequence[Slot]]], rank: int) -> list[str]:
    """Tell which views are wrong on a rank when the stream has ended, sorted.

    The rank's own slots lie in one buffer, everybody else's in another. Each later batch in the same buffer overwrites
    what its slots cover.
    """
    lost: set[str] = set()
    for mine in (True, False):
        batches = [batch for row in rounds for sender, batch in enumerate(row) if (sender == rank) == mine]
        for at, batch in enumerate(batches):
            later = [other for after in batches[at + 1 :] for other in after]
            lost |= {s.name for s in batch if any(max(s.start, o.start) < min(s.stop, o.stop) for o in later)}
    return sorted(lost)


# ---- the real thing ------------------------------------------------------------------------------------------------


def run_ranks(
    checkpoint: Checkpoint,
    ranks: int,
    *,
    uris: Sequence[str] | None = None,
    buffer_bytes: int = DEFAULT_BUFFER,
    keep: str = "views",
    device: str = "cpu",
    environment: Mapping[str, str] | None = None,
    seconds: float = 120.0,
) -> list[RankResult]:
    """Stream a checkpoint in `ranks` processes at once; each keeps every tensor and compares it at the end.

    `uris` are the addresses to stream from instead of the checkpoint's files, `environment` is what they need (see
    `ObjectStore.env`). keep: "views", "device copies" or "host copies". device: "cpu" (gloo), or "cuda" (NCCL, one GPU
    a rank). The processes end when this one does.

    A tensor without elements never comes out of a distributed stream, so it counts as wrong.

    Raises:
        RanksError: a rank failed, with the end of what it printed, or the time is over. StreamingError: fewer than two.
    """
    _require_several(ranks)
    if keep not in KEPT_AS:
        raise RanksError(f"keep={keep!r} is unknown: choose from {', '.join(KEPT_AS)}")
    files = [str(file) for file in checkpoint.files]
    folder = Path(tempfile.mkdtemp(prefix="gptoss-lab-ranks-"))
    job = {"files": files, "uris": list(uris) if uris is not None else files, "folder": str(folder)}
    job |= {"ranks": ranks, "keep": keep, "device": device}
    settings = {
        "RUNAI_STREAMER_DIST": "1",
        "RUNAI_STREAMER_CONCURRENCY": "1",
        BUFFER_VARIABLE: str(buffer_bytes),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", __name__, json.dumps(job)]
    environment = os.environ | dict(environment or {}) | settings
    kept = Kept([command], output=folder / "log", leftovers=[folder], environment=environment)
    return _collect(kept, folder, ranks, seconds)


def _collect(kept: Kept, folder: Path, ranks: int, seconds: float) -> list[RankResult]:
    """Wait for the ranks and read what they wrote; end them in any case."""
    try:
        code = kept.wait(seconds)
        if code != 0:
            what = f"did not end within {seconds:g} s" if code is None else f"failed with exit code {code}"
            said = "\n".join((folder / "log").read_text(errors="replace").splitlines()[-12:])
            raise RanksError(f"one of {ranks} ranks {what}. They printed:\n{said}")
        return [RankResult(**json.loads((folder / f"{rank}.json").read_text())) for rank in range(ranks)]
    finally:
        kept.end()


def stream_on_this_rank(job: Mapping[str, Any]) -> RankResult:
    """One rank's part of `run_ranks`: join the others, stream, keep everything, compare."""
    rank, on_gpu = job["rank"], job["device"] == "cuda"
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    meeting = f"file://{job['folder']}/meeting"
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=meeting, rank=rank, world_size=job["ranks"])
    keep, names, kept, buffers, copied = KEPT_AS[job["keep"]], [], {}, {}, 0
    try:
        with SafetensorsStreamer() as streamer:
            streamer.stream_files(list(job["uris"]), device=str(device), is_distributed=True)
            for name, tensor in streamer.get_tensors():
                names.append(name)
                buffers[tensor.untyped_storage().data_ptr()] = tensor.device.type
                kept[name] = keep(tensor)
                copied += kept[name].nbytes if kept[name] is not tensor else 0
        peak = torch.cuda.max_memory_allocated() if on_gpu else 0
    finally:
        dist.destroy_process_group()
    expected = {name: tensor for file in job["files"] for name, tensor in load_file(file).items()}
    wrong = differing(expected, kept)
    return RankResult(rank, names, wrong, len(buffers), ", ".join(sorted(set(buffers.values()))), copied, peak)


def fork_ranks(job: Mapping[str, Any]) -> int:
    """Run each rank in a fork of this process, which has imported what they need once. Returns 0, or 1 if one failed.

    A fork is safe here: nothing has started a thread yet.
    """
    pids = []
    for rank in range(job["ranks"]):
        pid = os.fork()
        if pid == 0:
            die_with_the_parent()
            try:
                result = stream_on_this_rank({**job, "rank": rank})
                (Path(job["folder"]) / f"{rank}.json").write_text(json.dumps(asdict(result)))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        pids.append(pid)
    for _ in pids:
        if os.wait()[1]:
            return 1  # the others would wait for this one, so whoever keeps this process kills them
    return 0


if __name__ == "__main__":
    sys.exit(fork_ranks(json.loads(sys.argv[1])))
