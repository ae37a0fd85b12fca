"""The command `gptoss-lab`. Each command imports what it needs, so that `--help` comes at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Run, record and test the lessons of the course.",
)

Names = Annotated[
    list[str] | None,
    typer.Argument(help="Lessons: a number (10), a name or a path. All of them if left out."),
]
Timeout = Annotated[float, typer.Option(help="Seconds that one cell may take.", min=1)]
Jobs = Annotated[int, typer.Option(help="Notebooks that run at once.", min=1)]


def one_line_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command end with one line on stderr where the fault is the reader's to mend."""

    @wraps(command)
    def guarded(*args: object, **kwargs: object) -> None:
        from gptoss_lab.course.notebooks import NotebookError

        try:
            command(*args, **kwargs)
        except (NotebookError, OSError) as error:
            typer.echo(f"gptoss-lab: {error}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("gptoss-lab: interrupted; files are as they were", err=True)
            raise typer.Exit(130) from None

    return guarded


@app.command()
def doctor() -> None:
    """Check this machine and say how to mend what is wrong."""
    from gptoss_lab.course import doctor as checks

    raise typer.Exit(checks.main())


@app.command()
@one_line_errors
def run(
    names: Names = None,
    out: Annotated[Path, typer.Option(help="Where the pages go.")] = Path("build/course"),
    timeout: Timeout = 120,
    jobs: Jobs = 2,
) -> None:
    """Execute lessons on fresh kernels and write them as pages to read."""
    from gptoss_lab.course import notebooks, progress, report, runner

    lessons = notebooks.choose(names or [])
    with progress.Progress(len(lessons)) as shown:
        results = runner.run(lessons, timeout=timeout, jobs=jobs, on_cell=shown.cell, on_lesson=shown.lesson)
    report.write_report(results, out)
    progress.print_summary(results)
    typer.echo(f"pages: {out / 'index.html'}")
    raise typer.Exit(0 if all(result.ok for result in results) else 1)


@app.command()
@one_line_errors
def record(names: Names = None, timeout: Timeout = 120, jobs: Jobs = 2) -> None:
    """Execute lessons and their solved twins and store the outputs."""
    from gptoss_lab.course import notebooks, progress, recorded, runner

    paths = notebooks.with_twins(notebooks.choose(names or []))
    with progress.Progress(len(paths)) as shown:
        results = runner.run(paths, timeout=timeout, jobs=jobs, on_cell=shown.cell, on_lesson=shown.lesson)
    for result in results:
        result.failure = recorded.store(result)
    progress.print_failures(results)
    raise typer.Exit(0 if all(result.ok for result in results) else 1)


@app.command()
@one_line_errors
def gate(
    paths: Annotated[
        list[str] | None,
        typer.Argument(help="A lesson (10), with its twin, or a notebook's path, alone. All if left out."),
    ] = None,
    timeout: Timeout = 120,
    jobs: Jobs = 2,
) -> None:
    """Test that notebooks still print what they have recorded."""
    from gptoss_lab.course import gate as tests
    from gptoss_lab.course import notebooks

    chosen: list[Path] = [] if paths else notebooks.with_twins(notebooks.find_lessons())
    for name in paths or []:
        found = notebooks.choose([name])
        # A path means this one notebook. Any other name means a lesson, of which the twin is a part.
        chosen += found if found == [Path(name)] else notebooks.with_twins(found)
    raise typer.Exit(tests.main(list(dict.fromkeys(chosen)), timeout=timeout, jobs=jobs))


@app.command()
@one_line_errors
def lint(
    names: Names = None,
    mend: Annotated[bool, typer.Option("--fix", help="First bring the notebooks into the course's format.")] = False,
) -> None:
    """Check format and form of lessons, and that each one matches its solved twin."""
    from gptoss_lab.course import lint as form
    from gptoss_lab.course import notebooks, twins

    lessons = notebooks.choose_lessons(names or [])
    if mend:
        fix(names)
    problems = form.course_problems(lessons) + ([] if names else twins.orphans())
    for problem in problems:
        typer.echo(problem)
    for lesson in lessons:
        for note in form.advice(lesson):
            typer.echo(f"{lesson}: note: {note}")
    typer.echo(f"{len(lessons)} lessons, {len(problems)} problems")
    raise typer.Exit(1 if problems else 0)


@app.command()
@one_line_errors
def fix(names: Names = None) -> None:
    """Bring notebooks into the course's format."""
    from gptoss_lab.course import notebooks

    for path in notebooks.with_twins(notebooks.choose_lessons(names or [])):
        if notebooks.fix(path):
            typer.echo(f"{path}: mended")


@app.command()
@one_line_errors
def sync(names: Names = None) -> None:
    """Copy lessons to their solved twins, all but the exercise cells."""
    from gptoss_lab.course import notebooks, twins

    for lesson in notebooks.choose_lessons(names or []):
        unsolved = twins.sync(lesson)
        typer.echo(
            f"{notebooks.twin_of(lesson)}: " + (f"still to solve {', '.join(unsolved)}" if unsolved else "in step")
        )


@app.command()
@one_line_errors
def progress() -> None:
    """Show which exercises are done, and the next step."""
    from gptoss_lab.course import map as course

    typer.echo(repr(course.course_progress(course.course_folder())))


@app.command()
@one_line_errors
def reset(lesson: Annotated[str, typer.Argument(help="A lesson: a number (10), a name or a path.")]) -> None:
    """Bring a lesson back as it was published; your cells stay in a file beside it."""
    from gptoss_lab.course import answers, notebooks
    from gptoss_lab.course.map import course_folder

    for path in notebooks.choose_lessons([lesson], course_folder()):
        done = answers.reset(path)
        typer.echo(f"{path}: as published (from {done.origin})")
        typer.echo(f"your cells: {done.kept}" if done.kept else "no cell differed, so nothing had to be kept")
        typer.echo("Is it open in JupyterLab? File > Reload Notebook from Disk, then restart the kernel.")


@app.command()
@one_line_errors
def solution(exercise: Annotated[str, typer.Argument(help="An exercise, like 16.2.")]) -> None:
    """Show one solution."""
    from gptoss_lab.course import answers, notebooks
    from gptoss_lab.course.map import course_folder

    typer.echo(answers.solution(exercise, notebooks.find_lessons(course_folder())))


@app.command()
@one_line_errors
def verify(
    path: Annotated[Path | None, typer.Argument(help="A folder with lessons, or one lesson.")] = None,
    timeout: Timeout = 120,
    jobs: Jobs = 2,
) -> None:
    """Run the strict gate over any copy of the course, and tell answers from broken lessons.

    Ends with 0 if every lesson is intact and every answer right, 3 if only answers are wrong, 1 if a lesson is
    changed or fails.
    """
    from gptoss_lab.course import verify as tests
    from gptoss_lab.course.map import course_folder

    raise typer.Exit(tests.main(path or course_folder(), timeout=timeout, jobs=jobs))


@app.command()
def preflight() -> None:
    """Say on one screen whether this machine is ready for a workshop; copy it to your instructor."""
    from gptoss_lab.course import preflight as screen

    raise typer.Exit(screen.main())


if __name__ == "__main__":
    app()
