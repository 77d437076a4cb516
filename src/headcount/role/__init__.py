"""What each head does (Sec. 5): positional, syntactic, rare words; one file per role.

The package has the singular as its name because `headcount.roles` is the verb, a plain function.
"""

from __future__ import annotations

from headcount.registry import Registry
from headcount.role.diagonal import Diagonal
from headcount.role.kind import RoleKind
from headcount.role.positional import Positional
from headcount.role.rare_words import RareWords
from headcount.role.syntactic import Syntactic

POSITIONAL, SYNTACTIC, RARE_WORDS, DIAGONAL = Positional(), Syntactic(), RareWords(), Diagonal()

ROLES: Registry[RoleKind] = Registry("role", [POSITIONAL, SYNTACTIC, RARE_WORDS, DIAGONAL])


def kinds_at(site: str) -> list[str]:
    """The names of the roles that heads of a site can have."""
    return [name for name, kind in ROLES.items() if site in kind.sites]
