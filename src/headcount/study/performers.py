"""Which head performs each function best, and what comes nearest where no head has one."""

from __future__ import annotations

from dataclasses import dataclass

from headcount.heads import Head
from headcount.role import ROLES, kinds_at
from headcount.role.head_roles import BestHead, Role
from headcount.role.result import Roles


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
