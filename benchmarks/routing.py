"""Check and measure `rebuild`, `reuse` and `route` on a GPU, and 3.5.1's `routing()` beside them.

    python benchmarks/routing.py --out data/h200/routing.json
    python benchmarks/routing.py --out data/h200/one_launch.json --ways rebuild reuse route --inside 20
    python benchmarks/routing.py --out ... --legacy FOLDER      # FOLDER holds the triton_kernels of 3.5.1

First the checks: the launch lists, equal values, and properties over random inputs. Then the times. Every
part runs in a process of its own and has its own time limit, so that a fault in one does not lose the
others; the record is written again after each. The exit status is 1 when a part failed.

The two generations of triton_kernels share a module name, and 3.5.1 needs triton 3.6. Its processes
therefore get a PYTHONPATH with FOLDER and this repository alone, so that they find the machine's own
triton; `--legacy-path` adds more. They take turns with processes of the other generation. Needs torch,
triton and triton_kernels, nothing more.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from gptoss_lab import provenance  # noqa: E402
from gptoss_lab.moe import measure  # noqa: E402
from gptoss_lab.moe.fused_routing import ONE_LAUNCH, ONE_PROGRAM, TWO_LAUNCHES, route  # noqa: E402
from gptoss_lab.moe.generations import installed_generation  # noqa: E402
from gptoss_lab.moe.launches import launches, timeline  # noqa: E402
from gptoss_lab.moe.routing import rebuild, reuse, topk  # noqa: E402

K = 4
TOKENS = (1, 4, 16, 33, 64, 512, 4096, 8192)
EXPERTS = (32, 128)
METADATA = ["_sum_bitmatrix_rows", "_bitmatrix_metadata_compute_stage1", "_bitmatrix_metadata_compute_stage2"]
METADATA = ["aten.zeros", *METADATA]
TAIL = ["_ragged_tensor_metadata_memset", "_ragged_tensor_metadata_compute", "aten.index", "aten.index"]
REPACK = ["aten._to_copy", "aten._to_copy", "aten.zeros", "pack_bitmatrix", "aten.eq", "aten.scalar_tensor"]
EXPECTED = {
    "rebuild": ["_topk_forward", *METADATA, *REPACK, "aten.where", *METADATA, *TAIL],
    "reuse": ["_topk_forward", *METADATA, *TAIL],
}
LIMIT_S = 280


def make_logits(tokens: int, experts: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    random = torch.Generator().manual_seed(tokens * 1000 + experts)
    logits = torch.randn((tokens, experts), generator=random).to(dtype)
    return logits.cuda() if torch.cuda.is_available() else logits


def ways(logits: torch.Tensor, options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """The calls under test, router included, for logits [tokens, experts]."""
    experts = logits.shape[1]
    calls = {
        "rebuild": lambda: rebuild(topk(logits, K), experts),
        "reuse": lambda: reuse(topk(logits, K), experts),
        "route": lambda: route(logits, K),
    }
    return {name: calls[name] for name in options.ways}


def expected(name: str, tokens: int) -> list[str]:
    """The launch list of a way; `route` takes more launches for more tokens."""
    if name != "route" or tokens > TWO_LAUNCHES:
        return EXPECTED["reuse" if name == "route" else name]
    if tokens > ONE_LAUNCH:
        return ["count", "place"]
    return ["route_in_one" if tokens <= ONE_PROGRAM else "route_by_last"]


def sizes(options: argparse.Namespace) -> list[tuple[int, int]]:
    return [(tokens, experts) for experts in options.experts for tokens in options.tokens]


def check_launches(options: argparse.Namespace) -> Any:
    """The launches that each way should have: 20, 9, and for `route` one up to 256 tokens."""
    wrong = []
    for tokens, experts in sizes(options):
        for name, call in ways(make_logits(tokens, experts), options).items():
            seen = launches(call)
            if seen != expected(name, tokens):
                wrong.append({"tokens": tokens, "experts": experts, "way": name, "launches": seen})
            verdict = "as expected" if seen == expected(name, tokens) else f"NOT as expected: {seen}"
            say(f"{tokens:5} x {experts:3} {name:8} {len(seen):2} launches, {verdict}")
    if wrong:
        raise AssertionError(f"other launches than expected: {json.dumps(wrong)}")
    return {name: expected(name, options.tokens[0]) for name in options.ways}


def check_values(options: argparse.Namespace) -> Any:
    """Equal values at every size, for plain logits and for hard ones, against each other and the
    reference."""
    from gptoss_lab.moe.properties import check_ranks, check_routing, hard_logits

    for tokens, experts in sizes(options):
        plain = make_logits(tokens, experts)
        check_routing(plain, K)
        check_routing(hard_logits(tokens, experts, torch.bfloat16, seed=tokens).to(plain.device), K)
        check_ranks(plain, K, ranks=4, seed=tokens)
        say(f"{tokens:5} x {experts:3} equal")
    return {"sizes": sizes(options)}


def check_properties(options: argparse.Namespace) -> Any:
    """Random sizes, k, dtypes and special values, until the number or the time is reached.

    Runs of examples share what kernels are compiled for: k, the dtype, and tokens and experts in steps of 32.
    """
    from gptoss_lab.moe.properties import check_ranks, check_routing, hard_logits

    device = "cuda" if torch.cuda.is_available() else "cpu"
    end = time.monotonic() + options.property_seconds
    done = options.first_example
    while done < options.first_example + options.examples and time.monotonic() < end:
        kind, random = Draws(seed=done // options.run_length), Draws(seed=1_000_000 + done)
        k, dtype = 2 ** kind.draw(0, 3), (torch.bfloat16, torch.float16, torch.float32)[kind.draw(0, 2)]
        tokens = 32 * kind.draw(0, options.most_tokens // 32 - 1) + random.draw(0, 32)
        experts = 32 * kind.draw(1, options.most_experts // 32) - random.draw(0, 1) * random.draw(0, 32 - k)
        try:
            logits = hard_logits(tokens, experts, dtype, seed=done).to(device)
            check_routing(logits, k, None if done % 5 else random.draw(0, tokens), fused=False)
            if done % 4 == 0:
                check_ranks(logits, k, ranks=random.draw(2, 4), seed=done)
        except Exception as error:
            raise AssertionError(f"example {done}: {tokens} x {experts}, k {k}, {dtype}: {error}") from error
        done += 1
        if done % options.run_length == 0:
            say(f"{done - options.first_example} examples")
            keep(options, {"examples": done - options.first_example})
    say(f"{done - options.first_example} examples hold")
    return {"examples": done - options.first_example}


def check_fused(options: argparse.Namespace) -> Any:
    """`route` with any k on random inputs; a run of examples has one shape, since each shape is compiled anew."""
    from gptoss_lab.moe.properties import check_route, hard_logits

    device = "cuda" if torch.cuda.is_available() else "cpu"
    end, begin = time.monotonic() + options.property_seconds, options.first_example
    done = begin
    while done < begin + options.examples and time.monotonic() < end:
        kind = Draws(seed=2_000_000 + done // options.run_length)
        k, dtype = kind.draw(1, 8), (torch.bfloat16, torch.float16, torch.float32)[kind.draw(0, 2)]
        tokens, experts = (kind.draw(0, 16), kind.draw(17, 300))[kind.draw(0, 1)], kind.draw(k, 160)
        try:
            check_route(hard_logits(tokens, experts, dtype, seed=done).to(device), k)
        except Exception as error:
            raise AssertionError(f"example {done}: {tokens} x {experts}, k {k}, {dtype}: {error}") from error
        done += 1
    say(f"{done - begin} examples hold")
    return {"examples": done - begin}


class Draws:
    """Random whole numbers that a seed decides."""

    def __init__(self, seed: int) -> None:
        self.random = torch.Generator().manual_seed(seed)

    def draw(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (1,), generator=self.random))


def record_timelines(options: argparse.Namespace) -> Any:
    """When the host asked for each kernel and when the device ran it."""
    found = []
    for tokens, experts in [(1, 32), (1, 128), (64, 128)]:
        for name, call in ways(make_logits(tokens, experts), options).items():
            line = [dataclasses.asdict(launch) for launch in timeline(call)]
            found.append({"tokens": tokens, "experts": experts, "way": name, "launches": line})
            keep(options, found)
            busy = sum(launch["lasted_us"] for launch in line)
            say(f"{tokens:5} x {experts:3} {name:8} device busy {busy:.1f} us over {len(line)} launches")
    return found


def measure_ways(options: argparse.Namespace) -> Any:
    """CUDA-graph and eager medians of all ways, in turns, at every size."""
    return measure_sizes(options, lambda logits: ways(logits, options))


def measure_legacy(options: argparse.Namespace) -> Any:
    """The same for 3.5.1's routing()."""
    from gptoss_lab.moe.legacy import legacy

    return measure_sizes(options, lambda logits: {"legacy": lambda: legacy(logits, K)})


