"""The checkers of lesson 14 tell wrong answers apart, and agree with torch and with `gptoss_lab.health`."""

from __future__ import annotations

import struct

import pytest
import torch

from gptoss_lab import health
from gptoss_lab.course.lessons.lesson_14 import bf16, first_nonfinite, why_token_zero


def by_torch(low, high):
    return torch.tensor([low, high], dtype=torch.uint8).view(torch.bfloat16).item()


def by_formula(low, high, bias=127, subnormals=True, specials=True):
    """The value from sign, exponent and fraction, with the parts that one may forget."""
    sign, exponent, fraction = high >> 7, (high & 127) << 1 | low >> 7, low & 127
    if specials and exponent == 255:
        return float("nan") if fraction else (-1) ** sign * float("inf")
    if subnormals and exponent == 0:
        return (-1.0) ** sign * fraction * 2.0 ** (1 - bias - 7)
    return (-1.0) ** sign * (1 + fraction / 128) * 2.0 ** (exponent - bias)


def drops_the_sign_of_zero(low, high):
    return by_torch(low, high) + 0.0


def looks_it_up(low, high):
    known = {(0x80, 0x3F): 1.0, (0x00, 0xC0): -2.0, (0x49, 0x40): 3.140625, (0, 0): 0.0}
    return known[low, high]


def prints_the_value(low, high):
    print(by_torch(low, high))


BF16 = {
    "a constant": (lambda low, high: 1.0, "It returned 1.0 every time"),
    "the bytes in the other order": (lambda low, high: by_torch(high, low), "the low byte comes first in the file"),
    "as float16": (lambda low, high: struct.unpack("<e", bytes([low, high]))[0], "bf16(0x80, 0x3f) is 1.875"),
    "as an integer": (lambda low, high: float(high << 8 | low), "bf16(0x80, 0x3f) is 16256.0"),
    "off by one in the bias": (lambda low, high: by_formula(low, high, bias=128), "bf16(0x80, 0x3f) is 0.5"),
    "no subnormal numbers": (lambda low, high: by_formula(low, high, subnormals=False), "Exponent 0: no hidden one"),
    "no infinities": (lambda low, high: by_formula(low, high, specials=False), "case 'infinities and NaN'"),
    "no sign": (lambda low, high: abs(by_torch(low, high)), "bf16(0x00, 0xc0) is 2.0, expected -2.0"),
    "no sign of a zero": (drops_the_sign_of_zero, "case 'the sign of a zero'"),
    "rounds": (lambda low, high: round(by_torch(low, high), 6), "bf16(0x80, 0x00) is 0.0, expected 1.17"),
    "the numbers of the example alone": (looks_it_up, "raised KeyError"),
    "a tensor": (lambda low, high: torch.tensor(by_torch(low, high)), "expected the float 1.0"),
    "returns nothing": (prints_the_value, "does every way through the function `return`?"),
}


def hooking(see, modules=lambda model: list(model.named_modules()), remove=True, guarded=True):
    """An answer that hooks `see(name, output, found)` on `modules`, and may forget to remove the hooks."""

    def answer(model, run):
        found = []
        handles = [
            module.register_forward_hook(lambda m, i, output, name=name: see(name, output, found))
            for name, module in modules(model)
        ]
        try:
            run()
        except RuntimeError:
            if guarded and remove:
                [handle.remove() for handle in handles]
            raise
        if remove:
            [handle.remove() for handle in handles]
        return found[0] if found else None

    return answer


def note(name, output, found):
    if isinstance(output, torch.Tensor) and not output.isfinite().all():
        found.append(name)


def note_nan(name, output, found):
    if isinstance(output, torch.Tensor) and output.isnan().any():
        found.append(name)


def note_any(name, output, found):
    if not output.isfinite().all():
        found.append(name)


def note_named(name, output, found):
    if name:
        note(name, output, found)


def note_and_return(name, output, found):
    note(name, output, found)
    return bool(found)


def children(model):
    return list(model.named_children())


def leaves(model):
    return [(name, module) for name, module in model.named_modules() if not list(module.children())]


def late_binding(model, run):
    found = []
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(lambda m, i, output: note(name, output, found)))  # noqa: B023
    try:
        run()
    finally:
        [handle.remove() for handle in handles]
    return found[0] if found else None


def in_order_of_the_list(model, run):
    found = {step.name for step in health.trace(model, run) if step.nonfinite}
    return next((name for name, _ in model.named_modules() if name in found), None)


def last_of_all(model, run):
    return next((step.name for step in reversed(health.trace(model, run)) if step.nonfinite), None)


def looks_too_late(model, run):
    outputs = []
    answer = hooking(lambda name, output, found: outputs.append((name, output)))
    answer(model, run)
    return next((n for n, o in outputs if isinstance(o, torch.Tensor) and not o.isfinite().all()), None)


def runs_twice(model, run):
    run()
    return health.first_nonfinite(model, run)


def clears_every_hook(model, run):
    answer = hooking(note, remove=False)
    try:
        return answer(model, run)
    finally:
        for module in model.modules():
            module._forward_hooks.clear()


def swallows_the_error(model, run):
    try:
        return health.first_nonfinite(model, run)
    except RuntimeError:
        return None


def looks_at_weights(model, run):
    run()
    return next((name for name, tensor in model.named_parameters() if not tensor.isfinite().all()), None)


def gives_the_module(model, run):
    name = health.first_nonfinite(model, run)
    return name if name is None else model.get_submodule(name)


