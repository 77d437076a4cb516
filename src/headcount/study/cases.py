"""A full model with everything derived from it: the unit that figures and claims work on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from headcount.heads import SITES, Head
from headcount.pruning.methods import method_named
from headcount.role import ROLES, kinds_at
from headcount.role.head_roles import BestHead, Role
from headcount.role.result import Roles
from headcount.study.recipe import FULL, PRUNED, SCRATCH
from headcount.study.results import StudyModel, StudyResults


@dataclass(frozen=True)
class Case:
    """One full model, and the pruned and from-scratch models that descend from it."""

    label: str
    full: StudyModel
    pruned: tuple[StudyModel, ...]
    scratch: tuple[StudyModel, ...]

    def pruned_at(self, sites: Sequence[str]) -> list[StudyModel]:
        """Models with heads pruned at exactly these sites, those with most heads first."""
        wanted = tuple(site for site in SITES if site in sites)
        chosen = [model for model in self.pruned if model.sites == wanted]
        return sorted(chosen, key=lambda m: (-retained(m, wanted), m.id))

    @cached_property
    def encoder_learned(self) -> list[StudyModel]:
        """Encoder prunings in which training decided, those with most heads first (Sec. 6.2)."""
        return [model for model in self.pruned_at(("enc",)) if is_learned(model)]

    @cached_property
    def all_sites_learned(self) -> list[StudyModel]:
        """Prunings of all attention in which training decided (Sec. 6.3)."""
        return [model for model in self.pruned_at(SITES) if is_learned(model)]

    def controls(self, sites: Sequence[str]) -> list[StudyModel]:
        """Fine-tuned as prunings at these sites are, but asked to lose nothing."""
        total = retained(self.full, sites)
        return [m for m in self.pruned_at(sites) if m.is_control or m.keep == total]

    @cached_property
    def encoder_heads(self) -> int:
        """How many encoder heads the full model has."""
        return self.full.heads.count("enc")

    def twins(self) -> list[tuple[StudyModel, StudyModel]]:
        """Each pruned model that has a from-scratch twin, with that twin."""
        by_id = {model.id: model for model in self.pruned}
        pairs = [(by_id[str(m.baseline)], m) for m in self.scratch if m.baseline in by_id]
        return sorted(pairs, key=lambda pair: (-retained(pair[0]), pair[0].id))


def cases_of(results: StudyResults) -> list[Case]:
    """All full models of a study with their descendants, in the order of the study."""
    labels = _labels(results)
    cases = []
    for full in results.models:
        if full.kind != FULL:
            continue
        pruned = [m for m in results.models if m.kind == PRUNED and m.baseline == full.id]
        ids = {model.id for model in pruned}
        scratch = [m for m in results.models if m.kind == SCRATCH and m.baseline in ids]
        cases.append(Case(labels[full.id], full, tuple(pruned), tuple(scratch)))
    return cases


def first_seeds(cases: Iterable[Case]) -> list[Case]:
    """One case for each language pair and domain: the first where several seeds were trained."""
    chosen: dict[tuple[str, str], Case] = {}
    for case in cases:
        chosen.setdefault((case.full.pair, case.full.domain), case)
    return list(chosen.values())


def by_setting(models: Iterable[StudyModel]) -> list[list[StudyModel]]:
    """Pruned models in groups that differ in nothing but the seed, first seeds first."""
    groups: dict[tuple[Hashable, ...], list[StudyModel]] = {}
    for model in models:
        groups.setdefault(setting_of(model), []).append(model)
    return [sorted(group, key=lambda m: (m.seed or 0, m.id)) for group in groups.values()]


def setting_of(model: StudyModel) -> tuple[Hashable, ...]:
    """What a pruned model shares with those that differ from it in nothing but the seed."""
    return (model.baseline, model.sites, model.method, model.penalty, model.keep)


def retained(model: StudyModel, sites: Sequence[str] = SITES) -> int:
    """How many heads a model has at these sites."""
    return sum(model.heads.count(site) for site in sites)


def mean_heads(models: Sequence[StudyModel], sites: Sequence[str]) -> float:
    """How many heads these models keep on average."""
    return round(fmean(retained(model, sites) for model in models), 1)


def mean_over_settings(models: Iterable[StudyModel], of: Callable[[StudyModel], float]) -> float:
    """The mean of a number over settings, each counting once for all its seeds."""
    return fmean(fmean(map(of, group)) for group in by_setting(models))


def is_learned(model: StudyModel) -> bool:
    """Whether training decided which heads a pruned model keeps."""
    return model.method is not None and method_named(model.method).learned


def is_specialised(model: StudyModel, head: Head) -> bool:
    """Whether a head has one of the paper's functions in this model."""
    return bool(functions_of(model, head))


def functions_of(model: StudyModel, head: Head) -> list[Role]:
    """The functions of an encoder head, in the order of the registry."""
    roles = [] if model.roles is None else model.roles.of(head)
    kinds = kinds_at("enc")
    chosen = [role for role in roles if role.kind in kinds]
    return sorted(chosen, key=lambda role: (kinds.index(role.kind), -role.value))


def _labels(results: StudyResults) -> dict[str, str]:
    """A name for each full model: the languages, with domain and seed where they are needed."""
    full = [model for model in results.models if model.kind == FULL]
    names = {}
    for model in full:
        pair = results.pair(model)
        languages = f"{pair.source}-{pair.target}".upper()
        rivals = [m for m in full if m is not model]
        same = [m for m in rivals if _languages(results, m) == _languages(results, model)]
        label = languages
        if any(m.domain != model.domain for m in same):
            label += f", {model.domain}"
        if any(m.domain == model.domain for m in same):
            label += f", seed {model.seed}" if model.seed is not None else f", {model.id}"
        names[model.id] = label
    return names


def _languages(results: StudyResults, model: StudyModel) -> tuple[str, str]:
    pair = results.pair(model)
    return pair.source, pair.target


@dataclass(frozen=True)
class Performer:
    """One function, the head that performs it best, and the others that have it, best first."""

    role: Role
    head: Head
    others: tuple[Head, ...]


def performers(roles: Roles, site: str = "enc") -> list[Performer]:
    """Every function that heads of a site have, in the order of the registry."""
    by_function: dict[tuple[str, str], list[tuple[Role, Head]]] = {}
    kinds = kinds_at(site)
    for head, measured in roles.heads.items():
        for role in measured.roles:
            if head.site == site and role.kind in kinds:
                by_function.setdefault((role.kind, role.name), []).append((role, head))
    order = sorted(by_function, key=lambda key: (kinds.index(key[0]), key[1]))
    best = []
    for key in order:
        ranked = sorted(by_function[key], key=lambda pair: -pair[0].value)
        best.append(Performer(*ranked[0], tuple(head for _, head in ranked[1:])))
    return best


def nearest_heads(roles: Roles, site: str = "enc") -> dict[str, str]:
    """For each kind of function that no head has, the one that comes nearest, and how near."""
    present = {performer.role.kind for performer in performers(roles, site)}
    lines = {}
    for kind in kinds_at(site):
        if kind in present:
            continue
        known = [b for b in roles.best if b.kind == kind and b.site == site and b.head is not None]
        best = max(known, key=_margin, default=None)
        if best is not None and best.score.value is not None:
            lines[kind] = (
                f"{best.head} {ROLES[kind].sentence(best.name)} in {100 * best.score.value:.0f} %"
                f" of cases ({ROLES[kind].baseline_is}: {100 * (best.baseline.value or 0.0):.0f} %)"
            )
    return lines


def _margin(line: BestHead) -> float:
    return -1.0 if line.margin.value is None else line.margin.value
