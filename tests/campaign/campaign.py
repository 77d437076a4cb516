"""A campaign of disturbances: `make campaign`, or `python tests/campaign/campaign.py --minutes 60`.

Each case copies a small world, disturbs it by a rule that its number alone decides, runs headcount
and looks whether what must always hold still holds:

- the exit code is 0, 2 or 128 + a signal that was sent; never 70, never a traceback;
- time and memory stay bounded;
- nothing but the outputs of the command is touched;
- what comes out, where it is not refused, equals what comes out undisturbed.

Cases are kept as lines of `results.jsonl` in the folder of the campaign. Called again, it goes on
with the next number. Headcount is imported once; every case is a forked process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from mutations import mutate
from world import READERS, WRITERS, build

SECONDS = 240.0  # on the clock: this machine may be doing other things
CPU_SECONDS = 60.0
MEGABYTES = 3000.0
KINDS = ("mutation", "kill", "full disk", "two at once", "clock")

# Damage to these is refused, or has no effect on the weights that this folder then holds.
EQUAL = {"run/checkpoints/*/*": "run", "corpus/prepared/*/*": "new"}

Case = dict[str, Any]


class Child:
    """headcount in a forked process, in a folder, with what it prints in a pipe."""

    def __init__(
        self, folder: Path, words: tuple[str, ...], before: Callable[[], None] = lambda: None
    ) -> None:
        self.reader, writer = os.pipe()  # a file would be cut by the limits of a full disk
        os.set_blocking(self.reader, False)
        # No signal may meet the child before its `try`: it would come back as a second campaign.
        blocked = (signal.SIGINT, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        self.process = os.fork()
        if self.process == 0:
            code = 99
            try:
                for number in blocked:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
                os.chdir(folder)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(writer, 1)
                os.dup2(writer, 2)
                sys.stdout = os.fdopen(1, "w", closefd=False)
                sys.stderr = os.fdopen(2, "w", closefd=False)
                sys.argv = ["headcount", *words]
                before()
                from headcount.cli import main

                main()
                code = 0
            except SystemExit as ended:
                code = ended.code if isinstance(ended.code, int) else 1
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                try:
                    sys.stdout.flush()
                    sys.stderr.flush()
                finally:
                    os._exit(code)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        os.close(writer)

    def wait(self, patience: float = SECONDS) -> Case:
        """Exit code (negative: killed by that signal), seconds, memory, last line."""
        deadline, parts = time.monotonic() + patience, []
        while True:
            with suppress(BlockingIOError):
                while part := os.read(self.reader, 65536):
                    parts.append(part)
            done, status, used = os.wait4(self.process, os.WNOHANG)
            if done:
                break
            if time.monotonic() > deadline:
                os.kill(self.process, signal.SIGKILL)
                _, status, used = os.wait4(self.process, 0)
                status = -1
                break
            time.sleep(0.005)
        with suppress(BlockingIOError):
            while part := os.read(self.reader, 65536):
                parts.append(part)
        os.close(self.reader)
        printed = b"".join(parts).decode(errors="replace")
        return {
            "code": "hang" if status == -1 else os.waitstatus_to_exitcode(status),
            "cpu": round(used.ru_utime + used.ru_stime, 2),
            "megabytes": round(used.ru_maxrss / 1024),
            "traceback": "Traceback (most recent call last)" in printed,
            "says": (printed.strip().splitlines() or [""])[-1][-300:],
        }


def call(folder: Path, *words: str) -> int:
    """Run headcount to its end."""
    outcome = Child(folder, words).wait()
    if outcome["code"] != 0:
        print(outcome["says"], file=sys.stderr)
    code = outcome["code"]
    return code if isinstance(code, int) else 99


def digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.is_file() else None


def snapshot(folder: Path, outputs: tuple[str, ...]) -> dict[str, Any]:
    """Every file of a world but the outputs of a command, with its content's hash."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not name.startswith(outputs) and not path.is_symlink() and path.is_file():
            found[name] = digest(path)
    return found


