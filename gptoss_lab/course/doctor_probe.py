"""Import a library that the doctor asks about and print what it can do, as a line of JSON.

Run by `doctor_facts`, in a process of its own for each library: one that is missing, broken or that ends the
process on import is then a finding, and hides none of the others. Generations are told apart by
what a module has: triton_kernels exposes no version.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings

# Where each generation of triton_kernels keeps what the course asks for.
KERNEL_PARTS = {
    "topk": ("triton_kernels.topk", "topk"),
    "SparseMatrix": ("triton_kernels.tensor", "SparseMatrix"),
    "matmul": ("triton_kernels.matmul", "matmul"),
    "matmul_ogs": ("triton_kernels.matmul_ogs", "matmul_ogs"),
    "routing": ("triton_kernels.routing", "routing"),
}


def probe_torch() -> dict[str, object]:
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cuda = torch.cuda.is_available()
    return {
        "version": torch.__version__,
        "cuda_build": torch.version.cuda,
        "cuda": cuda,
        "gpu": torch.cuda.get_device_name(0) if cuda else None,
        "threads": torch.get_num_threads(),
        "said": str(said[0].message) if said else "",
    }


def probe_triton() -> dict[str, object]:
    import triton
    from triton.language import target_info

    return {"version": triton.__version__, "has_gfx1250": hasattr(target_info, "is_hip_gfx1250")}


def probe_kernels() -> dict[str, object]:
    importlib.import_module("triton_kernels")
    parts, faults = [], []
    for part, (module, name) in KERNEL_PARTS.items():
        try:
            if hasattr(importlib.import_module(module), name):
                parts.append(part)
        except ModuleNotFoundError as fault:
            # A module that this generation does not have is no fault; one that it misses is.
            if fault.name != module:
                faults.append(f"{module}: {fault}")
        except Exception as fault:
            faults.append(f"{module}: {fault}")
    return {"parts": parts, "faults": faults}


def probe_streamer() -> dict[str, object]:
    from runai_model_streamer import SafetensorsStreamer

    return {"usable": SafetensorsStreamer is not None}


PROBES = {
    "torch": probe_torch,
    "triton": probe_triton,
    "triton_kernels": probe_kernels,
    "streamer": probe_streamer,
}


def main(library: str) -> None:
    """Print what a probe saw as one line of JSON; an import that fails becomes its `error`."""
    try:
        seen = PROBES[library]()
    except Exception as fault:
        seen = {"error": f"{type(fault).__name__}: {fault}"}
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
