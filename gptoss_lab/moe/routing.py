"""Routing metadata of a mixture of experts: which rows an expert reads, in which order, and the way back.

Two ways lead to the same `Routing`. `rebuild` does what vLLM's gpt-oss did after `topk`: it packs the
chosen experts into a bitmatrix a second time. `reuse` takes what `topk` has computed already (vLLM pull
request 45457). With `topk` counted in they launch 20 and 9 kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from gptoss_lab.moe.generations import interpreting, sparse_kernels

WORD = 32  # experts in one word of a bitmatrix
LARGEST_K = 32
MOST_EXPERTS = 32767  # ids are int16
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True, eq=False)
class IndexPair:
    """A permutation and its inverse, as a gather or a scatter wants them."""

    src_indx: torch.Tensor  # int32 [slots]
    dst_indx: torch.Tensor  # int32 [slots]


@dataclass(frozen=True, eq=False)
class Routing:
    """All that an expert product needs to know about the router's choice.

    A slot is one pick of one token: slot `token * k + j` for j in 0..k-1; there are tokens * k slots. A row
    is a position in the order sorted by expert. A slice is the run of rows of one expert.

    - `gate_scal` [slots]: the weight of each row. Its dtype is bfloat16 after `rebuild`, the logits' after
      `reuse`.
    - `col_sorted_indx` int32 [slots]: row -> slot, sorted by expert, then by slot. vLLM calls it combine.
    - `row_sorted_indx` int32 [slots]: slot -> row, the inverse. vLLM calls it dispatch.
    - `ragged_metadata`: triton_kernels' `RaggedTensorMetadata`, all int32: `slice_sizes` [slices],
      `slice_offs` [slices + 1], and one line for each block size 16, 32, 64, 128 in `block_offs_data` [4,
      slices + 1] and `block_schedule_data` [4, blocks], where an entry is `block << 16 | slice` and -1 says
      no block.
    - `n_experts`: experts that the caller named. `n_experts_act`: k, read off the ids.

    A slot without an expert (id -1, or a token at or after `n_rows`) has row -1. The rows at the end that
    are in no slice have slot -1, and their `gate_scal` is undefined. The number of slices is `n_experts`
    after `reuse`, and `n_experts` rounded up to a multiple of 32 after `rebuild`. A packed schedule entry
    turns negative at 524,289 rows in one slice with block size 16.
    """

    gate_scal: torch.Tensor
    col_sorted_indx: torch.Tensor
    row_sorted_indx: torch.Tensor
    ragged_metadata: Any
    n_experts: int
    n_experts_act: int

    @property
    def gather(self) -> IndexPair:
        """Slots to rows: row r reads slot `src_indx[r]`."""
        return IndexPair(src_indx=self.col_sorted_indx, dst_indx=self.row_sorted_indx)

    @property
    def scatter(self) -> IndexPair:
        """Rows to slots: slot s reads row `src_indx[s]`."""
        return IndexPair(src_indx=self.row_sorted_indx, dst_indx=self.col_sorted_indx)


def check_topk(logits: torch.Tensor, k: int, n_rows: int | None, any_k_up_to: int = 0) -> None:
    """Raise TypeError or ValueError for what the released `topk` cannot do.

    any_k_up_to: so many experts at most, and k need not be a power of two. Reads shapes only, never the device.
    """
    if not isinstance(logits, torch.Tensor):
        raise TypeError(f"logits are a {type(logits).__name__}: pass a tensor")
    for name, number in (("k", k), ("n_rows", 0 if n_rows is None else n_rows)):
        if type(number) is not int:
            raise TypeError(f"{name} is {number!r}, a {type(number).__name__}: pass an int")
    if logits.ndim != 2:
        raise ValueError(f"logits have shape {list(logits.shape)}: pass [tokens, experts]")
    tokens, experts = logits.shape
    if logits.dtype not in DTYPES:
        raise ValueError(f"logits are {logits.dtype}: pass bfloat16, float16 or float32")
    if not 1 <= experts <= MOST_EXPERTS:
        raise ValueError(f"logits have {experts} experts: pass 1 to {MOST_EXPERTS}")
    any_k = experts <= any_k_up_to
    if not (1 <= k <= min(experts, LARGEST_K) and (any_k or k & (k - 1) == 0)):
        which = "1 to 32" if any_k else "1, 2, 4, 8, 16 or 32"
        raise ValueError(f"k is {k} with {experts} experts: pass {which}, and at most the number of experts")
    if n_rows is not None and not 0 <= n_rows <= tokens:
        raise ValueError(f"n_rows is {n_rows} with {tokens} tokens: pass 0 to {tokens}")
    if experts > 1 and logits.stride(1) != 1:
        raise ValueError(f"logits have stride {logits.stride(1)} between experts: pass logits.contiguous()")
    if logits.device.type not in ("cpu", "cuda"):
        raise ValueError(f"logits are on {logits.device}: pass logits.cuda()")
    if logits.device.type == "cpu" and not interpreting():
        raise ValueError("logits are on the CPU while Triton compiles for a GPU: pass logits.cuda()")


def is_elsewhere(tensor: torch.Tensor) -> bool:
    """Whether the tensor is on a GPU that is not the current one, where Triton would launch."""
    return tensor.is_cuda and tensor.device.index != torch.cuda.current_device()


def topk(logits: torch.Tensor, k: int, n_rows: int | None = None) -> Any:
    """Choose k experts for each token with triton_kernels' `topk`, five launches.

    logits: bfloat16, float16 or float32 [tokens, experts], experts contiguous. k: 1, 2, 4, 8, 16 or 32, at
    most the number of experts. n_rows: only the first n_rows tokens are real.

    Returns a `SparseMatrix`: `vals` [tokens, k] the softmax over the picks, in the logits' dtype and in
    descending order; `indx` int16 [tokens, k]; `mask` the bitmatrix; `mask_metadata` with `col_sum`,
    `col_sorted_indx` and `row_sorted_indx`. Rows at or after n_rows of `vals` and `indx` are not written.

    The order is that of the bits: -NaN < -inf < ... < -0.0 < +0.0 < ... < inf < +NaN, and of equals the
    lower id first. When experts is not a multiple of 32, `topk` pads the row with -inf, and a negative NaN
    ranks below the padding: the raw function then returns ids of experts that do not exist, and later
    kernels write out of bounds. Here such logits are first copied with every NaN made positive, which is
    one launch more. A NaN stays a NaN.

    Errors: ValueError for any other shape, dtype, k, n_rows, stride or device, and for a GPU that is not the current
    one; TypeError for logits that are no tensor, and for a k or n_rows that is no int.
    """
    check_topk(logits, k, n_rows)
    if is_elsewhere(logits):
        current = f"cuda:{torch.cuda.current_device()}"
        raise ValueError(f"logits are on {logits.device} and the current device is {current}: use torch.cuda.device")
    if logits.shape[1] % WORD:
        logits = torch.nan_to_num(logits, nan=math.nan, posinf=math.inf, neginf=-math.inf)
    return sparse_kernels().topk(logits, k, n_rows=n_rows)


def reuse(sparse: Any, n_experts: int) -> Routing:
    """Make a `Routing` from the metadata that `topk` has computed. Four launches, nine with `topk`.

    sparse: a `SparseMatrix` of `topk` (its fields are listed there). n_experts: its number of experts.
    `gate_scal` keeps the dtype of `sparse.vals`. Nothing is read from the device.

    Errors: TypeError for anything but a `SparseMatrix`; ValueError for an n_experts that its metadata does not fit.

    Idea: vLLM pull request 45457, `routing_data_from_sparse_topk`.
    """
    if not hasattr(sparse, "mask_metadata"):
        raise TypeError(f"sparse is a {type(sparse).__name__}: pass what gptoss_lab.moe.routing.topk returns")
    metadata = sparse.mask_metadata
    slices = metadata.col_sum.shape[0]  # of a bitmatrix that was packed anew, a multiple of 32
    if not n_experts <= slices < n_experts + WORD:
        raise ValueError(f"n_experts is {n_experts} and the metadata has {slices}: pass what topk chose from")
    combine, dispatch = metadata.col_sorted_indx, metadata.row_sorted_indx  # int32 [slots]
    ragged = sparse_kernels().make_ragged_tensor_metadata(metadata.col_sum, dispatch.shape[0])
    return Routing(
        # An index by int32 is two launches: PyTorch copies the index to int64 first.
        gate_scal=sparse.vals.flatten()[combine],  # [slots]
        col_sorted_indx=combine,
        row_sorted_indx=dispatch,
        ragged_metadata=ragged,
        n_experts=n_experts,
        n_experts_act=sparse.indx.shape[1],
    )


@triton.jit
def pack_bitmatrix(Bits, Ids, n_rows, n_words: tl.constexpr, k, ROWS: tl.constexpr, PICKS: tl.constexpr):
    """Set bit `id % 32` of word `id // 32` for each pick of a row. An id below 0 sets nothing.

    One program takes ROWS rows and walks over the words, and the tile has an axis of length one for the
    word: this is the work that the original does, so that it costs what the original costs.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    picks = tl.arange(0, PICKS)
    is_pick = (rows < n_rows)[:, None] & (picks < k)[None, :]
    ids = tl.load(Ids + rows[:, None] * k + picks[None, :], mask=is_pick, other=-1)  # [ROWS, PICKS]
    word_of, bit_of = ids // 32, ids % 32
    one = tl.full([], 1, tl.uint32)
    for step in range(n_words):
        word = step + tl.arange(0, PICKS // 32)
        here = (ids >= 0)[:, :, None] & (word_of[:, :, None] == word[None, None, :])
        bits = tl.where(here, (one << bit_of)[:, :, None], 0)  # [ROWS, PICKS, 1]
        packed = tl.reduce_or(bits, axis=1)  # [ROWS, 1]
        tl.store(Bits + rows[:, None] * n_words + word[None, :], packed, mask=(rows < n_rows)[:, None])


def rows_per_program(tokens: int) -> int:
    """Return the original's 512, or in the interpreter, which reduces element by element, what suffices."""
    return min(512, triton.next_power_of_2(max(tokens, 1))) if interpreting() else 512


def rebuild_from(ids: torch.Tensor, weights: torch.Tensor, n_experts: int) -> Routing:
    """Make a `Routing` from ids and weights alone: pack them, build a second `SparseMatrix`, reuse that.

    ids: any integer dtype [tokens, k], -1 for a slot without an expert. weights: floating [tokens, k], cast
    to bfloat16. 14 launches: ids to int16, zeros, pack, compare, fill, where, four of `SparseMatrix`, four
    of `reuse`; one more when the weights have to be cast, one fewer when the ids are int16 already.

    True to the original, and unsafe where it is: an id at or above n_experts, or one that int16 cannot
    hold, makes a later kernel write out of bounds, and an id twice in a row loses a pick without a word.
    `validate` refuses both.

    Idea: vLLM's `make_routing_data` before and after pull request 45457.
    """
    kernels = sparse_kernels()
    ids = ids.to(torch.int16)  # [tokens, k]
    weights = weights.to(torch.bfloat16)  # [tokens, k]
    tokens, k = ids.shape
    n_words = triton.cdiv(n_experts, WORD)
    bits = torch.zeros((tokens, n_words), dtype=torch.uint32, device=ids.device)
    rows = rows_per_program(tokens)
    pack_bitmatrix[(triton.cdiv(tokens, rows),)](bits, ids, tokens, n_words, k, ROWS=rows, PICKS=32)
    mask = kernels.wrap_torch_tensor(
        bits, dtype=kernels.BIT, shape=[tokens, n_words * WORD], shape_max=[tokens, n_words * WORD]
    )
    weights = torch.where(ids == -1, -1.0, weights)  # the product expects -1 as the weight of no expert
    return reuse(kernels.SparseMatrix(indx=ids, vals=weights, mask=mask), n_experts)


def rebuild(sparse: Any, n_experts: int) -> Routing:
    """Make a `Routing` as vLLM's gpt-oss did before pull request 45457. 15 launches, 20 with `topk`.

    Keeps only ids and weights of `sparse` (a `SparseMatrix` of `topk`) and computes its metadata again. The
    cast to int64 was the caller's, `triton_kernel_moe_forward`. `gate_scal` is bfloat16; logits of another
    dtype cost one launch more for that cast. There are n_experts rounded up to a multiple of 32 slices.

    Unsafe after a `topk` with n_rows below the tokens, since the ids of the other rows were never written,
    and after the raw `topk` of triton_kernels on negative NaN. See `rebuild_from` for more.
    """
    return rebuild_from(sparse.indx.to(torch.int64), sparse.vals, n_experts)
