"""One expert layer of gpt-oss-20b's shapes on a GPU, then 24, with the routing made in three ways.

    python benchmarks/layer.py --out data/h200/layer.json
    python benchmarks/layer.py --out ... --legacy FOLDER      # FOLDER holds the triton_kernels of 3.5.1

A layer is the router's product, the routing, and the experts in MXFP4; the weights are random bytes. First the checks:
the output against float32, equal outputs of all ways, the launch lists. Then the times, in CUDA graphs and eager, for
one layer and for 24 with weights of their own: a layer that is replayed alone may find weights in the L2 cache, a model
does not. `bytes` is what one layer must read at least, the weights of the chosen experts and the router's, and
`model_bytes` the same for 24.

Each generation of triton_kernels runs in a process of its own, with the paths that `benchmarks/routing.py` explains.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from gptoss_lab import provenance  # noqa: E402
from gptoss_lab.config import Config  # noqa: E402
from gptoss_lab.model import Experts  # noqa: E402
from gptoss_lab.moe import measure  # noqa: E402
from gptoss_lab.moe.generations import installed_generation  # noqa: E402
from gptoss_lab.moe.layer import Layer, make_experts, make_hidden, make_layer  # noqa: E402

TOKENS = (1, 4, 16, 64)
BOUND = 0.005  # relative error of the MXFP4 product in BF16 against float32


def ways() -> dict[str, Callable[[torch.Tensor, int], Any]]:
    """The routings under test, each from logits."""
    from gptoss_lab.moe.fused_routing import route
    from gptoss_lab.moe.routing import rebuild, reuse, topk

    return {
        "rebuild": lambda logits, k: rebuild(topk(logits, k), logits.shape[1]),
        "reuse": lambda logits, k: reuse(topk(logits, k), logits.shape[1]),
        "route": route,
    }


def run_layer(layer: Layer, hidden: torch.Tensor, way: Callable, k: int) -> torch.Tensor:
    from gptoss_lab.moe.experts import run_experts

    return run_experts(layer.experts, hidden, way(F.linear(hidden, layer.router, layer.bias), k))


def run_layers(layers: list[Layer], hidden: torch.Tensor, run: Callable[[Layer, torch.Tensor], torch.Tensor]) -> Any:
    """Each layer reads what the one before wrote; normalised, so that the values stay where they are."""
    for layer in layers:
        hidden = run(layer, hidden)
        if len(layers) > 1:
            hidden = F.rms_norm(hidden, (hidden.shape[1],))
    return hidden


def least_bytes(config: Config, layer: Layer, hidden: torch.Tensor) -> int:
    """The bytes that one layer must read: the chosen experts' weights and the router's."""
    logits = F.linear(hidden, layer.router, layer.bias)
    chosen = logits.topk(config.num_experts_per_tok, dim=-1).indices.unique().numel()
    values = 3 * config.hidden_size * config.intermediate_size  # gate, up and down of one expert
    return chosen * (values // 2 + values // 32) + layer.router.nbytes


def sum_bytes(config: Config, layers: list[Layer], hidden: torch.Tensor) -> int:
    """The least bytes of all layers, each with what the one before hands it."""
    from gptoss_lab.moe.fused_routing import route

    total = 0
    for layer in layers:
        total += least_bytes(config, layer, hidden)
        hidden = run_layer(layer, hidden, route, config.num_experts_per_tok)
        hidden = F.rms_norm(hidden, (hidden.shape[1],))
    return total


def check(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    """Hold the product against float32 and the ways against each other, and list the launches."""
    from gptoss_lab.moe.experts import prepare_experts
    from gptoss_lab.moe.launches import timeline

    k, found = config.num_experts_per_tok, {"errors": {}, "launches": {}, "timelines": {}}
    layer = make_layer(config, 0, prepare_experts)
    plain = make_experts(config, 0)
    wide = Experts(config, torch.float32).cuda()
    wide.load_state_dict(plain.state_dict())
    for tokens in options.tokens:
        hidden = make_hidden(config, tokens)
        logits = F.linear(hidden, layer.router, layer.bias)
        expected = wide(hidden.float(), logits.float())
        outputs = {name: run_layer(layer, hidden, way, k) for name, way in ways().items()}
        error = ((outputs["reuse"].float() - expected).norm() / expected.norm()).item()
        found["errors"][tokens] = error
        say(f"{tokens:3} tokens: relative error {error:.4f}")
        if not error < BOUND:
            raise AssertionError(f"{tokens} tokens: relative error {error}, {BOUND} is allowed")
        for name, output in outputs.items():
            if not torch.equal(output, outputs["reuse"]):
                raise AssertionError(f"{tokens} tokens: {name} gives another output than reuse")
    hidden = make_hidden(config, 1)
    for name, way in ways().items():
        line = timeline(partial(run_layer, layer, hidden, way, k))
        found["launches"][name] = [launch.name for launch in line]
        found["timelines"][name] = [dataclasses.asdict(launch) for launch in line]
        say(f"{name:8} {len(line)} launches")
    return found


def measure_ours(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    """All three ways, in turns, and the bytes that they must read."""
    from gptoss_lab.moe.experts import prepare_experts

    k = config.num_experts_per_tok
    runs = {name: (lambda layer, hidden, way=way: run_layer(layer, hidden, way, k)) for name, way in ways().items()}
    layers = [make_layer(config, seed, prepare_experts) for seed in range(options.layers)]
    hidden = {tokens: make_hidden(config, tokens) for tokens in options.tokens}
    return {
        "timings": measure_runs(config, options, layers, runs),
        "bytes": {tokens: least_bytes(config, layers[0], rows) for tokens, rows in hidden.items()},
        "model_bytes": {tokens: sum_bytes(config, layers, rows) for tokens, rows in hidden.items()},
    }


def measure_legacy(config: Config, options: argparse.Namespace) -> dict[str, Any]:
    """The same layer with 3.5.1: its router, and its product `matmul_ogs`."""
    from triton_kernels import matmul_ogs as ogs
    from triton_kernels.routing import routing
    from triton_kernels.swiglu import swiglu_fn
    from triton_kernels.tensor import FP4, convert_layout, wrap_torch_tensor
    from triton_kernels.tensor_details import layout

    def project(blocks: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor) -> tuple[Any, Any, torch.Tensor]:
        kind, settings = layout.make_default_matmul_mxfp4_w_layout(mx_axis=1)
        weights = wrap_torch_tensor(blocks.data.flatten(-2).transpose(-1, -2), dtype=FP4)
        weights = convert_layout(weights, kind, **settings)
        kind, settings = layout.make_default_matmul_mxfp4_w_scale_layout(mx_axis=1, num_warps=8)
        padded = F.pad(scales.data, (0, -scales.shape[-1] % 4)).transpose(-1, -2)
        weight_scale = convert_layout(wrap_torch_tensor(padded), kind, **settings)
        return weights, ogs.PrecisionConfig(weight_scale=weight_scale), bias.data.float()

    def prepare(experts: Experts) -> Any:
        up = project(experts.gate_up_proj_blocks, experts.gate_up_proj_scales, experts.gate_up_proj_bias)
        return up, project(experts.down_proj_blocks, experts.down_proj_scales, experts.down_proj_bias)

    specs = ogs.FnSpecs("swiglu", swiglu_fn, ("alpha", "limit"))
    activation = ogs.FusedActivation(specs, (1.702, config.swiglu_limit), 2)

    def run(layer: Layer, hidden: torch.Tensor) -> torch.Tensor:
        (up, up_precision, up_bias), (down, down_precision, down_bias) = layer.experts
        data, gather, scatter = routing(F.linear(hidden, layer.router, layer.bias), config.num_experts_per_tok)
        inner = ogs.matmul_ogs(
            hidden, up, up_bias, data, gather_indx=gather, precision_config=up_precision, fused_activation=activation
        )
        return ogs.matmul_ogs(
            inner,
            down,
            down_bias,
            data,
            scatter_indx=scatter,
            precision_config=down_precision,
            gammas=data.gate_scal,
        )

    layers = [make_layer(config, seed, prepare) for seed in range(options.layers)]
    check_legacy(config, layers[0], run)
    return {"timings": measure_runs(config, options, layers, {"legacy": run})}


def check_legacy(config: Config, layer: Layer, run: Callable) -> None:
    """3.5.1's layer computes the same as float32, or its times mean nothing."""
    wide = Experts(config, torch.float32).cuda()
    wide.load_state_dict(make_experts(config, 0).state_dict())
    hidden = make_hidden(config, 4)
    expected = wide(hidden.float(), F.linear(hidden, layer.router, layer.bias).float())
    error = ((run(layer, hidden).float() - expected).norm() / expected.norm()).item()
    say(f"legacy: relative error {error:.4f}")
    if not error < BOUND:
        raise AssertionError(f"legacy: relative error {error}, {BOUND} is allowed")


