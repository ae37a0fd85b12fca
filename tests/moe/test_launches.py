from __future__ import annotations

import contextlib

import pytest
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode
from triton.compiler import CompiledKernel

from gptoss_lab.moe.equivalence import assert_equivalent
from gptoss_lab.moe.launches import launches, match_launches, timeline
from gptoss_lab.moe.parallel import rebuild_local, remap
from gptoss_lab.moe.properties import ROUNDING, make_expert_map
from gptoss_lab.moe.reference import reference
from gptoss_lab.moe.routing import rebuild, reuse, topk

METADATA = [
    "aten.zeros",
    "_sum_bitmatrix_rows",
    "_bitmatrix_metadata_compute_stage1",
    "_bitmatrix_metadata_compute_stage2",
]
TAIL = [
    "_ragged_tensor_metadata_memset",
    "_ragged_tensor_metadata_compute",
    "aten.index",  # the int32 index copied to int64
    "aten.index",
]
REUSE = ["_topk_forward", *METADATA, *TAIL]
REPACK = ["aten.zeros", "pack_bitmatrix", "aten.eq", "aten.scalar_tensor", "aten.where"]
CASTS = ["aten._to_copy", "aten._to_copy"]  # ids to int64, ids to int16
REBUILD = ["_topk_forward", *METADATA, *CASTS, *REPACK, *METADATA, *TAIL]
MAP = ["aten._to_copy", "aten.lt", "aten.index", "aten.where", "aten.where", "aten._to_copy"]
SIZES = [(t, e) for t in (1, 4, 16, 33, 64, 512, 4096, 8192) for e in (32, 128)]


def sizes(device: str) -> list[tuple[int, int]]:
    return SIZES if device == "cuda" else [(1, 32), (3, 64)]


def test_rebuild_launches_these_twenty(logits, device):
    assert len(REBUILD) == 20
    for tokens, experts in sizes(device):
        x = logits(tokens, experts)
        assert launches(lambda x=x: rebuild(topk(x, 4), x.shape[1])) == REBUILD


def test_reuse_launches_these_nine(logits, device):
    assert len(REUSE) == 9
    for tokens, experts in sizes(device):
        x = logits(tokens, experts)
        assert launches(lambda x=x: reuse(topk(x, 4), x.shape[1])) == REUSE


def test_one_launch_more_for_what_has_to_be_converted(logits):
    whole, ragged = logits(1, 32, torch.float32), logits(1, 24)
    in_float32 = [*REBUILD[:7], "aten._to_copy", *REBUILD[7:]]
    assert launches(lambda: rebuild(topk(whole, 2), 32)) == in_float32
    assert launches(lambda: reuse(topk(whole, 2), 32)) == REUSE
    assert launches(lambda: reuse(topk(ragged, 2), 24)) == ["aten.nan_to_num", *REUSE]


def test_an_expert_map_costs_a_repacking_or_one_launch(logits, device):
    x = logits(2, 32)
    sparse = topk(x, 2)
    whole = reuse(sparse, 32)
    expert_map, n_local = make_expert_map(torch.arange(32) % 2, rank=1)
    expert_map = expert_map.to(device)
    assert launches(lambda: rebuild_local(sparse, expert_map, n_local)) == [*MAP, *REPACK, *METADATA, *TAIL]
    assert launches(lambda: remap(whole, expert_map, n_local)) == ["_remap_ragged_tensor_metadata"]


def test_a_launch_more_is_seen_in_its_place(logits):
    x = logits(1, 32)

    def with_a_copy():
        sparse = topk(x, 2)
        sparse.mask_metadata.col_sum = sparse.mask_metadata.col_sum.clone()
        return reuse(sparse, 32)

    assert launches(with_a_copy) == ["_topk_forward", *METADATA, "aten.clone", *TAIL]


class Breaker(TorchDispatchMode):
    """Replaces one launch by a wrong one that harms no memory, and makes new memory hold zeros."""

    def __init__(self, position: int, experts: int) -> None:
        super().__init__()
        self.position, self.experts = position, experts
        self.count = 0

    def is_broken(self) -> bool:
        self.count += 1
        return self.count - 1 == self.position

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.split("::")[1]
        kwargs = kwargs or {}
        if name == "index":
            copy_is_broken, index_is_broken = self.is_broken(), self.is_broken()
            if copy_is_broken:
                args = (args[0], [torch.zeros_like(args[1][0])])
            return func(*args, **kwargs) + 1 if index_is_broken else func(*args, **kwargs)
        result = func(*args, **kwargs)
        if name.startswith("empty"):
            result.zero_()
        elif name == "zeros" and self.is_broken():
            result[self.experts - 1] = 1
        return result

    @contextlib.contextmanager
    def active(self):
        kernel_class = type(tl.sum)
        original = kernel_class.run

        def run(kernel, *args, **kwargs):
            if not self.is_broken():
                with torch.utils._python_dispatch._disable_current_modes():
                    return original(kernel, *args, **kwargs)

        kernel_class.run = run
        try:
            with self:
                yield
        finally:
            kernel_class.run = original


