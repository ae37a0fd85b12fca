"""The checkers of lesson 44 tell wrong answers apart, and the package's functions pass them."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from gptoss_lab.course import lab
from gptoss_lab.course.lessons import draw_42, draw_44, stand_ins_44
from gptoss_lab.course.lessons.lesson_44 import local_ids, local_sum, reuse
from gptoss_lab.moe import routing as package
from gptoss_lab.moe.generations import sparse_kernels
from gptoss_lab.moe.parallel import assignments, remap, slots_in_slices, sum_picks
from gptoss_lab.moe.properties import make_expert_map


def routes(
    gate=lambda sparse, combine, dispatch: sparse.vals.flatten()[combine],
    sizes=lambda sparse, experts: sparse.mask_metadata.col_sum,
    slots=lambda sparse: sparse.mask_metadata.row_sorted_indx.shape[0],
    exchange=False,
    k=lambda sparse: sparse.indx.shape[1],
):
    """An answer to exercise 44.1 that is right but for the parts given."""

    def answer(sparse, n_experts):
        lists = sparse.mask_metadata.col_sorted_indx, sparse.mask_metadata.row_sorted_indx
        combine, dispatch = lists[::-1] if exchange else lists
        ragged = sparse_kernels().make_ragged_tensor_metadata(sizes(sparse, n_experts), slots(sparse))
        weights = gate(sparse, combine, dispatch)
        return package.Routing(weights, combine, dispatch, ragged, n_experts, k(sparse))

    return answer


def counted_again(sparse, experts):
    ids = sparse.indx.flatten()
    counted = torch.bincount(ids[ids >= 0].long(), minlength=experts)
    return counted.int()


def in_place(sparse, combine, dispatch):
    weights = sparse.vals.flatten()[combine]
    combine.clamp_(min=0)
    return weights


def padded(sparse, experts):
    return torch.nn.functional.pad(sparse.mask_metadata.col_sum, (0, -experts % 32))


def as_a_dict(sparse, n_experts):
    return dataclasses.asdict(package.reuse(sparse, n_experts))


REUSE = {
    "rebuild": (package.rebuild, "case '24 experts, equal to rebuild'"),
    "a dict": (as_a_dict, "the result is a dict of 6 items, expected a Routing"),
    "the lists exchanged": (routes(exchange=True), "case 'one token'"),
    "weights by slot": (routes(gate=lambda s, combine, dispatch: s.vals.flatten()), "case 'one token'"),
    "weights by the other list": (routes(gate=lambda s, combine, dispatch: s.vals.flatten()[dispatch]), "gate_scal"),
    "weights in bfloat16": (
        routes(gate=lambda s, combine, dispatch: s.vals.to(torch.bfloat16).flatten()[combine]),
        "case 'float32 logits'",
    ),
    "k is 4": (routes(k=lambda sparse: 4), "case 'two picks a token, 40 experts': n_experts_act: 4 against 2"),
    "padded slices": (routes(sizes=padded), "case '24 experts, equal to rebuild'"),
    "index_select": (
        routes(gate=lambda s, combine, dispatch: s.vals.flatten().index_select(0, combine)),
        "case '5 of 8 tokens are real'",
    ),
    "changes the metadata": (routes(gate=in_place), "the function changed its input: `sparse`.mask_metadata"),
    "counts again": (routes(sizes=counted_again), "cost 'four launches'"),
    "a clone": (
        routes(gate=lambda s, combine, dispatch: s.vals.flatten()[combine].clone()),
        "5 launches, 4 are enough. More than needed: aten.clone",
    ),
    "a clamp": (
        routes(gate=lambda s, combine, dispatch: s.vals.flatten().index_select(0, combine.clamp(min=0).long())),
        "5 launches, 4 are enough",
    ),
    "an item": (
        routes(slots=lambda s: s.indx.numel() + 0 * sum(x.item() for x in s.indx.flatten()[:1])),
        "More than needed: aten._local_scalar_dense",
    ),
    "a list": (
        routes(slots=lambda s: len(s.mask_metadata.row_sorted_indx.tolist())),
        "cost 'nothing is read from the device': `tolist` reads values",
    ),
}


def half(expert_map):
    return int((expert_map >= 0).sum())


def by_python(ids, expert_map):
    rows = [[expert_map[i].item() if i >= 0 else -1 for i in row] for row in ids.tolist()]
    return torch.tensor(rows, dtype=torch.int32).reshape(ids.shape)


def maps_in_place(ids, expert_map):
    ids.copy_(by_python(ids, expert_map))
    return ids.int()


LOCAL_IDS = {
    "a constant": (lambda ids, expert_map: torch.tensor([[0, -1], [-1, 1]], dtype=torch.int32), "every time"),
    "-1 is the last entry": (
        lambda ids, expert_map: expert_map[ids.long()],
        "`expert_map[-1]` is the map's last entry",
    ),
    "an index by int16": (lambda ids, expert_map: torch.where(ids < 0, -1, expert_map[ids]), "raised IndexError"),
    "the first half": (
        lambda ids, expert_map: torch.where(ids < half(expert_map), ids, -1).int(),
        "case 'every other expert'",
    ),
    "clamped": (
        lambda ids, expert_map: expert_map[ids.long().clamp(min=0)],
        "case '-1, and the first expert lives here'",
    ),
    "int64": (lambda ids, expert_map: by_python(ids, expert_map).long(), "has dtype torch.int64, expected torch.int32"),
    "leaves others out": (
        lambda ids, expert_map: (lambda out: out[out >= 0])(by_python(ids, expert_map)),
        "has shape [2], expected [2, 2]",
    ),
    "in place": (maps_in_place, "the function changed its input: `ids`"),
    "0 for others": (
        lambda ids, expert_map: by_python(ids, expert_map).clamp(min=0),
        "case 'the first half lives here'",
    ),
    "fails on nothing": (
        lambda ids, expert_map: by_python(ids, expert_map) if ids.max() > -9 else ids,
        "case 'no tokens': `local_ids` raised",
    ),
}


def sums(mask=lambda picked, is_local: torch.where(is_local[:, :, None], picked, 0), by_slot=False, after=None):
    """An answer to exercise 44.3 that is right but for the parts given."""

    def answer(outputs, gate_scal, row_of_slot, is_local):
        rows = row_of_slot.long()
        if by_slot:
            weighted = outputs[rows] * gate_scal[:, None]  # gate_scal taken for a list by slot
        else:
            weighted = (outputs * gate_scal[:, None])[rows]
        picked = mask(weighted.reshape(*is_local.shape, outputs.shape[1]), is_local)
        return (after or (lambda summed: summed))(picked.sum(1))

    return answer


def masks_the_output_alone(outputs, gate_scal, row_of_slot, is_local):
    rows = row_of_slot.long()
    kept = torch.where(is_local.flatten()[:, None], outputs[rows], 0)
    return (kept * gate_scal[rows][:, None]).reshape(*is_local.shape, outputs.shape[1]).sum(1)


def in_row_order(outputs, gate_scal, row_of_slot, is_local):
    weighted = (outputs * gate_scal[:, None]).reshape(*is_local.shape, outputs.shape[1])
    return torch.where(is_local[:, :, None], weighted, 0).sum(1)


def clears_the_rows(outputs, gate_scal, row_of_slot, is_local):
    outputs[row_of_slot.long()[~is_local.flatten()]] = 0
    return sums()(outputs, gate_scal, row_of_slot, is_local)


def needs_a_token(outputs, gate_scal, row_of_slot, is_local):
    assert is_local.shape[0], "no tokens"
    return sums()(outputs, gate_scal, row_of_slot, is_local)


LOCAL_SUM = {
    "a constant": (lambda outputs, *rest: torch.tensor([[2.5], [6.5]]), "every time"),
    "sums everything": (sums(mask=lambda picked, is_local: picked), "case 'one pick of each token is local'"),
    "times zero": (sums(mask=lambda picked, is_local: picked * is_local[:, :, None]), "0 * NaN is NaN"),
    "NaN to zero": (
        sums(mask=lambda picked, is_local: torch.nan_to_num(picked) * is_local[:, :, None]),
        "case 'a local NaN is a fault, and stays'",
    ),
    "nansum": (
        sums(mask=lambda picked, is_local: torch.where(picked.isnan() | ~is_local[:, :, None], 0, picked)),
        "that would hide a broken expert",
    ),
    "the output alone": (masks_the_output_alone, "case 'weights of others are NaN'"),
    "in the order of the rows": (in_row_order, "case 'all picks are local'"),
    "weights by slot": (sums(by_slot=True), "case 'all picks are local'"),
    "without the token's place": (sums(after=lambda summed: summed.sum(0)), "has shape [1], expected [2, 1]"),
    "float64": (sums(after=torch.Tensor.double), "has dtype torch.float64, expected torch.float32"),
    "changes the outputs": (clears_the_rows, "the function changed its input: `outputs`"),
    "fails on nothing": (needs_a_token, "case 'no tokens': `local_sum` raised AssertionError"),
}
WRONG = {reuse: REUSE, local_ids: LOCAL_IDS, local_sum: LOCAL_SUM}


def like_rebuild_local(ids, expert_map):
    ids = ids.long()
    return torch.where(ids < 0, -1, expert_map[ids])


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (reuse, package.reuse),
        (reuse, routes(gate=lambda s, combine, dispatch: s.vals.flatten()[combine.long()])),
        (local_ids, like_rebuild_local),
        (local_ids, by_python),
        (local_sum, sums()),
    ],
    ids=["reuse of the package", "an index by int64", "like rebuild_local", "by_python", "sums"],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, verdict


def ranks():
    """The whole's routing of 5 tokens over 32 experts, and each of two ranks' by `remap`, with the maps."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    logits = torch.randn((5, 32), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16).to(device)
    sparse = package.topk(logits, 4)
    whole = package.reuse(sparse, 32)
    maps = [make_expert_map(torch.arange(32) // 16, rank)[0].to(device) for rank in range(2)]
    return sparse, whole, [(expert_map, remap(whole, expert_map, 16)) for expert_map in maps]


def test_the_exercises_agree_with_the_package():
    sparse, _, parts = ranks()
    for expert_map, part in parts:
        is_local = like_rebuild_local(sparse.indx, expert_map) >= 0
        assert torch.equal(is_local, slots_in_slices(part))
        outputs = torch.randn((20, 3), generator=torch.Generator().manual_seed(2)).to(is_local.device)
        foreign = part.row_sorted_indx.long()[~is_local.flatten()]
        outputs[foreign] = math.nan
        ours = sums()(outputs, part.gate_scal.float(), part.row_sorted_indx, is_local)
        assert not ours.isnan().any()
        assert torch.allclose(ours, sum_picks(part, outputs))


def test_the_first_slices_are_another_ranks_rows():
    _, whole, parts = ranks()
    cut = assignments(stand_ins_44.first_slices(whole, 16))
    expected = assignments(whole)
    assert torch.equal(cut, expected[expected[:, 2] < 16])
    assert torch.equal(cut, assignments(parts[0][1]))
    mine = {tuple(line[:2]) for line in assignments(parts[1][1]).tolist()}
    assert mine and not mine & {tuple(line[:2]) for line in cut.tolist()}


def record_of(medians):
    return {
        "timings": [
            dict(zip(("tokens", "experts", "way", "mode"), size, strict=True)) | {"median_us": us}
            for size, us in medians.items()
        ]
    }


def test_gains_are_ratios_of_medians(monkeypatch):
    medians = {(1, 32, "rebuild", "graph"): 30.0, (1, 32, "reuse", "graph"): 12.0, (1, 32, "legacy", "graph"): 6.0}
    monkeypatch.setattr(draw_44, "read_record", lambda folder: record_of(medians))
    (gain,) = draw_44.compare_ways(Path("anywhere"), [(1, 32)], "graph")
    assert (gain.rebuild_to_reuse, gain.reuse_to_legacy, gain.gap_closed) == (2.5, 2.0, 0.75)
    assert draw_44._order_in_words(medians, ["rebuild", "reuse"]).startswith("graph: rebuild above reuse at 1 of 1")


def test_without_a_record_there_are_no_gains(tmp_path, capsys):
    assert draw_44.compare_ways(tmp_path, [(1, 32)], "graph") == []
    assert "There is no record" in capsys.readouterr().out


def test_the_eager_lines_cross_once():
    medians = draw_42.read_medians(draw_42.read_record(lab.DATA / "h200"))
    sizes = {size[:2] for size in medians}
    crossed = [size for size in sizes if medians[*size, "reuse", "eager"] < medians[*size, "legacy", "eager"]]
    assert (len(crossed), len(sizes)) == (1, 16)
