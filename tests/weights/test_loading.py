"""Every strategy against safetensors, tensor by tensor; what each holds; every fault that must be named."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssForCausalLM

from gptoss_lab.model import Config, GptOss, ModelNotReady, generate, load_tokenizer
from gptoss_lab.weights import loading
from gptoss_lab.weights.checkpoint import Checkpoint, read_checkpoint
from gptoss_lab.weights.compare import differing, same_bytes
from gptoss_lab.weights.loading import (
    STRATEGIES,
    IncompleteLoad,
    LoadError,
    clone_if_streamed,
    clone_on_device,
    drain,
    host_copies,
    is_expert,
    lazy_experts_only,
    load_weights,
    own,
    place,
)
from gptoss_lab.weights.streaming import STREAMED, StreamingError, plan, stream

CAPITALS = Path(__file__).parents[2] / "data" / "capitals"
TOTAL = 2_661_120
RIGHT, WRONG = (clone_on_device, host_copies, place), (drain, lazy_experts_only)
LIMITS = [
    0,
    262144,
    300_000,
    400_000,
    512 * 1024,
    700_000,
    "1MiB",
    1_330_560,
    2_000_000,
    TOTAL - 1,
    TOTAL,
    -1,
    None,
]


@pytest.fixture(scope="module")
def capitals() -> Checkpoint:
    return read_checkpoint(CAPITALS)


@pytest.fixture(scope="module")
def truth(capitals: Checkpoint) -> dict[str, torch.Tensor]:
    return {name: tensor for file in capitals.files for name, tensor in load_file(file).items()}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(CAPITALS)


@pytest.fixture(autouse=True)
def no_limit_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNAI_STREAMER_MEMORY_LIMIT", raising=False)


def empty_model() -> GptOss:
    return GptOss(Config.from_file(CAPITALS), torch.bfloat16)


def load(strategy: Callable, capitals: Checkpoint, limit, concurrency=None, **options):
    model = empty_model()
    weights = stream(capitals, memory_limit=limit, concurrency=concurrency)
    return model, strategy(model, weights, names=list(capitals.tensors), **options)


class Shelf:
    """A model of any names, for checkpoints that are no gpt-oss."""

    def __init__(self, *names: str) -> None:
        self.names, self.held, self.unusable = names, {}, None

    def copy_in(self, name: str, tensor: torch.Tensor) -> None:
        self.held[name] = tensor.clone()

    def mark_unusable(self, reason: str) -> None:
        self.unusable = reason


# --- bytes and words ---


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("strategy", RIGHT)
def test_a_right_strategy_is_right_at_every_limit(capitals, truth, strategy, limit) -> None:
    model, report = load(strategy, capitals, limit)
    assert differing(truth, model.state_dict()) == []
    assert sorted(report.order) == sorted(truth) and report.produced == 155


@pytest.mark.parametrize("limit", LIMITS)
def test_a_wrong_strategy_is_wrong_as_planned(capitals, truth, limit) -> None:
    lost = set(plan(capitals, limit).overwritten)
    assert set(differing(truth, load(drain, capitals, limit)[0].state_dict())) == lost
    kept = {name for name in lost if not is_expert(name)}
    assert set(differing(truth, load(lazy_experts_only, capitals, limit)[0].state_dict())) == kept


def test_the_same_tensors_are_lost_in_every_run_at_any_concurrency(capitals, truth) -> None:
    for strategy in WRONG:
        model, _ = load(strategy, capitals, 300_000)
        for _, concurrency in itertools.product(range(3), (1, 4, 16)):
            other, _ = load(strategy, capitals, 300_000, concurrency)
            assert differing(model.state_dict(), other.state_dict()) == []  # the same wrong bytes, too
        assert len(differing(truth, model.state_dict())) > 90


def test_the_answers_are_those_of_transformers_or_bangs(capitals, tokenizer) -> None:
    oracle = GptOssForCausalLM.from_pretrained(CAPITALS, dtype=torch.float32).eval()
    ids = torch.tensor([tokenizer.encode("The capital of France is").ids])
    tokens = oracle.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    expected = tokens[0, ids.shape[1] :].tolist()
    for strategy in STRATEGIES.values():
        for limit in (0, 1_000_000, -1):
            model = GptOss(Config.from_file(CAPITALS))
            strategy(model, stream(capitals, memory_limit=limit), names=list(capitals.tensors))
            answer = generate(model, tokenizer, "The capital of France is")
            if strategy in RIGHT or limit == -1:
                assert answer.tokens == expected and answer.nonfinite == 0
            elif strategy is drain:
                assert answer.text == "!" * 12 and answer.nonfinite == 1
            else:
                assert answer.tokens != expected


def test_five_tensors_through_a_buffer_for_two(tmp_path: Path) -> None:
    """Every kept view is compared; the last tensor alone would pass on broken code."""
    tensors = {f"{i}{'.experts' if i % 2 else ''}": torch.full((250,), float(i)) for i in range(5)}
    save_file(tensors, tmp_path / "five.safetensors")
    last = "4"
    for strategy in STRATEGIES.values():
        shelf = Shelf(*tensors)
        strategy(shelf, stream(tmp_path / "five.safetensors", memory_limit=2000), names=tensors)
        assert same_bytes(shelf.held[last], tensors[last])
        wrong = differing(tensors, shelf.held)
        if strategy is drain:  # requests (0, 1), (2, 3) and (4): 3 lies where 4 does not reach
            assert wrong == ["0", "1.experts", "2"]
        else:
            assert wrong == (["0", "2"] if strategy is lazy_experts_only else [])


# --- owning ---


def test_own_copies_what_is_streamed_and_passes_the_rest_through(capitals, truth) -> None:
    name, tensor = next(stream(capitals, memory_limit=0))
    for helper in (own, clone_if_streamed):
        kept = helper(tensor)
        assert kept is not tensor and kept.data_ptr() != tensor.data_ptr()
        assert kept.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
        assert kept.device.type == "cpu" and same_bytes(kept, truth[name]) and not kept.requires_grad
        assert not hasattr(kept, STREAMED)
        unmarked = torch.ones(3)
        assert helper(unmarked) is unmarked


NO_COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": torch.Tensor.contiguous,
    "cpu": torch.Tensor.cpu,
    "to the same device": lambda tensor: tensor.to(tensor.device),
    "to the same dtype": lambda tensor: tensor.to(tensor.dtype),
    "detach": torch.Tensor.detach,
    "view": lambda tensor: tensor.view(tensor.shape),
    "narrow": lambda tensor: tensor.narrow(0, 0, len(tensor)),
    "data": lambda tensor: tensor.data,
    "Parameter": lambda tensor: torch.nn.Parameter(tensor, requires_grad=False),
    "from numpy": lambda tensor: torch.from_numpy(tensor.view(torch.uint8).numpy()).view(tensor.dtype),
    "shallow copy": copy.copy,
}


@pytest.mark.parametrize("how", NO_COPIES)
def test_what_is_no_copy_is_as_wrong_as_keeping_the_view(capitals, truth, how) -> None:
    model, report = load(host_copies, capitals, 0, own=NO_COPIES[how])
    kept, _ = load(lazy_experts_only, capitals, 0)
    assert differing(kept.state_dict(), model.state_dict()) == []
    assert len(differing(truth, model.state_dict())) == 105
    assert report.bytes_to_host == 0 and report.peak_copies == 0  # and the report is not taken in


def test_the_mark_is_lost_with_a_view_and_so_is_the_fix(capitals, truth) -> None:
    """The merged helper goes by the mark; this is its hole."""
    weights = ((name, tensor.view(tensor.shape)) for name, tensor in stream(capitals, memory_limit=0))
    model = empty_model()
    host_copies(model, weights, names=list(capitals.tensors))
    assert len(differing(truth, model.state_dict())) == 105


def test_weights_from_elsewhere_are_not_copied_twice(capitals, truth) -> None:
    model = empty_model()
    report = host_copies(model, iter(truth.items()), names=truth)
    assert differing(truth, model.state_dict()) == []
    assert report.bytes_to_host == report.bytes_on_device == report.peak_copies == 0
    assert report.bytes_to_parameters == TOTAL


# --- what a strategy holds ---

DENSE = 891_648  # bytes of the 107 tensors that are not experts


def test_bytes_are_copied_where_the_strategy_says(capitals) -> None:
    expected = {
        drain: (0, 0),
        lazy_experts_only: (0, 0),
        clone_on_device: (0, DENSE),
        host_copies: (DENSE, 0),
        place: (0, 0),
    }
    dense = [stored.spec for stored in capitals.tensors.values() if not is_expert(stored.spec.name)]
    assert sum(spec.nbytes for spec in dense) == DENSE
    for strategy, (host, device) in expected.items():
        _, report = load(strategy, capitals, 0)
        assert report.strategy == strategy.__name__
        assert (report.bytes_to_host, report.bytes_on_device) == (host, device)
        assert report.bytes_to_parameters == TOTAL
        copies = len(dense) if host + device else 0
        assert (report.peak_copies, report.peak_copy_bytes) == (copies, host + device)


def test_tensors_alive_at_once(capitals) -> None:
    reports = {name: load(strategy, capitals, 0, 1)[1] for name, strategy in STRATEGIES.items()}
    assert reports["drain"].peak_views == 155 and reports["drain"].peak_view_bytes == TOTAL
    assert reports["place"].peak_views == reports["place"].peak_live_tensors == 2
    kept = sum(1 for name in capitals.tensors if not is_expert(name))
    assert kept < reports["lazy_experts_only"].peak_views <= kept + 3
    for name in ("host_copies", "clone_on_device"):
        assert reports[name].peak_views <= 3
        assert kept < reports[name].peak_live_tensors <= kept + 3
        assert DENSE < reports[name].peak_live_bytes < TOTAL


def test_a_derived_view_counts_as_alive(capitals) -> None:
    _, report = load(host_copies, capitals, 0, own=torch.Tensor.detach)
    assert report.peak_views > 100


def test_produced_when_seen_tells_a_drain_from_a_lazy_load(capitals) -> None:
    for strategy in STRATEGIES.values():
        _, report = load(strategy, capitals, 0, 1)
        seen = report.produced_when_seen
        order = [name for name, _ in stream(capitals, memory_limit=0, concurrency=1)]
        arrival = {name: position for position, name in enumerate(order, start=1)}
        if strategy is drain:
            assert set(seen.values()) == {155}
        else:
            experts = [name for name in order if is_expert(name)]
            assert [seen[name] for name in experts] == [arrival[name] for name in experts]
            assert list(report.order[: len(experts)]) == experts or strategy is place
        if strategy is place:
            assert seen == arrival and report.order == tuple(order)


def test_hermetic_no_model_no_weights_both_halves_are_recorders() -> None:
    """As in SGLang's pull request 38908: what had been produced when a half saw each tensor."""
    for strategy, expected in ((drain, [3, 3, 3]), (host_copies, [1, 2, 3]), (place, [1, 2, 3])):
        model = object.__new__(GptOss)
        produced, seen, kept = [], [], {}

        def source(produced=produced) -> Iterator[tuple[str, torch.Tensor]]:
            for name in ("0.experts.a", "1.experts.b", "norm"):
                produced.append(name)
                tensor = torch.full((4,), float(len(produced)))
                setattr(tensor, STREAMED, True)
                yield name, tensor

        def see(_, weights, produced=produced, seen=seen, kept=kept) -> None:
            for name, tensor in weights:
                seen.append(len(produced))
                kept[name] = tensor

        strategy(model, source(), load_experts=see, load_normal=see)
        assert seen == expected and list(kept) == ["0.experts.a", "1.experts.b", "norm"]


