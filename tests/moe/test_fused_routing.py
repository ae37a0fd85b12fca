"""`route` against `reuse` and the reference: values, bounds, launches, memory and errors."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.language.extra.cuda import gdc_launch_dependents, globaltimer
from triton.language.target_info import cuda_capability_geq
from triton.runtime.jit import JITFunction

from gptoss_lab.moe import fused_routing
from gptoss_lab.moe.counters import counters
from gptoss_lab.moe.equivalence import assert_equivalent
from gptoss_lab.moe.fused_routing import make_plan, route
from gptoss_lab.moe.generations import interpreting
from gptoss_lab.moe.launches import launches
from gptoss_lab.moe.parallel import assignments
from gptoss_lab.moe.properties import ROUNDING, check_route, hard_logits
from gptoss_lab.moe.reference import reference
from gptoss_lab.moe.routing import reuse, topk

NATIVE = torch.cuda.is_available() and not interpreting()
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
SIZES = [(tokens, experts) for tokens in (0, 1, 16, 17, 33) for experts in (24, 32, 33, 128)]
FIRST_NAN = {torch.bfloat16: 0x7F81, torch.float16: 0x7C01, torch.float32: 0x7F800001}  # a NaN's smallest bits

# The interpreter's maximum over a row of NaN alone, and what it makes of the largest values.
pytestmark = [
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]
needs_gpu = pytest.mark.skipif(not NATIVE, reason="needs a GPU")


def hold(logits: torch.Tensor, k: int) -> None:
    """`check_route`, and in the interpreter, where `topk` takes seconds, without it."""
    if NATIVE:
        check_route(logits, k)
    else:
        assert_equivalent(route(logits, k), reference(logits, k), **ROUNDING[logits.dtype])


def picks_of(routing) -> list[list[int]]:
    """The ids of each token, best first."""
    ids = torch.full((len(routing.row_sorted_indx) // routing.n_experts_act, routing.n_experts_act), -1)
    for token, pick, expert in assignments(routing).tolist():
        ids[token, pick] = expert
    return ids.tolist()


@pytest.fixture
def bounds(monkeypatch):
    """A function that moves bounds, so that small sizes go the ways of large ones."""

    def move(**values: int) -> None:
        for name, value in values.items():
            monkeypatch.setattr(fused_routing, name, value)
        make_plan.cache_clear()

    yield move
    monkeypatch.undo()
    make_plan.cache_clear()


@pytest.mark.parametrize(("tokens", "experts"), SIZES)
def test_every_size_and_k(device, tokens, experts):
    number = SIZES.index((tokens, experts))
    ks = [1 + (number + i) % 8 for i in (0, 3)] if NATIVE else range(1, 9)  # a GPU compiles each of them
    for k in ks:
        dtype = DTYPES[(number + k) % 3]
        hold(hard_logits(tokens, experts, dtype, seed=number).to(device), k)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "experts", "k"), [(0, 24, 4), (1, 32, 4), (16, 24, 2), (17, 32, 2), (33, 33, 1)])
def test_equal_to_reuse_in_every_bit(device, tokens, experts, k, dtype):
    check_route(hard_logits(tokens, experts, dtype, seed=7).to(device), k)


@pytest.mark.parametrize("k", [3, 5, 6, 7])
def test_picks_that_fill_their_programs_but_no_power_of_two(device, k):
    for experts in (32, 40):
        plan = make_plan(32, experts, k, torch.bfloat16)
        assert plan.rows * plan.parts == 32 and plan.options["SLOTS"] > 32 * k
        hold(hard_logits(32, experts, torch.bfloat16, seed=k).to(device), k)


@pytest.mark.parametrize("tokens", [9, 18])
def test_the_most_picks_of_the_fewest_experts(device, tokens):
    hold(hard_logits(tokens, 1, torch.float32, seed=1).to(device), 1)
    hold(hard_logits(tokens, 12, torch.float32, seed=1).to(device), 12)


@pytest.mark.slow
def test_all_32_picks(device):
    for tokens in (5, 18):
        hold(hard_logits(tokens, 33, torch.bfloat16, seed=2).to(device), 32)


def test_ways_in_numbers(logits):
    """One token, four experts, two picks: the answer by hand."""
    x = logits(1, 4, torch.float32)
    x[0] = torch.tensor([0.0, math.log(3.0), -1.0, math.log(1.0)])
    routing = route(x, 2)
    assert picks_of(routing) == [[1, 0]]
    assert routing.col_sorted_indx.tolist() == [1, 0]
    assert torch.allclose(routing.gate_scal.cpu(), torch.tensor([0.25, 0.75]))
    assert routing.ragged_metadata.slice_sizes.tolist() == [1, 1, 0, 0]
    assert routing.ragged_metadata.slice_offs.tolist() == [0, 1, 2, 2, 2]
    assert routing.ragged_metadata.block_offs_data.tolist() == [[0, 1, 2, 2, 2]] * 4
    assert routing.ragged_metadata.block_schedule_data.tolist() == [[0, 1]] * 4


def special_rows(experts: int, dtype: torch.dtype) -> torch.Tensor:
    """Rows of NaN of both signs and of several payloads, of infinities, of zeros of both signs and of ties."""
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    sign = torch.iinfo(bits).min
    x = torch.zeros((10, experts), dtype=dtype)
    x[0] = math.inf
    x[1] = -math.inf
    x[2, :6] = torch.tensor([-0.0, 0.0, -0.0, 0.0, -1.0, -1.0], dtype=dtype)
    x[2, 6:] = -0.0
    x[3, ::2] = 1.0
    x[4, 3:7] = torch.tensor([math.inf, -math.inf, math.inf, 2.0], dtype=dtype)
    raw = x.view(bits)
    raw[5] = -1  # NaN, every bit set, so the smallest of all
    raw[6] = torch.iinfo(bits).max  # NaN, every bit but the sign, the largest
    raw[7, 2:5] = torch.tensor([FIRST_NAN[dtype], FIRST_NAN[dtype] + 1, FIRST_NAN[dtype]], dtype=bits)
    raw[8, 1::2] = FIRST_NAN[dtype] + sign
    raw[9] = -1
    raw[9, 5:9] = 1  # the smallest above zero
    return x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("experts", [24, 32])
def test_special_values(device, experts, dtype):
    x = special_rows(experts, dtype).to(device)
    check_route(x, 4)
    hold(torch.cat([x, x.flip(0)]), 3)
    hold(x[5:6].expand(18, -1), 4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_order_of_special_values_by_hand(device, dtype):
    x = special_rows(32, dtype).to(device)
    first = [0, 1, 2, 3]
    assert picks_of(route(x, 4)) == [
        first,
        first,
        [1, 3, 0, 2],
        [0, 2, 4, 6],
        [3, 5, 6, 0],
        first,
        first,
        [3, 2, 4, 0],
        [0, 2, 4, 6],
        [5, 6, 7, 8],
    ]
    x = special_rows(24, dtype).to(device)  # every NaN counts as one positive NaN
    assert picks_of(route(x, 4))[5:] == [first, first, [2, 3, 4, 0], [1, 3, 5, 7], first]


def test_a_nan_is_seen_in_the_weights(device):
    x = special_rows(24, torch.float32)[5:6].to(device)
    assert route(x, 4).gate_scal.isnan().all()


@pytest.mark.parametrize("first", [3, 16])
@pytest.mark.parametrize(("tokens", "experts", "k"), [(5, 24, 3), (20, 33, 6), (5, 32, 4), (20, 32, 4)])
def test_rows_that_lie_apart(device, tokens, experts, k, first):
    """Where rows begin and how far they lie apart changes how a GPU loads them, and so the order of a sum."""
    x = hard_logits(tokens, experts, torch.float32, seed=3).to(device)
    wide = torch.full((2 * tokens, experts + 2 * first), math.inf, device=device)  # wins if read
    apart = wide[::2, first : first + experts]
    apart.copy_(x)
    assert apart.stride() == (2 * (experts + 2 * first), 1)
    hold(apart, k)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 3, 20, 300])
def test_a_compiled_kernel_is_kept_for_logits_that_are_contiguous_and_aligned(logits, tokens, monkeypatch):
    flat = logits(2 * tokens + 1, 32).flatten()
    usual = flat[: tokens * 32].view(tokens, 32)
    others = [flat[1:][: tokens * 32].view(tokens, 32), flat[: 2 * tokens * 32].view(tokens, 64)[:, :32]]
    for x in (usual, *others, usual, -usual):
        check_route(x, 4)
    expected = [route(x, 4) for x in (usual, -usual)]

    def run(*_, **__):
        raise AssertionError("Triton was asked for a kernel")

    monkeypatch.setattr(JITFunction, "run", run)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = [route(x, 4) for x in (usual, -usual)]
    graph.replay()
    for routing, other in zip(captured, expected, strict=True):
        assert_equivalent(routing, other)
    for x in others if tokens > 1 else others[:1]:
        with pytest.raises(AssertionError, match="Triton was asked"):
            route(x, 4)


@triton.jit
def write_late(Out, Values, n_values, BLOCK: tl.constexpr):
    """Let the next kernel start, and write 200 us later."""
    gdc_launch_dependents()
    begin = globaltimer()
    now = begin
    while now - begin < 200_000:
        now = globaltimer()
    at = tl.arange(0, BLOCK)
    tl.store(Out + at, tl.load(Values + at, mask=at < n_values), mask=at < n_values)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.skipif(not cuda_capability_geq(9), reason="no kernel starts early before compute capability 9.0")
@pytest.mark.parametrize("tokens", [3, 20, 300])
def test_a_kernel_that_starts_early_waits_for_the_one_before_it(device, tokens):
    inputs = [hard_logits(tokens, 32, torch.bfloat16, seed=seed).to(device) for seed in range(10)]
    expected = [reuse(topk(x, 4), 32) for x in inputs]
    logits, block = torch.empty_like(inputs[0]), triton.next_power_of_2(tokens * 32)
    results = []
    for x in inputs:
        write_late[(1,)](logits, x, tokens * 32, BLOCK=block)
        results.append(copy.deepcopy(route(logits, 4)))
    for routing, other in zip(results, expected, strict=True):
        assert_equivalent(routing, other)


def test_one_row_for_all_tokens(logits):
    row = logits(1, 32)
    assert_equivalent(route(row.expand(18, -1), 3), route(row.repeat(18, 1), 3))


def test_the_logits_are_left_alone(device):
    for tokens in (3, 18):
        x = hard_logits(tokens, 24, torch.bfloat16, seed=4).to(device)
        before = x.view(torch.int16).clone()
        route(x, 3)
        assert torch.equal(x.view(torch.int16), before)


def test_a_result_does_not_change_when_another_is_made(logits):
    x = logits(20, 32)
    first = route(x, 4)
    second = route(-x, 4)
    for y, routing in ((x, first), (-x, second)):
        assert_equivalent(routing, reference(y, 4), **ROUNDING[x.dtype])


def test_a_row_of_many_blocks(device):
    """All tokens pick the same experts, so that these have several blocks of 16 rows, and the others none."""
    x = torch.zeros((150, 32), dtype=torch.float16)
    x[:, 7], x[::3, 20] = 2.0, 1.0
    hold(x.to(device), 2)


ONE = ["route_in_one"]
LAST = ["route_by_last"]
TWO = ["count", "place"]


def launches_of(x: torch.Tensor, k: int) -> list[str]:
    counters(x.device).take()  # the first makes a chunk of them
    return launches(lambda: route(x, k))


def test_the_bounds_are_where_they_are_said_to_be(logits):
    for tokens, launched in ((0, ONE), (1, ONE), (16, ONE), (17, LAST)):
        assert launches_of(logits(tokens, 32), 4) == launched
    for tokens, launched in ((256, LAST), (257, TWO), (4096, TWO)):
        assert make_plan(tokens, 8, 1, torch.bfloat16).launches == len(launched)


@needs_gpu
@pytest.mark.gpu
def test_the_bounds_of_many_tokens_and_experts(logits):
    assert launches_of(logits(256, 128), 8) == LAST
    assert launches_of(logits(4096, 32), 4) == TWO
    assert launches_of(logits(4097, 32), 3) == TWO
    assert launches_of(logits(4097, 32), 4)[0] == "_topk_forward"
    assert launches_of(logits(2, 1025), 4)[:2] == ["aten.nan_to_num", "_topk_forward"]
    for tokens, experts, k in ((256, 1024, 4), (300, 1024, 6), (4096, 33, 3), (4097, 32, 3), (70000, 32, 3)):
        hold(hard_logits(tokens, experts, torch.bfloat16, seed=tokens).cuda(), k)


def test_several_programs_for_few_tokens(bounds, device):
    bounds(ONE_PROGRAM=0)
    x = hard_logits(9, 33, torch.bfloat16, seed=5).to(device)
    assert launches_of(x, 3) == LAST
    check_route(x, 2)
    for k in (1, 3, 5):
        hold(x, k)


@pytest.mark.parametrize(("tokens", "experts", "k"), [(17, 24, 3), (33, 32, 4), (40, 33, 6), (20, 100, 3)])
def test_two_launches_for_few_tokens(bounds, device, tokens, experts, k):
    bounds(ONE_LAUNCH=16)
    x = hard_logits(tokens, experts, torch.float16, seed=6).to(device)
    assert launches_of(x, k) == TWO
    hold(x, k)


def test_more_parts_than_are_added_up_at_once(bounds, device, monkeypatch):
    bounds(ONE_LAUNCH=16)
    plan = make_plan(70, 33, 3, torch.bfloat16)
    two_at_once = dataclasses.replace(plan, options=plan.options | {"PARTS": 2})
    assert plan.parts == 5
    monkeypatch.setattr(fused_routing, "make_plan", lambda *_: two_at_once)
    hold(hard_logits(70, 33, torch.bfloat16, seed=8).to(device), 3)


def test_two_launches_equal_reuse_in_every_bit(bounds, device):
    bounds(ONE_LAUNCH=16)
    check_route(hard_logits(18, 24, torch.float32, seed=9).to(device), 2)


def test_above_two_launches_reuse_takes_over_where_topk_can(bounds, device):
    bounds(ONE_LAUNCH=16, TWO_LAUNCHES=20)
    x = hard_logits(21, 32, torch.bfloat16, seed=10).to(device)
    assert launches_of(x[:20], 2) == TWO
    assert launches_of(x, 3) == TWO
    assert launches_of(x, 2) == launches(lambda: reuse(topk(x, 2), 32))
    hold(x, 3)


def test_above_the_widest_row_reuse_takes_over_where_topk_can(bounds, logits):
    bounds(WIDEST=32)
    x = logits(2, 33)
    assert launches_of(x, 2) == launches(lambda: reuse(topk(x, 2), 33))
    assert_equivalent(route(x, 2), reuse(topk(x, 2), 33))
    with pytest.raises(ValueError, match="k is 3 with 33 experts: pass 1, 2, 4, 8, 16 or 32, and at most"):
        route(x, 3)


@pytest.mark.parametrize(("k", "experts"), [(0, 128), (-1, 128), (33, 128), (9, 8), (2, 1)])
def test_a_k_out_of_range_is_refused(logits, k, experts):
    with pytest.raises(ValueError, match=f"k is {k} with {experts} experts: pass 1 to 32, and at most the number"):
        route(logits(1, experts), k)


def test_a_k_that_topk_lacks_is_refused_where_topk_has_to_do_it(logits):
    with pytest.raises(ValueError, match="k is 3 with 1025 experts: pass 1, 2, 4, 8, 16 or 32, and at most"):
        route(logits(1, 1025), 3)


@pytest.mark.parametrize("k", [4.0, True, "4", None, np.int64(4)], ids=repr)
def test_a_k_that_is_no_int_is_refused_and_spoils_no_later_call(logits, k):
    with pytest.raises(TypeError, match=r"k is .*: pass an int"):
        route(logits(3, 36), k)
    assert route(logits(3, 36), 4).n_experts_act == 4 and type(route(logits(3, 36), 1).n_experts_act) is int


@pytest.mark.parametrize(
    "wrong", [[[1.0]], None, np.zeros((1, 32), np.float32)], ids=lambda wrong: type(wrong).__name__
)
def test_what_is_no_tensor_is_refused(wrong):
    with pytest.raises(TypeError, match="logits are a .*: pass a tensor"):
        route(wrong, 1)


def test_logits_without_memory_are_refused(logits):
    with pytest.raises(ValueError, match=r"logits are on meta: pass logits.cuda\(\)"):
        route(logits(2, 32).to("meta"), 2)


@pytest.mark.parametrize(("tokens", "experts", "k"), [(129, 257, 17), (129, 513, 32), (200, 1024, 9)])
def test_more_picks_than_are_compared_at_once(device, tokens, experts, k):
    plan = make_plan(tokens, experts, k, torch.bfloat16)
    assert plan.launches == 1 and plan.rows * plan.options["PICKS"] > fused_routing.PAIRED
    hold(hard_logits(tokens, experts, torch.bfloat16, seed=12).to(device), k)


def test_a_changed_plan_keeps_no_kernel_of_the_other():
    plan = make_plan(3, 32, 4, torch.bfloat16)
    plan.kept[0] = {}
    assert dataclasses.replace(plan, options={}).kept == {}


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_another_dtype_is_refused(logits, dtype):
    with pytest.raises(ValueError, match=f"logits are {dtype}: pass bfloat16, float16 or float32"):
        route(logits(2, 32, dtype), 2)


def test_experts_that_lie_apart_are_refused(logits):
    with pytest.raises(ValueError, match=r"stride 4 between experts: pass logits.contiguous\(\)"):
        route(logits(32, 4).T, 2)
    with pytest.raises(ValueError, match="stride 2 between experts"):
        route(logits(2, 32)[:, ::2], 2)


@pytest.mark.parametrize("shape", [(), (32,), (1, 2, 32)], ids=str)
def test_another_number_of_axes_is_refused(device, shape):
    with pytest.raises(ValueError, match=r"logits have shape \[.*\]: pass \[tokens, experts\]"):
        route(torch.zeros(shape, device=device), 1)


def test_no_experts_are_refused(logits):
    with pytest.raises(ValueError, match="logits have 0 experts: pass 1 to"):
        route(logits(2, 0), 1)


@needs_gpu
@pytest.mark.gpu
def test_logits_on_the_cpu_are_refused_where_kernels_are_compiled():
    with pytest.raises(ValueError, match=r"logits are on the CPU .*: pass logits.cuda\(\)"):
        route(torch.zeros(2, 32), 2)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_logits_on_another_device_than_the_current_one():
    for tokens, experts in ((3, 32), (20, 32), (300, 32), (2, 1025), (3, 32)):
        x = hard_logits(tokens, experts, torch.bfloat16, seed=11).to("cuda:1")
        assert torch.cuda.current_device() == 0
        routing = route(x, 4)
        with torch.cuda.device(1):
            assert_equivalent(routing, reuse(topk(x, 4), experts))
        here = x.to("cuda:0")
        assert_equivalent(route(here, 4), reuse(topk(here, 4), experts))
        with pytest.raises(ValueError, match="logits are on cuda:1 and the current device is cuda:0: use torch.cuda"):
            topk(x, 4)


class Calls(TorchDispatchMode):
    """Notes the aten calls that are no views, without those of the interpreter inside of a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not any(result.alias_info is not None for result in func._schema.returns):
            self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def watch_calls():
    kernel_class, calls = type(tl.sum), Calls()
    original = kernel_class.run

    def run(kernel, *args, **kwargs):
        with _disable_current_modes():
            return original(kernel, *args, **kwargs)

    kernel_class.run = run
    try:
        with calls:
            yield calls
    finally:
        kernel_class.run = original


