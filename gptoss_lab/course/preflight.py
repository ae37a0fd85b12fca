"""What an instructor asks everyone to send before a workshop: one screen that says READY or NOT READY.

The doctor's lines in short, then two things that lessons do, for real and with their seconds: the tiny model
is loaded through the streamer and answers, and a token is routed with triton_kernels. Folders, the user's name
and the machine's name are taken out, so that the screen can be copied into a chat.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

from gptoss_lab import __version__
from gptoss_lab.course.doctor import make_public, run_checks
from gptoss_lab.course.doctor_checks import FAIL, OK, WARN, Finding

LIMIT = 2048 * 64 * 2  # bytes: the largest tensor, so that the buffer is used again and again
PROMPT, ANSWER = "The capital of France is", " Paris."
SECONDS = 180
WIDTH = 80
REPORT = "report it with this line"


# --- the two smokes, each in a process of its own


def smoke_load() -> str:
    """Load the tiny gpt-oss through the streamer, as the course does, and let it answer."""
    import torch

    from gptoss_lab.course.lab import CAPITALS
    from gptoss_lab.model import Config, GptOss, generate, load_tokenizer
    from gptoss_lab.weights import loading
    from gptoss_lab.weights.checkpoint import read_checkpoint
    from gptoss_lab.weights.limits import resolve_concurrency, resolve_limit
    from gptoss_lab.weights.streaming import stream

    resolve_limit(None), resolve_concurrency(None)  # what the environment sets, and a lesson would stumble over
    torch.set_num_threads(1)
    model = GptOss(Config.from_file(CAPITALS))
    report = loading.host_copies(model, stream(read_checkpoint(CAPITALS).files, memory_limit=LIMIT))
    answer = generate(model, load_tokenizer(CAPITALS), PROMPT).text
    if answer != ANSWER:
        raise ValueError(f"the model answers {answer!r}, not {ANSWER!r}")
    return f"{answer!r} from {report.produced} streamed tensors"


def smoke_routing() -> str:
    """Route one token to 4 of 32 experts, and see that both ways to the routing agree."""
    from gptoss_lab.moe import routing

    import torch  # isort: skip  (gptoss_lab.moe comes first: it sets TRITON_INTERPRET)

    device = "cuda" if torch.cuda.is_available() and not routing.interpreting() else "cpu"
    logits = torch.randn(1, 32, generator=torch.Generator().manual_seed(0)).to(device)  # [tokens, experts]
    sparse = routing.topk(logits, 4)
    chosen = sorted(sparse.indx.flatten().tolist())
    expected = sorted(logits.topk(4).indices.flatten().tolist())
    if chosen != expected:
        raise ValueError(f"topk chose the experts {chosen}, not {expected}")
    if not torch.equal(routing.reuse(sparse, 32).col_sorted_indx, routing.rebuild(sparse, 32).col_sorted_indx):
        raise ValueError("reuse and rebuild disagree")
    return f"a token to 4 of 32 experts, {'on the GPU' if device == 'cuda' else 'in the interpreter'}"


SMOKES = {"one load": smoke_load, "one routing": smoke_routing}


def run_smoke(name: str, command: list[str] | None = None, seconds: float = SECONDS) -> Finding:
    """Run a smoke in a process of its own: one that crashes or hangs is a finding too."""
    command = command or [sys.executable, "-m", "gptoss_lab.course.preflight", name]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Finding(FAIL, name, f"did not end within {seconds:g} s", "end other programs, then try again")
    took = f"{time.monotonic() - started:.1f} s"
    try:
        said = json.loads(done.stdout.splitlines()[-1])
        status, text, mend = said["status"], said["text"], said["mend"]
    except (IndexError, ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        status, text, mend = FAIL, f"ended with status {done.returncode}: {last}", REPORT
    return Finding(status, name, f"{took}: {text}", mend)


# --- the screen


def in_short(finding: Finding) -> str:
    """One line, or two where something has to be mended."""
    found = make_public(finding.found)
    found = found.split(";")[0] if finding.status == OK else found
    line = f"{finding.status:<5} {finding.check:<17} {found}"
    mend = f"\n{'':<24}-> {finding.mend}" if finding.mend else ""
    return f"{line if len(line) <= WIDTH or finding.status != OK else line[: WIDTH - 3] + '...'}{mend}"


def verdict(findings: list[Finding]) -> str:
    """The last line: READY unless something failed."""
    failed = [finding.check for finding in findings if finding.status == FAIL]
    warned = [finding.check for finding in findings if finding.status == WARN]
    if failed:
        return f"NOT READY: {', '.join(failed)}"
    return f"READY, with a warning about {', '.join(warned)}" if warned else "READY"


def main() -> int:
    """Print the screen; 0 if the machine is ready, else 1."""
    print(f"gptoss-lab {__version__} preflight", flush=True)
    findings = []
    for finding in run_checks():
        findings.append(finding)
        print(in_short(finding))
    for name in SMOKES:
        sys.stdout.flush()
        findings.append(run_smoke(name))
        print(in_short(findings[-1]))
    print(verdict(findings))
    return 1 if any(finding.status == FAIL for finding in findings) else 0


def run_one(name: str) -> None:
    """Run a smoke here and print what came of it as one line of JSON."""
    from gptoss_lab.weights.limits import StreamingError  # here: the screen needs no streamer

    try:
        said = {"status": OK, "text": SMOKES[name](), "mend": ""}
    except Exception as fault:  # noqa: BLE001  whatever it is, it is what the instructor has to see
        mend = "" if isinstance(fault, StreamingError) else REPORT  # such a setting's error says itself what to do
        said = {"status": FAIL, "text": f"{type(fault).__name__}: {fault}", "mend": mend}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    run_one(sys.argv[1])