# --- the dispatch ---


def test_the_dispatch_is_by_the_name_of_the_quantisation(capitals, truth) -> None:
    """mxfp4 is mended; quark and the normal path still drain the stream."""
    lost = sorted(plan(capitals, 0).overwritten)
    for quantization, name, wrong in (
        ("mxfp4", "host_copies", []), ("quark", "quark", lost),
        ("fp8", "normal", lost), (None, "normal", lost),
    ):  # fmt: skip
        model = empty_model()
        report = load_weights(model, stream(capitals, memory_limit=0), quantization, names=list(capitals.tensors))
        assert report.strategy == name
        assert differing(truth, model.state_dict()) == wrong
    assert report.order == tuple(sorted(truth))  # the normal path canonicalises first


# --- faults ---


def stop_early(after: int) -> Callable:
    def half(model, weights) -> None:
        for name, tensor in itertools.islice(weights, after):
            model.copy_in(name, tensor)

    return half


# `place` calls the half once a tensor, so it cannot stop early.
@pytest.mark.parametrize("strategy", [strategy for strategy in STRATEGIES.values() if strategy is not place])
@pytest.mark.parametrize("with_names", [True, False])
def test_an_expert_half_that_stops_early_is_an_error_that_names_what_was_not_loaded(
    capitals, strategy, with_names
) -> None:
    model = empty_model()
    names = list(capitals.tensors) if with_names else None
    with pytest.raises(IncompleteLoad) as error:
        strategy(model, stream(capitals, memory_limit=-1), names=names, load_experts=stop_early(10))
    missing = model.missing()
    assert f"{len(missing)} of 155" in str(error.value) and repr(sorted(missing)[0]) in str(error.value)
    with pytest.raises(ModelNotReady, match="IncompleteLoad"):
        model([1, 2])


