"""Every claim on studies with planted numbers: one where it holds, one where not, one without."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from planted import FULL, PlantedModel, heads, keep, plant

from headcount.heads import SITES, Head, HeadLayout
from headcount.study.claims import CLAIMS, check
from headcount.study.claims.verdict import (
    FAILS,
    HOLDS,
    MIXED,
    UNDECIDED,
    UNTESTABLE,
    Claim,
    Verdict,
    p_text,
    untestable,
)
from headcount.study.results import load_results
from headcount.study.score_model import SentenceCounts, bleu_of

ENCODER = [str(head) for head in FULL.heads(("enc",))]
SURE = {"bleu_interval": 0.01, "margin_width": 0.005}
"""Numbers so certain that every verdict is decided."""


def relevance(strongest: dict[int, list[int]] | None = None, size: float = 5.0) -> dict[str, float]:
    """Shares within layers: the named heads of a layer (by default the first) get most."""
    values = {}
    for layer in range(6):
        chosen = (strongest or {}).get(layer, [0])
        sizes = [size if index in chosen else 1.0 for index in range(8)]
        values |= {f"enc.{layer}.{i}": s / sum(sizes) for i, s in enumerate(sizes)}
    return values


def full(**changes) -> PlantedModel:
    """The full model, BLEU 30."""
    return PlantedModel("full", **{"bleu": 30.0, **SURE, **changes})


def pruned(name: str, names: list[str], **changes) -> PlantedModel:
    """A learned encoder pruning that keeps these heads, with a penalty of its own."""
    penalty = {"q": 0.02, "r": 0.03}.get(name, 0.01)
    settings = {"method": "gates", "sites": ("enc",), "baseline": "full", "penalty": penalty}
    return PlantedModel(name, "pruned", keep(names), **{**SURE, **settings, **changes})


def pruned_everywhere(name: str, counts: tuple[int, int, int], upside_down=False, **changes):
    """A learned pruning of all sites: self-attention from below, attention to the source above."""
    kept = []
    for site, count in zip(SITES, counts, strict=True):
        order = [Head(site, layer, index) for layer in range(6) for index in range(8)]
        from_above = (site == "cross" and not upside_down) or (site == "dec" and upside_down)
        kept += [str(head) for head in (order[::-1] if from_above else order)[:count]]
    settings = {"method": "hard_concrete", "sites": SITES, "baseline": "full", "penalty": 0.01}
    return PlantedModel(name, "pruned", keep(kept, SITES), **{**SURE, **settings, **changes})


def scratch(twin: PlantedModel, bleu: float | None) -> PlantedModel:
    """A from-scratch twin."""
    return PlantedModel(
        f"scratch-{twin.id}", "scratch", twin.layout, sites=SITES, baseline=twin.id, bleu=bleu,
        **SURE,
    )  # fmt: skip


POSITIONAL = {"enc.1.0": [("positional", "-1", 0.95)], "enc.2.0": [("positional", "+1", 0.92)]}
RARE = {"enc.0.0": [("rare words", "rare words", 0.7)]}
ALL_RELATIONS = {"nsubj": 0.55, "obj": 0.60, "amod": 0.86, "advmod": 0.50}
SPECIAL = [f"enc.{layer}.{index}" for layer in range(6) for index in (0, 1)]
SUBJECT = [("syntactic", "nsubj v → s", 0.7)]
PREVIOUS = [("positional", "-1", 0.95)]
FUNCTIONS = dict.fromkeys(SPECIAL[:6], SUBJECT) | dict.fromkeys(SPECIAL[6:], PREVIOUS)
ALL_POSITIONAL = dict.fromkeys(ENCODER, PREVIOUS)

STUDIES = {
    "few-heads-carry-relevance": (
        [full(columns={"lrp": relevance({i: [0, 1] for i in range(6)})})],
        [full(columns={"lrp": relevance(size=1.2)})],
        [full()],
    ),
    "relevance-agrees-with-confidence": (
        [full(columns={
            "lrp": {name: i % 8 / 28 for i, name in enumerate(ENCODER)},
            "confidence": {name: 0.1 * (i % 8) + 0.01 * i for i, name in enumerate(ENCODER)},
        })],
        [full(columns={
            "lrp": {name: i % 8 / 28 for i, name in enumerate(ENCODER)},
            "confidence": {name: 0.9 - 0.1 * (i % 8) for i, name in enumerate(ENCODER)},
        })],
        [full(columns={"lrp": relevance()})],
    ),
    "positional-heads-confident": (
        [full(functions=POSITIONAL, columns={"confidence": {"enc.1.0": 0.9, "enc.2.0": 0.81}})],
        [full(functions=POSITIONAL, columns={"confidence": {"enc.1.0": 0.9, "enc.2.0": 0.79}})],
        [full(functions=RARE)],
    ),
    "positional-heads-relevant": (
        [full(functions=POSITIONAL, columns={"lrp": relevance()})],
        [full(functions=POSITIONAL, columns={"lrp": relevance({1: [3], 2: [4]})})],
        [full(functions=ALL_POSITIONAL, columns={"lrp": relevance()})],
    ),
    "syntactic-heads-beat-baseline": (
        [full(functions={}, accuracies=ALL_RELATIONS)],
        [full(functions={}, accuracies=ALL_RELATIONS | {"amod": 0.84})],
        [full(functions={}, accuracies=ALL_RELATIONS, instances=29)],
    ),
    "rare-words-head-leads-first-layer": (
        [full(functions=RARE, columns={"lrp": relevance()})],
        [full(functions=RARE, columns={"lrp": relevance({0: [4]})})],
        [full(functions=RARE, columns={"lrp": relevance()}, rare_sentences=0)],
    ),
    "gates-decide": (
        [full(), pruned("p", ENCODER[:10], undecided=ENCODER[:2])],
        [full(), pruned("p", ENCODER[:10], undecided=ENCODER[:3])],
        [full(), pruned("p", ENCODER[:10], method="top_k")],
    ),
    "fifth-of-encoder-heads-enough": (
        [full(), pruned("p", ENCODER[:10], bleu=29.6), pruned("q", ENCODER[:4], bleu=20.0)],
        [full(), pruned("p", ENCODER[:10], bleu=29.4), pruned("q", ENCODER[:12], bleu=30.0)],
        [full(), pruned("q", ENCODER[:4], bleu=29.9), pruned("r", ENCODER[:20], bleu=29.9)],
    ),
    "twelfth-of-encoder-heads-enough": (
        [full(), pruned("p", ENCODER[:4], bleu=29.6)],
        [full(), pruned("p", ENCODER[:4], bleu=29.3), pruned("q", ENCODER[:10], bleu=30.0)],
        [full(), pruned("q", ENCODER[:10], bleu=30.0)],
    ),
    "specialised-heads-last": (
        [full(functions=FUNCTIONS), pruned("p", [*SPECIAL[:9], "enc.0.5", "enc.1.6", "enc.2.7"])],
        [full(functions=FUNCTIONS), pruned("p", [n for n in ENCODER if n not in SPECIAL][:10])],
        [full(functions=FUNCTIONS), pruned("p", ENCODER[:30])],
    ),
    "functions-survive": (
        [full(functions=FUNCTIONS),
         pruned("p", ENCODER[:16], functions={"enc.0.0": SUBJECT, "enc.0.5": PREVIOUS})],
        [full(functions=FUNCTIONS), pruned("p", ENCODER[:16], functions={"enc.0.0": SUBJECT})],
        [full(functions=FUNCTIONS), pruned("p", ENCODER[:16])],
    ),
    "functions-drift": (
        [full(functions={"enc.5.0": SUBJECT}),
         pruned("p", ENCODER[:16], functions={"enc.0.3": SUBJECT})],
        # The head that had it is still there: nothing has moved away from it.
        [full(functions={"enc.0.0": SUBJECT}),
         pruned("p", ENCODER[:16], functions={"enc.0.0": SUBJECT, "enc.0.3": SUBJECT})],
        [full(functions=FUNCTIONS), pruned("p", ENCODER[:30], functions=FUNCTIONS)],
    ),
    "half-of-all-heads-enough": (
        [full(), pruned_everywhere("p", (14, 28, 30), bleu=29.6)],
        [full(), pruned_everywhere("p", (14, 28, 30), bleu=29.0)],
        [full(), pruned_everywhere("p", (5, 9, 12), bleu=29.9)],
    ),
    "pruned-beats-scratch": (
        [full(), p := pruned_everywhere("p", (14, 28, 30), bleu=29.6), scratch(p, 29.4)],
        [full(), p, scratch(p, 29.7)],
        [full(), p, scratch(p, None)],
    ),
    "encoder-goes-first": (
        [full(), pruned_everywhere("p", (14, 28, 30))],
        [full(), pruned_everywhere("p", (14, 31, 30))],
        [full(), pruned("p", ENCODER[:10])],
    ),
    "decoder-layers-divide-work": (
        [full(), pruned_everywhere("p", (14, 28, 30))],
        [full(), pruned_everywhere("p", (14, 28, 30), upside_down=True)],
        [full(), pruned("p", ENCODER[:10])],
    ),
}  # fmt: skip


def verdict_of(folder, claim: str, models: list[PlantedModel]):
    found = {v.claim.id: v for v in check(load_results(plant(folder, models)))}
    return found[claim]


def test_documentation_has_every_criterion():
    text = (Path(__file__).parents[2] / "docs" / "claims.md").read_text(encoding="utf-8")
    for claim in CLAIMS:
        assert f"| {claim.statement} | {claim.section} | {claim.criterion} |" in text


def test_every_claim_is_planted():
    assert set(STUDIES) == {claim.id for claim in CLAIMS}
    assert len(CLAIMS) >= 12
    assert all(claim.criterion and claim.statement and claim.section for claim in CLAIMS)


@pytest.mark.parametrize("claim", STUDIES)
def test_claim(claim, tmp_path):
    expected = (HOLDS, FAILS, UNTESTABLE)
    for models, verdict in zip(STUDIES[claim], expected, strict=True):
        found = verdict_of(tmp_path / verdict, claim, models)
        assert found.verdict == verdict, found.reason
        assert found.reason
        stored = found.to_json()
        assert json.loads(json.dumps(stored)) == stored  # plain values only
        if verdict != UNTESTABLE:
            assert found.findings[0][1].numbers


def test_of_several_models_a_verdict_says_how_many(tmp_path):
    """All that it can be tested on agree, or the verdict says of how many it holds."""
    pairs = [
        {"name": name, "source": "en", "target": name, "domain": "news"} for name in ("fr", "de")
    ]
    sharp = {"lrp": relevance({i: [0, 1] for i in range(6)})}
    flat = {"lrp": relevance(size=1.0)}
    one = replace(full(), pair="fr", columns=sharp)
    claim = "few-heads-carry-relevance"
    for columns, expected, label in (
        (sharp, HOLDS, "holds for 2 of 2"),
        (flat, MIXED, "holds for 1 of 2"),
        ({}, HOLDS, "holds"),
    ):
        two = replace(full(), id="two", pair="de", columns=columns)
        results = load_results(plant(tmp_path / label.replace(" ", "-"), [one, two], pairs))
        found = {v.claim.id: v for v in check(results)}[claim]
        assert (found.verdict, found.label) == (expected, label)
        assert "EN-FR" in found.reason
        assert "EN-DE" in found.reason


def damaged(share: float, seed: int = 1) -> SentenceCounts:
    """Counts of translations in which a share of the words is wrong."""
    rng = random.Random(seed)
    references = [" ".join(rng.choices("abcdefgh", k=12)) for _ in range(300)]
    wrong = [[rng.random() for _ in range(12)] for _ in references]  # the same words for all
    lines = [
        " ".join("x" if w < share else word for word, w in zip(line.split(), row, strict=True))
        for line, row in zip(references, wrong, strict=True)
    ]
    return SentenceCounts.of(lines, references)


def test_a_loss_that_sentences_cannot_tell_is_undecided(tmp_path):
    """A small loss: the paired interval decides it, those of the two scores do not."""
    claim = "fifth-of-encoder-heads-enough"
    kept = ENCODER[:10]
    models = [
        full(bleu=30.0, bleu_interval=3.0),
        pruned("p", kept, bleu=28.7, bleu_interval=3.1),
    ]
    found = verdict_of(tmp_path / "apart", claim, models)
    assert found.verdict == UNDECIDED
    assert "not paired" in found.reason
    assert "includes -0.50" in found.reason
    assert "test sentences instead of 500" in found.reason
    counts = [damaged(share) for share in (0.20, 0.23)]
    bleus = [float(bleu_of(c.counts.sum(0))) for c in counts]
    models = [
        full(bleu=bleus[0], counts=counts[0], bleu_interval=3.0),
        pruned("p", kept, bleu=bleus[1], counts=counts[1], bleu_interval=3.0),
    ]
    found = verdict_of(tmp_path / "paired", claim, models)
    assert found.verdict == FAILS, found.reason
    assert found.findings[0][1].numbers["paired"] is True
    same = [
        full(bleu=bleus[0], counts=counts[0]),
        pruned("p", kept, bleu=bleus[0], counts=counts[0]),
    ]
    assert verdict_of(tmp_path / "same", claim, same).verdict == HOLDS
    unknown = [full(bleu_interval=None), pruned("p", kept, bleu=29.9, bleu_interval=None)]
    assert verdict_of(tmp_path / "unknown", claim, unknown).verdict == UNDECIDED


def test_margins_that_sentences_cannot_tell_are_undecided(tmp_path):
    claim = "syntactic-heads-beat-baseline"
    unsure = full(functions={}, accuracies=ALL_RELATIONS, margin_width=0.015)  # amod: 11 +- 1.5
    found = verdict_of(tmp_path / "unsure", claim, [unsure])
    assert found.verdict == UNDECIDED
    assert "for amod; more sentences" in found.reason
    lost = replace(unsure, accuracies=ALL_RELATIONS | {"obj": 0.3})
    assert verdict_of(tmp_path / "lost", claim, [lost]).verdict == FAILS


def test_few_heads_have_no_number_for_a_share(tmp_path):
    """A twelfth of eight heads is less than one head: the reason says so, and no '1 to 0'."""
    small = HeadLayout.full(1, 1, 8)
    names = [str(head) for head in small.heads(("enc",))]
    models = [
        full(layout=small),
        replace(pruned("p", []), layout=small.keeping(heads(*names[:4]), ("enc",)), bleu=29.9),
    ]
    found = verdict_of(tmp_path / "twelfth", "twelfth-of-encoder-heads-enough", models)
    assert found.verdict == UNTESTABLE
    assert "only 8 heads" in found.reason
    found = verdict_of(tmp_path / "fifth", "fifth-of-encoder-heads-enough", models)
    assert found.reason == "No pruned model keeps 1 to 2 of the 8 heads; the nearest keeps 4."


def test_relevance_is_read_both_ways(tmp_path):
    """The paper's reading decides; the text says where the other one differs."""
    sharp, flat = relevance({i: [0, 1] for i in range(6)}), relevance(size=1.0)
    claim = "few-heads-carry-relevance"
    both = full(columns={"lrp": flat, "lrp_signed": sharp})
    found = verdict_of(tmp_path / "differ", claim, [both])
    assert found.verdict == HOLDS
    assert "depends on the reading: holds with signed sums, does not hold with absolute" in (
        found.reason
    )
    readings = found.to_json()["findings"][0]["readings"]
    assert {name: r["verdict"] for name, r in readings.items()} == {
        "signed sums": HOLDS,
        "absolute values": FAILS,
    }
    same = full(columns={"lrp": sharp, "lrp_signed": sharp})
    found = verdict_of(tmp_path / "agree", claim, [same])
    assert "depends" not in found.reason
    negative = relevance()
    negative |= {"enc.0.0": 1.5, "enc.0.1": -0.5} | {f"enc.0.{i}": 0.0 for i in range(2, 8)}
    one = full(columns={"lrp_signed": negative, "lrp": sharp})
    found = verdict_of(tmp_path / "negative", claim, [one])
    assert "150 % of a layer's relevance" in found.reason


