"""All heads of one sentence to click through: the report's explorer, in a notebook or a file."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from headcount.files import write_text
from headcount.heads import SITE_NAMES, SITES

if TYPE_CHECKING:
    from headcount.loaded.attention import Attention

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