def measure_runs(
    config: Config, options: argparse.Namespace, layers: list[Layer], runs: dict[str, Callable]
) -> list[dict[str, Any]]:
    """Each run over the first layer and over all, in CUDA graphs and eager."""
    found = []
    for count in (1, options.layers):
        for tokens in options.tokens:
            some, hidden = layers[:count], make_hidden(config, tokens)
            calls = {name: partial(run_layers, some, hidden, run) for name, run in runs.items()}
            inside = 10 if count == 1 else 1
            timings = {
                "graph": measure.measure_graph(calls, options.samples, replays=5, inside=inside),
                "eager": measure.measure_eager(calls, options.samples),
            }
            for mode, taken in timings.items():
                for name, timing in taken.items():
                    line = {"layers": count, "tokens": tokens, "way": name, "mode": mode}
                    found.append(line | dataclasses.asdict(timing))
                    say(f"{count:2} layers {tokens:3} tokens {name:8} {mode} {timing.median_us:9.1f} us")
    return found


PARTS = {"check": check, "timings": measure_ours, "legacy": measure_legacy}


def run_part(name: str, options: argparse.Namespace, paths: list[str] | None = None) -> dict[str, Any]:
    """Run a part in a process of its own and return what it wrote."""
    environment = dict(os.environ, PYTHONUNBUFFERED="1")
    if paths is not None:
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "part.json"
        command = [sys.executable, __file__, *sys.argv[1:], "--part", name, "--out", str(out)]
        try:
            status = f"exit status {subprocess.run(command, env=environment, timeout=options.limit_s).returncode}"
        except subprocess.TimeoutExpired:
            status = f"not done after {options.limit_s} s"
        return json.loads(out.read_text()) if out.exists() else {"error": status}


