"""The models of a study: one full model a language pair, its prunings, their from-scratch twins."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headcount.heads import SITES
from headcount.study.recipe import PairConfig, StudyConfig


@dataclass(frozen=True)
class Model:
    """One model of a study; its run folder is `runs/<id>`."""

    id: str
    pair: str
    domain: str
    kind: str
    method: str | None = None
    sites: tuple[str, ...] = ()
    penalty: float | None = None
    keep: int | None = None
    seed: int = 1
    baseline: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As `study.json` lists it."""
        return {**asdict(self), "sites": list(self.sites), "run": f"runs/{self.id}"}


def models_of(study: StudyConfig, pair: PairConfig) -> list[Model]:
    """The full model of a pair first, then everything that is made from it."""
    full = Model(f"{pair.name}-full", pair.name, pair.domain, "full")
    pruning = study.pruning_of(pair)
    found = [full]

    def add(name: str, **more: Any) -> Model:
        base = {"pair": pair.name, "domain": pair.domain, "kind": "pruned", "baseline": full.id}
        found.append(Model(f"{pair.name}-{name}", **(base | more)))
        return found[-1]

    for seed in range(1, pruning.seeds + 1):
        end = "" if seed == 1 else f"-seed{seed}"
        for penalty in pruning.encoder_penalties:
            add(
                f"enc-penalty-{penalty:g}{end}",
                method="hard_concrete", sites=("enc",), penalty=penalty, seed=seed,
            )  # fmt: skip
        for keep in pruning.encoder_keep:
            for by in pruning.keep_by:
                method = "top_k" if by == "learned" else by
                add(
                    f"enc-keep-{keep}-{by}{end}",
                    method=method, sites=("enc",), keep=keep, seed=seed,
                )  # fmt: skip
        for penalty in pruning.all_penalties:
            pruned = add(
                f"all-penalty-{penalty:g}{end}",
                method="hard_concrete", sites=SITES, penalty=penalty, seed=seed,
            )  # fmt: skip
            if penalty in pruning.scratch_penalties:
                add(
                    f"scratch-penalty-{penalty:g}{end}",
                    kind="scratch", sites=SITES, penalty=penalty, seed=seed, baseline=pruned.id,
                )  # fmt: skip
    return found
