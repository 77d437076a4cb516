"""Show that two revisions give the same numbers: `python tools/same_numbers.py --before REV`.

Both revisions are checked out into temporary worktrees and run the same commands on the same run
(the demo model of the first one) and text (its built-in corpus): `rank` with every rule of LRP,
`roles` on gold trees, four prunings, and a whole small study with its tables, claims and the
numbers behind its figures. What they wrote is compared number by number. A number is known by what
it means (a head and a column, a tensor of a run, an update and what was logged of it), so that
files and methods may have other names in the two revisions.
The exit code is 1 where a difference is larger than `--tolerance`, or where numbers are missing.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]
RULES = ("ratio", "alphabeta", "zplus")
PRUNINGS = {
    "penalty": ["--penalty", "0.3", "--gate-learning-rate", "1"],
    "exact": ["--keep", "12"],
    "lrp": ["--keep", "12", "--by", "lrp"],
    "random": ["--keep", "12", "--by", "random", "--sites", "enc,dec,cross"],
}
SHORT = ["--updates", "6", "--finetune", "2", "--batch-tokens", "200"]

# Runs each command of a list in one process: torch is imported once.
DRIVER = """
import json, runpy, sys
for command in json.loads(sys.argv[1]):
    sys.argv = ["headcount", *command]
    try:
        runpy.run_module("headcount", run_name="__main__")
    except SystemExit as end:
        if end.code:
            sys.exit(f"headcount {' '.join(command)} ended with {end.code}")
    for name in [name for name in sys.modules if name.endswith("__main__") and "." in name]:
        del sys.modules[name]
"""

RECIPE = """
data: {corpus: null, folder: CORPUS, source_vocabulary: 300, target_vocabulary: 300}
model: {encoder_layers: 2, decoder_layers: 1, heads: 4, width: 16, ff_width: 32}
training: {updates: 20, batch_tokens: 400, device_tokens: 400, warmup: 10, log_every: 5,
           evaluate_every: 10, save_every: 10, dev_sentences: 20, bleu_sentences: 0,
           average_checkpoints: 0}
