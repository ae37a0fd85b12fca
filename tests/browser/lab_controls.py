"""Move every control of a widget and watch whether what it drives changes."""

from __future__ import annotations

import time
from collections import deque

from lab_page import LessonPage
from playwright.sync_api import Locator

CHANGE_SECONDS = 20
NEXT_CHANGE_SECONDS = 3
MOST_MOVES = 8
VIEW = "application/vnd.jupyter.widget-view+json"
CONTROL = ":is(select, input:not([type=hidden]), button, .noUi-handle)"
CONTROLS = f"{CONTROL}:is(.jupyter-widgets, .jupyter-widgets *)"
PLACE = ":is(.widget-html-content, .widget-htmlmath-content, .widget-output)"
DRIVEN = f".jupyter-widgets {PLACE}, img.jupyter-widgets"


def widget_cells(lesson: LessonPage) -> list[int]:
    """The cells with a widget among their outputs."""
    return [
        index
        for index, cell in enumerate(lesson.cells())
        if any(VIEW in output.get("data", {}) for output in cell.get("outputs", []))
    ]


def move_controls(lesson: LessonPage, index: int) -> list[str]:
    """Move every control below cell `index`; name those that change nothing and those that cannot be used.

    A button that is disabled (Back, on the first frame) waits until another control has enabled it.
    """
    area = lesson.page.locator(".jp-Notebook .jp-Cell").nth(index).locator(".jp-Cell-outputArea")
    controls = area.locator(CONTROLS)
    lesson.wait_for(lambda: controls.count() > 0, CHANGE_SECONDS, f"a control below cell {index}")
    waiting = deque(range(controls.count()))
    faults = []
    passed_over = 0
    while waiting and passed_over < len(waiting):
        control = controls.nth(waiting[0])
        if not can_move(control):
            waiting.rotate(-1)
            passed_over += 1
            continue
        passed_over = 0
        waiting.popleft()
        if not changes_something(lesson, area, control):
            faults.append(f"cell {index}: {name_of(control)} changes nothing")
    return faults + [f"cell {index}: {name_of(controls.nth(each))} can never be used" for each in waiting]


def changes_something(lesson: LessonPage, area: Locator, control: Locator) -> bool:
    """Move one control, more than once if need be, until what it drives has changed."""
    before = driven_by(area)
    for step in range(MOST_MOVES):
        if not move_once(control, step):
            return False
        give_up = time.monotonic() + (NEXT_CHANGE_SECONDS if step else CHANGE_SECONDS)
        while time.monotonic() < give_up:
            if driven_by(area) != before:
                return True
            lesson.page.wait_for_timeout(50)
    return False


def driven_by(area: Locator) -> list[str]:
    return area.locator(DRIVEN).evaluate_all("parts => parts.map(part => part.outerHTML)")


def can_move(control: Locator) -> bool:
    """Whether a reader can use it now; the pressed one of some toggle buttons cannot be pressed again."""
    is_pressed = control.evaluate("node => node.matches('.widget-toggle-buttons .mod-active')")
    return control.is_visible() and control.is_enabled() and not is_pressed


def move_once(control: Locator, step: int) -> bool:
    """Move a control to another position; False where there is no further one to try."""
    kind = control.evaluate("node => node.tagName === 'INPUT' ? node.type : node.tagName.toLowerCase()")
    if kind == "select":
        options, now = control.evaluate("node => [node.options.length, node.selectedIndex]")
        control.select_option(index=(now + 1) % options)
        return step < options - 1
    if kind == "div":  # the handle of a slider
        low, now, high = (float(control.get_attribute(f"aria-value{name}")) for name in ("min", "now", "max"))
        control.press("ArrowLeft" if now >= high > low else "ArrowRight")
        return True
    if kind == "number":
        control.press("ArrowUp" if step == 0 else "ArrowDown")
        control.press("Enter")
        return step < 3
    if kind == "text":
        control.fill(f"{control.input_value()}1")
        control.press("Enter")
        return step == 0
    control.click()
    return step == 0


def name_of(control: Locator) -> str:
    """What kind of control it is, and what is written on or beside it."""
    return control.evaluate("""node => {
        const label = node.closest('.jupyter-widgets').querySelector('.widget-label');
        const words = node.tagName === 'BUTTON' ? [label?.innerText, node.innerText] : [label?.innerText];
        return `${node.type || 'slider'} '${words.filter(Boolean).join(' ') || 'without a label'}'`;
    }""")
