"""What every head looks at in one sentence: numbers, pictures, and a viewer to click through."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from headcount.errors import UserError
from headcount.files import write_text
from headcount.heads import SITE_NAMES, SITES, Head

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from headcount.run import Run

CELL = 0.3
"""Inches per token."""
WEIGHTS, SIGNED = "Blues", "RdBu"


def plain_token(token: str, place: int) -> str:
    """A token as readers see it: without the mark of a word start, with a dot inside a word."""
    if token in ("<s>", "</s>"):
        return {"<s>": "START", "</s>": "EOS"}[token]
    if token.startswith("▁"):
        return token[1:] or "▁"
    return f"·{token}" if place > 0 and token[:1].isalnum() else token


def plain_tokens(tokens: Sequence[str]) -> list[str]:
    """`plain_token` of each."""
    return [plain_token(token, place) for place, token in enumerate(tokens)]


def plot_matrix(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
    signed: bool = False,
    divide: int | None = None,
    axes: Axes | None = None,
) -> Figure:
    """A heat map `[rows, columns]`; `signed` values are blue above zero and red below it.

    divide  draw a line before this column
    """
    axes = axes or new_axes(len(columns), len(rows))
    figure = axes.get_figure(root=True)
    assert figure is not None
    largest = float(np.abs(values).max(initial=0.0)) or 1.0
    axes.imshow(
        values,
        cmap=SIGNED if signed else WEIGHTS,
        vmin=-largest if signed else 0.0,
        vmax=largest if signed else 1.0,
        aspect="auto",
    )
    axes.set_xticks(range(len(columns)), plain_tokens(columns), rotation=60, ha="left")
    axes.set_yticks(range(len(rows)), plain_tokens(rows))
    axes.tick_params(length=0, top=False, bottom=False, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    if divide is not None:
        axes.axvline(divide - 0.5, color="#222222", linewidth=1.0)
    axes.set_title(title, loc="left", fontsize=10)
    return figure


def new_axes(columns: int, rows: int) -> Axes:
    """Axes of a new figure with room for this many tokens."""
    from headcount.picture import Picture

    figure = Picture(figsize=(1.6 + CELL * columns, 1.4 + CELL * rows), layout="constrained")
    return figure.subplots()


END = "</s>"


@dataclass(frozen=True)
class Attention:
    """Attention weights of every head on a sentence and its translation.

    `attention["enc.4.1"]` is `[queries, keys]`: row i says how much token i looks at every token.

    source_tokens  pieces of the source and EOS: what `enc` reads, and `cross` looks at
    target_tokens  START and the pieces of the translation: what the decoder reads
    """

    text: str
    translation: str
    source_tokens: list[str]
    target_tokens: list[str]
    weights: Mapping[Head, np.ndarray] = field(repr=False)
    run: Run | None = field(default=None, repr=False)

    @property
    def heads(self) -> list[Head]:
        """Every head that the model has."""
        return list(self.weights)

    def __getitem__(self, head: Head | str) -> np.ndarray:
        head = Head.parse(head) if isinstance(head, str) else head
        if head not in self.weights:
            raise UserError(f"The model has no head {head}.", "See `attention.heads`.")
        return self.weights[head]

    def tokens(self, head: Head | str) -> tuple[list[str], list[str]]:
        """What the rows and the columns of a head's weights are."""
        site = str(head).split(".")[0]
        queries = self.source_tokens if site == "enc" else self.target_tokens
        keys = self.target_tokens if site == "dec" else self.source_tokens
        return queries, keys

    def confidence(self) -> dict[Head, float]:
        """How much each head looks at one token: mean largest weight, EOS left out (Sec. 4)."""
        means = {}
        for head, weights in self.weights.items():
            rows, columns = (len(t) - (t[-1] == END) for t in self.tokens(head))
            means[head] = float(weights[:rows, :columns].max(1).mean())
        return means

    def plot(self, head: Head | str, axes: Axes | None = None) -> Figure:
        """A head's weights as a map: rows look at columns."""
        weights = self[head]
        queries, keys = self.tokens(head)
        return plot_matrix(weights, queries, keys, title=str(head), axes=axes)

    def show(self) -> Viewer:
        """All heads, to click through in a notebook; `.save("page.html")` anywhere else."""

        return Viewer.of(self)


HEIGHT = 900


@dataclass(frozen=True)
class Viewer:
    """One self-contained page; a notebook shows it in a frame of its own."""

    page: str

    @classmethod
    def of(cls, attention: Attention) -> Viewer:
        """The page of a sentence."""
        from headcount.study.explorer import SentenceAttention, pack
        from headcount.study.figures.drawing import OTHER, function_colours
        from headcount.study.report.page import content_policy, embed, environment, page_parts

        run = attention.run
        counts = None
        if run is not None and run.source_frequencies is not None:
            ids = run.source_tokenizer.encode(attention.text)
            counts = tuple(int(run.source_frequencies[token]) for token in ids)
        sentence = SentenceAttention(
            attention.text,
            tuple(attention.source_tokens),
            counts,
            tuple(attention.target_tokens),
            attention.translation,
            pack([attention[head] for head in attention.heads]),
        )
        style, script = page_parts()
        template = environment().from_string(
            (files("headcount.loaded") / "viewer.html").read_text(encoding="utf-8")
        )
        page = template.render(
            policy=content_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            title=attention.text,
            explorer=embed(
                {
                    "sites": {site: SITE_NAMES[site] for site in SITES},
                    "colours": function_colours(),
                    "other": OTHER,
                    "models": [_model(attention)],
                }
            ),
            attention=embed([sentence.to_json()]),
        )
        return cls(page)

    def save(self, path: Path | str) -> Path:
        """Write the page as a file that needs nothing else."""
        write_text(Path(path), self.page)
        return Path(path)

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escape(self.page)}" sandbox="allow-scripts" width="100%"'
            f' height="{HEIGHT}" style="border: 0" title="What every head looks at"></iframe>'
        )


def _model(attention: Attention) -> dict[str, Any]:
    layers: dict[str, list[list[int]]] = {site: [] for site in SITES}
    for head in attention.heads:
        rows = layers[head.site]
        rows.extend([] for _ in range(head.layer + 1 - len(rows)))
        rows[head.layer].append(head.index)
    name = "model" if attention.run is None else attention.run.folder.name
    return {
        "id": name,
        "label": name,
        "how": "this sentence",
        "baseline": None,
        "bleu": None,
        "layers": layers,
        "measures": ["confidence"],
        "values": {str(h): [round(c, 4)] for h, c in attention.confidence().items()},
        "roles": {},
    }
