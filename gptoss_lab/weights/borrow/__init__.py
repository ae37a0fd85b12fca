"""Tools that find views of the streamer's buffer which are held or read too late, around any loader.

| tool | sees | cost |
|---|---|---|
| `audit(stream)` | what is still held when it is overwritten, in whatever form | next to nothing |
| `guard(stream)` | the first late use of a tensor, with its line | a few per cent |
| `guard(stream, strict=True)` | any use after the stream moved on, in threads too | the same |
| `prove(command)` | every late read, of whatever form, in a child process that ends there | fresh memory a request |

`own(tensor)` copies what is the stream's, and tells it by its memory; `lend(stream)` books whose memory that is.
"""

from gptoss_lab.weights.borrow.auditing import Audit, AuditReport, Kept, KeptTooLate, audit
from gptoss_lab.weights.borrow.guarding import Borrowed, Guard, LeavesGuard, StaleViewError, guard
from gptoss_lab.weights.borrow.lines import Line
from gptoss_lab.weights.borrow.ownership import is_lent, lend, own
from gptoss_lab.weights.borrow.proving import LateRead, Proof, ProveError, prove

__all__ = [
    "Audit",
    "AuditReport",
    "Borrowed",
    "Guard",
    "Kept",
    "KeptTooLate",
    "LateRead",
    "LeavesGuard",
    "Line",
    "Proof",
    "ProveError",
    "StaleViewError",
    "audit",
    "guard",
    "is_lent",
    "lend",
    "own",
    "prove",
]
