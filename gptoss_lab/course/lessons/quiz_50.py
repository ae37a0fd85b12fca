"""The questions at the end of `50__what_it_buys`."""

from __future__ import annotations

from gptoss_lab.course import quiz


def questions() -> quiz.Quiz:
    """Three questions, with an explanation for every choice."""
    return quiz.ask_all(
        [
            quiz.Question(
                "In a CUDA graph every layer gets 18 % shorter. The server, with graphs, needs 6 % less for a token. "
                "What do you conclude?",
                {
                    "One of the two measurements is wrong.": "They are of two wholes. Both can be right.",
                    "The other layers' weights displace its own in the cache.": "Then both ways would be slower, and "
                    "the record saw next to nothing of it at one token.",
                    "Two thirds of the step are something else.": "18 % of one third are 6 % of the whole.",
                    "The server runs one layer in three.": "It runs all of them. The share that they save does not "
                    "depend on how many there are.",
                },
                "Two thirds of the step are something else.",
            ),
            quiz.Question(
                "A launch less saves 30 us eager and 1.5 us in a graph. A change saves 200 launches of a step that "
                "takes 5 ms in a graph. What is it worth to a server with graphs?",
                {
                    "6 % of a step": "200 times 1.5 us are 0.3 ms, of 5 ms.",
                    "more than the whole step, 6 ms": "That is the host's time in eager mode. This server does not "
                    "spend it, so it cannot save it.",
                    "nothing, as a graph has no launches": "The host's are gone. The device still starts each kernel "
                    "and waits for it to end.",
                    "5 %, as 1.5 is 5 % of 30": "That compares the two modes with each other. What counts is the "
                    "saved time over the step's time.",
                },
                "6 % of a step",
            ),
            quiz.Question(
                "A layer takes six times as long as its bytes would. Which of these makes it faster for sure?",
                {
                    "a GPU with twice the memory speed": "That halves the floor. The layer is far above it, so it "
                    "seems to wait for something else.",
                    "experts with half the bytes": "That halves the floor as well, and the layer does not stand on it.",
                    "a shorter routing, as it has most of the launches": "It helps by what the routing takes, and "
                    "with `route` that is next to nothing.",
                    "none of them: first time each launch": "The distance from the floor says that there is time to "
                    "win. Where it goes, only a timeline says.",
                },
                "none of them: first time each launch",
            ),
        ]
    )
