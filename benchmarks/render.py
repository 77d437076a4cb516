"""`RESULTS.md` from the JSON files of `results/`: aims against what was measured.

    python benchmarks/render.py

Nothing is measured here, so the page is the same whenever the results are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from measuring import HERE, RESULTS, spread
from prepare import TOGETHER

Results = dict[str, Any]
Row = tuple[str, str, str, str, bool | None]  # what, against, aim, measured, reached


def main() -> None:
    (HERE / "RESULTS.md").write_text(render(_load()), encoding="utf-8")


def _load() -> dict[str, Results]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def render(results: dict[str, Results]) -> str:
    """The whole page; a benchmark without results is left out of it."""
    parts = [HEAD, _table(AIMS_HEAD, [_aim_cells(row) for row in aims(results)])]
    for name, section in SECTIONS.items():
        if name in results:
            parts.append(section(results[name]))
    return "\n\n".join(parts) + "\n"


HEAD = """\
# Results

Made by `python benchmarks/render.py` from `benchmarks/results/*.json`; what each benchmark does is
in [README.md](README.md). Every comparison is a ratio within rounds in which all contenders take
turns on the same machine; given are the median and, in brackets, the least and the most of the
rounds. Seconds are the processor's unless "wall" is said; the load of the machine (1, 5 and 15
minutes) stands beside the figures.

