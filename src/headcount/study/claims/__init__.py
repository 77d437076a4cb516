"""The paper's findings as statements about a study, each with a criterion fixed beforehand."""

from __future__ import annotations

from headcount.study.cases import cases_of
from headcount.study.claims.all_pruning import ALL_SITES_CLAIMS
from headcount.study.claims.encoder_pruning import ENCODER_CLAIMS
from headcount.study.claims.heads import HEAD_CLAIMS
from headcount.study.claims.verdict import Verdict, check_claims
from headcount.study.results import StudyResults

CLAIMS = [*HEAD_CLAIMS, *ENCODER_CLAIMS, *ALL_SITES_CLAIMS]
"""What a report checks, in the order of the paper; you can append your own."""


def check(results: StudyResults) -> list[Verdict]:
    """The verdict on every claim."""
    return check_claims(CLAIMS, cases_of(results))
