"""How to prune: every choice of `headcount prune`, validated, and the selection that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from headcount.bench.costs import Costs
from headcount.bench.engines import ENGINES
from headcount.config import Config, Count, Positive, Precision, Section, TrainingConfig
from headcount.errors import UserError
from headcount.heads import (
    ALL_SITES,
    SITE_NAMES,
    TABLE_CSV,
    Head,
    HeadLayout,
    kind_of,
    kinds_at,
    parse_sites,
    stack_of,
)
from headcount.model.transformer import full_layout
from headcount.pruning.by_score import known_scores, numbers_of
from headcount.pruning.methods import (
    EXACT,
    GATES,
    METHODS,
    NEEDS,
    TIMED,
    Method,
    canonical,
    method_named,
)
from headcount.pruning.selection import Request, Selection, check_room
from headcount.ranking.measures import MEASURES, check_sites
from headcount.registry import name_list
from headcount.run import Run, resolve_run
from headcount.yaml_reading import plain_reason

Site = Literal["enc", "dec", "cross", "enc_ff", "dec_ff", "enc_layers", "dec_layers"]
Part = Literal["encoder", "decoder", "gates"]

PositiveNumber = Annotated[float, Field(gt=0, allow_inf_nan=False)]

DEFAULT_UPDATES = 1500

DISTIL = 0.5
"""The teacher's share where a teacher is named without one."""


def _named_sites(settings: dict[str, Any]) -> tuple[Site, ...]:
    """The sites where none are given: those that `keep` names, or all of them for a speed-up."""
    keep = settings.get("keep")
    if isinstance(keep, dict):
        return tuple(keep)
    return get_args(Site) if settings.get("speedup") is not None else ("enc",)


