"""What must stand before any test module is imported."""

from __future__ import annotations

# Importing transformers imports triton, and tests/data is collected before tests/moe.
import gptoss_lab.moe  # noqa: F401  (sets TRITON_INTERPRET where there is no GPU)
