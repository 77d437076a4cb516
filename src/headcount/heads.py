"""Heads, where they sit, and the table that every analysis adds its columns to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from headcount.errors import UserError
from headcount.files import parsing, read_json, write_csv, write_json
from headcount.registry import name_list

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD_FIELDS = ("site", "layer", "index")
SITES = ("enc", "dec", "cross")
"""Where attention sits, and with it heads."""
UNIT_SITES = ("enc_ff", "dec_ff")
"""Hidden units of feed-forward networks, in blocks of `ModelConfig.ff_block`."""
BLOCKS = {"enc_layers": ("enc", "enc_ff"), "dec_layers": ("dec", "cross", "dec_ff")}
"""Whole residual blocks, in the order of a layer: each is known by the site of what it holds."""
ALL_SITES = (*SITES, *UNIT_SITES, *BLOCKS)
SITE_NAMES = {
    "enc": "encoder self-attention",
    "dec": "decoder self-attention",
    "cross": "decoder-encoder attention",
    "enc_ff": "units of encoder feed-forward networks",
    "dec_ff": "units of decoder feed-forward networks",
    "enc_layers": "whole blocks of the encoder",
    "dec_layers": "whole blocks of the decoder",
}


@dataclass(frozen=True)
class Head:
    """One attention head: `(site, layer, index)`, counted from 0, written `enc.0.3`.

    The index is the head's number in the full model and stays the same when others are pruned.
    Everything else that a gate can close is written the same way: `enc_ff.2.5` is block 5 of the
    hidden units of layer 2, `dec_layers.0.1` the second residual block of layer 0 (see `BLOCKS`).
    """

    site: str
    layer: int
    index: int

    def __str__(self) -> str:
        return f"{self.site}.{self.layer}.{self.index}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """`enc.0.3` as a head."""
        parts = text.strip().split(".")
        if len(parts) != 3 or parts[0] not in ALL_SITES or not all(p.isdigit() for p in parts[1:]):
            raise UserError(f"'{text}' is not a head.", "Write it as site.layer.index: enc.0.3.")
        return cls(parts[0], int(parts[1]), int(parts[2]))


def parse_sites(
    sites: str | Iterable[str], known: Sequence[str] = SITES, kind: str = "attention site"
) -> tuple[str, ...]:
    """Sites in the canonical order, from `"enc,cross"` or a list of names."""
    names = name_list(sites)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UserError(
            f"Unknown {kind} '{','.join(unknown)}'.", f"Choose among {', '.join(known)}."
        )
    return tuple(site for site in known if site in names)


def kind_of(site: str) -> str:
    """What one thing at a site is called."""
    return "head" if site in SITES else "block of units" if site in UNIT_SITES else "block"


def kinds_at(sites: Iterable[str]) -> str:
    """What the things at some sites are called: `heads, blocks of units and blocks`."""
    kinds = dict.fromkeys(kind_of(site) for site in sites)
    *others, last = [k.replace("head", "heads").replace("block", "blocks") for k in kinds]
    return f"{', '.join(others)} and {last}" if others else last


def stack_of(site: str) -> str:
    """The stack that a site is in: `enc` or `dec`."""
    return "enc" if site.startswith("enc") else "dec"


class Column(dict[Head, Any]):
    """The values of one measure; a head can also be asked for by its name, `"enc.0.3"`."""

    def __missing__(self, head: object) -> Any:
        if isinstance(head, str) and Head.parse(head) in self:
            return self[Head.parse(head)]
        raise KeyError(head)

    def __contains__(self, head: object) -> bool:
        return super().__contains__(Head.parse(head) if isinstance(head, str) else head)


TABLE = "head-table.json"
TABLE_CSV = "head-table.csv"
OLD_TABLES = ("heads.json", "heads.csv")
"""What earlier versions called the two in an analysis folder."""


class HeadTable:
    """One row per head, one column per measure. Analyses add columns.

    `print(table)` shows it, `table["lrp"]["enc.0.3"]` is one number, `table.sort("lrp")` has the
    largest first, `table.plot("lrp")` draws layers by heads, `table.to_pandas()` is a data frame.
    """

    def __init__(self, heads: Iterable[Head]) -> None:
        self.heads = sorted(set(heads), key=lambda h: (ALL_SITES.index(h.site), h.layer, h.index))
        self.columns: dict[str, dict[Head, Any]] = {}

    def add(self, name: str, values: Mapping[Head, Any]) -> None:
        """Add or replace one column; heads without a value stay empty."""
        stray = set(values) - set(self.heads)
        if stray:
            raise ValueError(
                f"column {name} has heads that are not in the table: {sorted(map(str, stray))}"
            )
        self.columns[name] = Column(values)

    def add_rows(self, rows: Mapping[Head, Mapping[str, Any]]) -> None:
        """Add all columns of flat rows, as `rows` gives them, for the heads of this table."""
        names = [n for row in rows.values() for n in row if n not in ("head", *HEAD_FIELDS)]
        known = [head for head in rows if head in set(self.heads)]
        for name in dict.fromkeys(names):
            values = {head: v for head in known if (v := rows[head].get(name)) is not None}
            if any(isinstance(v, float) and not math.isfinite(v) for v in values.values()):
                raise ValueError(f"column '{name}' has infinite numbers, or none")
            self.add(name, values)

    def __getitem__(self, name: str) -> dict[Any, Any]:
        if name not in self.columns:
            have = ", ".join(self.columns) or "none"
            raise UserError(f"The head table has no column '{name}'.", f"It has: {have}.")
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.heads)

    def sort(self, name: str, descending: bool = True) -> HeadTable:
        """A table with the rows in the order of a column; heads without a value come last."""
        column = self[name]
        known = [head for head in self.heads if column.get(head) is not None]
        table = HeadTable(self.heads)
        table.columns = dict(self.columns)
        table.heads = sorted(known, key=lambda head: column[head], reverse=descending)
        table.heads += [head for head in self.heads if head not in set(known)]
        return table

    def to_pandas(self) -> Any:
        """The table as a data frame, indexed by the names of heads."""
        try:
            import pandas
        except ImportError as error:
            raise UserError("pandas is not installed.", "Run: pip install pandas.") from error
        return pandas.DataFrame(self.rows()).set_index("head")

    def plot(self, name: str | None = None) -> Figure:
        """A column as grids of layers by heads, one per site; by default the first column."""
        return plot_heads(self, name)

    def __str__(self) -> str:
        names = ["head", *self.columns]
        rows = [names, *([_cell(row[name]) for name in names] for row in self.rows())]
        widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
        lines = ("  ".join(map(str.rjust, row, widths)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def rows(self) -> list[dict[str, Any]]:
        """The table as a list of flat rows."""
        return [
            {"head": str(head), "site": head.site, "layer": head.layer, "index": head.index}
            | {name: column.get(head) for name, column in self.columns.items()}
            for head in self.heads
        ]

    def save(self, folder: Path) -> None:
        """Write `head-table.csv` and `head-table.json` into an analysis folder."""
        rows = self.rows()
        write_json(folder / TABLE, rows)
        write_csv(folder / TABLE_CSV, rows, ["head", *HEAD_FIELDS, *self.columns])
        for name in OLD_TABLES:  # their content is in the new ones
            (folder / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Path, heads: Iterable[Head], others: Iterable[Head] = ()) -> HeadTable:
        """The table of an analysis folder, or an empty one.

        It has a row for each of the heads, and for those of the others that were measured.
        """
        path = folder / TABLE if (folder / TABLE).exists() else folder / OLD_TABLES[0]
        if not path.exists():
            return cls(heads)
        with parsing(path, "Restore it, or remove it and measure again."):
            rows = {Head.parse(row["head"]): row for row in read_json(path)}
            table = cls([*heads, *(head for head in others if head in rows)])
            table.add_rows(rows)
        return table

    def _repr_html_(self) -> str:
        """How a notebook shows the table."""
        from html import escape

        names = ["head", *self.columns]
        cells = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_cell(row[n]))}</td>" for n in names) + "</tr>"
            for row in self.rows()
        )
        return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class HeadLayout:
    """Which heads exist in each layer of each site; a pruned model has fewer, maybe none.

    Likewise which blocks of units and which residual blocks. A residual block that is gone has no
    heads or units.
    """

    layers: Mapping[str, tuple[tuple[int, ...], ...]]

    @classmethod
    def full(
        cls,
        encoder_layers: int,
        decoder_layers: int,
        heads: int,
        decoder_heads: int | None = None,
        units: tuple[int, int] | None = None,
    ) -> HeadLayout:
        """Every layer of every site with all of its heads.

        `units` are the numbers of blocks of units in a layer of the encoder and of the decoder;
        without them nothing but heads is listed.
        """
        counts = {"enc": heads, "dec": decoder_heads or heads, "cross": decoder_heads or heads}
        if units is not None:
            counts |= dict(zip(UNIT_SITES, units, strict=True))
            counts |= {site: len(blocks) for site, blocks in BLOCKS.items()}
        depths = {"enc": encoder_layers, "dec": decoder_layers}
        return cls(
            {
                site: (tuple(range(count)),) * depths[stack_of(site)]
                for site, count in counts.items()
            }
        )

    def heads(self, sites: Iterable[str] = SITES) -> list[Head]:
        """All heads that exist at the given sites."""
        wanted = set(sites)
        return [
            Head(site, layer, index)
            for site in ALL_SITES
            if site in wanted
            for layer, indices in enumerate(self.layers.get(site, ()))
            for index in indices
        ]

    def keeping(self, kept: Iterable[Head], sites: Iterable[str] = SITES) -> HeadLayout:
        """The layout in which the given sites keep only the given heads."""
        kept, wanted = set(kept), set(sites)
        layers = {
            site: tuple(
                tuple(i for i in indices if site not in wanted or Head(site, layer, i) in kept)
                for layer, indices in enumerate(layers)
            )
            for site, layers in self.layers.items()
        }
        return HeadLayout(layers)._without_lost_blocks()

    def filled(self, full: HeadLayout) -> HeadLayout:
        """This layout, with all of `full` at sites that it does not list (earlier versions)."""
        return HeadLayout({**full.layers, **self.layers})

    def fits(self, full: HeadLayout) -> bool:
        """Whether a model that had all of `full` may have been pruned to this."""
        depths = all(len(self.layers[site]) == len(full.layers[site]) for site in full.layers)
        known = set(self.heads(ALL_SITES)) <= set(full.heads(ALL_SITES))
        return depths and known and self == self._without_lost_blocks()

    def has_block(self, site: str, layer: int) -> bool:
        """Whether the residual block that holds an attention or a feed-forward network exists."""
        above = f"{stack_of(site)}_layers"
        return above not in self.layers or BLOCKS[above].index(site) in self.layers[above][layer]

    def _without_lost_blocks(self) -> HeadLayout:
        return HeadLayout(
            {
                site: layers
                if site in BLOCKS
                else tuple(h if self.has_block(site, i) else () for i, h in enumerate(layers))
                for site, layers in self.layers.items()
            }
        )

    def count(self, site: str) -> int:
        """How many heads a site has in all of its layers."""
        return sum(len(indices) for indices in self.layers.get(site, ()))

    def to_json(self) -> dict[str, list[list[int]]]:
        """The form in which `heads.json` keeps it."""
        return {site: [list(i) for i in layers] for site, layers in self.layers.items()}

    @classmethod
    def from_json(cls, value: Any, where: str) -> HeadLayout:
        """Read the form of `heads.json`; earlier versions list nothing but heads."""
        with parsing(Path(where), "Restore the file."):
            sites = [site for site in ALL_SITES if site in SITES or site in value]
            layers = {site: tuple(map(tuple, value[site])) for site in sites}
            for site, layer, indices in ((s, n, i) for s in sites for n, i in enumerate(layers[s])):
                if not all(type(index) is int and index >= 0 for index in indices):
                    raise ValueError(f"{site}.{layer}: heads are whole numbers from 0 on")
                if list(indices) != sorted(set(indices)):
                    raise ValueError(f"{site}.{layer} lists a head twice, or not in order")
        return cls(layers)


CELL = 0.42


def plot_heads(table: HeadTable, name: str | None = None) -> Figure:
    """Draw a column of numbers; the darker, the more."""
    from headcount.picture import Picture

    name = name or next((n for n in table.columns if _numeric(table, n)), None)
    if name is None or not _numeric(table, name):
        raise UserError(
            "There is no column of numbers to draw." if name is None else f"{name} has no numbers.",
            "Rank the heads first.",
        )
    column = table[name]
    sites = [site for site in ALL_SITES if any(head.site == site for head in table.heads)]
    grids = [_grid(table, column, site) for site in sites]
    # The one head of a layer has all of its relevance, which would leave all others pale.
    scale = [grid for grid in grids if grid.shape[1] > 1] or grids
    largest = max(float(np.nanmax(grid, initial=0.0)) for grid in scale) or 1.0
    smallest = min(0.0, *(float(np.nanmin(grid, initial=0.0)) for grid in grids))
    width = sum(CELL * grid.shape[1] + 0.7 for grid in grids)
    height = CELL * max(grid.shape[0] for grid in grids) + 0.9
    figure = Picture(figsize=(width, height), layout="constrained")
    ratios = [grid.shape[1] for grid in grids]
    axes = figure.subplots(1, len(grids), squeeze=False, width_ratios=ratios)[0]
    for site, grid, each in zip(sites, grids, axes, strict=True):
        each.imshow(grid, cmap="Blues", vmin=smallest, vmax=largest)
        for (layer, index), value in np.ndenumerate(grid):
            if not np.isnan(value):
                dark = min(value, largest) - smallest > 0.6 * (largest - smallest)
                ink = "white" if dark else "#222222"
                each.text(index, layer, f"{value:.2g}".replace("0.", ".", 1), ha="center",
                          va="center", fontsize=6, color=ink)  # fmt: skip
        each.set_title(fill(SITE_NAMES[site], 6 + 4 * grid.shape[1]), fontsize=8)
        each.set_xticks(range(grid.shape[1]))
        each.set_yticks(range(grid.shape[0]))
        each.set_xlabel("head", fontsize=8)
        each.tick_params(length=0, labelsize=7)
        each.spines[:].set_visible(False)
    axes[0].set_ylabel("layer", fontsize=8)
    figure.suptitle(name, fontsize=9)
    return figure


def _numeric(table: HeadTable, name: str) -> bool:
    values = [value for value in table[name].values() if value is not None]
    return bool(values) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )


def _grid(table: HeadTable, column: dict[Any, Any], site: str) -> np.ndarray:
    """A column's values at a site, `[layers, heads]`, NaN where there is no head or no value."""
    heads = [head for head in table.heads if head.site == site]
    layers, indices = (1 + max(getattr(h, n) for h in heads) for n in ("layer", "index"))
    grid = np.full((layers, indices), np.nan)
    for head in heads:
        value = column.get(head)
        grid[head.layer, head.index] = np.nan if value is None else float(value)
    return grid
