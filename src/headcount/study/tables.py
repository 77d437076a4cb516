"""A table as one object that becomes Markdown, LaTeX, CSV, and rows of a web page."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headcount.files import write_text

Cell = str | float | int | None

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "→": r"$\rightarrow$",
    "−": "$-$",
    "±": r"$\pm$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
}


@dataclass(frozen=True)
class Column:
    """A column that people see.

    digits: how many decimals of a float; by: the key whose value a page sorts the column by
    """

    key: str
    heading: str
    numeric: bool = False
    digits: int = 2
    by: str | None = None

    def text(self, row: Mapping[str, Cell]) -> str:
        """The cell as people read it."""
        value = row.get(self.key)
        if value is None:
            return ""
        return f"{value:.{self.digits}f}" if isinstance(value, float) else str(value)

    def sort_value(self, row: Mapping[str, Cell]) -> Cell:
        """What the page sorts by."""
        return row.get(self.by or self.key)


@dataclass(frozen=True)
class Table:
    """Rows by key; keys that no column shows are data for the CSV file only."""

    name: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Cell], ...]

    def markdown(self) -> str:
        """A pipe table under its title."""
        lines = [
            _pipes([column.heading for column in self.columns]),
            "|" + "|".join("---:" if c.numeric else "---" for c in self.columns) + "|",
        ]
        lines += [_pipes([column.text(row) for column in self.columns]) for row in self.rows]
        return f"**{self.title}.** {self.caption}\n\n" + "\n".join(lines) + "\n"

    def latex(self) -> str:
        """A `table` environment with booktabs rules."""
        aligned = "".join("r" if column.numeric else "l" for column in self.columns)
        heading = [latex_escape(column.heading) for column in self.columns]
        body = [[latex_escape(column.text(row)) for column in self.columns] for row in self.rows]
        return "\n".join(
            [
                r"\begin{table}",
                r"\centering",
                rf"\begin{{tabular}}{{{aligned}}}",
                r"\toprule",
                " & ".join(rf"\textbf{{{cell}}}" for cell in heading) + r" \\",
                r"\midrule",
                *(" & ".join(cells) + r" \\" for cells in body),
                r"\bottomrule",
                r"\end{tabular}",
                rf"\caption{{{latex_escape(f'{self.title}. {self.caption}')}}}",
                rf"\label{{tab:{self.name}}}",
                r"\end{table}",
                "",
            ]
        )

    def csv(self) -> str:
        """All values as they are, shown or not."""
        return csv_text([dict(row) for row in self.rows], [column.key for column in self.columns])

    def save(self, folder: Path) -> None:
        """Write `NAME.md`, `NAME.tex` and `NAME.csv`."""
        write_text(folder / f"{self.name}.md", self.markdown())
        write_text(folder / f"{self.name}.tex", self.latex())
        write_text(folder / f"{self.name}.csv", self.csv())


def csv_text(rows: Sequence[Mapping[str, Cell]], first: Sequence[str] = ()) -> str:
    """Rows as CSV, with `columns` first, then others in order of appearance."""
    names = list(dict.fromkeys([*first, *(name for row in rows for name in row)]))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if row.get(name) is None else row[name] for name in names})
    return buffer.getvalue()


def latex_escape(text: str) -> str:
    """Text as LaTeX shows it literally."""
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_markdown_escape(cell) for cell in cells) + " |"


def _markdown_escape(text: str) -> str:
    """Text as Markdown shows it literally, in one line of a table."""
    text = re.sub(r"\s+", " ", text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", text)