def list_legacy(options: argparse.Namespace) -> Any:
    """The launches of 3.5.1's routing()."""
    from gptoss_lab.moe.legacy import legacy

    logits = make_logits(64, 128)
    names = launches(lambda: legacy(logits, K))
    say(f"   64 x 128 legacy   {len(names):2} launches: {names}")
    return names


def measure_sizes(options: argparse.Namespace, calls: Callable[[torch.Tensor], dict[str, Callable]]) -> list[dict]:
    found = []
    for tokens, experts in sizes(options):
        logits = make_logits(tokens, experts)
        modes = {"graph": partial(measure.measure_graph, inside=options.inside), "eager": measure.measure_eager}
        for mode, take in modes.items():
            for name, timing in take(calls(logits), samples=options.samples).items():
                size = {"tokens": tokens, "experts": experts, "way": name, "mode": mode}
                found.append(size | dataclasses.asdict(timing))
                keep(options, found)
                spread = f"{timing.low_us:.1f} to {timing.high_us:.1f}"
                say(f"{tokens:5} x {experts:3} {name:8} {mode} {timing.median_us:8.1f} us ({spread})")
    return found


PARTS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "launches": check_launches,
    "values": check_values,
    "properties": check_properties,
    "fused": check_fused,
    "timelines": record_timelines,
    "timings": measure_ways,
}
TURNS = {"turn_ours": measure_ways, "turn_legacy": measure_legacy, "legacy_launches": list_legacy}