A step of beam search for one sentence needs about 20 MFLOP, a seventh of a millisecond at the
machine's matrix peak; what it takes beyond that is the cost of some hundred small operations from
Python. That bounds batch 1, where CTranslate2, a compiled engine, is ahead: `headcount export --to
ctranslate2` gives the same translations at its speed."""

AIMS_HEAD = ("what", "against", "aim", "measured", "reached")


def aims(results: dict[str, Results]) -> list[Row]:
    """The table of aims: one row for each that was measured."""
    rows: list[Row] = []
    for name, maker in AIMS.items():
        if name in results:
            rows.extend(maker(results[name]))
    return rows


def _training_aims(result: Results) -> Iterable[Row]:
    for peer, each in result["faster_than_cpu"].items():
        aim = "ahead, aim 1.3x"
        yield "training, source tokens/s", peer, aim, _times(each), each["median"] >= 1.3
    share = result["flops_utilisation_cpu"]["headcount"]
    yield "training, share of matrix peak", "the machine", "reported", _percent(share), None


def _decoding_aims(result: Results) -> Iterable[Row]:
    for batch in ("batch 1", "batch 32"):
        for peer, each in result[batch]["faster_than_cpu"].items():
            engine = peer == "CTranslate2"
            aim = "gap stated" if engine else "aim 2x"
            reached = None if engine else each["median"] >= 2
            yield f"beam 4, {batch}, sentences/s", peer, aim, _times(each), reached


def _lrp_aims(result: Results) -> Iterable[Row]:
    threads = result["all_cores"]["threads"]
    for rule, each in result["rules"].items():
        what = f"LRP ({rule})"
        wall = result["all_cores"]["rules"][rule]["faster_than_stepwise"]
        once, passes = each["faster_than_stepwise"], each["of_backward"]
        for which, results in ((f"{threads} threads, wall", wall), ("1 thread", once)):
            reached = results["median"] >= 20
            against = f"one step at a time, {which}"
            yield what, against, "at least 20x", _times(results), reached
        reached = passes["median"] <= 1.5
        yield what, "backward passes", "at most 1.5x their time", _times(passes), reached


def _roles_aims(result: Results) -> Iterable[Row]:
    each = result["roles_to_forward"]
    reached = each["median"] <= 1.5
    yield "roles", "encoder's forward pass", "at most 1.5x its time", _times(each), reached


def _prepare_peer_aims(result: Results) -> Iterable[Row]:
    for pairs in sorted({row["pairs"] for row in result["results"]}):
        rounds: dict[str, list[Results]] = {}
        for row in result["results"]:
            if row["pairs"] == pairs:
                rounds.setdefault(row["step"], []).append(row)
        own = rounds.pop(TOGETHER)
        for peer, theirs in rounds.items():
            for clock, name in (("CPU", "cpu_seconds"), ("wall", "seconds")):
                each = spread([b[name] / a[name] for a, b in zip(own, theirs, strict=True)])
                what = f"BPE and token ids, {pairs:,} pairs, {clock}"
                yield what, peer, "faster", _times(each), each["median"] > 1


def _prepare_aims(result: Results) -> Iterable[Row]:
    for text in sorted({row["text"] for row in result["results"]}):
        for step in ("bpe", "prepare", "batches"):
            rows = [r for r in result["results"] if (r["text"], r["step"]) == (text, step)]
            if len(rows) > 1:
                first, last = rows[0], rows[-1]
                growth = last["peak_rss_mb"] / first["peak_rss_mb"]
                sizes = f"{first['pairs']:,} to {last['pairs']:,} pairs"
                megabytes = f"{first['peak_rss_mb']} to {last['peak_rss_mb']} MB"
                what = f"memory of `{step}`, {text} text"
                yield what, sizes, "flat", f"{megabytes} ({growth:.2f}x)", growth < 1.5


def _pruned_aims(result: Results) -> Iterable[Row]:
    for name, model in result["models"].items():
        if name == "full":
            continue
        for task, each in model.items():
            if isinstance(each, dict) and "ceiling" in each and "batch 64" in task:
                measured = f"{each['speed_up']:.2f}x of {each['ceiling']:.2f}x"
                share = f"{measured} ({100 * each['of_ceiling']:.0f} %)"
                what = f"pruned to {name}: {task}"
                yield what, "arithmetic ceiling", "80 % of it", share, each["of_ceiling"] >= 0.8


def _explore_aims(result: Results) -> Iterable[Row]:
    for name, aim in result["aims"].items():
        seconds, ratio = result["seconds"][name], result["ratios"][name]
        shown = f"{1e3 * seconds['cpu']:.0f} ms of CPU, {1e3 * seconds['wall']:.0f} ms of clock"
        against = f"a plain translation: {ratio:.2f}x"
        yield f"live page: {name}", against, f"{1e3 * aim:.0f} ms", shown, seconds["wall"] <= aim


AIMS: dict[str, Callable[[Results], Iterable[Row]]] = {
    "training": _training_aims,
    "decoding": _decoding_aims,
    "lrp": _lrp_aims,
    "roles": _roles_aims,
    "prepare-peers": _prepare_peer_aims,
    "prepare-peers-1-million": _prepare_peer_aims,
    "prepare": _prepare_aims,
    "pruned": _pruned_aims,
    "explore": _explore_aims,
}


# Details of each benchmark


def _training(result: Results) -> str:
    names = list(result["source_tokens_per_cpu_second"])
    rows = [
        (
            name,
            _figure(result["source_tokens_per_cpu_second"][name]),
            _figure(result["source_tokens_per_wall_second"][name]),
            _percent(result["flops_utilisation_cpu"][name]),
            f"{result['peak_rss_mb'][name]:.0f} MB",
        )
        for name in names
    ]
    head = ("", "source tokens / CPU s", "source tokens / wall s", "of matrix peak", "memory")
    losses = ", ".join(f"{name} {loss:.5f}" for name, loss in result["same_loss"].items())
    text = (
        f"{_place(result)} {result['updates']} updates per round, {result['rounds']} rounds,"
        f" {result['threads']} thread. Matrix peak: {_figure(result['peak_gflops_cpu'])} GFLOPS per"
        f" CPU second. Loss of the same weights on the same batch: {losses}. {_versions(result)}"
    )
    if result.get("left_out"):
        text += f" Left out, because they did not start: {', '.join(result['left_out'])}."
    parts = ["## Training", text, _table(head, rows)]
    if "two_cores" in result:
        two = result["two_cores"]
        speeds = two["source_tokens_per_wall_second"]
        parts.append(
            f"Two cores, wall clock, load {two['load']}: one process with two threads"
            f" {_figure(speeds['two threads'])} source tokens/s, two processes with one thread each"
            f" {_figure(speeds['two processes'])}: {_times(two['processes_faster'])}."
        )
    return "\n\n".join(parts)


def _decoding(result: Results) -> str:
    model = ", ".join(f"{name} {value}" for name, value in result["model"].items())
    text = f"{_place(result)} Model: {model}. {_versions(result)}"
    parts = ["## Beam search", text]
    for batch in ("batch 1", "batch 32"):
        each = result[batch]
        rows = [
            (
                peer,
                _figure(each["sentences_per_cpu_second"][peer]),
                _figure(each["sentences_per_cpu_second"][f"headcount as {peer}"]),
                _times(each["faster_than_cpu"][peer]),
                _times(each["faster_than_wall"][peer]),
                f"{100 * each['same_translations'][peer]:.0f} %",
            )
            for peer in each["faster_than_cpu"]
        ]
        head = (
            "peer",
            "its sentences / CPU s",
            "headcount's",
            "ratio",
            "wall",
            "same translations",
        )
        title = f"{batch.capitalize()}, {each['sentences']} sentences:"
        parts += [title, _table(head, rows)]
    return "\n\n".join(parts)


def _lrp(result: Results) -> str:
    roofline, all_cores = result["roofline"], result["all_cores"]
    mflop, gflops = roofline["mflop_per_step"], roofline["gflops"]
    default = next(iter(result["rules"]))
    slow = result["ms_per_step"][f"stepwise: {default}"]["median"]
    ceiling = slow * gflops["peak"] / mflop["lrp"]
    text = (
        f"{_place(result)} {result['sentences']} sentences, {result['steps']} steps. A step of the"
        f" default rule is {mflop['lrp']} MFLOP batched and {mflop['stepwise']} MFLOP alone, where"
        f" nothing of the forward pass is shared. Batched it runs at {gflops['lrp']} of the"
        f" {gflops['peak']} GFLOPS that one thread has for large matrices"
        f" ({100 * roofline['of_peak']:.0f} %). At the peak itself it would be {ceiling:.0f} times"
        f" as fast as step by step with one thread: that bounds the ratio."
    )
    head = ["rule", "sentences / CPU s, 1 thread", f"sentences / s, {all_cores['threads']} threads"]
    rows = [
        (rule, *(str(each["sentences_per_second"]) for each in (one, all_cores["rules"][rule])))
        for rule, one in result["rules"].items()
    ]
    return "\n\n".join(["## LRP", text, _table(head, rows)])


def _growth(result: Results) -> str:
    rows = []
    for name in ("training", "LRP", "roles"):
        for grows, each in result[name].items():
            sizes = f"{each['sizes'][0]} to {each['sizes'][-1]}"
            times = f"{each['cpu_seconds'][0]} to {each['cpu_seconds'][-1]} s"
            memory = f"{each['peak_mb'][0]} to {each['peak_mb'][-1]} MB"
            rows.append(
                (
                    name,
                    f"{grows}, {sizes}",
                    times,
                    f"{each['exponent']:.2f}",
                    memory,
                    f"{each['memory_exponent']:.2f}",
                )
            )
    head = ("", "what grows", "CPU time", "exponent", "tensors alive", "exponent")
    text = f"{_place(result)} Exponents of power laws; 1 is linear."
    picture = "![Time and memory against size](results/growth.svg)"
    return "\n\n".join(["## How cost grows", text, _table(head, rows), picture])


def _pruned(result: Results) -> str:
    rows = []
    for name, model in result["models"].items():
        for task, each in model.items():
            if isinstance(each, dict) and "ceiling" in each:
                cost = f"{each['cpu_ms_a_sentence']} ({each['quartiles'][0]}..."
                cost += f"{each['quartiles'][1]})"
                speed = f"{each['speed_up']:.2f}x", f"{each['ceiling']:.2f}x"
                rows.append((name, task, cost, *speed))
    head = ("model", "task", "CPU ms per sentence (quartiles)", "speed-up", "ceiling")
    note = (
        "Speed-ups above the ceiling: it counts multiply-adds, and heads also cost softmax and"
        " copying."
    )
    return "\n\n".join(["## Pruned models", f"{_place(result)} {note}", _table(head, rows)])


def _prepare(result: Results, title: str = "Preparing data") -> str:
    times = ("CPU s", "wall s", "pairs / wall s")
    head = ("text", "pairs", "step", *times, "RSS MB", "PSS MB", "own MB")
    names = ("text", "pairs", "step", "cpu_seconds", "seconds", "pairs_per_second")
    memory = ("peak_rss_mb", "peak_pss_mb", "peak_anonymous_mb")
    rows = [tuple(str(row[name]) for name in (*names, *memory)) for row in result["results"]]
    machine = result["machine"]
    text = f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']:.1f}."
    return "\n\n".join([f"## {title}", text, _table(head, rows)])


def _optimisations(result: Results) -> str:
    head = ("training without", "takes", "memory")
    rows = [
        (name, _times(each["times_as_long"]), f"{each['peak_rss_mb']:.0f} MB")
        for name, each in result["without"].items()
    ]
    tokens = _figure(result["source_tokens_per_cpu_second"])
    note = (
        f"{result['rounds']} rounds of {result['updates']} updates, 1 thread. With all of them"
        f" {tokens} source tokens per CPU second and {result['peak_rss_mb']:.0f} MB. Each"
        " is taken out alone, but where a row names two."
    )
    title = "## What each optimisation of training brings"
    return "\n\n".join([title, f"{_place(result)} {note}", _table(head, rows)])


def _explore(result: Results) -> str:
    rows = [
        (name, f"{1e3 * each['wall']:.0f}", f"{1e3 * each['cpu']:.0f}", f"{ratio:.2f}x")
        for (name, each), ratio in zip(
            result["seconds"].items(), result["ratios"].values(), strict=True
        )
    ]
    head = ("", "ms by the clock", "ms of CPU", "of a plain translation")
    text = (
        f"{_place(result)} Run: {result['run']}, a sentence of {result['tokens']} tokens,"
        f" {result['threads']} threads, medians of {result['rounds']} rounds."
    )
    return "\n\n".join(["## The live page", text, _table(head, rows)])


SECTIONS: dict[str, Callable[[Results], str]] = {
    "training": _training,
    "optimisations": _optimisations,
    "decoding": _decoding,
    "lrp": _lrp,
    "pruned": _pruned,
    "prepare-peers": lambda result: _prepare(result, "Preparing data, with peers"),
    "prepare-peers-1-million": lambda result: _prepare(result, "Preparing a million pairs"),
    "prepare": _prepare,
    "growth": _growth,
    "explore": _explore,
}


# How figures are written


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    lines.insert(1, "|" + "---|" * (lines[0].count(" | ") + 1))
    return "\n".join(lines)


def _aim_cells(row: Row) -> tuple[str, ...]:
    return (*row[:4], {True: "yes", False: "no", None: ""}[row[4]])


def _times(spread: dict[str, float]) -> str:
    return f"{spread['median']:.2f}x ({spread['least']:.2f}...{spread['most']:.2f})"


def _figure(spread: dict[str, float]) -> str:
    return f"{spread['median']:g} ({spread['least']:g}...{spread['most']:g})"


def _percent(spread: dict[str, float]) -> str:
    low, high = 100 * spread["least"], 100 * spread["most"]
    return f"{100 * spread['median']:.0f} % ({low:.0f}...{high:.0f})"


def _place(result: Results) -> str:
    machine = result["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['cores_used']} used, load"
        f" {'/'.join(map(str, machine['load']))}, Python {machine['python']}."
    )


def _versions(result: Results) -> str:
    known: dict[str, str] = {}
    for versions in result["versions"].values():
        known |= versions
    return "Versions: " + ", ".join(f"{name} {known[name]}" for name in sorted(known)) + "."


if __name__ == "__main__":
    main()