class PruneSettings(Section):
    """One pruning. Exactly one of `penalty`, `keep` and `speedup` is given.

    Heads stand for whatever the sites have: heads, blocks of units, whole blocks.

    penalty             what an open head costs, in nats per target token
    keep                how many heads stay: of all sites together where these are of one kind, or
                        of each site, `{"enc": 12, "enc_ff": 40}`, written `enc=12,enc_ff=40`
    speedup             how many times as fast the model is to be, in the `engine`
                        (`bench.engines.ENGINES`) with a `batch` of sentences
    by                  a method of `pruning.methods.METHODS`, or a column of the run's head table;
                        by default `gates` with a penalty, `exact` with a number of heads and
                        `timed` with a speed-up
    even                with `keep`: the same number in each layer of a site
    sites               where heads are pruned; by default those of `keep`; with `speedup` all that
                        the run has; else `enc`
    ff_block            units of feed-forward networks that are pruned together; by default the
                        run's `model.ff_block`
    train_only          parts of the model whose weights train; `gates`: none
    from_scratch        begin with random weights
    seed                of noise, batches and random scores
    updates             of training in all; 0 where heads are ranked: none
    finetune            the last of them, with heads held fixed; more where gates settle earlier
    steps               where heads are ranked: in how many steps they are masked
    learning_rate       of the weights, while heads are chosen
    gate_learning_rate  of the gates
    start               logit of every gate at the start
    warmup              updates until the penalty has its full weight
    patience            updates without a change after which gates have settled
    batch_tokens        source tokens per update
    precision           of the matrix products while training; by default as the run was trained
    distil              the share of the target distribution that is a teacher's; None: no teacher
    teacher             a run with the same vocabulary; by default the run that is pruned
    distil_states       weight of the mean squared difference from the teacher's encoder states
    minutes             of training at most
    dev_sentences       dev pairs for the loss, and `bleu_sentences` for greedy BLEU
    """

    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    keep: Count | dict[Site, Count] | None = None
    speedup: Annotated[float, Field(gt=1, allow_inf_nan=False)] | None = None
    engine: str | None = None
    batch: Positive | None = None
    by: str | None = None
    even: bool = False
    sites: tuple[Site, ...] = None  # type: ignore[assignment]
    ff_block: Positive | None = None
    train_only: tuple[Part, ...] | None = None
    from_scratch: bool = False
    seed: Count = 1
    updates: Count | None = None
    finetune: Count | None = None
    steps: Positive = 4
    learning_rate: PositiveNumber = 5e-4
    gate_learning_rate: PositiveNumber | None = None
    start: Annotated[float, Field(allow_inf_nan=False)] = 2.5
    warmup: Count | None = None
    patience: Positive = 200
    batch_tokens: Positive | None = None
    precision: Precision | None = None
    distil: Annotated[float, Field(gt=0, le=1)] | None = None
    teacher: Path | None = None
    distil_states: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    minutes: PositiveNumber | None = None
    dev_sentences: Positive = 1000
    bleu_sentences: Count = 500

    @field_validator("keep", mode="before")
    @classmethod
    def _parse_keep(cls, value: Any) -> Any:
        if not isinstance(value, str) or value.strip().isdigit():
            return value
        parts = [part.partition("=") for part in name_list(value)]
        if not parts or not all(equals and number.strip().isdigit() for _, equals, number in parts):
            raise ValueError("write a number, or one for each site: enc=12,enc_ff=40")
        names = parse_sites([name.strip() for name, _, _ in parts], ALL_SITES, "site")
        if len(names) < len(parts):
            raise ValueError("a site is named twice")
        return {name.strip(): int(number) for name, _, number in parts}

    @field_validator("sites", mode="before")
    @classmethod
    def _parse_sites(cls, value: Any, info: ValidationInfo) -> Any:
        if value is None:
            return _named_sites(info.data)
        return parse_sites(value, ALL_SITES, "site") if isinstance(value, str) else value

    @field_validator("train_only", mode="before")
    @classmethod
    def _parse_parts(cls, value: Any) -> Any:
        return name_list(value) if isinstance(value, str) else value

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, name: str | None) -> str | None:
        if name is not None and name not in ENGINES:
            raise ValueError(f"choose among {', '.join(ENGINES)}")
        return name

    @field_validator("by")
    @classmethod
    def _current_name(cls, name: str | None) -> str | None:
        return None if name is None else canonical(name)

    @model_validator(mode="after")
    def _one_method(self) -> PruneSettings:
        targets = [name for name in NEEDS if getattr(self, name) is not None]
        if len(targets) != 1:
            raise ValueError("give one of --penalty, --keep and --speedup")
        method = self.method
        if method.needs not in targets:
            raise ValueError(
                f"--by {method.name} needs {NEEDS[method.needs]} instead of --{targets[0]},"
                " or leave out --by"
            )
        if self.speedup is None and (self.engine or self.batch):
            raise ValueError("--engine and --batch say where --speedup is measured")
        if self.even and self.keep is None:
            raise ValueError("even layers need a number of heads to keep")
        if self.from_scratch and method.scores:
            raise ValueError("a model trained from scratch has no scores to prune by")
        if self.updates == 0 and method.learned:
            raise ValueError("--updates 0: only pruning by a score works without training")
        if method.scores and self.updates != 0 and self.train_only == ("gates",):
            raise ValueError("pruning by a score has no gates to train; use --no-finetune")
        if not self.sites:
            raise ValueError("name at least one site")
        if isinstance(self.keep, dict) and set(self.keep) != set(self.sites):
            raise ValueError("--keep names other sites than --sites; leave --sites out")
        if isinstance(self.keep, int) and len({kind_of(site) for site in self.sites}) > 1:
            numbers = ",".join(f"{site}={self.keep}" for site in self.sites)
            raise ValueError(
                f"{kinds_at(self.sites)} are not counted together; write --keep {numbers}"
            )
        return self

    @property
    def method(self) -> Method:
        """How heads are chosen."""
        default = GATES if self.penalty is not None else EXACT if self.speedup is None else TIMED
        return method_named(self.by or default)

    @property
    def choosing(self) -> int:
        """The updates in which heads are chosen; `self` must be resolved."""
        return (self.updates or 0) - (self.finetune or 0)

    def resolved(self, baseline: Config, layout: HeadLayout | None = None) -> PruneSettings:
        """The same settings with every default filled in.

        `layout` is what the baseline has, where it may have been pruned before.
        """
        training = baseline.training
        sites = self._existing_sites(layout or full_layout(baseline.model))
        updates = self.updates
        if updates is None:
            updates = training.updates if self.from_scratch else DEFAULT_UPDATES
        finetune = self.finetune
        if finetune is None:
            finetune = updates // 3
        warmup = self.warmup
        if warmup is None:
            # In a model with random weights it takes time to see which heads are useful.
            warmup = updates // 4 if self.from_scratch else min(100, updates // 4)
        parts = self.train_only or self._default_parts(sites)
        if set(parts) == {"gates"}:
            finetune = 0  # there would be nothing left to train
        if updates == 0:
            finetune = 0
        elif finetune > updates or (finetune == updates and self.method.learned):
            raise UserError(
                f"--finetune {finetune} of {updates} updates leaves none to choose heads in.",
                "Fine-tune for fewer, or raise --updates.",
            )
        filled = {
            "by": self.method.name,
            "sites": sites,
            "train_only": parts,
            "updates": updates,
            "finetune": finetune,
            "warmup": warmup,
            "gate_learning_rate": self.gate_learning_rate or self.method.gate_learning_rate,
            "batch_tokens": self.batch_tokens or training.batch_tokens,
            "engine": self.engine or (self.speedup and "headcount"),
            "batch": self.batch or (self.speedup and 1),
            "distil": self.distil or (DISTIL if self.teacher or self.distil_states else None),
        }
        return PruneSettings(**(self.model_dump() | filled))

    def _existing_sites(self, layout: HeadLayout) -> tuple[Site, ...]:
        """The sites in their order; of a speed-up at all sites those where there is something."""
        sites = tuple(site for site in get_args(Site) if site in self.sites)
        if self.speedup is None or sites != get_args(Site):
            return sites
        return tuple(site for site in sites if layout.count(site)) or sites

    def _default_parts(self, sites: tuple[Site, ...]) -> tuple[Part, ...]:
        """The side whose heads are pruned (Sec. 6.2: functions must not move to the other)."""
        sides = {stack_of(site) for site in sites}
        if self.from_scratch or len(sides) > 1:
            return ("encoder", "decoder")
        return ("encoder",) if "enc" in sides else ("decoder",)

    def training(self, baseline: TrainingConfig, run: Path) -> TrainingConfig:
        """How the loop runs, for a baseline in the folder `run`; `self` must be resolved."""
        updates = max(1, self.updates or 0)
        tokens = self.batch_tokens or baseline.batch_tokens
        return baseline.model_copy(
            update={
                "seed": self.seed,
                "hold_positions": False,  # pruning trains all of the encoder
                "updates": updates,
                "batch_tokens": tokens,
                "precision": self.precision or baseline.precision,
                "device_tokens": min(tokens, baseline.device_tokens),
                "log_every": max(1, min(20, updates // 10)),
                "evaluate_every": max(1, updates // 5),
                "save_every": max(1, min(1000, updates // 10)),
                "keep_checkpoints": 2,
                "average_checkpoints": 0,
                "patience": 0,
                "teacher": resolve_run(self.teacher or run).absolute() if self.distil else None,
                "distil": self.distil or DISTIL,
                "distil_states": self.distil_states or 0.0,
                "minutes": self.minutes,
                "dev_sentences": self.dev_sentences,
                "bleu_sentences": self.bleu_sentences,
                "watch_heads": False,
            }
        )


def make_settings(**fields: Any) -> PruneSettings:
    """Settings from what a person typed; the first problem becomes one readable line."""
    try:
        return PruneSettings(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = "--" + str(first["loc"][0]).replace("_", "-") if first["loc"] else "prune"
        value = "" if not first["loc"] else f" {first['input']}"
        raise UserError(
            f"{name}{value}: {plain_reason(first)}.", "See `headcount prune --help`."
        ) from error


def check_heads(settings: PruneSettings, layout: HeadLayout, where: str) -> None:
    """Stop where the model does not have the heads that the settings ask for."""
    there = ", ".join(site for site in ALL_SITES if layout.count(site))
    for site in settings.sites:
        if not layout.count(site):
            raise UserError(
                f"{where} has no {kind_of(site)} at site {site} ({SITE_NAMES[site]}).",
                f"There is something to prune at {there}." if there else "Prune another run.",
            )
    for sites, keep in _wanted(settings):
        most = len(layout.heads(sites))
        if keep > most:
            raise UserError(
                f"--keep {keep}: {where} has only {most} {kinds_at(sites)} at {','.join(sites)}.",
                f"Keep at most {most}.",
            )
    budgets(settings, layout)


def _wanted(settings: PruneSettings) -> list[tuple[tuple[Site, ...], int]]:
    """Sites whose heads compete with one another, and how many of them stay."""
    if isinstance(settings.keep, dict):
        return [((site,), settings.keep[site]) for site in settings.sites]
    return [] if settings.keep is None else [(settings.sites, settings.keep)]


def budgets(settings: PruneSettings, layout: HeadLayout) -> tuple[list[list[int]], list[int]]:
    """Groups of indices into `layout.heads(sites)`, and how many heads of each group stay.

    One group of all heads or of each site, or with `even` each layer of each site, all layers with
    the same number. Stops where more are to stay than the whole blocks that stay can hold.
    """
    heads = layout.heads(settings.sites)
    groups: list[list[int]] = []
    numbers: list[int] = []
    for sites, keep in _wanted(settings):
        if not settings.even:
            groups.append([p for p, head in enumerate(heads) if head.site in sites])
            numbers.append(keep)
            continue
        layers = [(site, i) for site in sites for i in range(len(layout.layers[site]))]
        each, rest = divmod(keep, len(layers))
        if rest:
            raise UserError(
                f"--keep {keep} --even: {keep} {kinds_at(sites)} are not the same number in each"
                f" of {len(layers)} layers.",
                f"Keep {each * len(layers)} or {(each + 1) * len(layers)}.",
            )
        for place in layers:
            groups.append([p for p, h in enumerate(heads) if (h.site, h.layer) == place])
            numbers.append(each)
            if len(groups[-1]) < each:
                raise UserError(
                    f"--keep {keep} --even: layer {place[0]}.{place[1]} has fewer than {each}"
                    f" {kinds_at(sites)}.",
                    "Keep fewer, or leave --even out.",
                )
    check_room(heads, groups, numbers)
    return groups, numbers


def even_remarks(settings: PruneSettings, layout: HeadLayout) -> list[str]:
    """Whether `even` leaves a decoder's two kinds of attention with different numbers of heads.

    Engines that need even layers have one number for both.
    """
    both = ("dec", "cross")
    if not settings.even or not set(both) & set(settings.sites):
        return []
    left = {site: {len(heads) for heads in layout.layers[site]} for site in both}
    for sites, keep in _wanted(settings):
        layers = sum(len(layout.layers[site]) for site in sites)
        left |= {site: {keep // layers} for site in sites if site in both}
    if len(left["dec"] | left["cross"]) == 1:
        return []
    dec, cross = (" or ".join(map(str, sorted(left[site]))) for site in both)
    return [
        f"Heads per layer will be {dec} at dec and {cross} at cross. CTranslate2 has one number for"
        " both and fills up with heads of zeros: if the run is to be exported there, keep as many"
        " at dec as at cross."
    ]


def check_choice(settings: PruneSettings, run: Run) -> None:
    """Stop if `by` is neither a method nor a column of the head table, or if that is damaged."""
    name = settings.method.name
    if name in MEASURES:
        check_sites(name, settings.sites)
        known_scores(run, name, settings.sites)  # read now: a refusal should leave nothing behind
    if name in METHODS:
        return
    numeric = [column for column, values in numbers_of(run, settings.sites).items() if values]
    if name not in numeric:
        known = dict.fromkeys([*METHODS, *numeric])
        raise UserError(
            f"--by {name}: no pruning method, and {run.analysis / TABLE_CSV} has no such numbers"
            f" of the heads at {','.join(settings.sites)}.",
            f"Choose among {', '.join(known)}.",
        )


def make_selection(
    settings: PruneSettings,
    layout: HeadLayout,
    device: torch.device,
    scores: Mapping[Head, float] | None,
    costs: Costs | None = None,
    weights: Mapping[Head, int] | None = None,
) -> Selection:
    """The selection that the (resolved) settings ask for.

    `scores` where the method ranks heads, `costs` where it goes by time, `weights` of all heads
    and blocks of units.
    """
    groups, numbers = budgets(settings, layout)
    heads, updates = layout.heads(settings.sites), max(1, settings.choosing)
    request = Request(
        settings,
        heads,
        device,
        updates,
        groups,
        numbers,
        scores,
        layout=layout,
        costs=costs,
        weights=weights,
    )
    return settings.method.make(request)