def run_part(name: str, options: argparse.Namespace, paths: list[str] | None = None) -> dict[str, Any]:
    """Run one part in a process of its own. Returns its result or its error, and where it ran."""
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    if paths is not None:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "part.json"
        command = [sys.executable, __file__, *options.arguments, "--part", name, "--part-out", str(out)]
        begin = time.monotonic()
        try:
            status = subprocess.run(command, env=environment, timeout=options.limit_s).returncode
            fault = None if status == 0 else f"exit status {status}, see the output"
        except subprocess.TimeoutExpired:
            fault = f"not done after {options.limit_s} s"
        found = json.loads(out.read_text()) if out.exists() else {}
    fault = found.get("error") or fault
    say(f"== {name}: {'FAILED: ' + fault if fault else 'done'} ({time.monotonic() - begin:.0f} s)")
    return {"error": fault, "result": found.get("result"), "provenance": found.get("provenance")}


def be_part(options: argparse.Namespace) -> int:
    """Do one part here and write its result, or what there is of it."""
    options.found = {"provenance": provenance.provenance(options.commit, {"triton_kernels": installed_generation()})}
    try:
        with torch.no_grad():
            options.found["result"] = (PARTS | TURNS)[options.part](options)
    except Exception as error:  # what a part died of belongs in the record
        options.found["error"] = f"{type(error).__name__}: {error}"
    provenance.write_record(options.part_out, options.found)
    return 1 if "error" in options.found else 0


def keep(options: argparse.Namespace, result: Any) -> None:
    """Write what a part has found so far, should it be stopped."""
    options.found["result"] = result
    provenance.write_record(options.part_out, options.found)


