"""Pictures by matplotlib, without a display: one palette, one style, the same bytes each time."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

INK = "#1b1f27"
"""Colour of text and axes; an HTML report replaces it by the colour of its theme."""

GRID = "#8a8f9899"

GREY = "#7f7f7f"

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", GREY, "#8c510a")
"""Okabe and Ito's colour-blind-safe palette without yellow and black, which are invisible on some backgrounds."""

_STYLE: Mapping[str, Any] = {
    "backend": "Agg",
    "svg.hashsalt": "upshift",
    "svg.fonttype": "path",
    "text.parse_math": False,
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@contextmanager
def canvas(
    *kinds: str, size: tuple[float, float], style: Mapping[str, Any] | None = None, transparent: bool = False
) -> Iterator[tuple[Any, dict[str, bytes]]]:
    """An empty matplotlib figure, and where it is as `svg` or `png` (160 dpi) once the block has ended.

    Reproducible: no date, a fixed salt for ids, no user's matplotlibrc.

    Args:
        kinds: all of them are drawn from the one figure, laid out as the first one, which takes half of the time.
        size: width and height [inches].
        style: rcParams beside or in place of those of all pictures.
        transparent: without a background, for a page that has one.
    """
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        settings: Any = dict(_STYLE) | dict(style or {})
        mpl.rcParams.update(settings)
        import matplotlib.pyplot as plt

        drawn_once, as_it_is = _drawn_once()
        figure = plt.figure(figsize=size, layout="constrained", FigureClass=drawn_once)
        pictures = dict[str, bytes]()
        try:
            yield figure, pictures
            for kind in kinds:
                out, metadata = io.BytesIO(), {"Date": None} if kind == "svg" else {"Software": None}
                figure.savefig(out, format=kind, dpi=160, metadata=metadata, transparent=transparent)
                figure.set_layout_engine(as_it_is())
                pictures[kind] = out.getvalue()
        finally:
            plt.close(figure)


@functools.cache
def _drawn_once() -> tuple[type[Any], type[Any]]:
    """A class of matplotlib's figures, and a layout engine that leaves one as it is laid out.

    `savefig` draws a figure twice: first invisibly, so that its layout engine works, then with a placeholder as engine.
    Of the first drawing these figures make the layout only: the same bytes in two thirds of the time.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine, PlaceHolderLayoutEngine

    class DrawnOnce(Figure):
        def draw(self, renderer: Any) -> None:
            engine = self.get_layout_engine()
            if engine is None or isinstance(engine, PlaceHolderLayoutEngine):
                super().draw(renderer)
            else:
                engine.execute(self)

    class AsItIs(ConstrainedLayoutEngine):
        def execute(self, fig: Figure) -> None:
            pass

    return DrawnOnce, AsItIs


def inline_svg(svg: bytes, name: str) -> str:
    """A drawing as an `<svg>` element for an HTML page: no prolog, comments or external references, the page's colour.

    Args:
        svg: what `canvas` wrote; its labels are drawn as paths, and comments repeat them.
        name: comes before ids, as they must be unique in a page with several figures.
    """
    text = svg.decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text).replace("xlink:href", "href")
    text = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace(INK, "currentColor")
