"""The checkers of `14__from_bytes_to_bangs`."""

from __future__ import annotations

import torch
from torch import nn

from gptoss_lab.course.check import Checker, Mismatch, expect_equal

NAN = float("nan")

bf16 = Checker("14.1", "bf16", done="It reads normal and subnormal numbers, infinities and NaN.")

KNOWN = {0x3F80: 1.0, 0xC000: -2.0, 0x4049: 3.140625, 0x0080: 2.0**-126}


@bf16.case("numbers you know", hint="High byte 0x3F and low byte 0x80 are 1.0: the low byte comes first in the file.")
def _(bf16):
    for bits, value in KNOWN.items():
        _expect_bf16(bf16, bits, value)


def _expect_bf16(bf16, bits: int, value: float) -> None:
    low, high = bits & 0xFF, bits >> 8
    expect_equal(bf16(low, high), value, f"bf16(0x{low:02x}, 0x{high:02x})", bitwise=value == 0)


@bf16.case("an exponent of 0", hint="Exponent 0: no hidden one, and the power of two of exponent 1.")
def _(bf16):
    for bits, value in {0x0000: 0.0, 0x0001: 2.0**-133}.items():
        _expect_bf16(bf16, bits, value)


@bf16.case("infinities and NaN", hint="All eight exponent bits are set: infinity if the fraction is 0, else NaN.")
def _(bf16):
    for bits, value in {0x7F80: float("inf"), 0xFF80: float("-inf"), 0x7FC0: NAN, 0xFF81: NAN}.items():
        _expect_bf16(bf16, bits, value)


@bf16.case("the sign of a zero")
def _(bf16):
    _expect_bf16(bf16, 0x8000, -0.0)


@bf16.case("every 37th pattern")
def _(bf16):
    bits = torch.arange(0, 1 << 16, 37, dtype=torch.int32)  # [patterns]
    values = bits.to(torch.int16).view(torch.bfloat16).tolist()
    for pattern, value in zip(bits.tolist(), values, strict=True):
        _expect_bf16(bf16, pattern, value)


class _Plant(nn.Module):
    """Writes a NaN into what passes through, in place as a reused buffer would, from the given call on."""

    def __init__(self, from_call: int = 0) -> None:
        super().__init__()
        self.calls, self.from_call = 0, from_call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > self.from_call:
            x.view(-1)[-1] = NAN
        return x