def test_layers_that_keep_more_are_no_evidence(tmp_path):
    """All heads of layer 0 stay, where all heads with a function are: nothing to be seen within."""
    functions = dict.fromkeys(ENCODER[:7], SUBJECT)
    models = [full(functions=functions), pruned("p", [*ENCODER[:8], *ENCODER[8::8]])]
    found = verdict_of(tmp_path, "specialised-heads-last", models)
    assert found.verdict == UNDECIDED
    assert "p = 1.000" in found.reason
    numbers = found.findings[0][1].numbers
    assert numbers["kept_by_chance"] == pytest.approx(1)


def test_p_values_at_their_floor_are_bounds():
    assert p_text(1 / 2001, 2000) == "p < 0.001"
    assert p_text(1 / 101, 100) == "p < 0.01"
    assert p_text(0.0234, 2000) == "p = 0.023"


def test_a_study_of_one_unanalysed_model_can_test_nothing(tmp_path):
    verdicts = check(load_results(plant(tmp_path, [PlantedModel("full")])))
    assert {verdict.verdict for verdict in verdicts} == {UNTESTABLE}


def test_sites_of_a_setting_count_once_for_all_its_seeds(tmp_path):
    """Three seeds in which the decoder goes first do not outvote two settings in which it stays."""
    repeated = [
        pruned_everywhere(f"p{seed}", (20, 16, 30), seed=seed, penalty=0.01) for seed in (1, 2, 3)
    ]
    others = [pruned_everywhere(f"q{p}", (14, 28, 30), penalty=p) for p in (0.02, 0.03)]
    models = [full(), *repeated, *others]
    found = verdict_of(tmp_path, "encoder-goes-first", models).findings[0][1]
    assert found.numbers["models"] == 5
    assert found.numbers["enc_share"] == pytest.approx((20 + 14 + 14) / 3 / 48)
    assert found.numbers["dec_share"] == pytest.approx((16 + 28 + 28) / 3 / 48)


