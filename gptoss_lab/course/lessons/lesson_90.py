"""The checkers of `90__on_your_own`, each judged by what the learner's code does when it is run."""

from gptoss_lab.course.lessons.check_loader_90 import falsely_tied, load_tied
from gptoss_lab.course.lessons.check_review_90 import KINDS, objection
from gptoss_lab.course.lessons.check_step_90 import decode_step, needless

__all__ = ["KINDS", "decode_step", "falsely_tied", "load_tied", "needless", "objection"]
