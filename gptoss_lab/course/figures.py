"""Figures of the course: one colour-blind-safe palette, one style, and alt text with every picture."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

OKABE_ITO = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
}
"""The palette of Okabe and Ito (Color Universal Design, 2008), which colour-blind readers can tell apart."""

ROLES = {
    "ok": OKABE_ITO["green"],
    "wrong": OKABE_ITO["vermillion"],
    "buffer": OKABE_ITO["sky"],
    "copy": OKABE_ITO["blue"],
    "view": OKABE_ITO["orange"],
    "limit": OKABE_ITO["purple"],
    "mark": OKABE_ITO["yellow"],
    "text": OKABE_ITO["black"],
    "muted": "#6B6B6B",
}
"""What each colour means in every figure. Colour never stands alone: label or hatch what it tells apart."""

PIXELS_PER_INCH = 96  # at which a figure's inches are shown
SHARPNESS = 2  # pixels drawn for each pixel shown, for dense screens
CARD = "background:#fff;padding:12px;border-radius:8px;box-sizing:border-box;max-width:100%;height:auto"

STYLE = {
    "figure.figsize": (8.0, 3.6),
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "hatch.linewidth": 0.6,
}


def colour(role: str) -> str:
    """The colour of a role ("ok", "wrong", "buffer", ...) or of a name in the palette, as a hex code."""
    found = ROLES.get(role) or OKABE_ITO.get(role)
    if found is None:
        raise KeyError(f"no colour is called {role!r}: choose from {sorted(ROLES | OKABE_ITO)}")
    return found


@contextmanager
def style() -> Iterator[None]:
    """The course's Matplotlib style inside the `with` block: white ground, open axes, the palette's cycle."""
    import matplotlib.pyplot as plt

    cycle = [OKABE_ITO[name] for name in ("blue", "vermillion", "green", "purple", "orange", "sky", "black")]
    with plt.rc_context(STYLE | {"axes.prop_cycle": plt.cycler(color=cycle)}):
        yield


class Picture:
    """A PNG with its alternative text. A notebook shows it as one `<figure>`; plain text shows the words."""

    def __init__(self, png: bytes, alt: str, width: int, caption: str = "") -> None:
        self.png, self.alt, self.width, self.caption = png, required_alt(alt), width, caption

    def html(self) -> str:
        """A figure on a white card, so that it is legible in the light and in the dark theme."""
        data = base64.b64encode(self.png).decode("ascii")
        image = (
            f'<img src="data:image/png;base64,{data}" width="{self.width}" alt="{html.escape(self.alt)}" '
            f'style="{CARD}">'
        )
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return f'<figure style="margin:0.5em 0">{image}{caption}</figure>'

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": repr(self)}


def required_alt(alt: str) -> str:
    """`alt` as one line; a ValueError if it says nothing."""
    words = " ".join(alt.split())
    if len(words) < 10:
        raise ValueError(f"alt text {alt!r} is too short: say in a sentence what the figure shows")
    return words


def picture(fig: Any, alt: str, caption: str = "") -> Picture:
    """Draw a Matplotlib figure to a `Picture` and close it. The same figure gives the same bytes."""
    import matplotlib.pyplot as plt

    required_alt(alt)
    buffer = io.BytesIO()
    fig.savefig(
        buffer,
        format="png",
        dpi=PIXELS_PER_INCH * SHARPNESS,
        bbox_inches="tight",
        facecolor="white",
        metadata={"Software": None},
    )
    plt.close(fig)
    png = buffer.getvalue()
    return Picture(png, alt, round(png_width(png) / SHARPNESS), caption)


def png_width(png: bytes) -> int:
    """The width in pixels, from the header: 8 bytes of signature, 8 of chunk head, then 4 of width."""
    return int.from_bytes(png[16:20], "big")


def show(fig: Any, alt: str, caption: str = "") -> None:
    """Display a Matplotlib figure with alternative text, as HTML, and close it.

    `alt` says what a reader who cannot see the figure needs to know. `caption` is visible to all.
    """
    from IPython.display import display

    display(picture(fig, alt, caption))
