"""What must hold for every input: inputs that are hard on a router, and the checks on all ways to a
`Routing`.

Tests, checkers and benchmarks use the same ones.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from gptoss_lab.moe.equivalence import assert_equivalent, drop_padding
from gptoss_lab.moe.fused_routing import route
from gptoss_lab.moe.parallel import assignments, rebuild_local, remap, sum_picks
from gptoss_lab.moe.reference import reference
from gptoss_lab.moe.routing import Routing, rebuild, reuse, topk
from gptoss_lab.moe.validation import validate, validate_expert_map, validate_routing

# How far a softmax of k values may be off: one step of the dtype, and for float32 what a GPU's exp2 allows.
ROUNDING = {
    torch.bfloat16: {"rtol": 2.0**-7, "atol": 1e-35},
    torch.float16: {"rtol": 2.0**-10, "atol": 2.0**-24},
    torch.float32: {"rtol": 2e-5, "atol": 1e-35},
}
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan, 3e38, -3e38, 1e-40, -1e-40)


def hard_logits(tokens: int, experts: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Return logits [tokens, experts] on the CPU that a router may get wrong; the seed decides them.

    Some rows are plain, some full of ties, some hold zeros of both signs, infinities, NaN of both signs, the
    largest and the smallest values, and some hold nothing else.
    """
    random = torch.Generator().manual_seed(seed)
    values = torch.randn((tokens, experts), generator=random) * 4
    kind = torch.randint(0, 4, (tokens, 1), generator=random)
    values = torch.where(kind == 1, values.round(), values)
    special = torch.tensor(SPECIAL)[torch.randint(0, len(SPECIAL), (tokens, experts), generator=random)]
    few = torch.rand((tokens, experts), generator=random) < 0.2
    values = torch.where((kind == 3) | ((kind == 2) & few), special, values)
    values = values.to(dtype)
    # A cast may give a NaN either sign, so its bits are set; with all of them set it ranks below everything.
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    positive = torch.full((tokens, experts), math.nan, dtype=dtype).view(integer)
    sign = torch.rand((tokens, experts), generator=random) < 0.5
    bits = torch.where(values.isnan(), torch.where(sign, -1, positive), values.view(integer))
    return bits.view(dtype)


def check_routing(logits: torch.Tensor, k: int, n_rows: int | None = None, fused: bool = True) -> Routing:
    """Hold `topk`, `reuse`, `rebuild` and `route` against the reference and each other. Raises AssertionError or
    ValueError.

    logits: [tokens, experts] on the device to try. Returns the routing of `reuse`. With n_rows `rebuild` is left out,
    where it is unsafe, and `route`, which has no n_rows. fused: whether `route` is held too; on a GPU it is compiled
    for nearly every shape, which takes seconds.
    """
    experts = logits.shape[1]
    sparse = topk(logits, k, n_rows)
    reused = reuse(sparse, experts)
    validate(sparse.indx[:n_rows], experts)
    validate_routing(reused)
    assert_equivalent(reused, reference(logits, k, n_rows), **ROUNDING[logits.dtype])
    if n_rows is None:
        in_bfloat16 = dataclasses.replace(reused, gate_scal=reused.gate_scal.to(torch.bfloat16))
        assert_equivalent(drop_padding(rebuild(sparse, experts)), in_bfloat16)
        if fused:
            assert_equivalent(route(logits, k), reused)
    return reused


def check_route(logits: torch.Tensor, k: int) -> Routing:
    """Hold `route` against the reference, and where `topk` takes k, against `reuse` without tolerance. Raises
    AssertionError or ValueError.

    logits: [tokens, experts] on the device to try. k: any that `route` takes. Returns the routing of `route`.
    """
    routed = route(logits, k)
    validate_routing(routed)
    assert_equivalent(routed, reference(logits, k), **ROUNDING[logits.dtype])
    if k & (k - 1) == 0:
        assert_equivalent(routed, reuse(topk(logits, k), logits.shape[1]))
    return routed


def check_ranks(logits: torch.Tensor, k: int, ranks: int, seed: int) -> None:
    """Hold `remap` against `rebuild_local` on every rank, with experts dealt out at random.

    Both must compute the same (token, pick, expert) on each rank with the same schedule, and together every
    pick once. The sum of the ranks' results must be the whole's although rows of others are poisoned with
    NaN.
    """
    experts = logits.shape[1]
    sparse = topk(logits, k)
    whole = reuse(sparse, experts)
    random = torch.Generator().manual_seed(seed)
    rank_of_expert = torch.randint(0, ranks, (experts,), generator=random)
    total = 0
    for rank in range(ranks):
        expert_map, n_local = make_expert_map(rank_of_expert, rank)
        validate_expert_map(expert_map, n_local)
        if n_local == 0:
            continue
        on_device = expert_map.to(logits.device)
        rebuilt = drop_padding(rebuild_local(sparse, on_device, n_local))
        remapped = remap(whole, on_device, n_local)
        assert_equivalent(assignments(remapped), assignments(rebuilt))
        assert_equivalent(real_blocks(remapped), real_blocks(rebuilt))
        assert_equivalent(poisoned_sum(remapped), poisoned_sum(rebuilt))
        total += len(assignments(remapped))
    if total != len(assignments(whole)):
        raise AssertionError(f"{ranks} ranks compute {total} picks, the whole {len(assignments(whole))}")


def make_expert_map(rank_of_expert: torch.Tensor, rank: int) -> tuple[torch.Tensor, int]:
    """Return the expert map of one rank, int32 [experts], and how many experts it owns."""
    mine = rank_of_expert == rank
    numbers = mine.int().cumsum(0).int() - 1  # [experts]
    return torch.where(mine, numbers, -1).int(), int(mine.sum())


def real_blocks(routing: Routing) -> list[list[int]]:
    """Return the schedule of each block size without the entries that say no block."""
    lines = routing.ragged_metadata.block_schedule_data.cpu().tolist()
    return [[entry for entry in line if entry != -1] for line in lines]


def poisoned_sum(routing: Routing) -> torch.Tensor:
    """Sum outputs of which each row in a slice holds 1 + token + expert and every other one NaN, [tokens, 1].

    The weights are set to 1, so that the sum is exact and does not depend on the order of rows.
    """
    outputs = torch.full((routing.col_sorted_indx.shape[0], 1), torch.nan)  # [rows, 1]
    done = assignments(routing)
    row = routing.row_sorted_indx.cpu().long()[done[:, 0] * routing.n_experts_act + done[:, 1]]
    outputs[row, 0] = (1 + done[:, 0] + done[:, 2]).float()
    equal = dataclasses.replace(routing, gate_scal=torch.ones_like(routing.gate_scal, dtype=torch.float32))
    return sum_picks(equal, outputs.to(routing.gate_scal.device)).cpu()
