from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import textwrap

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gptoss_lab.moe import routing as routing_module
from gptoss_lab.moe.equivalence import assert_equivalent, drop_padding
from gptoss_lab.moe.generations import sparse_kernels
from gptoss_lab.moe.parallel import assignments, sum_picks
from gptoss_lab.moe.properties import ROUNDING, check_routing, hard_logits
from gptoss_lab.moe.reference import reference
from gptoss_lab.moe.routing import Routing, rebuild, rebuild_from, reuse, topk
from gptoss_lab.moe.validation import validate, validate_routing

# The interpreter's maximum over a row of NaN alone.
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")


def run_child(code: str) -> subprocess.CompletedProcess:
    """Run code in another process, which may die of it."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def picks_of(routing: Routing) -> set[tuple[int, ...]]:
    return {tuple(line) for line in assignments(routing).tolist()}


def negative_nan(tokens: int, experts: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Logits of which every bit is set: NaN with a minus sign."""
    integer = torch.int32 if dtype == torch.float32 else torch.int16
    return torch.full((tokens, experts), -1, dtype=integer).view(dtype).to(device)


def test_all_ways_agree_over_several_blocks_of_tokens(logits):
    check_routing(logits(40, 32), k=4)


@pytest.mark.parametrize(("experts", "padded"), [(24, 32), (33, 64)])
def test_only_rebuild_has_slices_for_padding_experts(logits, experts, padded):
    sparse = topk(logits(3, experts), 2)
    rebuilt, reused = rebuild(sparse, experts), reuse(sparse, experts)
    assert rebuilt.ragged_metadata.n_slices == padded
    assert reused.ragged_metadata.n_slices == experts
    with pytest.raises(AssertionError, match="slice_sizes: shape"):
        assert_equivalent(rebuilt, reused)
    assert_equivalent(drop_padding(rebuilt), reused)