@pytest.mark.parametrize(("tokens", "k"), [(0, 4), (1, 4), (16, 3), (17, 4), (33, 6), (256, 1)])
def test_two_allocations_and_nothing_read_from_the_device(logits, tokens, k):
    x = logits(tokens, 32)
    route(x, k)  # plan, counters, kernels
    if NATIVE:
        torch.cuda.set_sync_debug_mode("error")
    try:
        with watch_calls() as calls:
            route(x, k)
    finally:
        if NATIVE:
            torch.cuda.set_sync_debug_mode("default")
    assert calls.names == ["aten::empty", "aten::empty"]


def test_calls_are_noted(logits):
    x = logits(2, 32)
    with watch_calls() as calls:
        torch.empty(3)
        x.view(-1).sum().item()
        x[0].add_(1)
    assert calls.names == ["aten::empty", "aten::sum", "aten::_local_scalar_dense"]


class Guarded:
    """Stands in for `torch.empty`: every byte is 0x7F, and so are 64 entries before and behind."""

    MARGIN, BYTE = 64, 0x7F

    def __init__(self) -> None:
        self.empty = torch.empty
        self.made: list[tuple[torch.Tensor, int]] = []  # the whole, and how many entries were asked for

    def __call__(self, *size, dtype=None, device=None, **kwargs):
        if len(size) != 1 or not isinstance(size[0], int) or str(device) == "meta":
            return self.empty(*size, dtype=dtype, device=device, **kwargs)
        whole = self.empty(size[0] + 2 * self.MARGIN, dtype=dtype, device=device, **kwargs)
        whole.view(torch.uint8).fill_(self.BYTE)
        self.made.append((whole, size[0]))
        return whole[self.MARGIN : self.MARGIN + size[0]]

    def count_written_guards(self) -> int:
        written = 0
        for whole, size in self.made:
            entries = whole.view(torch.uint8).view(size + 2 * self.MARGIN, -1).ne(self.BYTE).any(1)
            written += int(entries[: self.MARGIN].sum() + entries[self.MARGIN + size :].sum())
        return written


