"""The doctor names each fault, tells what mends it, and keeps the reader's names and folders to itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gptoss_lab.course import doctor
from gptoss_lab.course.doctor_checks import FAIL, GIB, OK, WARN, Finding
from gptoss_lab.course.doctor_facts import Facts

KERNELS = "tokenspeed-triton-kernels"
HEALTHY = Facts(
    python=(3, 11, 7),
    system="Linux",
    machine="x86_64",
    in_project_venv=True,
    packages={
        **dict.fromkeys("ipykernel matplotlib nbclient nbconvert nbformat numpy".split(), "1.0"),
        **dict.fromkeys("rich safetensors tokenizers typer".split(), "1.0"),
        "torch": "2.13.0+cpu",
        "triton": "3.8.0",
        KERNELS: "1.0.0.post20260510",
        "runai-model-streamer": "0.16.1",
        "jupyterlab": "4.4.0",
        "ipywidgets": "8.1.5",
        "jupyterlab-widgets": "3.0.15",
    },
    probed={
        "torch": {
            "version": "2.13.0+cpu",
            "cuda_build": None,
            "cuda": False,
            "gpu": None,
            "threads": 2,
            "said": "",
        },
        "triton": {"version": "3.8.0", "has_gfx1250": True},
        "triton_kernels": {"parts": ["topk", "SparseMatrix", "matmul"], "faults": []},
        "streamer": {"usable": True},
    },
    newer_streamer="0.17.1",
    widgets_extension=True,
    memory=8 * GIB,
    disk=8 * GIB,
    data={"capitals/config.json": "ok"},
)
CUDA = {
    "version": "2.14.1",
    "cuda_build": "13.0",
    "cuda": True,
    "gpu": "NVIDIA H200",
    "threads": 2,
    "said": "",
}


def having(facts: Facts = HEALTHY, probed: dict | None = None, **packages: str | None) -> Facts:
    """`facts` with other probes and other package versions (None: not installed; `_` stands for `-`)."""
    versions = {**facts.packages, **{name.replace("_", "-"): version for name, version in packages.items()}}
    versions = {name: version for name, version in versions.items() if version is not None}
    return replace(facts, packages=versions, probed={**facts.probed, **(probed or {})})


ON_GPU = having(replace(HEALTHY, driver="580.65", nvidia_card=True), {"torch": CUDA})
NO_GFX1250 = "triton_kernels.topk: cannot import name 'is_hip_gfx1250' from 'triton.language.target_info'"

FAULTS = {
    # name: (facts, check, status, what the line says, what its remedy says)
    "Python 3.9": (
        replace(HEALTHY, python=(3, 9, 18)),
        "Python", FAIL, "3.9.18", "make venv PYTHON=python3.11",
    ),
    "Python 3.13": (replace(HEALTHY, python=(3, 13, 0)), "Python", FAIL, "3.11 or 3.12", "make venv"),
    "macOS": (replace(HEALTHY, system="Darwin"), "system", FAIL, "Linux only", "Linux"),
    "ARM": (replace(HEALTHY, machine="aarch64"), "system", WARN, "aarch64", "x86_64"),
    "no torch": (
        having(torch=None, probed={"torch": {"error": "ModuleNotFoundError: No module named 'torch'"}}),
        "torch", FAIL, "not installed", "make venv",
    ),
    "torch that crashes": (
        having(probed={"torch": {"error": "importing it ended the process (exit code -11)"}}),
        "torch", FAIL, "exit code -11", "make venv",
    ),
    "torch that was not asked": (
        replace(HEALTHY, probed={}),
        "torch", FAIL, "could not be asked", "make venv",
    ),
    "torch 2.12": (
        having(torch="2.12.0", probed={"torch": {**CUDA, "version": "2.12.0"}}),
        "torch", WARN, "2.12.0", "make venv",
    ),
    "torch 2.15": (
        having(torch="2.15.0", probed={"torch": {**CUDA, "version": "2.15.0"}}),
        "torch", WARN, "2.15.0", "make venv",
    ),
    "GPU without a driver": (
        replace(HEALTHY, nvidia_card=True), "device", WARN, "without a driver", "install the NVIDIA driver",
    ),
    "GPU and a CPU torch": (
        replace(HEALTHY, nvidia_card=True, driver="580.65"),
        "device", WARN, "without CUDA", "GPTOSS_LAB_DEVICE=gpu",
    ),
    "old driver": (
        having(replace(ON_GPU, driver="470.1"), {"torch": {**CUDA, "cuda": False, "said": "too old"}}),
        "device", WARN, "too old", "update the driver",
    ),
    "hidden GPU": (
        having(replace(ON_GPU, visible_devices=""), {"torch": {**CUDA, "cuda": False}}),
        "device", WARN, "hides the GPU", "unset CUDA_VISIBLE_DEVICES",
    ),
    "no triton": (
        having(triton=None, probed={"triton": {"error": "gone"}}),
        "triton", FAIL, "not installed", "3.8.0",
    ),
    "broken triton": (
        having(probed={"triton": {"error": "no libtriton"}}),
        "triton", FAIL, "no libtriton", "3.8.0",
    ),
    "triton 3.6": (
        having(triton="3.6.0", probed={"triton": {"version": "3.6.0", "has_gfx1250": False}}),
        "triton", FAIL, "3.6.0 lacks", "triton==3.8.0",
    ),
    "triton 3.9": (
        having(triton="3.9.0", probed={"triton": {"version": "3.9.0", "has_gfx1250": True}}),
        "triton", WARN, "3.9.0", "triton==3.8.0",
    ),
    "triton 3.6 under triton_kernels": (
        having(triton="3.6.0", probed={"triton_kernels": {"parts": [], "faults": [NO_GFX1250]}}),
        "triton_kernels", FAIL, "needs triton 3.8, and finds 3.6.0", "triton==3.8.0",
    ),
    "interpreter as a tuple": (
        replace(HEALTHY, interpret='("1",)'),
        "TRITON_INTERPRET", FAIL, "not a value", "unset TRITON_INTERPRET",
    ),
    "interpreter as true": (
        replace(HEALTHY, interpret="true"),
        "TRITON_INTERPRET", WARN, "torch does not", "export TRITON_INTERPRET=1",
    ),
    "interpreter off without a GPU": (
        replace(HEALTHY, interpret="0"),
        "TRITON_INTERPRET", FAIL, "there is no GPU", "unset TRITON_INTERPRET",
    ),
    "interpreter set late": (
        replace(HEALTHY, interpret="1", triton_loaded_as="compiler"),
        "TRITON_INTERPRET", FAIL, "set late", "restart the kernel",
    ),
    "triton imported before gptoss_lab.moe": (
        replace(HEALTHY, triton_loaded_as="compiler"),
        "TRITON_INTERPRET", FAIL, "already imported", "restart",
    ),
    "interpreter taken away late": (
        replace(ON_GPU, triton_loaded_as="interpreter"),
        "TRITON_INTERPRET", FAIL, "already imported", "restart",
    ),
    "interpreter on a GPU": (
        replace(ON_GPU, interpret="1"), "TRITON_INTERPRET", WARN, "not on the GPU", "unset TRITON_INTERPRET",
    ),
    "no triton_kernels": (
        having(**{KERNELS: None}, probed={"triton_kernels": {"error": "gone"}}),
        "triton_kernels", FAIL, "not installed", KERNELS,
    ),
    "the other triton-kernels": (
        having(
            **{KERNELS: None, "triton-kernels": "0.1.0"},
            probed={"triton_kernels": {"parts": [], "faults": []}},
        ),
        "triton_kernels", FAIL, "another library of that name", "uninstall -y triton-kernels",
    ),
    "the other triton-kernels over ours": (
        having(**{"triton-kernels": "0.1.0"}), "triton_kernels", WARN, "in the same folder", KERNELS,
    ),
    "triton_kernels from elsewhere": (
        having(**{KERNELS: None}), "triton_kernels", WARN, "a source other than the lock", KERNELS,
    ),
    "triton_kernels 3.6": (
        having(probed={"triton_kernels": {"parts": ["topk", "SparseMatrix", "matmul_ogs"], "faults": []}}),
        "triton_kernels", FAIL, "generation 3.6", KERNELS,
    ),
    "triton_kernels 3.5.1": (
        having(probed={"triton_kernels": {"parts": ["topk", "matmul_ogs", "routing"], "faults": []}}),
        "triton_kernels", FAIL, "generation 3.5.1", KERNELS,
    ),
    "triton_kernels of no generation": (
        having(probed={"triton_kernels": {"parts": ["topk"], "faults": []}}),
        "triton_kernels", FAIL, "no known generation", KERNELS,
    ),
    "a limit in the shell": (
        replace(HEALTHY, memory_limit="262144"),
        "memory limit", WARN, "'262144'", "unset RUNAI_STREAMER_MEMORY_LIMIT",
    ),
    "a limit that is no number": (
        replace(HEALTHY, memory_limit="1GiB"),
        "memory limit", FAIL, "a plain number of bytes", "unset RUNAI_STREAMER_MEMORY_LIMIT",
    ),
    "threads that are no number": (
        replace(HEALTHY, concurrency="abc"),
        "reading threads", FAIL, "'abc'", "unset RUNAI_STREAMER_CONCURRENCY",
    ),
    "no threads": (
        replace(HEALTHY, concurrency="0"),
        "reading threads", FAIL, "1 or more", "unset RUNAI_STREAMER_CONCURRENCY",
    ),
    "no streamer": (
        having(runai_model_streamer=None, probed={"streamer": {"error": "gone"}}),
        "streamer", FAIL, "not installed", "runai-model-streamer==0.16.1",
    ),
    "broken streamer": (
        having(probed={"streamer": {"error": "no libstreamer.so"}}),
        "streamer", FAIL, "no libstreamer.so", "0.16.1",
    ),
    "streamer 0.17": (
        having(runai_model_streamer="0.17.1"),
        "streamer", WARN, "owned by default", "runai-model-streamer==0.16.1",
    ),
    "streamer 0.15": (having(runai_model_streamer="0.15.5"), "streamer", WARN, "0.15.5", "0.16.1"),
    "no second streamer": (
        replace(HEALTHY, newer_streamer=None), "newer streamer", WARN, "0.17 is not there", "make venv",
    ),
    "another second streamer": (
        replace(HEALTHY, newer_streamer="0.18.0"), "newer streamer", WARN, "0.18.0", "make venv",
    ),
    "no ipywidgets": (having(ipywidgets=None), "widgets", WARN, "ipywidgets not installed", "ipywidgets"),
    "no JupyterLab": (having(jupyterlab=None), "widgets", WARN, "jupyterlab not installed", "jupyterlab"),
    "widgets not found by JupyterLab": (
        replace(HEALTHY, widgets_extension=False), "widgets", WARN, "does not find", "jupyterlab-widgets==3",
    ),
    "widgets of another major release": (
        having(jupyterlab_widgets="1.1.9"), "widgets", WARN, "finds 1.1.9", "jupyterlab-widgets==3",
    ),
    "widgets switched off": (
        replace(HEALTHY, widgets_disabled=True), "widgets", WARN, "switched off", "labextension enable",
    ),
    "a package missing": (having(nbclient=None), "other packages", FAIL, "missing: nbclient", "nbclient"),
    "little memory": (replace(HEALTHY, memory=3 * GIB // 2), "memory", WARN, "1.5 GiB", "end other programs"),
    "no memory": (replace(HEALTHY, memory=GIB // 2), "memory", FAIL, "0.5 GiB", "end other programs"),
    "memory unknown": (replace(HEALTHY, memory=None), "memory", WARN, "could not be read", "GiB"),
    "no disk": (replace(HEALTHY, disk=GIB // 4), "disk", FAIL, "0.2 GiB", "make room"),
    "a changed file": (
        replace(HEALTHY, data={"a.json": "ok", "b.json": "differs"}),
        "data", FAIL, "b.json differs", "git checkout",
    ),
    "a file missing": (
        replace(HEALTHY, data={"a.json": "missing"}),
        "data", FAIL, "a.json missing", "git checkout",
    ),
    "no checksums": (replace(HEALTHY, data=None), "data", FAIL, "no data/checksums.sha256", "clone"),
    "empty checksums": (replace(HEALTHY, data={}), "data", FAIL, "names no file", "git checkout"),
}  # fmt: skip


def finding_of(facts: Facts, check: str) -> Finding:
    return next(finding for finding in doctor.run_checks(facts) if finding.check == check)


@pytest.mark.parametrize("facts", [HEALTHY, ON_GPU], ids=["cpu", "gpu"])
def test_a_healthy_machine_passes_every_check(facts: Facts) -> None:
    findings = doctor.run_checks(facts)
    assert [finding for finding in findings if finding.status != OK] == []
    assert len(findings) == len(doctor.CHECKS) == len({finding.check for finding in findings})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_with_what_mends_it(fault: str) -> None:
    facts, check, status, said, mend = FAULTS[fault]
    finding = finding_of(facts, check)
    assert (finding.status, said in finding.found, mend in finding.mend) == (status, True, True), finding


def test_every_check_is_seen_to_complain() -> None:
    assert {check for _, check, *_ in FAULTS.values()} == {finding.check for finding in doctor.run_checks(HEALTHY)}


def test_every_complaint_says_what_mends_it() -> None:
    findings = [finding for facts, *_ in FAULTS.values() for finding in doctor.run_checks(facts)]
    assert [finding for finding in findings if (finding.status == OK) == bool(finding.mend)] == []


def test_the_interpreter_setting_follows_how_triton_was_imported() -> None:
    set_in_time = replace(HEALTHY, interpret="1", triton_loaded_as="interpreter")
    assert finding_of(set_in_time, "TRITON_INTERPRET").status == OK


def test_mending_names_the_environment_that_is_in_use() -> None:
    inside = finding_of(having(runai_model_streamer=None), "streamer").mend
    outside = finding_of(replace(having(runai_model_streamer=None), in_project_venv=False), "streamer").mend
    assert (inside.split()[0], outside.split()[0]) == (".venv/bin/python", "python")


def test_nothing_known_is_a_report_and_not_a_traceback() -> None:
    findings = doctor.run_checks(Facts())
    assert len(findings) == len(doctor.CHECKS)
    assert not any("the check itself failed" in finding.found for finding in findings)


def test_a_check_that_fails_itself_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_broken(facts: Facts) -> Finding:
        raise KeyError("oops")

    monkeypatch.setattr(doctor, "CHECKS", (check_broken,))
    (finding,) = doctor.run_checks(HEALTHY)
    assert (finding.status, finding.check) == (FAIL, "broken")
    assert "KeyError" in finding.found


@pytest.mark.parametrize(("facts", "code"), [(HEALTHY, 0), (FAULTS["streamer 0.17"][0], 0), (Facts(), 1)])
def test_the_exit_code_is_1_when_a_check_fails(
    facts: Facts, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "gather", lambda: facts)
    assert doctor.main() == code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(doctor.CHECKS) + 1  # one line a check, and the sum


def test_a_report_keeps_names_and_folders_to_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "private_names", lambda: ["ada", "analytical-engine"])
    said = "ImportError: /home/ada/.venv/lib/libtriton.so: not found\non analytical-engine for ada (~/x/y)"
    line = doctor.describe(Finding(FAIL, "triton", said, "mend it"))
    assert "\n" not in line
    assert not any(word in line for word in ("/home", "ada", "analytical", "~", "/x"))
    assert "libtriton.so: not found" in line and line.endswith("-> mend it")


def test_a_long_error_is_cut() -> None:
    assert len(doctor.make_public("word " * 1000)) == doctor.LONGEST
