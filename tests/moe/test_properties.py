"""Properties over random inputs. GPTOSS_LAB_EXAMPLES sets how many of each."""

from __future__ import annotations

import os

import pytest
import torch

from gptoss_lab.moe.generations import interpreting
from gptoss_lab.moe.properties import check_ranks, check_route, check_routing, hard_logits

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, assume, example, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

NATIVE = torch.cuda.is_available() and not interpreting()
# The interpreter takes seconds for what a GPU does in microseconds.
MOST_TOKENS, MOST_EXPERTS = (64, 160) if NATIVE else (8, 72)
TOKENS = st.integers(0, MOST_TOKENS)
EXPERTS = st.integers(1, MOST_EXPERTS)
PICKS = st.sampled_from([1, 2, 4, 8])
DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])
SEEDS = st.integers(0, 2**31)
# A GPU compiles `route` for nearly every shape, so there only the logits vary; the interpreter is free in both.
ROUTED = [
    *((0, 24, 3), (1, 32, 4), (3, 33, 6), (16, 24, 4), (16, 128, 8), (17, 5, 5), (32, 40, 3), (64, 32, 4)),
    *((100, 128, 6), (256, 128, 8), (300, 33, 6), (1000, 128, 4)),
]
ANY_K = st.sampled_from([3, 5, 6, 7, 11])
SHAPES = st.sampled_from(ROUTED) if NATIVE else st.tuples(st.integers(0, 40), EXPERTS, ANY_K)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]


def tries(on_cpu: int, on_gpu: int) -> settings:
    """The same few examples every time in the interpreter, new ones every time on a GPU."""
    return settings(
        max_examples=int(os.environ.get("GPTOSS_LAB_EXAMPLES", on_gpu if NATIVE else on_cpu)),
        derandomize=not NATIVE,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@tries(on_cpu=8, on_gpu=2000)
@given(tokens=TOKENS, experts=EXPERTS, k=PICKS, dtype=DTYPES, seed=SEEDS)
@example(tokens=2, experts=160, k=8, dtype=torch.bfloat16, seed=1)
@example(tokens=8, experts=33, k=4, dtype=torch.float32, seed=2)
def test_every_way_to_a_routing_gives_the_same(device, tokens, experts, k, dtype, seed):
    assume(k <= experts)
    check_routing(hard_logits(tokens, experts, dtype, seed).to(device), k, fused=not NATIVE)


@tries(on_cpu=25, on_gpu=1000)
@given(shape=SHAPES, dtype=DTYPES, seed=SEEDS)
@example(shape=(0, 24, 3), dtype=torch.float16, seed=4)
@example(shape=(6, 33, 6), dtype=torch.bfloat16, seed=5)
@example(shape=(32, 40, 3), dtype=torch.float32, seed=6)
def test_one_launch_gives_the_same_for_any_k(device, shape, dtype, seed):
    tokens, experts, k = shape
    assume(k <= experts)
    check_route(hard_logits(tokens, experts, dtype, seed).to(device), k)


@tries(on_cpu=3, on_gpu=500)
@given(tokens=TOKENS, experts=EXPERTS, k=PICKS, ranks=st.integers(2, 4), seed=SEEDS)
@example(tokens=8, experts=40, k=4, ranks=3, seed=3)
def test_every_rank_computes_its_part(device, tokens, experts, k, ranks, seed):
    assume(k <= experts)
    check_ranks(hard_logits(tokens, experts, torch.bfloat16, seed).to(device), k, ranks, seed)
