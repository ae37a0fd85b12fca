"""The map of the course is made from the lessons."""

from __future__ import annotations

import nbformat
import pytest

from gptoss_lab.course.lab import ROOT
from gptoss_lab.course.map import Entry, course_folder, course_map, read_entry
from gptoss_lab.course.notebooks import NotebookError, find_lessons


def write_lesson(folder, name, first, exercises=0):
    cells = [nbformat.v4.new_markdown_cell(first)]
    for number in range(exercises):
        tagged = {"tags": ["exercise"], "gptoss_lab": {"exercise": f"1.{number + 1}"}}
        cells.append(nbformat.v4.new_code_cell("raise NotImplementedError", metadata=tagged))
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / f"{name}.ipynb")


@pytest.mark.parametrize(
    ("time", "minutes"),
    [
        ("**Time:** 12 minutes of reading, 15 of exercises.", (12, 15)),
        ("**Time:** 1 minute of reading.", (1, 0)),
        ("No time is given: 7 minutes.", (0, 0)),
    ],
)
def test_an_entry_is_read_from_the_first_cell(tmp_path, time, minutes):
    write_lesson(tmp_path, "14__bytes", f"# Follow the bytes\n\nText.\n\n{time}", exercises=2)
    entry = read_entry(tmp_path / "14__bytes.ipynb")
    assert (entry.title, entry.exercises) == ("Follow the bytes", 2)
    assert (entry.reading_minutes, entry.exercise_minutes) == minutes


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("00__start", "Start"),
        ("26__place", "1 · Borrowed weights"),
        ("50__what", "2 · Redundant routing"),
        ("90__own", "Beyond"),
    ],
)
def test_the_first_digit_is_the_part(tmp_path, name, part):
    assert Entry(tmp_path / f"{name}.ipynb", "", 0, 0, 0).part == part


def test_the_table_links_each_lesson_in_reading_order(tmp_path):
    write_lesson(tmp_path, "10__second", "# Why `a < b` & not\n\n**Time:** 3 minutes of reading, 4 of exercises.", 1)
    write_lesson(tmp_path, "00__first", "# Start")
    (tmp_path / "solutions").mkdir()
    write_lesson(tmp_path / "solutions", "20__twin", "# A twin")
    shown = course_map(tmp_path)._repr_mimebundle_()
    assert '<a href="10__second.ipynb">Why <code>a &lt; b</code> &amp; not</a>' in shown["text/html"]
    assert shown["text/html"].index("00__first") < shown["text/html"].index("10__second")
    assert [line.split()[:4] for line in shown["text/plain"].splitlines()] == [
        ["00__first", "0", "+", "0"],
        ["10__second", "3", "+", "4"],
    ]


def test_a_folder_without_lessons_is_named(tmp_path):
    with pytest.raises(NotebookError, match="no notebook in"):
        course_map(tmp_path)


def test_every_lesson_of_the_course_states_its_title_and_time():
    entries = course_map().entries
    assert [entry.path for entry in entries] == find_lessons(ROOT / "notebooks")
    for entry in entries:
        assert entry.title and not entry.title.startswith("#"), entry.path.name
        assert entry.reading_minutes > 0, entry.path.name
        assert (entry.exercise_minutes > 0) == (entry.exercises > 0), entry.path.name


def test_the_current_folder_counts_as_the_course_where_it_holds_lessons(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert course_folder() == ROOT / "notebooks"
    (tmp_path / "10__mine.ipynb").write_text("{}")
    assert course_folder().resolve() == tmp_path.resolve()
    (tmp_path / "notebooks").mkdir()
    assert course_folder().resolve() == (tmp_path / "notebooks").resolve()