def be_part(options: argparse.Namespace) -> int:
    config = Config()
    found = {"provenance": provenance.provenance(options.commit, {"triton_kernels": installed_generation()})}
    try:
        with torch.no_grad():
            found["result"] = PARTS[options.part](config, options)
    except Exception as error:  # what a part died of belongs in the record
        found["error"] = f"{type(error).__name__}: {error}"
        say(found["error"])
    provenance.write_record(options.out, found)
    return 1 if "error" in found else 0


def say(text: str) -> None:
    print(text, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="layer.json", help="where the record goes")
    parser.add_argument("--legacy", help="folder that holds the triton_kernels of release 3.5.1")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--limit-s", type=float, default=280, help="of one part")
    parser.add_argument("--commit", help="what the record names, when there is no git here")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse_arguments()
    if options.part:
        return be_part(options)
    measure.require_cuda("this benchmark")
    config = Config()
    sizes = {"hidden": config.hidden_size, "inner": config.intermediate_size, "experts": config.num_local_experts}
    record: dict[str, Any] = {"provenance": None, "sizes": sizes | {"k": config.num_experts_per_tok}, "failures": {}}
    paths = [str(Path(options.legacy).resolve()), str(REPOSITORY)] if options.legacy else None
    for name in ("check", "timings", "legacy") if options.legacy else ("check", "timings"):
        part = run_part(name, options, paths if name == "legacy" else None)
        result = part.get("result") or {}
        if name == "legacy":
            record[name] = {"provenance": part.get("provenance")} | result
        else:
            record |= result if name == "timings" else {name: result}
            record["provenance"] = part.get("provenance", {}) | {"command": provenance.command()}
        if "error" in part:
            record["failures"][name] = part["error"]
        provenance.write_record(options.out, record)
    say(f"written: {options.out}; failures: {record['failures'] or 'none'}")
    return 1 if record["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
