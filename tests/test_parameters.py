"""Filling a module by copying: what is taken, what is refused, and when it may run."""

from __future__ import annotations

import copy

import pytest
import torch

from gptoss_lab.parameters import Linear, Loadable, ModelNotReady, TensorRefused, empty


class Small(Loadable):
    def __init__(self) -> None:
        super().__init__()
        self.proj = Linear(4, 2, torch.float32)
        self.head = Linear(2, 4, torch.float32, bias=False)
        self.blocks = empty(2, 4, dtype=torch.uint8)

    def forward(self, x):
        self.require_ready()
        return self.head(self.proj(x))


TENSORS = {
    "proj.weight": torch.arange(8.0).view(2, 4),
    "proj.bias": torch.tensor([1.0, -1.0]),
    "head.weight": torch.ones(4, 2),
    "blocks": torch.arange(8, dtype=torch.uint8).view(2, 4),
}


def filled() -> Small:
    model = Small()
    for name, tensor in TENSORS.items():
        model.copy_in(name, tensor)
    return model


def test_a_filled_model_runs():
    model = filled()
    assert model.missing() == []
    assert model.loaded == set(TENSORS)
    x = torch.ones(1, 4)
    expected = (x @ TENSORS["proj.weight"].T + TENSORS["proj.bias"]) @ TENSORS["head.weight"].T
    assert torch.equal(model(x), expected)


def test_the_source_may_be_overwritten_after_the_copy():
    model, source = Small(), torch.full((2, 4), 3.0)
    model.copy_in("proj.weight", source)
    source.fill_(float("nan"))
    assert torch.equal(model.proj.weight, torch.full((2, 4), 3.0))


def test_parameters_stay_plain_and_take_views_and_other_float_types():
    model = Small()
    model.copy_in("proj.weight", torch.arange(8).bfloat16().view(4, 2).T)
    assert type(model.proj.weight) is torch.nn.Parameter
    assert model.proj.weight.dtype == torch.float32
    assert torch.equal(model.proj.weight, torch.tensor([[0.0, 2, 4, 6], [1, 3, 5, 7]]))
    assert not model.proj.weight.requires_grad


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("proj.wieght", torch.zeros(2, 4), r"'proj\.wieght' is unknown.*4 param.*mean 'proj\.weight'"),
        ("xyz", torch.zeros(2, 4), r"'xyz' is unknown.*Rename it, or leave it out"),
        ("head.bias", torch.zeros(4), r"'head\.bias' is unknown"),
        ("proj", torch.zeros(4), r"'proj' is unknown"),
        ("", torch.zeros(4), r"'' is unknown"),
        ("proj.weight", torch.zeros(4, 2), r"'proj\.weight' has shape \[4, 2\].*wants \[2, 4\].*config"),
        ("proj.weight", torch.zeros(1, 4), r"'proj\.weight' has shape \[1, 4\]"),
        ("proj.bias", torch.zeros(()), r"'proj\.bias' has shape \[\]"),
        ("proj.bias", torch.zeros(2).byte(), r"'proj\.bias' is torch\.uint8 \[2\].*torch\.float32 \[2\]"),
        ("blocks", torch.zeros(2, 4), r"'blocks' is torch\.float32 \[2, 4\].*torch\.uint8 \[2, 4\].*uint8"),
        ("blocks", torch.zeros(2, 4).int(), r"'blocks' is torch\.int32"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_and_changes_nothing(name, tensor, message):
    model = filled()
    model.loaded.discard(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    booked = set(model.loaded)
    with pytest.raises(TensorRefused, match=message):
        model.copy_in(name, tensor)
    assert model.loaded == booked
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_a_model_with_gaps_names_the_first_of_them():
    model = Small()
    with pytest.raises(ModelNotReady, match=r"4 of 4 tensors .*: blocks, proj\.weight, proj\.bias and 1 more\. "):
        model(torch.ones(1, 4))
    for name in ("proj.weight", "head.weight"):
        model.copy_in(name, TENSORS[name])
    assert model.missing() == ["blocks", "proj.bias"]
    with pytest.raises(ModelNotReady, match=r"2 of 4 tensors .*: blocks, proj\.bias\. "):
        model(torch.ones(1, 4))


def test_a_copy_that_fails_is_not_booked():
    class Stale(RuntimeError):
        pass

    class Guarded(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func is torch.Tensor.copy_:
                raise Stale("its bytes were overwritten")
            return super().__torch_function__(func, types, args, kwargs or {})

    model = Small()
    with pytest.raises(Stale):
        model.copy_in("proj.weight", torch.zeros(2, 4).as_subclass(Guarded))
    assert "proj.weight" in model.missing()


def test_a_model_marked_unusable_says_why_even_when_full():
    model = filled()
    model.mark_unusable("the stream ended after 2 of 4 tensors")
    with pytest.raises(ModelNotReady, match=r"marked unusable: the stream ended after 2 of 4 tensors"):
        model(torch.ones(1, 4))
    assert model.missing() == []
    for name, tensor in TENSORS.items():
        model.copy_in(name, tensor)
    with pytest.raises(ModelNotReady, match="marked unusable"):
        model(torch.ones(1, 4))


def test_load_state_dict_is_booked_too():
    model = Small()
    model.load_state_dict({"proj.bias": TENSORS["proj.bias"], "other": torch.zeros(1)}, strict=False)
    assert model.loaded == {"proj.bias"}
    model.load_state_dict(filled().state_dict())
    assert model.missing() == []


def test_a_deep_copy_keeps_its_own_books():
    model = Small()
    other = copy.deepcopy(model)
    other.copy_in("proj.bias", TENSORS["proj.bias"])
    assert model.loaded == set()
    assert other.loaded == {"proj.bias"}
