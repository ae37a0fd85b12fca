"""How the package chooses between compiled and interpreted kernels, each case in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

IMPORT_AND_SAY = """
    import gptoss_lab.moe
    import os, triton.language as tl
    print(os.environ.get("TRITON_INTERPRET"), type(tl.sum).__name__)
"""
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def run_child(code: str, **variables: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment | variables)


@without_gpu
def test_without_a_gpu_kernels_are_interpreted():
    child = run_child(IMPORT_AND_SAY)
    assert child.stdout.split() == ["1", "InterpretedFunction"]
    assert child.stderr == ""


@without_gpu
def test_a_variable_that_is_set_is_left_alone():
    child = run_child(IMPORT_AND_SAY, TRITON_INTERPRET="0")
    assert child.stdout.split() == ["0", "JITFunction"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_with_a_gpu_kernels_are_compiled():
    child = run_child(IMPORT_AND_SAY)
    assert child.stdout.split() == ["None", "JITFunction"]


@without_gpu
def test_triton_imported_too_early_is_said_at_once_and_again_at_use():
    child = run_child(
        """
        import triton, os, torch
        import gptoss_lab.moe
        from gptoss_lab.moe.generations import sparse_kernels
        assert "TRITON_INTERPRET" not in os.environ
        sparse_kernels()
        """
    )
    assert "RuntimeWarning: triton was imported before gptoss_lab.moe" in child.stderr
    last = child.stderr.strip().splitlines()[-1]
    assert last.startswith("RuntimeError: triton 3.") and "set TRITON_INTERPRET=1 before Python starts" in last


def test_another_package_of_the_same_name_is_told_apart(tmp_path):
    package = tmp_path / "triton_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "rope.py").write_text("")
    child = run_child(
        """
        import gptoss_lab.moe
        from gptoss_lab.moe.generations import installed_generation, sparse_kernels
        print(installed_generation())
        sparse_kernels()
        """,
        PYTHONPATH=os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    )
    assert child.stdout.strip() == "another package of that name"
    last = child.stderr.strip().splitlines()[-1]
    assert f"MissingKernels: triton_kernels in ['{package}'] has no SparseMatrix" in last
    assert "pip install 'tokenspeed-triton-kernels==" in last


def test_the_installed_generation_is_named():
    from gptoss_lab.moe.generations import installed_generation

    assert installed_generation() == "3.7 and later: SparseMatrix, matmul"


def test_the_fused_generation_says_what_to_install(logits):
    from gptoss_lab.moe.generations import MissingKernels
    from gptoss_lab.moe.legacy import legacy

    with pytest.raises(MissingKernels, match="3.5.1 is the folder vllm/third_party/triton_kernels"):
        legacy(logits(1, 32), 4)
