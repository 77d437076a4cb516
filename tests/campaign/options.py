"""Commands with hostile values for some of their options."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from world import (
    ATTRIBUTE,
    BENCH,
    BUILTIN,
    BY_SCORE,
    EXPORTS,
    OWN,
    PRUNE,
    RANK,
    ROLES,
    SCORE,
    STUDIED,
    SWEEP,
    TRAIN,
    TRANSLATE,
    Words,
    export_words,
)  # fmt: skip

COMMANDS: tuple[Words, ...] = (
    TRAIN, TRANSLATE, SCORE, RANK, ROLES, ATTRIBUTE, BY_SCORE, OWN, BUILTIN, BENCH,
    ("prune", *PRUNE, "--out", "new"), ("prune-sweep", *SWEEP, "--out", "new"),
    (*STUDIED, "--dry-run"), ("import", "marian", "--out", "new", "--quiet"),
    ("report", "run", "--out", "new", "--quiet"), *map(export_words, EXPORTS),
    ("train", "recipe.yaml", "--estimate"),
)  # fmt: skip

VALUES = (
    "-1", "0", "1", "2", "1.5", "1e308", "-1e308", "1e-320", "nan", "inf", "-inf", "½", "1e3",
    "0x10", "100000000000000000000", "-9223372036854775809", "2147483648", " ", ",", ",,", "x",
    "none", "null", "[]", "{}", "enc", "enc,enc", "enc.0.0", "enc.9.9", "lrp,lrp", "en-fr", "en-",
    "-", "../..", "~", "*", "\x1b[31m", "=1+1", "\u202e", "\udcff", "a" * 5000, "en\nfr", "%s%n",
    "$HOME", "text.en", "text.en/x", "run", "corpus", "missing", "missing/x", "/dev/full",
    "/dev/null", "/proc/self/mem", "a" * 300,
)  # fmt: skip
LARGE = ("2147483647", "1000000")

# Large numbers here are work that is asked for.
WORK = {"updates", "finetune", "resamples", "rounds", "steps", "pairs", "seeds", "minutes"}
SETTINGS = (
    "model.layers", "model.heads", "model.width", "model.ff_width", "model.norm", "model.dropout",
    "model.max_positions", "model.activation", "training.seed", "training.warmup",
    "training.batch_tokens", "training.device_tokens", "training.label_smoothing",
    "training.precision", "training.learning_rate_scale", "training.keep_checkpoints",
    "training.average_checkpoints", "training.log_every", "training.save_every",
    "training.evaluate_every", "training.bleu_sentences", "training.dev_sentences",
    "data.max_length", "data.source", "data.target", "data.source_vocabulary", "data.folder",
    "data.pairs", "search.beam", "search.length_penalty", "unknown.key", "model", "data.corpus",
)  # fmt: skip
# Shown on a terminal or starting a server: not what is tried here.
NOT_TRIED = {"help", "json", "quiet", "browser"}


@cache
def parameters(verb: str) -> list[Any]:
    """The options and arguments of a verb, as its command line declares them."""
    import typer

    from headcount.cli import app

    return [p for p in typer.main.get_command(app).commands[verb].params if p.name not in NOT_TRIED]


def strange_command(rng: random.Random) -> Words:
    """A command that works, with one to three of its options given strange values."""
    words = list(rng.choice(COMMANDS))
    for _ in range(rng.choice((1, 1, 2, 3))):
        chosen = rng.choice(parameters(words[0]))
        pool = VALUES if chosen.name in WORK else (*VALUES, *LARGE)
        value = rng.choice(pool)
        if chosen.name == "set_":
            words += ["--set", f"{rng.choice(SETTINGS)}={rng.choice(VALUES)}"]
        elif chosen.param_type_name == "argument":
            words[1] = value
        elif chosen.is_flag:
            words.append(chosen.opts[0])
        else:
            words += [chosen.opts[0], value]
    return tuple(words)
