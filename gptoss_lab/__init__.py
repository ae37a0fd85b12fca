"""gptoss-lab: a course that takes two real faults of gpt-oss inference apart.

`gptoss_lab.weights` follows a checkpoint from its files to a model, `gptoss_lab.moe` follows a token from
router logits to experts, and `gptoss_lab.course` turns notebooks into a course. Importing the package needs
no GPU.
"""

from __future__ import annotations

__version__ = "0.1.0"
