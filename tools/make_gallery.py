"""Draw what a loaded model draws, and write docs/gallery.md: every figure with its line.

    python tools/make_gallery.py

The line that is shown is the line that is run. Figures of a study are those of the published one,
in results/figures.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from headcount.picture import Picture
from headcount.study.figures import FIGURES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PUBLISHED = [ROOT / "results" / part / "figures" for part in ("", "plain", "languages")]
"""The published studies; a figure is shown from the first one that has it."""

SETUP = """\
import headcount

model = headcount.load("demo")
text = "The woman quickly opened the small door."
lines = [
    text,
    "She reads the letter.",
    "The old woman reads a book in the garden.",
    "We don't know where your brother lives.",
    "I would like to know why he did not come.",
    "My sister has a small black dog.",
]
"""


class Figure(NamedTuple):
    """A picture in the gallery: its file, its title, and the line that draws it."""

    name: str
    title: str
    line: str


OWN = (
    Figure("attention", "What one head looks at", 'model.attention(text).plot("enc.4.2")'),
    Figure("relevance", "Where every step comes from", "model.relevance(text).plot()"),
    Figure(
        "relevance-heads",
        "Relevance of heads in one sentence",
        "model.relevance(text).heads.plot()",
    ),
    Figure(
        "head-table",
        "A column of the head table",
        'headcount.rank(model, lines, by="confidence").plot()',
    ),
    Figure(
        "source-contribution",
        "How much of each step comes from the source",
        "headcount.attribute(model, lines).plot()",
    ),
)


def draw_own() -> Iterator[tuple[Figure, Picture]]:
    """Run every line of `OWN`."""
    namespace: dict[str, Any] = {}
    exec(SETUP, namespace)
    for figure in OWN:
        yield figure, eval(figure.line, namespace)


def of_studies() -> Iterator[Figure]:
    """The figures that reports draw, with their published files."""
    for draw in FIGURES:
        summary = (inspect.getdoc(draw) or draw.__name__).split("\n")[0].rstrip(".")
        yield Figure(_file_name(draw), summary, f"{draw.__name__}(results)")


def _file_name(draw: Callable[..., Any]) -> str:
    """A figure's published file, relative to docs/; empty where no study has one."""
    number = re.search(r"Figure (\d+)", inspect.getdoc(draw) or "")
    stem = f"fig{number[1]}-*" if number else draw.__name__.removesuffix("_figure")
    files = [path for folder in PUBLISHED for path in sorted(folder.glob(f"{stem}.png"))]
    return f"../{files[0].relative_to(ROOT)}" if files else ""


def page() -> str:
    """The gallery as Markdown."""
    names = ", ".join(draw.__name__ for draw in FIGURES)
    parts = [
        "# Gallery",
        "Every figure that the package draws, with the line that draws it. Made by"
        " `tools/make_gallery.py`.",
        "## One sentence, one table",
        f"```python\n{SETUP}```",
        *(_entry(figure, f"gallery/{figure.name}.png") for figure in OWN),
        "`model.attention(text).show()` is a page to click through, `headcount explore demo` the"
        " live one; see [a model in your hands](python.md).",
        "## A study",
        "`headcount report` draws all of these into `figures/`, as far as there is data. One of"
        " them alone:",
        "```python\nfrom headcount.study.figures import FIGURES\n"
        "from headcount.study.results import load_results\n\n"
        'results = load_results("demo")  # a folder of `headcount demo` or `headcount study`\n'
        "figures = {draw.__name__: draw(results) for draw in FIGURES}\n```",
        f"`FIGURES` has {names}. The pictures are those of the published studies"
        " ([results](results.md), [side studies](results-plain.md)).",
        *(_entry(figure, figure.name) for figure in of_studies()),
    ]
    return "\n\n".join(parts) + "\n"


def _entry(figure: Figure, image: str) -> str:
    shown = f"![{figure.title}]({image})" if image else "No published study has it yet."
    return f"### {figure.title}\n\n`{figure.line}`\n\n{shown}"


def main() -> None:
    folder = DOCS / "gallery"
    folder.mkdir(exist_ok=True)
    for figure, picture in draw_own():
        path = folder / f"{figure.name}.png"
        picture.savefig(path, dpi=100, bbox_inches="tight", facecolor="white")
    (DOCS / "gallery.md").write_text(page(), encoding="utf-8")
    print(f"{len(OWN) + len(FIGURES)} figures: {DOCS / 'gallery.md'}")


if __name__ == "__main__":
    main()