def outputs_of(words: tuple[str, ...]) -> tuple[str, ...]:
    """What a command may write: its output, and what it makes beside its inputs."""
    own = {"rank": "run/", "roles": "run/", "report": "run/"}.get(words[0], "new")
    more = [words[words.index("--resume") + 1] + "/"] if words[1:2] == ("--resume",) else []
    named = [words[words.index("--out") + 1]] if "--out" in words else []
    return (own, "corpus/prepared", ".", *more, *named, "run/.analysis")


class Campaign:
    """The world, what is undisturbed in it, and the rules of the cases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = folder / "world"
        if not (self.world / "ready").exists():
            shutil.rmtree(self.world, ignore_errors=True)
            build(self.world, call)
            (self.world / "ready").touch()
        self.expected: dict[str, str | None] = {}

    def undisturbed(self, verb: str) -> str | None:
        """What a verb makes of the world when nothing happens."""
        if verb not in self.expected:
            with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                place = Path(scratch) / "world"
                shutil.copytree(self.world, place, symlinks=True)
                code = call(place, *WRITERS[verb][0])
                assert code == 0, verb
                self.expected[verb] = digest(place / WRITERS[verb][2])
                assert self.expected[verb], f"{verb} made no {WRITERS[verb][2]}"
        return self.expected[verb]

    def run(self, number: int, seed: int, kind: str | None = None) -> Case:
        """One case, the same for the same number and seed."""
        rng = random.Random(f"{seed} {number}")
        kind = kind or rng.choices(KINDS, (80, 8, 6, 3, 3))[0]
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            outside = Path(scratch) / "precious"
            outside.write_text("not ours")
            place = Path(scratch) / "world"
            shutil.copytree(self.world, place, symlinks=True)
            case = getattr(self, f"_{kind.replace(' ', '_')}")(place, rng)
            if sorted(os.listdir(scratch)) != ["precious", "world"]:
                case["wrong"].append("something was written beside the world")
            if outside.read_text() != "not ours":
                case["wrong"].append("a file outside was changed")
        return {"number": number, "seed": seed, "kind": kind, **case}

    def _mutation(self, place: Path, rng: random.Random) -> Case:
        while True:
            pattern = rng.choice(list(READERS))
            files = [path for path in sorted(place.glob(pattern)) if path.is_file()]
            if files:
                break
        path, words = rng.choice(files), rng.choice(READERS[pattern])
        about = path.relative_to(place).as_posix()
        try:
            how = mutate(path, rng)
        except (ValueError, OSError, KeyError) as error:
            return {"wrong": [], "about": about, "how": f"not made: {error!r}"[:80]}
        before = snapshot(place, outputs_of(words))
        outcome = Child(place, words).wait()
        wrong = judge(outcome, (0, 2))
        if snapshot(place, outputs_of(words)) != before:
            wrong.append("an input was changed")
        if outcome["code"] == 0 and pattern in EQUAL:
            expected = digest(self.world / "run" / "model.safetensors")
            if digest(place / EQUAL[pattern] / "model.safetensors") != expected:
                wrong.append("other weights than undisturbed")
        return {"wrong": wrong, "about": about, "how": how, "verb": words[0], **outcome}

    def _kill(self, place: Path, rng: random.Random) -> Case:
        verb = rng.choice(list(WRITERS))
        begin, go_on, _ = WRITERS[verb]
        number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
        child = Child(place, begin)
        time.sleep(rng.uniform(0.0, rng.choice((0.3, 2.0, 6.0))))
        with suppress(ProcessLookupError):
            os.kill(child.process, number)
        outcome = child.wait()
        # -number: it came before headcount had begun to listen.
        wrong = judge(outcome, (0, 128 + number, -number))
        wrong += self._finish(place, verb, begin, go_on)
        return {"wrong": wrong, "verb": verb, "how": number.name, **outcome}

    def _finish(
        self, place: Path, verb: str, begin: tuple[str, ...], go_on: tuple[str, ...]
    ) -> list[str]:
        """Go on after a disturbance; the result must be the undisturbed one."""
        made = (place / "new").exists()
        outcome = Child(place, go_on if made else begin).wait()
        if outcome["code"] != 0:
            return [f"cannot go on: {outcome['says']}"]
        if digest(place / WRITERS[verb][2]) != self.undisturbed(verb):
            return ["another result than undisturbed"]
        left = [path.name for path in place.rglob("*.partial")]
        return [f"left behind: {left}"] if left else []

    def _full_disk(self, place: Path, rng: random.Random) -> Case:
        """No file may grow beyond a limit: what a full disk does, at a chosen moment."""
        verb = rng.choice(list(WRITERS))
        begin, go_on, _ = WRITERS[verb]
        limit = int(2 ** rng.uniform(0, 17))
        outcome = Child(
            place, begin, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        ).wait()
        wrong = judge(outcome, (0, 2)) + self._finish(place, verb, begin, go_on)
        return {"wrong": wrong, "verb": verb, "how": f"{limit} bytes", **outcome}

    def _two_at_once(self, place: Path, rng: random.Random) -> Case:
        verb = rng.choice(list(WRITERS))
        begin, go_on, _ = WRITERS[verb]
        children = [Child(place, begin)]
        time.sleep(rng.choice((0.0, 0.05, 0.5)))
        children.append(Child(place, begin))
        outcomes = [child.wait() for child in children]
        wrong = [line for outcome in outcomes for line in judge(outcome, (0, 2))]
        if all(outcome["code"] != 0 for outcome in outcomes):
            wrong.append("neither came through")
        wrong += self._finish(place, verb, begin, go_on)
        codes = [outcome["code"] for outcome in outcomes]
        return {"wrong": wrong, "verb": verb, "how": str(codes), **outcomes[1]}

    def _clock(self, place: Path, rng: random.Random) -> Case:
        """`time.time` jumps by up to a year, either way, whenever somebody looks."""
        verb = rng.choice(list(WRITERS))
        begin, _, output = WRITERS[verb]
        real, seed = time.time, rng.random()

        def jump() -> None:
            jumps = random.Random(seed)
            time.time = lambda: real() + jumps.uniform(-3e7, 3e7)

        outcome = Child(place, begin, jump).wait()
        wrong = judge(outcome, (0,))
        if digest(place / output) != self.undisturbed(verb):
            wrong.append("another result than undisturbed")
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
    for kind in (*KINDS, "all"):
        chosen = [case for case in cases if kind in (case["kind"], "all")]
        codes = Counter(
            "signal" if isinstance(c := case.get("code"), int) and (c < 0 or c > 128) else c
            for case in chosen
        )
        wrong = sum(bool(case["wrong"]) for case in chosen)
        rows.append(
            f"{kind:<14}{len(chosen):>7}{codes[0]:>8}{codes[2]:>8}{codes['signal']:>8}{wrong:>7}"
        )
    return "\n".join(rows)


def read_results(path: Path) -> list[Case]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def prepare() -> None:
    """Import all that verbs need, once, before anything is forked."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("MPLBACKEND", "agg")
    import torch

    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    torch.optim.Adam([weight], fused=True).step()  # the first one imports a great deal
    for name in ("cli", "training.train", "pruning.prune", "ranking.rank", "translation",
                 "scoring", "study.report", "study.plan", "data.corpora", "role.analysis",
                 "study.figures", "study.explorer", "training.tensorboard"):  # fmt: skip
        try:
            __import__(f"headcount.{name}")
        except ImportError:  # a stage that this version does not have
            continue


def main() -> None:
    """Run cases until the time is up; print the table and what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--cases", type=int, default=10**9, help="stop after so many")
    parser.add_argument("--folder", type=Path, default=Path("runs/campaign"))
    options = parser.parse_args()
    prepare()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(folder)
    results = folder / "results.jsonl"
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
    print(summary(cases))
    sys.exit(1 if any(case["wrong"] for case in cases) else 0)


if __name__ == "__main__":
    main()