@pytest.mark.slow
def test_many_experts(logits):
    x = logits(1, 512)
    assert_equivalent(reuse(topk(x, 2), 512), reference(x, 2), **ROUNDING[x.dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_gate_scal_is_bfloat16_after_rebuild_and_the_logits_dtype_after_reuse(logits, dtype):
    sparse = topk(logits(2, 32, dtype), 4)
    rebuilt, reused = rebuild(sparse, 32), reuse(sparse, 32)
    assert rebuilt.gate_scal.dtype == torch.bfloat16
    assert reused.gate_scal.dtype == dtype
    assert torch.equal(rebuilt.gate_scal, reused.gate_scal.bfloat16())
    assert not torch.equal(rebuilt.gate_scal.to(dtype), reused.gate_scal)


def test_the_number_of_picks_comes_from_the_ids(logits):
    sparse = topk(logits(2, 32), 2)
    assert reuse(sparse, 32).n_experts_act == rebuild(sparse, 32).n_experts_act == 2


def test_gather_and_scatter_are_each_others_inverse(logits):
    routing = reuse(topk(logits(3, 32), 2), 32)
    assert torch.equal(routing.gather.src_indx, routing.scatter.dst_indx)
    rows = torch.arange(6, device=routing.gate_scal.device)
    assert torch.equal(routing.scatter.src_indx[routing.gather.src_indx.long()].long(), rows)


def test_no_tokens(logits):
    sparse = topk(logits(0, 24), 4)
    for routing in (reuse(sparse, 24), drop_padding(rebuild(sparse, 24))):
        assert_equivalent(routing, reference(logits(0, 24), 4))
        assert routing.gate_scal.shape == (0,)
        assert routing.ragged_metadata.block_schedule_data.shape == (4, 0)
        assert assignments(routing).shape == (0, 3)
        assert sum_picks(routing, torch.zeros((0, 5), device=routing.gate_scal.device)).shape == (0, 5)
        validate_routing(routing)
    validate(sparse, 24)


@pytest.mark.parametrize("k", [0, -1, 3, 6, 64])
def test_topk_names_the_k_that_it_supports(logits, k):
    with pytest.raises(ValueError, match=f"k is {k} with 128 experts: pass 1, 2, 4, 8, 16 or 32, and at most"):
        topk(logits(1, 128), k)


def test_topk_refuses_more_picks_than_experts(logits):
    with pytest.raises(ValueError, match="k is 8 with 5 experts"):
        topk(logits(1, 5), 8)


def test_topk_refuses_what_the_kernel_would_read_wrongly(logits):
    with pytest.raises(ValueError, match="stride 4 between experts"):
        topk(logits(32, 4).T, 2)
    with pytest.raises(ValueError, match="float64"):
        topk(logits(2, 32, torch.float64), 2)
    with pytest.raises(ValueError, match=r"shape \[32\]"):
        topk(logits(1, 32)[0], 2)
    with pytest.raises(ValueError, match="0 experts"):
        topk(logits(2, 0), 1)
    with pytest.raises(ValueError, match="n_rows is 3 with 2 tokens"):
        topk(logits(2, 32), 2, n_rows=3)


def test_one_expert(logits):
    check_routing(logits(3, 1), k=1)


@pytest.mark.parametrize("n_rows", [5, 0])
def test_rows_after_n_rows_are_in_no_slice(logits, n_rows):
    x = logits(8, 32)
    x[n_rows:] = 100.0  # would be picked, were they read
    routing = check_routing(x, k=2, n_rows=n_rows)
    assert {token for token, _, _ in picks_of(routing)} == set(range(n_rows))
    assert routing.row_sorted_indx[2 * n_rows :].eq(-1).all()
    assert routing.col_sorted_indx[2 * n_rows :].eq(-1).all()


def test_zeros_of_both_signs_are_not_ties(device):
    x = torch.tensor([[-0.0, 0.0, -1.0, -1.0]], device=device)
    assert topk(x, 1).indx.tolist() == [[1]]
    assert reference(x, 1).col_sorted_indx.shape == (1,)
    assert picks_of(reference(x, 1)) == {(0, 0, 1)}


@pytest.mark.parametrize("experts", [24, 32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_nan_and_infinity_pick_existing_experts(device, experts, dtype):
    x = torch.zeros((7, experts), dtype=dtype, device=device)
    x[:4] = negative_nan(4, experts, dtype, device)
    x[1, :2] = 1.0
    x[2, 3] = -math.inf
    x[3] = math.nan
    x[4] = -math.inf
    x[5, :6] = math.inf
    x[6, 5:] = negative_nan(1, experts - 5, dtype, device)
    routing = check_routing(x, k=4)
    validate(topk(x, 4), experts)
    assert len(picks_of(routing)) == 7 * 4


def test_a_nan_is_not_hidden_where_logits_are_cleaned(device):
    x = torch.zeros((1, 24), device=device)
    x[0, 7:8] = negative_nan(1, 1, x.dtype, device)
    sparse = topk(x, 4)
    assert sparse.indx[0, 0].item() == 7
    assert sparse.vals.isnan().all()


def test_the_raw_topk_picks_experts_that_do_not_exist(device):
    from triton_kernels.topk import (
        topk_forward,
    )  # stops before the metadata, so that nothing is written wrongly

    _, ids, _ = topk_forward(negative_nan(1, 24, torch.bfloat16, device), 4)
    assert ids.ge(24).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a wrong write on a GPU harms every later test")
def test_the_raw_topk_ruins_its_process_and_ours_does_not():
    code = """
        import gptoss_lab.moe, sys, torch
        from gptoss_lab.moe import routing
        from gptoss_lab.moe.generations import sparse_kernels
        x = torch.full((32, 24), -1, dtype=torch.int16).view(torch.bfloat16)
        for _ in range(3):
            sparse = {call}
        good = bool((sparse.indx < 24).all()) and int(sparse.mask_metadata.col_sum.sum()) == 32 * 4
        sys.exit(0 if good else 3)
    """
    assert run_child(code.format(call="routing.topk(x, 4)")).returncode == 0
    assert run_child(code.format(call="sparse_kernels().topk(x, 4)")).returncode != 0


def test_slots_without_an_expert_are_in_no_slice(device):
    ids = torch.tensor([[3, -1], [-1, -1], [5, 3]], device=device)
    weights = torch.tensor([[0.75, 0.25], [0.5, 0.5], [1.0, 0.0]], device=device)
    routing = rebuild_from(ids, weights, 32)
    assert picks_of(routing) == {(0, 0, 3), (2, 1, 3), (2, 0, 5)}
    assert routing.gate_scal[:3].tolist() == [0.75, 0.0, 1.0]
    assert routing.col_sorted_indx.tolist() == [0, 5, 4, -1, -1, -1]
    assert routing.row_sorted_indx.tolist() == [0, -1, -1, -1, 2, 1]
    validate_routing(routing)
    poisoned = torch.tensor([[1.0], [2.0], [4.0], [math.nan], [math.nan], [math.nan]], device=device)
    assert sum_picks(routing, poisoned).tolist() == [[0.75], [0.0], [4.0]]


def test_no_slot_with_an_expert(device):
    ids = torch.full((2, 4), -1, device=device)
    routing = rebuild_from(ids, torch.ones((2, 4), device=device), 32)
    assert picks_of(routing) == set()
    assert routing.ragged_metadata.slice_sizes.sum() == 0
    assert sum_picks(routing, torch.full((8, 3), math.nan, device=device)).eq(0).all()


def test_an_id_twice_in_a_row_loses_a_pick(device):
    ids = torch.tensor([[3, 3]], device=device)
    routing = rebuild_from(ids, torch.ones((1, 2), device=device), 32)
    assert len(picks_of(routing)) == 1  # as in the original; validate() refuses such ids


class NoSynchronisation(TorchDispatchMode):
    """Refuses every call whose result depends on reading the device."""

    READS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique", "masked_select", "bincount")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        assert not any(name.startswith(read) for read in self.READS), f"{name} reads from the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("experts", [24, 32])
def test_the_hot_path_does_not_wait_for_the_device(logits, device, experts):
    x = logits(2, experts)

    def route():
        sparse = topk(x, 2)
        return reuse(sparse, experts), rebuild(sparse, experts)

    if device == "cuda":
        route()  # compile
        torch.cuda.set_sync_debug_mode("error")
    try:
        with NoSynchronisation():
            route()
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")


def test_a_fault_in_the_tail_that_both_share_is_seen_by_the_reference_alone(logits, monkeypatch):
    kernels = sparse_kernels()

    def faulty(slice_sizes, n_total_rows):
        good = kernels.make_ragged_tensor_metadata(slice_sizes, n_total_rows)
        return dataclasses.replace(good, block_offs_data=good.block_offs_data + 1)

    broken = dataclasses.replace(kernels, make_ragged_tensor_metadata=faulty)
    monkeypatch.setattr(routing_module, "sparse_kernels", lambda: broken)
    x = logits(2, 32)
    sparse = topk(x, 2)
    assert_equivalent(rebuild(sparse, 32), reuse(sparse, 32))
    with pytest.raises(AssertionError, match="ragged_metadata.block_offs_data"):
        assert_equivalent(reuse(sparse, 32), reference(x, 2), **ROUNDING[x.dtype])


def test_hard_logits_hold_what_they_promise():
    x = hard_logits(64, 32, torch.bfloat16, seed=0)
    bits = x.view(torch.int16)
    assert (x.isnan() & (bits < 0)).any() and (x.isnan() & (bits > 0)).any()
    assert x.isposinf().any() and x.isneginf().any()
    assert (bits == -32768).any() and (bits == 0).any()
    assert torch.equal(bits, hard_logits(64, 32, torch.bfloat16, seed=0).view(torch.int16))


def test_reuse_refuses_what_is_not_of_topk(logits):
    with pytest.raises(TypeError, match="sparse is a topk: pass what gptoss_lab.moe.routing.topk returns"):
        reuse(torch.topk(logits(3, 32).float(), 2), 32)


@pytest.mark.parametrize("n_experts", [0, 33, 64])
def test_reuse_refuses_another_number_of_experts(logits, n_experts):
    with pytest.raises(ValueError, match=f"n_experts is {n_experts} and the metadata has 32: pass what"):
        reuse(topk(logits(3, 32), 2), n_experts)


def test_topk_refuses_a_number_of_rows_that_is_no_int(logits):
    with pytest.raises(TypeError, match=r"n_rows is 1.5, a float: pass an int"):
        topk(logits(3, 32), 2, n_rows=1.5)
