"""A planted study that looks like the paper's: four settings, many prunings, from-scratch twins."""

from __future__ import annotations

import random
from pathlib import Path

from planted import FULL, HOSTILE, PlantedModel, closing_gates, plant, plant_explorer

from headcount.heads import SITES, Head, HeadLayout

FUNCTIONS = {
    "enc.0.5": [("rare words", "rare words", 0.83)],
    "enc.0.1": [("positional", "-1", 0.93)],
    "enc.1.2": [("positional", "+1", 0.96)],
    "enc.1.4": [("syntactic", "amod noun → adj.m.", 0.86), ("positional", "-1", 0.91)],
    "enc.2.0": [
        ("syntactic", "nsubj v → s", 0.77),
        ("syntactic", "nsubj s → v", 0.70),
        ("syntactic", "obj o → v", 0.66),
    ],
    "enc.2.7": [("syntactic", "obj v → o", 0.61)],
    "enc.3.3": [("syntactic", "obj o → v", 0.84), ("syntactic", "advmod v → adv.m.", 0.52)],
    "enc.4.6": [("positional", "-1", 0.97)],
    "enc.5.1": [("syntactic", "advmod adv.m. → v", 0.55)],
}
PAIRS = [
    {"name": "en-ru-subs", "source": "en", "target": "ru", "domain": "OpenSubtitles",
     "corpus": "Planted subtitles", "training_pairs": 6_000_000},
    {"name": "en-ru-wmt", "source": "en", "target": "ru", "domain": "WMT",
     "corpus": "Planted news", "training_pairs": 2_500_000},
    {"name": "en-de", "source": "en", "target": "de", "domain": "WMT",
     "corpus": "Planted news", "training_pairs": 2_500_000},
    {"name": "en-fr", "source": "en", "target": "fr", "domain": "WMT",
     "corpus": "Planted news", "training_pairs": 2_500_000},
]  # fmt: skip
SENTENCES = [
    "She quickly read the longest letters of her grandmother .",
    "The old man sees a small dog .",
    HOSTILE,
    "I never saw him drink coffee with colleagues before .",
]


def columns(seed: int, layout: HeadLayout = FULL) -> dict[str, dict[str, float]]:
    """Relevance in which heads with a function stand out, and confidence that follows it."""
    rng = random.Random(seed)
    relevance: dict[str, float] = {}
    confidence: dict[str, float] = {}
    for site in SITES:
        for layer, indices in enumerate(layout.layers[site]):
            names = [f"{site}.{layer}.{index}" for index in indices]
            sizes = [
                rng.uniform(3, 6) if name in FUNCTIONS else rng.expovariate(2.2) for name in names
            ]
            for name, size in zip(names, sizes, strict=True):
                relevance[name] = size / sum(sizes)
                confidence[name] = min(0.99, 0.3 + 0.13 * size + rng.uniform(0, 0.05))
    for name, functions in FUNCTIONS.items():
        if name in confidence and any(kind == "positional" for kind, _, _ in functions):
            confidence[name] = 0.9
    names = list(relevance)
    accuracy = {name: rng.random() for name in names if name.startswith("enc")}
    return {
        "nsubj_dependent_to_head": accuracy,
        "lrp": relevance,
        "confidence": confidence,
        "ablation": {name: relevance[name] * 0.02 + rng.gauss(0, 0.001) for name in names},
    }


def full_model(pair: dict, seed: int, bleu: float) -> PlantedModel:
    """The full model of one setting."""
    return PlantedModel(
        f"{pair['name']}-full", pair=pair["name"], domain=pair["domain"], bleu=bleu,
        columns=columns(seed), functions=FUNCTIONS,
    )  # fmt: skip


def encoder_prunings(full: PlantedModel) -> list[PlantedModel]:
    """Learned prunings and the baselines that go by a score."""
    rng = random.Random(full.id)
    special = list(FUNCTIONS)
    rest = [str(head) for head in FULL.heads(("enc",)) if str(head) not in special]
    models = []
    for count, penalty in ((30, 0.005), (17, 0.01), (10, 0.02), (4, 0.05)):
        names = (special + rng.sample(rest, len(rest)))[:count]
        layout = FULL.keeping([Head.parse(n) for n in names], ("enc",))
        functions = {n: list(FUNCTIONS.get(n, ())) for n in names}
        if count == 10:
            functions["enc.0.1"].append(("syntactic", "nsubj s → v", 0.62))
        functions = {n: found for n, found in functions.items() if found}
        models.append(
            PlantedModel(
                f"{full.pair}-enc-{count}",
                "pruned",
                layout,
                "hard_concrete",
                ("enc",),
                full.id,
                penalty,
                pair=full.pair,
                domain=full.domain,
                bleu=(full.bleu or 0) - 0.02 * (48 - count) ** 0.5 - (2.0 if count < 2 else 0),
                columns=columns(count, layout),
                functions=functions,
                gates=closing_gates(FULL, ("enc",), set(layout.heads(("enc",)))),
            )
        )
        for method, cost in (("lrp", 0.12), ("random", 0.3)):
            picked = FULL.keeping([Head.parse(n) for n in (special + rest)[:count]], ("enc",))
            models.append(
                PlantedModel(
                    f"{full.pair}-{method}-{count}",
                    "pruned",
                    picked,
                    method,
                    ("enc",),
                    full.id,
                    keep=count,
                    pair=full.pair,
                    domain=full.domain,
                    bleu=(full.bleu or 0) - cost * (48 - count) ** 0.5,
                )
            )
    return models


def all_site_prunings(full: PlantedModel) -> list[PlantedModel]:
    """Prunings of all attention, each with a from-scratch twin."""
    models = []
    for number, (e, d, c) in enumerate([(14, 31, 30), (12, 21, 25), (8, 13, 15), (5, 9, 12)]):
        kept = [Head("enc", i % 6, i // 6) for i in range(e)]
        kept += [Head("dec", i // 8, i % 8) for i in range(d)]
        kept += [Head("cross", 5 - i // 8, i % 8) for i in range(c)]
        layout = FULL.keeping(kept)
        pruned = PlantedModel(
            f"{full.pair}-all-{number}", "pruned", layout, "hard_concrete", SITES, full.id,
            0.01 * (number + 1), pair=full.pair, domain=full.domain,
            bleu=(full.bleu or 0) - 0.15 * number,
        )  # fmt: skip
        twin = PlantedModel(
            f"{full.pair}-scratch-{number}", "scratch", layout, None, SITES, pruned.id,
            pair=full.pair, domain=full.domain, bleu=(full.bleu or 0) - 0.15 - 0.3 * number,
        )  # fmt: skip
        models += [pruned, twin]
    return models


def plant_paper_like(folder: Path, settings: int = 4) -> Path:
    """Write the study; fewer `settings` make it smaller."""
    models: list[PlantedModel] = []
    for number, pair in enumerate(PAIRS[:settings]):
        full = full_model(pair, number + 1, 29.6 + 2.8 * (number == 0))
        models.append(full)
        if number < 2:
            models += encoder_prunings(full) + all_site_prunings(full)
    plant(folder, models, PAIRS[:settings])
    chosen = [m for m in models if m.kind == "full" or m.id.endswith(("enc-10", "enc-17"))]
    plant_explorer(folder, chosen, SENTENCES)
    return folder