def take_turns(options: argparse.Namespace, record: dict[str, Any]) -> None:
    """Let processes of both generations measure in turns and keep the median of their medians."""
    legacy_paths = [str(Path(options.legacy).resolve()), str(REPOSITORY), *options.legacy_path]
    timings: dict[tuple, list[float]] = {}
    record["failures"] = {name: fault for name, fault in record["failures"].items() if name in PARTS}
    listed = run_part("legacy_launches", options, legacy_paths)
    legacy: dict[str, Any] = {"rounds": options.rounds, "launches": listed["result"]}
    if listed["error"]:
        record["failures"]["legacy_launches"] = listed["error"]
    for turn in range(options.rounds):
        ours, theirs = run_part("turn_ours", options), run_part("turn_legacy", options, legacy_paths)
        for name, part in (("turn_ours", ours), ("turn_legacy", theirs)):
            if part["error"]:
                record["failures"][f"{name} {turn}"] = part["error"]
        legacy["provenance"] = theirs["provenance"]
        for line in (ours["result"] or []) + (theirs["result"] or []):
            size = (line["tokens"], line["experts"], line["way"], line["mode"])
            timings.setdefault(size, []).append(line["median_us"])
    keys = ("tokens", "experts", "way", "mode")
    legacy["timings"] = [
        dict(zip(keys, size, strict=True)) | {"median_us": statistics.median(medians), "medians_us": medians}
        for size, medians in timings.items()
    ]
    if "timings" not in options.parts:
        record["timings"] = legacy.pop("timings")
    record["legacy"] = legacy


def say(text: str) -> None:
    print(text, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="routing.json", help="where the record goes")
    parser.add_argument("--legacy", help="folder that holds the triton_kernels of release 3.5.1")
    parser.add_argument("--legacy-path", action="append", default=[], help="one more folder for its PYTHONPATH")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each generation")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--experts", type=int, nargs="+", default=EXPERTS)
    parser.add_argument("--ways", nargs="+", choices=["rebuild", "reuse", "route"], default=["rebuild", "reuse"])
    parser.add_argument("--inside", type=int, default=1, help="calls one behind the other in a CUDA graph")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--first-example", type=int, default=0, help="so that several processes try different ones")
    parser.add_argument("--property-seconds", type=float, default=120)
    parser.add_argument("--run-length", type=int, default=100, help="random inputs of one kind in a row")
    parser.add_argument("--most-tokens", type=int, default=96, help="of the random inputs, in steps of 32")
    parser.add_argument("--most-experts", type=int, default=160, help="of the random inputs, in steps of 32")
    parser.add_argument("--parts", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--add", action="store_true", help="keep what the record has of other parts")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="of one part")
    parser.add_argument("--commit", help="what the record names, when there is no git here")
    parser.add_argument("--part", choices=[*PARTS, *TURNS], help=argparse.SUPPRESS)
    parser.add_argument("--part-out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.legacy and not Path(options.legacy, "triton_kernels", "routing.py").exists():
        parser.error(f"--legacy {options.legacy}: pass the folder that holds triton_kernels/routing.py of 3.5.1")
    options.arguments = sys.argv[1:]
    return options


def main() -> int:
    options = parse_arguments()
    if options.part:
        return be_part(options)
    record: dict[str, Any] = {"provenance": None, "k": K, "dtype": "bfloat16", "inside": options.inside, "failures": {}}
    command = provenance.command()
    if options.add and Path(options.out).exists():
        record = json.loads(Path(options.out).read_text())
        if record["provenance"]:
            command = f"{record['provenance']['command']} && {command}"
    for name in options.parts:
        record["failures"].pop(name, None)
        part = run_part(name, options)
        record[name] = part["result"]
        if part["error"]:
            record["failures"][name] = part["error"]
        if part["provenance"]:
            record["provenance"] = part["provenance"] | {"command": command}
        provenance.write_record(options.out, record)
    if options.legacy:
        take_turns(options, record)
        record["provenance"] = (record["provenance"] or {}) | {"command": command}
        provenance.write_record(options.out, record)
    say(f"written: {options.out}; failures: {record['failures'] or 'none'}")
    return 1 if record["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
