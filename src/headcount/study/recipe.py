"""What a study does: language pairs, how their models are analysed and pruned."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator

from headcount.config import Count, Positive, Section, readable_error
from headcount.errors import UserError
from headcount.files import require_file

Penalty = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Chooser = Literal["learned", "lrp", "confidence", "ablation", "gradient", "random"]


class AnalysisConfig(Section):
    """How many held-out sentences each analysis reads."""

    rank_sentences: Positive = 300
    role_sentences: Positive = 2000
    score_sentences: Positive = 1000
    sites: str = "enc,dec,cross"


class PruningConfig(Section):
    """Which prunings of a pair's model are made (Sec. 6)."""

    updates: Positive = 1500
    encoder_penalties: tuple[Penalty, ...] = ()
    encoder_keep: tuple[Count, ...] = ()
    keep_by: tuple[Chooser, ...] = ("learned", "lrp", "confidence", "random")
    all_penalties: tuple[Penalty, ...] = ()
    scratch_penalties: tuple[Penalty, ...] = ()
    seeds: Positive = 1

    @field_validator("scratch_penalties")
    @classmethod
    def _twins_of_something(cls, value: tuple[float, ...], info: Any) -> tuple[float, ...]:
        missing = set(value) - set(info.data.get("all_penalties", []))
        if missing:
            raise ValueError(f"no all-site pruning with penalty {sorted(missing)} to be a twin of")
        return value


class PairConfig(Section):
    """One language pair in one domain, and its model: trained here, or trained before."""

    name: Name
    domain: str = ""
    recipe: Path
    set: tuple[str, ...] = ()
    run: Path | None = None
    conllu: Path | None = None
    pruning: PruningConfig | None = None


class StudyConfig(Section):
    """A whole study."""

    title: str = "Which heads matter, what they do, which can go"
    pairs: Annotated[list[PairConfig], Field(min_length=1)]
    analysis: AnalysisConfig = AnalysisConfig()
    pruning: PruningConfig = PruningConfig()
    bench: bool = True

    @field_validator("pairs")
    @classmethod
    def _names_differ(cls, pairs: list[PairConfig]) -> list[PairConfig]:
        names = [pair.name for pair in pairs]
        if len(set(names)) < len(names):
            raise ValueError("two pairs have the same name")
        return pairs

    def pruning_of(self, pair: PairConfig) -> PruningConfig:
        """A pair's own prunings, or those of the study."""
        return pair.pruning or self.pruning


def load_study(path: Path) -> StudyConfig:
    """Read a study's recipe; paths in it are relative to the file."""
    require_file(path)
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} is not valid YAML: {reason}.", "Mend the file.") from error
    try:
        study = StudyConfig.model_validate(given)
    except ValidationError as error:
        raise readable_error(error, str(path), StudyConfig) from error
    for pair in study.pairs:
        pair.recipe = _beside(path, pair.recipe)
        pair.run = pair.run and _beside(path, pair.run)
        pair.conllu = pair.conllu and _beside(path, pair.conllu)
        require_file(pair.recipe)
    return study


def _beside(recipe: Path, path: Path) -> Path:
    return path if path.is_absolute() else recipe.parent / path