def test_numbers_of_a_loss(tmp_path):
    """Seeds of one setting count on average, other settings with as many heads not at all."""
    models = [
        full(),
        pruned("p", ENCODER[:10], bleu=29.8),
        pruned("p2", ENCODER[5:15], bleu=29.0, seed=2),
        pruned("exact", ENCODER[:10], bleu=20.0, method="exact", penalty=None, keep=10),
    ]
    found = verdict_of(tmp_path, "fifth-of-encoder-heads-enough", models)
    numbers = found.findings[0][1].numbers
    assert numbers["heads"] == 10
    assert numbers["of"] == 48
    assert numbers["models"] == 2
    assert numbers["loss"] == pytest.approx(0.6)
    assert found.verdict == UNDECIDED  # two seeds that differ by 0.8


def test_functions_survive_in_every_seed(tmp_path):
    both = {"enc.0.0": SUBJECT, "enc.0.5": PREVIOUS}
    first = pruned("p", ENCODER[:16], functions=both)
    models = [full(functions=FUNCTIONS), first]
    assert verdict_of(tmp_path / "one", "functions-survive", models).verdict == HOLDS
    second = pruned("p2", ENCODER[:16], functions={"enc.0.0": SUBJECT}, seed=2)
    found = verdict_of(tmp_path / "two", "functions-survive", [*models, second])
    assert found.verdict == FAILS


