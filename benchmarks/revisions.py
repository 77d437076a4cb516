"""Is a revision as fast as another? `python benchmarks/revisions.py --before REV [--after REV]`.

Both are checked out and take turns at the same LRP (the shipped model on the built-in corpus) and
the same short training, each in a process of its own. Printed are ratios of processor time within
the rounds, after / before: below 1 the later one is faster. The two must end with the same loss.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import ModuleType

from measuring import HERE, Contender, column, ratios, take_turns

RECIPE = """
data: {corpus: null, folder: CORPUS, source_vocabulary: 1000, target_vocabulary: 1000}
model: {encoder_layers: 3, decoder_layers: 1, heads: 8, width: 128, ff_width: 512}
training: {updates: 40, batch_tokens: 2000, device_tokens: 2000, warmup: 20, log_every: 10,
           evaluate_every: 40, save_every: 40, dev_sentences: 20, bleu_sentences: 0,
           average_checkpoints: 0}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--before", required=True, help="the revision to compare with")
    parser.add_argument("--after", default="HEAD", help="the other one (default: HEAD)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        contenders = {}
        for name in ("before", "after"):
            revision = getattr(options, name)
            code = stack.enter_context(numbers().worktree(revision, folder / name))
            if name == "before":
                arguments = material(code, folder)
            environment = {"PYTHONPATH": str(code / "src"), "HEADCOUNT_CACHE": str(folder / name)}
            contenders[name] = stack.enter_context(
                Contender(
                    Path(sys.executable), "with_revision.py", *arguments, environment=environment
                )
            )
        for task in ("lrp", "train"):
            work = {name: partial(one.run, task) for name, one in contenders.items()}
            costs = take_turns(work, options.rounds)
            losses = {cost.get("loss") for rounds in costs.values() for cost in rounds}
            if len(losses) != 1:
                sys.exit(f"{task}: the losses differ: {losses}")
            ratio = ratios(column(costs["after"], "cpu"), column(costs["before"], "cpu"))
            print(f"{task}: {ratio['median']} ({ratio['least']}...{ratio['most']}) times the time")


def material(code: Path, folder: Path) -> tuple[str, str, str]:
    """A run, sentences, and a recipe, which both revisions read."""
    shutil.copytree(code / "src" / "headcount" / "demo_model", folder / "run")
    corpus = folder / "corpus"
    subprocess.run(
        [sys.executable, "-m", "headcount", "data", "builtin", "--out", str(corpus), "-q"],
        env={**os.environ, "PYTHONPATH": str(code / "src")},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (folder / "recipe.yaml").write_text(RECIPE.replace("CORPUS", str(corpus)))
    return str(folder / "run"), str(corpus / "test.en"), str(folder / "recipe.yaml")


def numbers() -> ModuleType:
    """tools/same_numbers.py, which checks revisions out."""
    path = HERE.parent / "tools" / "same_numbers.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
