"""The models of a study: a full one for each language pair, its prunings, from-scratch twins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headcount.heads import SITES
from headcount.pruning.methods import GATES, canonical
from headcount.study.recipe import PairConfig, StudyConfig

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
    models = [full]

    def add(name: str, **more: Any) -> Model:
        base = {"pair": pair.name, "domain": pair.domain, "kind": PRUNED, "baseline": full.id}
        models.append(Model(f"{pair.name}-{name}", **(base | more)))
        return models[-1]

    for seed in range(1, pruning.seeds + 1):
        end = "" if seed == 1 else f"-seed{seed}"
        for penalty in pruning.encoder_penalties:
            add(
                f"enc-penalty-{penalty:g}{end}",
                method=GATES, sites=("enc",), penalty=penalty, seed=seed,
            )  # fmt: skip
        for keep in pruning.encoder_keep:
            for by in pruning.keep_by:
                add(
                    f"enc-keep-{keep}-{by}{end}",
                    method=by, sites=("enc",), keep=keep, seed=seed,
                )  # fmt: skip
        for penalty in pruning.all_penalties:
            pruned = add(
                f"all-penalty-{penalty:g}{end}",
                method=GATES, sites=SITES, penalty=penalty, seed=seed,
            )  # fmt: skip
            if penalty in pruning.scratch_penalties:
                add(
                    f"scratch-penalty-{penalty:g}{end}",
                    kind=SCRATCH, sites=SITES, penalty=penalty, seed=seed, baseline=pruned.id,
                )  # fmt: skip
    return models