def test_a_setting_counts_once_for_all_its_seeds(tmp_path):
    """Three seeds that keep heads with a function do not outvote one pruning that does not."""
    others = [name for name in ENCODER if name not in SPECIAL][:10]
    seeds = [pruned(f"p{seed}", SPECIAL[:10], seed=seed) for seed in (1, 2, 3)]
    models = [full(functions=FUNCTIONS), *seeds, pruned("q", others)]
    found = verdict_of(tmp_path, "specialised-heads-last", models)
    assert found.findings[0][1].numbers["kept_specialised"] == pytest.approx(5 / len(SPECIAL))


def test_drift_needs_a_clear_rise(tmp_path):
    """A head that was nearly there in the full model has not taken anything over."""
    before = {"enc.5.0": SUBJECT, "enc.0.3": [("syntactic", "nsubj v → s", 0.65)]}
    models = [full(functions=before), pruned("p", ENCODER[:16], functions={"enc.0.3": SUBJECT})]
    folder = plant(tmp_path, models)
    # In the full model enc.0.3 scored 0.65 and was not called syntactic.
    path = folder / "runs" / "full" / "analysis" / "roles.json"
    stored = json.loads(path.read_text())
    for head in stored["heads"]:
        if head["head"] == "enc.0.3":
            head["roles"] = []
    path.write_text(json.dumps(stored))
    found = {v.claim.id: v for v in check(load_results(folder))}["functions-drift"]
    assert found.verdict == FAILS
    assert heads("enc.0.3")[0] in load_results(folder).model("p").heads.heads()


def test_models_are_named_where_reasons_differ() -> None:
    claim = Claim("x", "Sec. 0", "It is so.", "It is.", lambda case: untestable(""))
    few, none = untestable("Too few."), untestable("None.")
    assert Verdict(claim, (("A", few), ("B", few))).reason == "Too few."
    mixed = Verdict(claim, (("A", few), ("B", none), ("C", none)))
    assert mixed.reason == "A: Too few. B; C: None."