@pytest.mark.parametrize("position", range(len(REUSE)), ids=REUSE)
def test_reuse_needs_every_launch(logits, position):
    x = logits(4, 32)
    breaker = Breaker(position, experts=32)
    with breaker.active():
        broken = reuse(topk(x, 2), 32)
    assert breaker.count == len(REUSE)
    with pytest.raises(AssertionError, match="entries differ"):
        assert_equivalent(broken, reference(x, 2), **ROUNDING[x.dtype])


def test_a_routing_with_nothing_broken_passes_the_same_way(logits):
    x = logits(4, 32)
    with Breaker(-1, experts=32).active():
        routing = reuse(topk(x, 2), 32)
    assert_equivalent(routing, reference(x, 2), **ROUNDING[x.dtype])


@triton.jit
def count_up(Out):
    tl.store(Out + tl.program_id(0), tl.program_id(0))


def test_what_counts_as_a_launch(device):
    x = torch.arange(6, device=device)
    out = torch.empty(4, dtype=torch.int32, device=device)
    assert launches(lambda: x.view(2, 3).T[0].detach()) == []
    assert launches(lambda: torch.empty_like(x)) == []
    assert launches(lambda: x[:0] + 1) == []
    assert launches(lambda: x.to(torch.int64)) == []
    assert launches(lambda: x + 1) == ["aten.add"]
    assert launches(lambda: out.fill_(3)) == ["aten.fill_"]
    index = torch.tensor([0, 3], device=device)
    assert launches(lambda: x[index]) == ["aten.index"]
    short = index.int()
    assert launches(lambda: x[short]) == ["aten.index", "aten.index"]
    assert launches(lambda: count_up[(4,)](out)) == ["count_up"]
    assert launches(lambda: count_up[lambda meta: (0,)](out)) == []
    assert out.tolist() == [0, 1, 2, 3]


def test_a_view_in_place_is_no_launch(device):
    x = torch.arange(6, device=device)
    assert launches(lambda: x.view(2, 3).t_().unsqueeze_(0).squeeze_(0).transpose_(0, 1)) == []


def test_a_result_in_place_of_a_function_is_refused():
    with pytest.raises(TypeError, match=r"fn is a Tensor: pass a function, such as launches\(lambda: "):
        launches(torch.zeros(1))


def test_the_hooks_are_gone_afterwards(device):
    before = type(tl.sum).run, CompiledKernel.run
    with pytest.raises(ZeroDivisionError):
        launches(lambda: 1 / 0)
    assert (type(tl.sum).run, CompiledKernel.run) == before


def test_a_kernel_that_is_launched_without_triton_looking_it_up(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    out = torch.empty(4, dtype=torch.int32, device=device)
    compiled = count_up[(4,)](out)
    assert launches(lambda: compiled[(4, 1, 1)](out)) == ["count_up"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing without a GPU")
def test_a_timeline_needs_a_gpu():
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        timeline(lambda: None)


def test_a_timeline_has_the_same_names_and_ordered_times(logits, device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    x = logits(16, 32)
    line = timeline(lambda: reuse(topk(x, 4), 32))
    assert [launch.name for launch in line] == REUSE
    starts = [launch.started_us for launch in line]
    assert starts == sorted(starts)
    assert line[0].launched_us == 0.0


def span(cat: str, name: str, ts: float, dur: float, **args) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}


def test_kernels_belong_to_the_call_that_launched_them():
    events = [
        {"ph": "M", "name": "process_name"},
        span("user_annotation", "launch:aten.index", 100.0, 20.0),
        span("user_annotation", "somebody else's", 90.0, 90.0),
        span("user_annotation", "launch:_topk_forward", 50.0, 10.0),
        span("user_annotation", "launch:aten.outer", 40.0, 30.0),
        span("cpu_op", "aten::index", 101.0, 18.0),
        span("cuda_driver", "cuLaunchKernelEx", 55.0, 1.0, correlation=1),
        span("cuda_runtime", "cudaLaunchKernel", 105.0, 1.0, correlation=2),
        span("cuda_runtime", "cudaMemsetAsync", 110.0, 1.0, correlation=3),
        span("cuda_runtime", "cudaLaunchKernel", 150.0, 1.0, correlation=4),
        span("kernel", "stray", 160.0, 2.0, correlation=4),
        span("gpu_memset", "Memset", 112.0, 2.0, correlation=3),  # on another stream, so before the two
        span("kernel", "copy", 130.0, 2.0, correlation=2),
        span("kernel", "_topk_forward_0d1d", 120.0, 3.0, correlation=1),
    ]
    line = match_launches(events)
    assert [launch.name for launch in line] == ["_topk_forward", "aten.index", "aten.index", "unmarked stray"]
    assert [launch.kernel for launch in line] == ["_topk_forward_0d1d", "copy", "Memset", "stray"]
    assert [launch.launched_us for launch in line] == [0.0, 50.0, 55.0, 95.0]
    assert [launch.started_us for launch in line] == [65.0, 75.0, 57.0, 105.0]
    assert line[0].lasted_us == 3.0
    assert match_launches([]) == []


def test_a_kernel_without_its_launch_is_an_error():
    with pytest.raises(RuntimeError, match="lost the host's side of 1 launches, first orphan"):
        match_launches([span("kernel", "orphan", 1.0, 1.0, correlation=9)])