FIRST_NONFINITE = {
    "a constant": (lambda model, run: "1", "It returned '1' every time"),
    "never finds any": (lambda model, run: run() and None, "case 'NaN in the second of four'"),
    "looks at the weights": (looks_at_weights, "case 'NaN in the second of four'"),
    "a name bound too late": (late_binding, "a loop variable changes"),
    "looks when all is over": (looks_too_late, "a later module may change it in place"),
    "NaN only": (hooking(note_nan), "`isfinite` is False for NaN and for both infinities"),
    "children only": (hooking(note, children), "The inner module finishes before the outer one"),
    "leaves only": (hooking(note, leaves), "case 'a parent that makes it itself'"),
    "not the model itself": (hooking(note_named), "The model is a module too. Its name is ''"),
    "in the order of the list": (
        in_order_of_the_list,
        "case 'NaN in the second of four': the result is '', expected '1'",
    ),
    "the last one": (last_of_all, "case 'NaN in the second of four'"),
    "every output is a tensor": (hooking(note_any), "Skip an output that is not a tensor"),
    "runs it twice": (runs_twice, "Call `run()` once"),
    "a hook that returns a value": (hooking(note_and_return), "What a hook returns replaces the module's output"),
    "leaves the hooks": (
        hooking(note, remove=False),
        "4 forward hooks are registered after the call, 1 were before it",
    ),
    "removes others' hooks": (clears_every_hook, "0 forward hooks are registered after the call, 1 were before it"),
    "leaves the hooks when it fails": (hooking(note, guarded=False), "Remove the hooks in `finally`"),
    "hides the error": (swallows_the_error, "`first_nonfinite` hid it"),
    "the module, not its name": (gives_the_module, "expected the str '1'"),
}


def zero_or(reason):
    """An answer for rows whose `argmax` is 0, with `reason` for them."""
    return lambda logits: reason(logits) if logits.argmax() == 0 else None


def right(logits):
    if logits[0].isnan():
        return "nan"
    return "tie" if (logits == logits[0]).sum() > 1 else "chosen"


def any_nan(logits):
    return "nan" if logits.isnan().any() else zero_or(right)(logits)


def ties_anywhere(logits):
    return "tie" if (logits == logits.max()).sum() > 1 else zero_or(right)(logits)


def ties_with_the_first(logits):
    return "tie" if (logits == logits[0]).sum() > 1 else zero_or(right)(logits)


def all_equal(logits):
    return "nan" if logits[0].isnan() else "tie" if (logits == logits[0]).all() else "chosen"


def nearly_equal(logits):
    return "nan" if logits[0].isnan() else "tie" if torch.isclose(logits, logits[0]).sum() > 1 else "chosen"


def by_probability(logits):
    return right(logits.softmax(0))


def by_difference(logits):
    return "nan" if logits[0].isnan() else "tie" if ((logits - logits[0]) == 0).sum() > 1 else "chosen"


def by_topk(logits):
    best, second = logits.topk(2).values
    return "nan" if best.isnan() else "tie" if best == second else "chosen"


def by_python(logits):
    values = logits.tolist()
    if max(range(len(values)), key=values.__getitem__):
        return None
    return "nan" if values[0] != values[0] else "tie" if values.count(values[0]) > 1 else "chosen"


def equals_nan(logits):
    if logits[0] == float("nan"):
        return "nan"
    return "tie" if (logits == logits[0]).sum() > 1 else "chosen"


def mends_the_row(logits):
    answer = zero_or(right)(logits)
    logits.nan_to_num_()
    return answer


WHY_TOKEN_ZERO = {
    "a constant": (lambda logits: "nan", "It returned 'nan' every time"),
    "NaN or chosen": (zero_or(lambda row: "nan" if row[0].isnan() else "chosen"), "case 'all zero, of both signs'"),
    "any NaN will do": (any_nan, "case 'NaN elsewhere'"),
    "always token 0": (right, "case 'NaN elsewhere'"),
    "NaN is not the largest": (by_python, "case 'NaN elsewhere'"),
    "a tie of all only": (zero_or(all_equal), "case 'a tie at the top'"),
    "a tie for another token": (ties_anywhere, "case 'another token'"),
    "a tie with the first anywhere": (ties_with_the_first, "case 'another token'"),
    "a tie within a tolerance": (zero_or(nearly_equal), "case 'the only maximum, by a hair'"),
    "by softmax": (zero_or(by_probability), "case 'two infinities'"),
    "infinity minus infinity": (zero_or(by_difference), "case 'two infinities'"),
    "needs two tokens": (zero_or(by_topk), "case 'a vocabulary of one'"),
    "equal to NaN": (zero_or(equals_nan), "NaN is equal to nothing, not to itself: use `isnan()`."),
    "changes its input": (mends_the_row, "the function changed its input: `logits`"),
    "True for a reason": (lambda logits: bool(logits.argmax() == 0), "is the bool True, expected the str 'nan'"),
}
WRONG = {bf16: BF16, first_nonfinite: FIRST_NONFINITE, why_token_zero: WHY_TOKEN_ZERO}


@pytest.mark.parametrize(
    ("checker", "answer"),
    [
        (bf16, by_torch),
        (first_nonfinite, health.first_nonfinite),
        (why_token_zero, health.why_token_zero),
        (bf16, by_formula),
        (first_nonfinite, hooking(note)),
        (why_token_zero, zero_or(right)),
    ],
    ids=["torch", "first_nonfinite of the package", "why_token_zero of the package", "by_formula", "hooking", "right"],
)
def test_a_right_answer_passes(checker, answer):
    verdict = checker.verdict(answer)
    assert verdict.passed, str(verdict)
