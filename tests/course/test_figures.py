"""The palette, the style, and figures that carry their words."""

from __future__ import annotations

import io
import re
from base64 import b64decode
from itertools import combinations

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from gptoss_lab.course import figures

matplotlib.use("agg")
ALT = "Two bars: 7 tensors are kept, 148 are lost"


def bars():
    with figures.style():
        fig, ax = plt.subplots(figsize=(6, 3))
        ax.bar(["kept", "lost"], [7, 148], color=[figures.colour("ok"), figures.colour("wrong")])
    return fig


def pixels(png: bytes) -> np.ndarray:
    return plt.imread(io.BytesIO(png))


def test_roles_come_from_the_palette_and_differ():
    roles = {name: code for name, code in figures.ROLES.items() if name != "muted"}
    assert set(roles.values()) <= set(figures.OKABE_ITO.values())
    assert len(set(figures.ROLES.values())) == len(figures.ROLES)
    assert figures.colour("wrong") == figures.OKABE_ITO["vermillion"]
    assert figures.colour("sky") == figures.OKABE_ITO["sky"]
    with pytest.raises(KeyError, match="'pink'.*'buffer'"):
        figures.colour("pink")


def test_right_and_wrong_differ_in_lightness_for_those_who_see_no_hue():
    def lightness(code):
        r, g, b = (int(code[i : i + 2], 16) for i in (1, 3, 5))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    shades = [lightness(code) for code in figures.OKABE_ITO.values()]
    assert all(one != other for one, other in combinations(shades, 2))


def test_a_picture_is_an_html_figure_with_alt_text_and_a_plain_text():
    picture = figures.picture(bars(), ALT, caption="What survives")
    bundle = picture._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert bundle["text/plain"] == f"Figure: {ALT}"
    assert bundle["text/html"].startswith("<figure")
    assert f'alt="{ALT}"' in bundle["text/html"] and "<figcaption>What survives</figcaption>" in bundle["text/html"]
    data = re.search(r"base64,([^\"]+)", bundle["text/html"]).group(1)
    assert b64decode(data) == picture.png


def test_it_is_sharp_and_shown_at_half_its_pixels():
    picture = figures.picture(bars(), ALT)
    assert picture.width == round(pixels(picture.png).shape[1] / 2)
    assert f'width="{picture.width}"' in picture.html()


def test_it_stands_on_white_in_every_theme():
    assert "background:#fff" in figures.picture(bars(), ALT).html()
    fig = bars()
    fig.set_facecolor("black")
    image = pixels(figures.picture(fig, ALT).png)
    assert (image[0, 0, :3] == 1).all() and (image[-1, -1, :3] == 1).all()


def test_the_same_figure_gives_the_same_bytes():
    assert figures.picture(bars(), ALT).png == figures.picture(bars(), ALT).png


def test_the_figure_is_closed():
    plt.close("all")
    figures.picture(bars(), ALT)
    assert plt.get_fignums() == []


@pytest.mark.parametrize("alt", ["", "   \n", "a figure"])
def test_alt_text_that_says_nothing_is_refused(alt):
    with pytest.raises(ValueError, match="alt text"):
        figures.picture(bars(), alt)
    plt.close("all")


def test_quotes_in_alt_text_and_caption_do_no_harm():
    html = figures.picture(bars(), 'It says "a < b" in the title', caption="a < b").html()
    assert "&quot;a &lt; b&quot;" in html and "<figcaption>a &lt; b</figcaption>" in html


def test_show_displays_one_picture(monkeypatch):
    shown = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    assert figures.show(bars(), ALT) is None
    assert [type(each) for each in shown] == [figures.Picture]


def test_the_style_ends_with_its_block():
    before = dict(plt.rcParams)
    with figures.style():
        assert plt.rcParams["axes.spines.top"] is False
    assert dict(plt.rcParams) == before
