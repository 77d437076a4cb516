"""Put a finished study into results/, and its tables into docs/results*.md.

    headcount report STUDY --src results/sentences.en
    python tools/publish_results.py STUDY [--part NAME]

With `--part` it goes to results/NAME/, beside the study that results/ itself holds.
What is published is a study folder without weights: everything that tables, figures and verdicts
are computed from, so that `headcount report results` checks every claim again. Corpus sentences
stay out too: attention maps are drawn on the sentences of results/sentences.en, which belong to
this project, nothing is published where the study's maps show any other, and of the roles the
sentences in which heads are seen best are left out unless they are ours.

In these pages, what stands between `<!-- TABLE -->` and `<!-- /TABLE -->` is replaced by
results/tables/TABLE.md, and what is marked `NAME/TABLE` by results/NAME/tables/TABLE.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

from headcount.files import read_json, read_lines, write_text

ROOT = Path(__file__).resolve().parents[1]
RESULTS, PAGES = ROOT / "results", sorted((ROOT / "docs").glob("results*.md"))
SENTENCES = "sentences.en"
KEPT = {
    "figures": ("png", "svg", "csv", "gif"),
    "tables": ("md", "tex", "csv"),
    "scores": ("json",),
    "stages": ("json",),
}
RUNS = "runs"
OF_RUNS = ("config.yaml", "heads.json", "pruning.json", "metrics.jsonl")
OF_ANALYSIS = (
    *("head-table.csv", "head-table.json", "measures.json", "agreement.json"),
    *("heads.csv", "heads.json", "ranking.json"),  # what they were called before
)
ROLES = "roles.json"
TAKEN = (*KEPT, RUNS)


def main() -> None:
    """Copy, check, and refresh the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--part", default="", help="a folder of its own in the results")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, nargs="*", default=PAGES)
    arguments = parser.parse_args()
    if arguments.part and (
        arguments.part in TAKEN or not re.fullmatch(r"\w[\w-]*", arguments.part)
    ):
        parser.error(f"--part {arguments.part}: choose a plain name, not one of {', '.join(TAKEN)}")
    publish(arguments.study, arguments.out / arguments.part, arguments.out / SENTENCES)
    for page in arguments.page:
        write_text(page, with_tables(page.read_text(encoding="utf-8"), arguments.out))
    out = arguments.out / arguments.part
    print(f"{out}: {sum(1 for _ in out.rglob('*.*'))} files.")


def publish(study: Path, out: Path, sentences: Path) -> None:
    """Copy what of a study can be published; its maps may show these sentences."""
    own = set(read_lines(sentences))
    strangers = foreign_sentences(study, own)
    if strangers:
        raise SystemExit(
            f"{study}: maps show {len(strangers)} sentences that are not in {sentences}."
            f" Run `headcount report {study} --src {sentences}` first."
        )
    out.mkdir(parents=True, exist_ok=True)
    for name in ("study.json", "claims.json", "bench.json"):
        (out / name).unlink(missing_ok=True)
        if (study / name).is_file():
            text = (study / name).read_text(encoding="utf-8")
            write_text(out / name, without_folders(text))
    for folder, kinds in KEPT.items():
        matches = [path for path in (study / folder).glob("*") if path.suffix[1:] in kinds]
        matches = [path for path in matches if not path.stem.endswith("-phone")]
        replace(out / folder, {path.name: path for path in matches})
    publish_runs(study / RUNS, out / RUNS, own)


def publish_runs(runs: Path, out: Path, own: set[str]) -> None:
    """Copy what is known of each run, but its weights, tokenisers and other people's sentences."""
    shutil.rmtree(out, ignore_errors=True)
    for run in sorted(path for path in runs.glob("*") if path.is_dir()):
        target = out / run.name
        (target / "analysis").mkdir(parents=True)
        for name in (*OF_RUNS, *(f"analysis/{name}" for name in OF_ANALYSIS)):
            if (run / name).is_file():
                text = (run / name).read_text(encoding="utf-8")
                write_text(target / name, without_folders(text))
        if (run / "analysis" / ROLES).is_file():
            stored = without_sentences(read_json(run / "analysis" / ROLES), own)
            text = without_folders(json.dumps(stored, ensure_ascii=False, indent=1))
            write_text(target / "analysis" / ROLES, text + "\n")


def without_folders(text: str) -> str:
    """JSON or YAML in which files of this machine have their names only."""
    return re.sub(r'(?<=[" ])/(?:[^/"\n]+/)+(?=[^/"\n]+["\n,])', "", text)


def without_sentences(roles: dict[str, Any], own: set[str]) -> dict[str, Any]:
    """`roles.json` without the sentences in which heads are seen best, unless they are ours."""
    for head in roles["heads"]:
        for role in head["roles"]:
            if role.get("seen_best", {}).get("sentence") not in own:
                role.pop("seen_best", None)
    return roles


def replace(folder: Path, files: dict[str, Path]) -> None:
    """Make `folder` hold copies of `files`, by name, and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, path in sorted(files.items()):
        shutil.copyfile(path, folder / name)


def foreign_sentences(study: Path, own: set[str]) -> set[str]:
    """Sentences that a study's attention maps show and that are not ours."""
    shown = set()
    for path in (study / "explorer").glob("*.json"):
        shown |= {sentence["text"] for sentence in read_json(path)["sentences"]}
    return shown - own


def with_tables(page: str, results: Path) -> str:
    """The page with every marked block replaced by the table of that name."""

    def table(match: re.Match[str]) -> str:
        name = Path(match[1])
        path = results / name.parent / "tables" / f"{name.name}.md"
        if not path.is_file():
            raise SystemExit(f"The page has a place for {path}, which does not exist: publish it.")
        text = path.read_text(encoding="utf-8")
        return f"<!-- {name} -->\n{text.strip()}\n<!-- /{name} -->"

    return re.sub(r"<!-- (\w[\w/-]*) -->.*?<!-- /\1 -->", table, page, flags=re.S)


if __name__ == "__main__":
    main()
