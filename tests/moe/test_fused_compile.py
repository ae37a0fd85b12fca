"""The kernels of `route` compile for an H200's compute capability and an older one, with or without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

KIB = 1024
MOST_SHARED = 227 * KIB  # bytes that one program may use at compute capability 9.0
# kernel, tokens, experts, k, dtype: gpt-oss-20b and -120b, and experts and k that are no power of two
CASES = [
    ("route_in_one", 1, 32, 4, "bfloat16"),
    ("route_in_one", 16, 128, 4, "bfloat16"),
    ("route_in_one", 5, 24, 3, "float32"),
    ("route_by_last", 64, 128, 4, "bfloat16"),
    ("route_by_last", 32, 40, 6, "float16"),
    ("count", 1000, 32, 4, "bfloat16"),
    ("place", 1000, 32, 4, "bfloat16"),
]
WIDE = ("route_by_last", 256, 1024, 32, "bfloat16")  # too wide for registers alone
OLDER = ("route_in_one", 1, 32, 4, "bfloat16", 80)  # one whose kernels cannot start early
CODE = """
    import json, subprocess, sys, tempfile, types
    import torch, triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime import driver
    from gptoss_lab.moe import fused_kernels, fused_routing, generations

    generations.require_runnable = lambda: None  # it compiles, and runs nothing
    if not torch.cuda.is_available():
        driver.set_active(types.SimpleNamespace())
    POINTERS = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32"}

    def compile(name, tokens, experts, k, dtype, arch=90):
        target = GPUTarget("cuda", arch, 32)
        driver.active.get_current_target = lambda: target  # kernels ask what they are compiled for
        kernel, plan = getattr(fused_kernels, name), fused_routing.make_plan(tokens, experts, k, getattr(torch, dtype))
        settled = dict(plan.options)
        warps = settled.pop("num_warps")
        if name == "place":
            settled, warps = {"ROWS": plan.rows, "K": k, "LINES": plan.lines, "BLOCK": 256}, 4
        pointers = {"Logits": POINTERS[dtype], "Gate": POINTERS[dtype], "Out": "*i32", "Counter": "*i32"}
        kinds = {n: "constexpr" if n in settled else pointers.get(n, "i32") for n in kernel.arg_names}
        source = ASTSource(kernel, kinds, {(kernel.arg_names.index(n),): value for n, value in settled.items()})
        return triton.compile(source, target=target, options={"num_warps": warps})

    def measure(cubin):
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            tool = triton.knobs.nvidia.cuobjdump.path
            said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
        return dict(field.split(":") for field in said.splitlines()[-1].split() if field.startswith(("STACK", "LOCAL")))

    for case in json.loads(sys.argv[1]):
        made = compile(*case)
        wait, access = (made.asm["ptx"].find(sought) for sought in ("griddepcontrol.wait", ".global."))
        about = {"shared": made.metadata.shared, "arch": made.metadata.target.arch, "wait": wait, "access": access}
        print(json.dumps(about | measure(made.asm["cubin"])))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict[tuple, dict]:
    """What the compiler says of each case, from one process that does not interpret."""
    command = [sys.executable, "-c", textwrap.dedent(CODE), json.dumps([*CASES, WIDE, OLDER])]
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("compiled"))}
    child = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert child.returncode == 0, child.stderr
    return dict(zip([*CASES, WIDE, OLDER], map(json.loads, child.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case)))
def test_a_kernel_compiles_and_fits(compiled, case):
    made = compiled[case]
    assert made["arch"] == 90
    assert made["shared"] <= MOST_SHARED
    assert (made["STACK"], made["LOCAL"]) == ("0", "0")  # no register is spilled


@pytest.mark.parametrize("case", [*CASES, WIDE], ids=lambda case: " ".join(map(str, case)))
def test_a_kernel_that_starts_early_waits_before_it_touches_memory(compiled, case):
    assert 0 < compiled[case]["wait"] < compiled[case]["access"]


def test_an_older_gpu_gets_no_wait(compiled):
    assert compiled[OLDER]["arch"] == 80
    assert compiled[OLDER]["wait"] < 0 < compiled[OLDER]["access"]


def test_wide_rows_with_many_picks_fit(compiled):
    assert compiled[WIDE]["shared"] <= MOST_SHARED
