"""The rules by name."""

from __future__ import annotations

from headcount.ranking.alphabeta import AlphaBeta
from headcount.ranking.options import LrpOptions
from headcount.ranking.ratio import Ratio, Telescoped
from headcount.ranking.rule import Rule


def make_rule(options: LrpOptions) -> Rule:
    """The rule that the options ask for."""
    if options.telescopes:
        return Telescoped(options)
    if options.rule == "ratio":
        return Ratio(options)
    alpha = {"alphabeta": 0.5, "zplus": 1.0}[options.rule]
    return AlphaBeta(options, alpha, 1 - alpha)
