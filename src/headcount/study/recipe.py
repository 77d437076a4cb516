"""What a study does: language pairs, how their models are analysed and pruned; and its models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationError, field_validator

from headcount.config import Config, Count, Positive, Precision, Section
from headcount.errors import UserError
from headcount.files import require_file
from headcount.heads import SITES
from headcount.pruning.methods import EXACT, GATES, METHODS, RANDOM, canonical
from headcount.run import CONFIG, WEIGHTS
from headcount.yaml_reading import read_yaml, readable_error

Penalty = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]


def _keep_method(text: str) -> str:
    """The name of a method that keeps a number of heads."""
    name = canonical(text)
    known = [method.name for method in METHODS.values() if method.needs == "keep"]
    if name not in known:
        raise ValueError(
            f"not a method that keeps a number of heads; choose among {', '.join(known)}"
        )
    return name


KeepMethod = Annotated[str, AfterValidator(_keep_method)]


def _some(ways: tuple[str, ...]) -> tuple[str, ...]:
    if not ways:
        raise ValueError("names no way to choose these heads; name one, or leave the number out")
    return ways


Ways = Annotated[tuple[KeepMethod, ...], AfterValidator(_some)]


class AnalysisConfig(Section):
    """How many held-out sentences each analysis reads."""

    rank_sentences: Positive = 300
    """Dev sentences for LRP, confidence, ablation and gradient (App. A.3)."""
    role_sentences: Positive = 2000
    """Test sentences, or parses, for the roles of heads."""
    score_sentences: Positive = 1000
    """Test sentences for BLEU and chrF."""
    sites: str = "enc,dec,cross"
    """Attention that is ranked."""


class PruningConfig(Section):
    """Which prunings of a pair's model are made (Sec. 6)."""

    updates: Positive = 1500
    """Of each pruning."""
    finetune: Count | None = None
    """The last of them, with heads held fixed; by default a third."""
    learning_rate: Annotated[float, Field(gt=0)] | None = None
    """Of the weights, instead of `prune`'s default."""
    batch_tokens: Positive | None = None
    """Source tokens per update; by default as the model was trained."""
    precision: Precision | None = None
    """Of the matrix products while pruning; by default as the model was trained."""
    distil: Annotated[float, Field(gt=0, le=1)] | None = None
    """The share of the target distribution that is the unpruned model's; `null`: no teacher."""
    encoder_penalties: tuple[Penalty, ...] = ()
    """Hard Concrete gates on encoder heads, one pruning each (Fig. 7, 8)."""
    keep_by: tuple[KeepMethod, ...] = (EXACT, "lrp", "confidence", RANDOM)
    """Ways to choose a number of heads: pruning methods with `--keep`; `prune --help` has all."""
    encoder_keep: dict[Count, Ways] = Field(default={})
    """Encoder heads to keep (Fig. 7): numbers with their ways, or a list: each in all `keep_by`."""
    all_penalties: tuple[Penalty, ...] = ()
    """Hard Concrete gates at all three sites (Table 2, Fig. 9, 10)."""
    scratch_penalties: tuple[Penalty, ...] = ()
    """Which of `all_penalties` get a twin trained from scratch (Table 2)."""
    seeds: Positive = 1
    """With how many seeds prunings are repeated."""
    repeated: tuple[str, ...] | None = None
    """The prunings to repeat, by their names: `[enc-penalty-0, enc-keep-10-exact]`; null: all."""

    @field_validator("finetune")
    @classmethod
    def _part_of_updates(cls, value: int | None, info: Any) -> int | None:
        updates = info.data.get("updates")
        if value is not None and updates is not None and value >= updates:
            raise ValueError(f"leaves none of the {updates} updates to choose heads in")
        return value

    @field_validator("repeated")
    @classmethod
    def _with_seeds(cls, value: tuple[str, ...] | None, info: Any) -> tuple[str, ...] | None:
        if value is not None and info.data.get("seeds") == 1:
            raise ValueError("needs `seeds` of 2 or more: with one nothing is repeated")
        if value == ():
            raise ValueError("names nothing to repeat; leave it out to repeat every pruning")
        return value

    @field_validator("encoder_keep", mode="before")
    @classmethod
    def _in_every_way(cls, value: Any, info: Any) -> Any:
        if isinstance(value, dict):
            return value
        if not isinstance(value, list | tuple) or any(isinstance(v, list | dict) for v in value):
            raise ValueError("must be a list of numbers, or numbers with a list of ways each")
        return dict.fromkeys(value, info.data.get("keep_by", ()))

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
    """Names the pair's folders and models; differs from pair to pair."""
    domain: str = ""
    """Two domains of one language pair can be compared (Table 1)."""
    recipe: Path
    """The training recipe, relative to this file."""
    set: tuple[str, ...] = ()
    """Changes to it, as for `--set`: `[model.layers=3]`."""
    run: Path | None = None
    """A run trained before; the recipe then only says what its data is and how twins train."""
    conllu: Path | None = None
    """Parses for the roles, not spaCy's of the test set; needed where the source is not English."""
    pruning: PruningConfig | None = None
    """Prunings of this pair, instead of the study's."""