def test_a_half_that_drops_every_tensor_is_an_error(capitals) -> None:
    for strategy in STRATEGIES.values():
        with pytest.raises(IncompleteLoad, match="48 of 155"):
            load(strategy, capitals, -1, load_experts=lambda model, weights: [None for _ in weights])
        with pytest.raises(IncompleteLoad, match="107 of 155"):
            load(strategy, capitals, -1, load_normal=lambda model, weights: None)


def test_an_early_stop_is_seen_even_when_no_names_are_known() -> None:
    source = ((f"{i}.experts", torch.zeros(2)) for i in range(5))
    shelf = Shelf()
    with pytest.raises(IncompleteLoad, match="not read to its end: 2 tensors were produced.*'1.experts'"):
        host_copies(shelf, source, load_experts=stop_early(2))
    assert "IncompleteLoad" in shelf.unusable


def test_an_early_stop_ends_the_stream(capitals) -> None:
    weights = stream(capitals, memory_limit=0)
    with pytest.raises(IncompleteLoad):
        host_copies(empty_model(), weights, load_experts=stop_early(1))
    assert next(weights, None) is None


def untouched(capitals: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
    pytest.fail("a tensor was asked for before the names were checked")
    yield


@pytest.mark.parametrize("strategy", STRATEGIES.values())
def test_names_are_checked_before_the_first_tensor(capitals, strategy) -> None:
    names = list(capitals.tensors)
    faults = {
        "1 unknown to the model: 'model.layers.9.norm'": [*names, "model.layers.9.norm"],
        "1 that the model needs are missing: 'lm_head.weight'": [n for n in names if n != "lm_head.weight"],
        "'lm_head.weight' is in the headers twice": [*names, "lm_head.weight"],
    }
    for says, wrong in faults.items():
        model = empty_model()
        with pytest.raises(LoadError, match=says):
            strategy(model, untouched(capitals), names=wrong)
        assert model.unusable is None and model.missing() == list(model.names)


@pytest.mark.parametrize("strategy", STRATEGIES.values())
@pytest.mark.parametrize("name", ["model.layers.9.norm", "lm_head.weight"])
def test_without_headers_a_wrong_name_is_an_error_in_mid_stream(truth, strategy, name) -> None:
    model = empty_model()
    with pytest.raises(LoadError, match=name):
        strategy(model, [*truth.items(), (name, torch.zeros(2))])
    assert name in model.unusable


@pytest.mark.parametrize("strategy", STRATEGIES.values())
@pytest.mark.parametrize("error", [OSError("disk"), StreamingError("cut"), KeyboardInterrupt()])
def test_a_fault_in_mid_stream_marks_the_model_and_says_why(truth, strategy, error) -> None:
    def breaking() -> Iterator[tuple[str, torch.Tensor]]:
        yield from itertools.islice(truth.items(), 100)
        raise error

    model = empty_model()
    with pytest.raises(type(error)):
        strategy(model, breaking(), names=truth)
    assert strategy.__name__ in model.unusable and type(error).__name__ in model.unusable
    with pytest.raises(ModelNotReady, match=type(error).__name__):
        generate(model, load_tokenizer(CAPITALS), "The capital of France is")


def test_a_tensor_of_another_shape_marks_the_model(truth) -> None:
    wrong = truth | {"lm_head.weight": torch.zeros(3, 3)}
    model = empty_model()
    with pytest.raises(ValueError, match="lm_head.weight"):
        host_copies(model, iter(wrong.items()), names=wrong)
    assert "lm_head.weight" in model.unusable


def test_the_router_is_no_expert() -> None:
    assert is_expert("model.layers.0.mlp.experts.down_proj_bias")
    assert not is_expert("model.layers.0.mlp.router.weight") and not is_expert("lm_head.weight")


def test_all_that_is_promised_is_there() -> None:
    assert set(loading.__all__) <= set(dir(loading))
    assert list(STRATEGIES) == ["drain", "lazy_experts_only", "clone_on_device", "host_copies", "place"]
