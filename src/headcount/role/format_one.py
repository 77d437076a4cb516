"""`roles.json` of format 1, as versions up to 0.1.0 wrote it, in the terms of format 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headcount.role.positional import offset_name
from headcount.role.syntactic import relation_name


def upgraded(stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was read from `roles.json`, in format 2."""
    if "best" in stored:
        return stored
    rare = stored["rare_words"]
    counted = {name: rare[name] for name in ("sentences", "queries")}
    return {
        **stored,
        "heads": [_head(head) for head in stored["heads"]],
        "best": [_line(line) for line in stored["relations"]] + _chance(rare),
        "facts": {"rare words": counted} if rare.get("sentences") else {},
    }


def _head(stored: Mapping[str, Any]) -> dict[str, Any]:
    scores: dict[str, dict[str, Any]] = {}
    kind = "diagonal" if stored["head"].startswith("cross") else "positional"
    scores[kind] = {offset_name(int(o["offset"])): _interval(o, "share") for o in stored["offsets"]}
    if "mean_distance" in stored:
        for name in ("mean offset", "mean distance"):
            value = stored[name.replace(" ", "_")]
            scores[kind][name] = {"value": value, "low": None, "high": None}
    if "relations" in stored:
        scores["syntactic"] = {
            relation_name(r["relation"], r["direction"]): _interval(r, "accuracy")
            for r in stored["relations"]
        }
    if "rare_words" in stored:
        scores["rare words"] = {
            name.replace("_", " "): share for name, share in stored["rare_words"].items()
        }
    roles = [
        {**role, "name": "two rarest"} if role["role"] == "rare words" else role
        for role in stored["roles"]
    ]
    return {**stored, "roles": roles, "scores": scores}


def _line(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A line of Table 1 as the best head under a syntactic role."""
    accuracy = {f"score{end}": stored[f"accuracy{end}"] for end in ("", "_low", "_high")}
    name = relation_name(stored["relation"], stored["direction"])
    own = {"role": "syntactic", "name": name, "site": "enc", "head": stored["best_head"]}
    return {**stored, **accuracy, **own}


def _chance(rare: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The chance baseline for rare words; this format did not say which head was best."""
    nothing = dict.fromkeys(
        f"{name}{end}" for name in ("score", "baseline", "margin") for end in ("", "_low", "_high")
    )
    return [
        {
            **nothing, "role": "rare words", "name": name, "site": "enc", "head": None,
            "instances": rare["queries"], "baseline": rare[f"chance_{name.replace(' ', '_')}"],
        }
        for name in ("rarest", "two rarest")
        if rare.get("sentences")
    ]  # fmt: skip


def _interval(stored: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"value": stored[name], "low": stored["low"], "high": stored["high"]}