class _Parent(nn.Module):
    """Its child's output is finite, its own is not."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x) * NAN


class _Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        return x, None


class _First(nn.Module):
    def forward(self, pair: tuple[torch.Tensor, None]) -> torch.Tensor:
        return pair[0]


first_nonfinite = Checker(
    "14.2", "first_nonfinite", may_be_none=True, done="It names the first culprit, and leaves no hook behind."
)


def _model(*layers: nn.Module) -> tuple[nn.Sequential, torch.Tensor]:
    return nn.Sequential(*layers), torch.ones(2, 4)


@first_nonfinite.case("all finite", hint="Call `run()` once. Return None if every output is finite.")
def _(first_nonfinite):
    model, x = _model(nn.Identity(), nn.ReLU(), _Plant(from_call=1))
    try:
        expect_equal(first_nonfinite(model, lambda: model(x)), None)
    except TypeError as error:
        if "must be Tensor, not" not in str(error):
            raise
        hint = "What a hook returns replaces the module's output: return nothing."
        raise Mismatch(f"the run raised TypeError: {error}", hint) from None


LATE = {
    "0": "Look at an output in its hook: a later module may change it in place.",
    "3": "Bind each name to its hook: a loop variable changes, and every hook sees its last value.",
}


@first_nonfinite.case("NaN in the second of four")
def _(first_nonfinite):
    model, x = _model(nn.Identity(), _Plant(), nn.Identity(), nn.Identity())
    name = first_nonfinite(model, lambda: model(x))
    if isinstance(name, str) and name in LATE:
        raise Mismatch(f"the result is {name!r}, expected '1'", LATE[name])
    expect_equal(name, "1")


@first_nonfinite.case("infinity counts", hint="`isfinite` is False for NaN and for both infinities.")
def _(first_nonfinite):
    model, x = _model(nn.Identity(), nn.Identity())
    expect_equal(first_nonfinite(model, lambda: model(x / 0)), "0")


@first_nonfinite.case("a module inside a module", hint="The inner module finishes before the outer one.")
def _(first_nonfinite):
    model, x = _model(nn.Identity(), nn.Sequential(nn.Identity(), _Plant()))
    expect_equal(first_nonfinite(model, lambda: model(x)), "1.1")


@first_nonfinite.case("a parent that makes it itself", hint="The model is a module too. Its name is ''.")
def _(first_nonfinite):
    model, x = _model(nn.Identity(), _Parent())
    expect_equal(first_nonfinite(model, lambda: model(x)), "1")
    expect_equal(first_nonfinite(model[1], lambda: model[1](x)), "")


@first_nonfinite.case("the order of the run, not of the list", hint="Order by when a module finishes.")
def _(first_nonfinite):
    late, early = _Plant(), _Plant()
    model = nn.ModuleDict({"late": late, "early": early})
    expect_equal(first_nonfinite(model, lambda: (early(torch.ones(3)), late(torch.ones(3)))), "early")


@first_nonfinite.case(
    "a module that returns a tuple", hint="Skip an output that is not a tensor.", hint_for=(AttributeError, TypeError)
)
def _(first_nonfinite):
    model, x = _model(_Pair(), _First(), _Plant())
    expect_equal(first_nonfinite(model, lambda: model(x)), "2")


@first_nonfinite.case("no hook is left behind", hint="Call `remove()` on every handle of yours, and on no other.")
def _(first_nonfinite):
    model, x = _model(nn.Identity(), _Plant())
    model[0].register_forward_hook(lambda *_: None)
    first_nonfinite(model, lambda: model(x))
    _expect_hooks(model, 1)


@first_nonfinite.case("no hook is left behind when the run fails", hint="Remove the hooks in `finally`.")
def _(first_nonfinite):
    model, _ = _model(nn.Identity(), nn.Linear(3, 3))
    try:
        first_nonfinite(model, lambda: model(torch.ones(2, 5)))
    except RuntimeError:
        _expect_hooks(model, 0)
        return
    raise Mismatch("the run raised RuntimeError, and `first_nonfinite` hid it")


def _expect_hooks(model: nn.Module, count: int) -> None:
    left = sum(len(module._forward_hooks) for module in model.modules())
    if left != count:
        raise Mismatch(f"{left} forward hooks are registered after the call, {count} were before it")


why_token_zero = Checker(
    "14.3", "why_token_zero", may_be_none=True, done="Marks have three causes, and it tells them apart."
)

ROWS = (
    ("all NaN", [NAN] * 4, "nan"),
    ("NaN at index 0 alone", [NAN, 1.0, 9.0, 2.0], "nan"),
    ("NaN elsewhere", [5.0, 1.0, NAN, 2.0], None),
    ("all zero, of both signs", [-0.0, 0.0, 0.0], "tie"),
    ("a tie at the top", [7.0, 1.0, 7.0], "tie"),
    ("two infinities", [float("inf"), 0.0, float("inf")], "tie"),
    ("the only maximum, by a hair", [3.0, 2.9999998, -1.0], "chosen"),
    ("another token", [1.0, 2.0, 1.0, 2.0], None),
    ("a vocabulary of one", [0.5], "chosen"),
)


def _row_case(values: list[float], expected: str | None):
    def run(why):
        answer = why(torch.tensor(values))
        if expected == "nan" and isinstance(answer, str) and answer in ("tie", "chosen"):
            hint = "NaN is equal to nothing, not to itself: use `isnan()`."
            raise Mismatch(f"the result is {answer!r}, expected 'nan'", hint)
        expect_equal(answer, expected)

    return run


for _label, _values, _expected in ROWS:
    why_token_zero.case(_label)(_row_case(_values, _expected))