class StudyConfig(Section):
    """A whole study."""

    title: str = "Which heads matter, what they do, which can go"
    """Shown on the report."""
    pairs: Annotated[list[PairConfig], Field(min_length=1)]
    """One language pair in one domain each."""
    analysis: AnalysisConfig = AnalysisConfig()
    """How much each analysis reads."""
    pruning: PruningConfig = PruningConfig()
    """Which prunings are made of every pair's model."""
    bench: bool = True
    """Time the first pair's full model against its learned prunings."""

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
    content = read_yaml(path)
    if "pairs" not in content and content.keys() & Config.model_fields:
        raise UserError(f"{path} is the recipe of a training.", "Give it to `headcount train`.")
    try:
        study = StudyConfig.model_validate(content)
    except ValidationError as error:
        raise readable_error(error, str(path), StudyConfig) from error
    for pair in study.pairs:
        pair.recipe = _beside(path, pair.recipe)
        pair.run = pair.run and _beside(path, pair.run)
        pair.conllu = pair.conllu and _beside(path, pair.conllu)
        require_file(pair.recipe)
        if pair.conllu and not pair.conllu.is_file():
            raise UserError(
                f"{path}: pair '{pair.name}': {pair.conllu} does not exist.",
                "Put parses there, or leave `conllu` out: spaCy then parses the test set.",
            )
        if pair.run and not all((pair.run / name).is_file() for name in (CONFIG, WEIGHTS)):
            raise UserError(
                f"{path}: pair '{pair.name}': {pair.run} is not a finished run.",
                "Give the folder of one, or leave `run` out to train it here.",
            )
    return study


def _beside(recipe: Path, path: Path) -> Path:
    return path if path.is_absolute() else recipe.parent / path


FULL, PRUNED, SCRATCH = "full", "pruned", "scratch"
KINDS = (FULL, PRUNED, SCRATCH)


@dataclass(frozen=True)
class Model:
    """One model of a study; its run folder is `runs/<id>`.

    kind      `full`: trained with all heads; `pruned`: heads were taken from its `baseline`;
              `scratch`: trained again with the heads of its `baseline`, which is a pruned model
    method    of `pruning.methods.METHODS`, or a column of the head table
    sites     where heads were pruned
    """

    id: str
    pair: str
    domain: str
    kind: str
    method: str | None = None
    sites: tuple[str, ...] = ()
    penalty: float | None = None
    keep: int | None = None
    seed: int | None = 1
    baseline: str | None = None

    @property
    def is_control(self) -> bool:
        """Whether it was fine-tuned as prunings are, with gates that cost nothing."""
        return self.kind == PRUNED and self.penalty == 0

    def to_json(self) -> dict[str, Any]:
        """As `study.json` lists it."""
        return {
            "id": self.id,
            "pair": self.pair,
            "domain": self.domain,
            "kind": self.kind,
            "method": self.method,
            "sites": list(self.sites),
            "penalty": self.penalty,
            "keep": self.keep,
            "seed": self.seed,
            "baseline": self.baseline,
            "run": f"runs/{self.id}",
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Model:
        """What `to_json` gave, in this version or an earlier one."""
        method = stored.get("method")
        return Model(
            id=str(stored["id"]),
            pair=str(stored["pair"]),
            domain=str(stored["domain"]),
            kind=str(stored["kind"]),
            method=None if method is None else canonical(str(method)),
            sites=tuple(site for site in SITES if site in (stored.get("sites") or ())),
            penalty=stored.get("penalty"),
            keep=stored.get("keep"),
            seed=stored.get("seed"),
            baseline=stored.get("baseline"),
        )


def models_of(study: StudyConfig, pair: PairConfig) -> list[Model]:
    """The full model of a pair first, then everything derived from it."""
    full = Model(f"{pair.name}-full", pair.name, pair.domain, FULL)
    pruning = study.pruning_of(pair)
    wanted = pruning.repeated
    models = [full]

    def add(name: str, seed: int, **more: Any) -> Model:
        end = "" if seed == 1 else f"-seed{seed}"
        base = {"pair": pair.name, "domain": pair.domain, "kind": PRUNED, "baseline": full.id}
        model = Model(f"{pair.name}-{name}{end}", seed=seed, **(base | more))
        if seed == 1 or wanted is None or name in wanted or model.kind == SCRATCH:
            models.append(model)
        return model

    for seed in range(1, pruning.seeds + 1):
        for penalty in pruning.encoder_penalties:
            add(f"enc-penalty-{penalty:g}", seed, method=GATES, sites=("enc",), penalty=penalty)
        for keep, ways in pruning.encoder_keep.items():
            for by in dict.fromkeys(ways):
                add(f"enc-keep-{keep}-{by}", seed, method=by, sites=("enc",), keep=keep)
        for penalty in pruning.all_penalties:
            everywhere: dict[str, Any] = {"sites": SITES, "penalty": penalty}
            pruned = add(f"all-penalty-{penalty:g}", seed, method=GATES, **everywhere)
            if penalty in pruning.scratch_penalties and pruned in models:  # twins follow
                twin = {"kind": SCRATCH, "baseline": pruned.id}
                add(f"scratch-penalty-{penalty:g}", seed, **(everywhere | twin))
    pruned_once = [model for model in models if model.kind == PRUNED and model.seed == 1]
    names = [model.id.removeprefix(f"{pair.name}-") for model in pruned_once]
    unknown = sorted(set(wanted or ()) - set(names))
    if unknown:
        raise UserError(
            f"{pair.name}: pruning.repeated names {', '.join(unknown)}, which is none of its"
            " prunings.",
            f"Choose among {', '.join(names)}.",
        )
    return models
