"""A campaign of disturbances: `make campaign`, or `python tests/campaign/campaign.py --minutes 60`.

Each case copies a small world, disturbs it by a rule that its number alone decides, runs headcount
and checks what must always hold:

- the exit code is 0, 2 or 128 + a signal that was sent; never 70, never a traceback;
- time and memory stay bounded;
- nothing but the outputs of the command is touched, and what it writes as JSON is JSON;
- what comes out, where it is not refused, equals what comes out undisturbed.

Cases are kept as lines of `results.jsonl` in the folder of the campaign. Called again, it continues
with the next number; `--number N` repeats one. With the right to mount, cases run on a small disk
of their own, which can really be full.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from child import (
    CPU_SECONDS,
    MEGABYTES,
    Case,
    Child,
    at_write,
    call,
    import_all,
    no_space,
    still_running,
)
from disk import PAGE, fill, limit_files, mount
from expected import Expectation, changed, fingerprint, snapshot
from mutations import mutate
from options import strange_command
from readers import read_damaged, readers
from stages import Aim, stage_table
from world import READERS, SMALL, WRITERS, Writer, build, copy_for, import_once, import_words

WEIGHTS = {
    "mutation": 68,
    "reading": 4,
    "options": 16,
    "kill": 6,
    "study kill": 1,
    "full disk": 5,
    "two at once": 2,
    "clock": 2,
}
READINGS = 100  # of one case

# Damage to these is refused, or has no effect on what is there in the end.
EQUAL = {
    "run/checkpoints/*/*": "run",
    "corpus/prepared/*/*": "train",
    "study/stages/*.json": "study",
}


class Campaign:
    """The world, what is undisturbed in it, and the rules of the cases."""

    def __init__(self, folder: Path, small: bool = False) -> None:
        self.folder = folder
        self.world = folder / "world"
        self.disk = folder / "case"
        self.place = self.disk / "world"  # always the same: some outputs name their folder
        self.disk.mkdir(parents=True, exist_ok=True)
        self.real_disk = mount(self.disk)
        if not (self.world / "ready").exists():
            shutil.rmtree(self.world, ignore_errors=True)
            with self._clean():
                build(self.place, call, small)
                shutil.copytree(self.place, self.world, symlinks=True)
            (self.world / "ready").touch()
        if not small:
            import_once(self.world)
        self.readers = {p: words for p, words in READERS.items() if any(self.world.glob(p))}
        self.writers = [v for v in (SMALL if small else WRITERS) if not v.startswith("study")]
        self.weights = WEIGHTS | ({"study kill": 0} if small else {})
        self.expected: dict[str, Expectation] = {}

    def close(self) -> None:
        """Give the disk back."""
        if self.real_disk:
            subprocess.run(["umount", self.disk], check=True)

    @contextmanager
    def _clean(self) -> Iterator[None]:
        """An empty disk before and after."""
        for entry in self.disk.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        yield
        for entry in self.disk.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def undisturbed(self, verb: str) -> Expectation:
        """What a verb makes of the world when nothing happens, seen twice."""
        if verb not in self.expected:
            seen = []
            for _ in range(2):
                with self._clean():
                    copy_for(self.world, self.place, WRITERS[verb].begin)
                    seen.append(Expectation.observe(self.place, WRITERS[verb]))
            self.expected[verb] = seen[0].common(seen[1])
        return self.expected[verb]

    def run(self, number: int, seed: int, kind: str | None = None) -> Case:
        """One case, the same for the same number and seed."""
        rng = random.Random(f"{seed} {number}")
        drawn = rng.choices(list(self.weights), list(self.weights.values()))[0]
        kind = kind or drawn
        self.aim = Aim.numbered(number)
        verb = f"study {self.aim.kind}" if kind == "study kill" else rng.choice(self.writers)
        if kind not in ("mutation", "reading", "options"):
            self.undisturbed(verb)
        with self._clean():
            outside = self.disk / "precious"
            outside.write_text("not ours")
            case = getattr(self, f"_{kind.replace(' ', '_')}")(rng, verb)
            (self.disk / "filler").unlink(missing_ok=True)
            for process in still_running(self.disk):
                case["wrong"].append(f"process {process} is still running")
                os.kill(process, signal.SIGKILL)
            if sorted(os.listdir(self.disk)) != ["precious", "world"]:
                case["wrong"].append(f"beside the world: {sorted(os.listdir(self.disk))}")
            if outside.read_text() != "not ours":
                case["wrong"].append("a file outside was changed")
        return {"number": number, "seed": seed, "kind": kind, **case}

    def _mutation(self, rng: random.Random, verb: str) -> Case:
        """One or two files that a command reads are damaged."""
        while True:
            pattern = rng.choice(list(self.readers))
            imports = [import_words(self.world, pattern.split("/")[0])]
            words = rng.choice(READERS[pattern] or imports)
            if words[0] != "report" or rng.random() < 0.2:  # takes as long as twenty others
                break
        copy_for(self.world, self.place, words, pattern)
        files = [path for path in sorted(self.place.glob(pattern)) if path.is_file()]
        path = rng.choice(files)
        how = mutate(path, rng)
        if rng.random() < 0.1:
            path = rng.choice(files)
            how += " " + mutate(path, rng) if path.is_file() else ""
        before = snapshot(self.place)
        outcome = Child(self.place, words).wait()
        wrong = judge(outcome, (0, 2)) + changed(self.place, before, words)
        if outcome["code"] == 0 and pattern in EQUAL:
            wrong += self._unequal(EQUAL[pattern])
        about = path.relative_to(self.place).as_posix()
        return {"wrong": wrong, "about": about, "how": how, "words": words, **outcome}

    def _unequal(self, what: str) -> list[str]:
        """Weights and scores that are there in the end, against those of the world."""
        made = "new" if what == "train" else what
        before = fingerprint(self.world / ("run" if what == "train" else what))
        now = fingerprint(self.place / made)
        names = [name for name in before if name.endswith((".safetensors", "scores.csv"))]
        # A damaged checkpoint that is not needed stays as it is.
        different = [n for n in names if "checkpoints" not in n and before[n] != now.get(n)]
        return [f"not as undisturbed: {different[:3]}"] if different else []

    def _reading(self, rng: random.Random, verb: str) -> Case:
        """Many damaged files, each given to the function that reads it, in one process."""
        shutil.copytree(self.world, self.place, symlinks=True)
        known = {p: reader for p, reader in readers().items() if any(self.world.glob(p))}
        seeds = [(rng.choice(list(known)), str(rng.random())) for _ in range(READINGS)]

        def read_all() -> None:
            warnings.simplefilter("ignore")
            for pattern, seed in seeds:
                said = read_damaged(self.world, self.place, pattern, known[pattern], seed)
                if said:
                    print(said)

        outcome = Child(self.place, (), work=read_all).wait()
        wrong = judge(outcome, (0,)) + [line for line in [outcome["says"]] if line]
        return {"wrong": wrong, "count": READINGS, "how": "many", **outcome}

    def _options(self, rng: random.Random, verb: str) -> Case:
        """A command with hostile values for some of its options."""
        words = strange_command(rng)
        copy_for(self.world, self.place, words)
        outcome = Child(self.place, words).wait()
        wrong = judge(outcome, (0, 2))
        return {"wrong": wrong, "verb": words[0], "words": [w[:80] for w in words], **outcome}

    def _kill(self, rng: random.Random, verb: str) -> Case:
        """A signal at the n-th write, or at any moment."""
        writer, expected = WRITERS[verb], self.undisturbed(verb)
        number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        copy_for(self.world, self.place, writer.begin)
        if rng.random() < 0.6:
            write = rng.randint(1, expected.writes)
            moment = f"write {write} of {expected.writes}"
            child = Child(
                self.place,
                writer.begin,
                at_write(write, lambda: os.kill(os.getpid(), number)),
            )
        else:
            delay = rng.uniform(0, 1.2 * expected.seconds)
            moment = f"{delay:.3f} s of {expected.seconds:.3f}"
            child = Child(self.place, writer.begin)
            time.sleep(delay)
            with suppress(ProcessLookupError):
                os.kill(child.process, number)
        outcome = child.wait()
        # -number: it came before headcount had begun to listen.
        wrong = judge(outcome, (0, 128 + number, -number)) + self._finish(writer, expected)
        return {"wrong": wrong, "verb": verb, "how": f"{number.name} at {moment}", **outcome}

    def _study_kill(self, rng: random.Random, verb: str) -> Case:
        """A signal for a study, for its stage or for both; kinds of stages take turns."""
        writer, expected = WRITERS[verb], self.undisturbed(verb)
        copy_for(self.world, self.place, writer.begin)
        child = Child(self.place, writer.begin)
        moment = rng.uniform(0, 0.8 * expected.stages[self.aim.stamp])
        hit = self.aim.shoot(child.process, self.place / "new", moment)
        outcome = child.wait()
        wrong = judge(outcome, self.aim.exit_codes) + self._finish(writer, expected)
        return {"wrong": wrong, "verb": verb, "how": str(self.aim), **hit, **outcome}

    def _finish(self, writer: Writer, expected: Expectation) -> list[str]:
        """Go on after a disturbance; the result must be the undisturbed one."""
        words = writer.go_on if (self.place / "new").exists() else writer.begin
        if words:
            outcome = Child(self.place, words).wait()
            if outcome["code"] != 0:
                return [f"cannot go on: {outcome['says']}"]
            left = [p.name for p in self.place.rglob(".*") if p.suffix in (".partial", ".owner")]
            if left:
                return [f"left behind: {left}"]
        return expected.differences(fingerprint(self.place / writer.makes))

    def _full_disk(self, rng: random.Random, verb: str) -> Case:
        """No space from some write on, or at one write, or no file may grow beyond a limit."""
        writer, expected = WRITERS[verb], self.undisturbed(verb)
        copy_for(self.world, self.place, writer.begin)
        what = rng.choice(
            ("full", "full", "write", "limit") if self.real_disk else ("write", "limit")
        )
        if what == "full":
            pages = rng.randint(0, expected.bytes // PAGE + 2)
            how = f"{pages} pages free of {expected.bytes // PAGE}"
            fill(self.disk, pages)
            child = Child(self.place, writer.begin)
        elif what == "write":
            write = rng.randint(1, expected.writes)
            how = f"write {write} of {expected.writes}"
            child = Child(self.place, writer.begin, at_write(write, no_space))
        else:
            limit = int(2 ** rng.uniform(0, 17))
            how = f"files of {limit} bytes"
            child = Child(self.place, writer.begin, lambda: limit_files(limit))
        outcome = child.wait()
        (self.disk / "filler").unlink(missing_ok=True)
        wrong = judge(outcome, (0, 2)) + self._finish(writer, expected)
        return {"wrong": wrong, "verb": verb, "how": how, **outcome}

    def _two_at_once(self, rng: random.Random, verb: str) -> Case:
        """The same command twice, side by side."""
        writer, expected = WRITERS[verb], self.undisturbed(verb)
        copy_for(self.world, self.place, writer.begin)
        children = [Child(self.place, writer.begin)]
        time.sleep(rng.choice((0.0, 0.05, expected.seconds / 2)))
        children.append(Child(self.place, writer.begin))
        outcomes = [child.wait() for child in children]
        wrong = [line for outcome in outcomes for line in judge(outcome, (0, 2))]
        if all(outcome["code"] != 0 for outcome in outcomes):
            wrong.append("neither came through")
        wrong += self._finish(writer, expected)
        codes = [outcome["code"] for outcome in outcomes]
        return {"wrong": wrong, "verb": verb, "how": str(codes), **outcomes[1]}

    def _clock(self, rng: random.Random, verb: str) -> Case:
        """`time.time` jumps by up to a year, either way, whenever somebody looks."""
        writer, expected = WRITERS[verb], self.undisturbed(verb)
        copy_for(self.world, self.place, writer.begin)
        real, seed = time.time, rng.random()

        def jump() -> None:
            jumps = random.Random(seed)
            time.time = lambda: real() + jumps.uniform(-3e7, 3e7)

        outcome = Child(self.place, writer.begin, jump).wait()
        wrong = judge(outcome, (0,)) + expected.differences(fingerprint(self.place / writer.makes))
        return {"wrong": wrong, "verb": verb, "how": "jumps", **outcome}


def judge(outcome: Case, allowed: tuple[int, ...]) -> list[str]:
    """What is wrong with how a process ended."""
    wrong = []
    if outcome["code"] not in allowed:
        wrong.append(f"exit code {outcome['code']}: {outcome['says']}")
    if outcome["traceback"]:
        wrong.append("traceback")
    if outcome["cpu"] > CPU_SECONDS:
        wrong.append(f"{outcome['cpu']} seconds of CPU")
    if outcome["megabytes"] > MEGABYTES:
        wrong.append(f"{outcome['megabytes']} megabytes")
    return wrong


def summary(cases: list[Case]) -> str:
    """One table: kinds by what came of them."""
    rows = [f"{'kind':<14}{'cases':>7}{'exit 0':>8}{'exit 2':>8}{'signal':>8}{'wrong':>7}"]
    for kind in (*WEIGHTS, "all"):
        chosen = [case for case in cases if kind in (case["kind"], "all")]
        codes = Counter(
            "signal" if isinstance(c := case.get("code"), int) and (c < 0 or c > 128) else c
            for case in chosen
            if "count" not in case  # many in one process, which has one exit code
        )
        wrong = sum(bool(case["wrong"]) for case in chosen)
        count = sum(case.get("count", 1) for case in chosen)
        rows.append(f"{kind:<14}{count:>7}{codes[0]:>8}{codes[2]:>8}{codes['signal']:>8}{wrong:>7}")
    return "\n".join(rows)


def read_results(path: Path) -> list[Case]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    """Run cases until the time is up; print the table and what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=list(WEIGHTS))
    parser.add_argument("--cases", type=int, default=10**9, help="stop after so many")
    parser.add_argument("--number", type=int, help="repeat this case and show it")
    parser.add_argument("--small", action="store_true", help="no studies, no models from elsewhere")
    parser.add_argument("--folder", type=Path, default=Path("runs/campaign"))
    options = parser.parse_args()
    import_all(foreign=not options.small)
    campaign = Campaign(options.folder.resolve(), options.small)
    try:
        if options.number is not None:
            print(json.dumps(campaign.run(options.number, options.seed, options.kind), indent=1))
            return
        cases = run_cases(campaign, options)
    finally:
        campaign.close()
    print(*filter(None, (summary(cases), stage_table(cases))), sep="\n\n")
    sys.exit(1 if any(case["wrong"] for case in cases) else 0)


def run_cases(campaign: Campaign, options: argparse.Namespace) -> list[Case]:
    """Cases until the time is up, each written down as it ends; all there are so far."""
    results = campaign.folder / "results.jsonl"
    cases = read_results(results)
    number = sum(case["seed"] == options.seed for case in cases)
    deadline, stop = time.monotonic() + 60 * options.minutes, number + options.cases
    while time.monotonic() < deadline and number < stop:
        case = campaign.run(number, options.seed, options.kind)
        number += 1
        cases.append(case)
        with results.open("a") as handle:
            handle.write(json.dumps(case) + "\n")
        if case["wrong"]:
            print(json.dumps(case), flush=True)
    return cases


if __name__ == "__main__":
    main()