"""
STUDY = """
pairs: [{name: en-fr, domain: grammar, recipe: train.yaml, conllu: CORPUS/test.conllu}]
analysis: {rank_sentences: 20, role_sentences: 20, score_sentences: 20, sites: enc}
pruning: {updates: 6, encoder_penalties: [0.3], encoder_keep: [3], keep_by: [learned, lrp]}
bench: false
"""
SIZES = {"train": 300, "dev": 20, "test": 20}

# Names that methods and ids of models had before, and what is a time or a label, not a measurement.
RENAMED = {"learned": "exact", "hard_concrete": "gates", "top_k": "exact"}
SKIPPED = re.compile(
    r"second|time|created|version|began|spent|hash|fingerprint|weights$|window|^offset$"
)

SKIPPED_FOLDERS = {"checkpoints", "explorer", "corpora", "stages"}

ANY_ORDER = "all numbers of "
"""Marks numbers whose keys may differ: each must be among those of the other revision."""

Number = float | np.ndarray
Numbers = dict[str, Number]


@dataclass(frozen=True)
class Difference:
    """What two revisions say of one command."""

    command: str
    compared: int
    largest: float
    where: str
    missing: tuple[str, ...]

    def __str__(self) -> str:
        lost = f"; {len(self.missing)} missing, such as {self.missing[0]}" if self.missing else ""
        at = f" ({self.where})" if self.largest else ""
        counted = f"{self.command:16} {self.compared:8} numbers"
        return f"{counted}, largest difference {self.largest:.3g}{at}{lost}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--before", required=True, help="the revision to compare with")
    parser.add_argument("--after", default="HEAD", help="the other one (default: HEAD)")
    parser.add_argument("--tolerance", type=float, default=1e-6)
    parser.add_argument("--skip", default="", help="commands to leave out: rank,roles,prune,study")
    arguments = parser.parse_args()
    skipped = set(filter(None, arguments.skip.split(",")))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        written = {}
        for name in ("before", "after"):
            with worktree(getattr(arguments, name), folder / f"{name}-code") as code:
                if name == "before":
                    make_inputs(code, folder)
                written[name] = run_all(code, folder, folder / name, skipped)
        differences = [
            compare(command, written["before"][command], written["after"][command])
            for command in written["before"]
        ]
    for difference in differences:
        print(difference)
    bad = [d for d in differences if d.missing or not d.largest <= arguments.tolerance]
    print("The numbers differ." if bad else "The numbers are the same.")
    return 1 if bad else 0


@contextmanager
def worktree(revision: str, folder: Path) -> Iterator[Path]:
    """A revision checked out, for the length of a `with` block."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", "--quiet", str(folder), revision], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def headcount(code: Path, commands: list[list[str]], cwd: Path) -> None:
    """Run commands with the package of a worktree, on one thread."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(code / "src"),
        "OMP_NUM_THREADS": "1",
        "HEADCOUNT_CACHE": str(cwd / "cache"),
    }
    subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(commands)],
        env=environment,
        cwd=cwd,
        check=True,
        stdout=subprocess.DEVNULL,
    )


def make_inputs(code: Path, folder: Path) -> None:
    """The run and the text that both revisions read."""
    shutil.copytree(code / "src" / "headcount" / "demo_model", folder / "run")
    headcount(code, [["data", "builtin", "--out", str(folder / "builtin"), "-q"]], folder)
    (folder / "corpus").mkdir()
    for split, size in SIZES.items():
        for language in ("en", "fr"):
            lines = _lines(folder / "builtin" / f"{split}.{language}")[:size]
            (folder / "corpus" / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    trees = "\n".join(_lines(folder / "builtin" / "test.conllu")).split("\n\n")
    (folder / "corpus" / "test.conllu").write_text("\n\n".join(trees[: SIZES["test"]]) + "\n\n")


def run_all(code: Path, folder: Path, out: Path, skipped: set[str]) -> dict[str, Numbers]:
    """Run all commands with one revision; the numbers of each."""
    out.mkdir()
    corpus = folder / "corpus"
    text = ["--src", str(corpus / "test.en"), "--ref", str(corpus / "test.fr")]
    work: dict[str, list[str]] = {}
    if "rank" not in skipped:
        for rule in RULES:
            by = [] if rule == RULES[0] else ["--by", "lrp"]
            work[f"rank {rule}"] = ["rank", "RUN", *text, "--rule", rule, *by, "-q"]
    if "roles" not in skipped:
        trees = ["--conllu", str(corpus / "test.conllu")]
        work["roles"] = ["roles", "RUN", *trees, "--sites", "enc,dec,cross", "-q"]
    if "prune" not in skipped:
        for name, how in PRUNINGS.items():
            where = ["--train", str(corpus), "--out", str(out / f"prune {name}")]
            work[f"prune {name}"] = ["prune", str(folder / "run"), *where, *how, *SHORT, "-q"]
    if "study" not in skipped:
        for name, recipe in (("train.yaml", RECIPE), ("study.yaml", STUDY)):
            (out / name).write_text(recipe.replace("CORPUS", str(corpus)))
        work["study"] = ["study", str(out / "study.yaml"), "--out", str(out / "study"), "-q"]
    for name, command in work.items():
        if "RUN" in command:  # analyses are written into the run
            shutil.copytree(folder / "run", out / name)
            command[command.index("RUN")] = str(out / name)
    headcount(code, list(work.values()), out)
    for name, command in work.items():
        if command[0] in ("rank", "roles"):  # the weights are those that it was given
            (out / name / "model.safetensors").unlink()
    numbers = {name: numbers_in(out / name) for name in work}
    for path in out.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return numbers


def numbers_in(folder: Path) -> Numbers:
    """All numbers that a command wrote, by what they mean."""
    numbers: Numbers = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or SKIPPED_FOLDERS & {*path.relative_to(folder).parts}:
            continue
        inside = path.relative_to(folder).parent.as_posix().replace("/analysis", "")
        prefix = "" if inside in (".", "analysis") else f"{_renamed(inside)}: "
        if path.suffix == ".safetensors":
            numbers |= {f"{prefix}{name}": tensor for name, tensor in load_file(path).items()}
        elif path.suffix == ".csv":
            figure = f"{path.stem}: " if path.parent.name == "figures" else ""
            numbers |= _of_csv(path, prefix + figure)
        elif path.name == "metrics.jsonl":
            for line in map(json.loads, _lines(path)):
                where = f"{prefix}{line['kind']} at update {line['update']}"
                numbers |= dict(_flat(line, where))
        elif path.name == "pruning.json" or path.parent.name == "scores":
            name = path.stem if path.parent.name == "scores" else "pruning"
            numbers |= dict(_flat(json.loads(path.read_text()), f"{prefix}{_renamed(name)}"))
        elif path.name == "claims.json":
            numbers |= dict(_flat(json.loads(path.read_text()), f"{prefix}claims"))
        elif path.name == "roles.json":
            for row in json.loads(path.read_text())["heads"]:
                values = [value for _, value in _flat(row, "")]
                numbers[f"{prefix}{ANY_ORDER}{row['head']} in roles.json"] = np.array(values)
    return numbers


def _of_csv(path: Path, prefix: str) -> Numbers:
    """Cells of a table by the head (or model) of their row and their column."""
    numbers: Numbers = {}
    with path.open(encoding="utf-8", newline="") as opened:
        for number, row in enumerate(csv.DictReader(opened)):
            row_name = row.get("head") or row.get("id") or f"{path.stem} row {number}"
            for column, cell in row.items():
                if SKIPPED.search(column) or column == "ms":
                    continue
                try:
                    numbers[f"{prefix}{_renamed(row_name)} {column}"] = float(cell)
                except ValueError:
                    continue
    return numbers


def _flat(value: Any, where: str) -> Iterator[tuple[str, float]]:
    """Numbers in JSON values, by their path; times and fingerprints are left out."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return
    if isinstance(value, int | float):
        yield where, float(value)
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if not SKIPPED.search(str(key)):
            yield from _flat(inner, f"{where} {key}")


def compare(command: str, before: Numbers, after: Numbers) -> Difference:
    """The largest difference of numbers with the same meaning; `after` may have more of them."""
    largest, where = 0.0, ""
    for name in before.keys() & after.keys():
        one, other = np.asarray(before[name]), np.asarray(after[name])
        if ANY_ORDER in name:
            difference = max(np.abs(other - value).min(initial=np.inf) for value in one)
        elif one.shape != other.shape:
            difference = float("inf")
        elif one.size:
            both_nan = np.isnan(one) & np.isnan(other)
            difference = float(np.where(both_nan, 0.0, np.abs(one - other)).max())
        else:
            difference = 0.0
        if not difference <= largest:
            largest, where = difference, name
    missing = tuple(sorted(before.keys() - after.keys()))
    count = sum(np.asarray(before[name]).size for name in before.keys() & after.keys())
    return Difference(command, count, largest, where, missing)


def _renamed(name: str) -> str:
    """A name as it is now."""
    for old, new in RENAMED.items():
        name = name.replace(old, new)
    return name


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    sys.exit(main())