@pytest.mark.parametrize("way", [ONE, LAST, TWO], ids=" ".join)
@pytest.mark.parametrize(("experts", "k", "dtype"), [(24, 4, DTYPES[0]), (33, 3, DTYPES[1]), (32, 6, DTYPES[2])])
def test_every_entry_is_written_and_none_beside(bounds, logits, monkeypatch, way, experts, k, dtype):
    bounds(ONE_LAUNCH=16 if way == TWO else 256)
    for tokens in (0, 1, 7, 16) if way == ONE else (17, 32, 37):
        x = logits(tokens, experts, dtype)
        plan = make_plan(tokens, experts, k, dtype)
        assert (plan.parts > 1, plan.launches) == (way != ONE, len(way))
        route(x, k)  # a device's counters are allocated once
        guarded = Guarded()
        with monkeypatch.context() as patch:
            patch.setattr(torch, "empty", guarded)
            routing = route(x, k)
        assert len(guarded.made) == 2
        assert guarded.count_written_guards() == 0
        assert_equivalent(routing, reference(x, k), **ROUNDING[dtype])  # 0x7F7F7F7F is no right value


def test_a_write_beside_an_allocation_is_seen(device):
    guarded = Guarded()
    memory = guarded(5, dtype=torch.int32, device=device)
    memory.zero_()
    assert guarded.count_written_guards() == 0
    memory.as_strided((6,), (1,), memory.storage_offset()).zero_()
    assert guarded.count_written_guards() == 1


def test_a_plan_is_made_once():
    make_plan.cache_clear()
    first, other, again = (make_plan(3, 24, 4, dtype) for dtype in (torch.bfloat16, torch.float32, torch.bfloat16))
    assert again is first
    assert other.options["INF"] != first.options["INF"]
