"""Two hosts on one machine: what torchrun's restarts make of a killed worker and a lost host.

    python tests/campaign/two_hosts.py [--folder DIR] [--only kill cut lost elastic rank roles]

Two network namespaces with a cable (a veth pair) between them stand for two machines that share a
file system. On each of them torchrun starts one process of the same job, as README says. Then

- `kill`: a worker is killed while it trains; torchrun restarts both;
- `cut`: the cable is out until the job has noticed; the lost host's torchrun is started again, as a
  service would be;
- `lost`: a host goes down with all that runs on it, and its torchrun is started again;
- `elastic`: a host is lost for good and the other one goes on alone, then two more join; there must
  be the same sentences in every update, and the same losses but for the rounding of sums;
- `rank`, `roles`: a worker is killed while heads are ranked or named.

But for `elastic`, the weights (or the analysis) must in the end be those of an undisturbed job, bit
for bit. Needs the right to make network namespaces; nothing outside them is touched.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from world import write_text_files

HOSTS = tuple(f"headcount-{os.getpid()}-{name}" for name in "ab")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
PORT = 29517
PATIENCE = 900.0
ANSWER = 20  # seconds until a worker takes a silent host for lost
UPDATES = 60
ROUNDING = 1e-3  # of a loss, after updates whose sums were rounded differently


def ip(*words: str, check: bool = True) -> None:
    subprocess.run(["ip", *words], check=check, capture_output=True)


class Network:
    """Two namespaces with a cable; removed in the end."""

    def __enter__(self) -> Network:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", "cable-a", "netns", HOSTS[0], "type", "veth", "peer", "cable-b", "netns",
           HOSTS[1])  # fmt: skip
        for host, cable, address in zip(HOSTS, ("cable-a", "cable-b"), ADDRESSES, strict=True):
            ip("-n", host, "address", "add", f"{address}/24", "dev", cable)
            ip("-n", host, "link", "set", "lo", "up")
            ip("-n", host, "link", "set", cable, "up")
        return self

    def __exit__(self, *error: object) -> None:
        for host in HOSTS:
            ip("netns", "del", host, check=False)

    def cable(self, state: str) -> None:
        """Pull the cable out (`down`) or put it back (`up`)."""
        ip("-n", HOSTS[1], "link", "set", "cable-b", state)

    def sent(self) -> int:
        """Bytes that the first host has sent."""
        command = ["ip", "netns", "exec", HOSTS[0], "cat"]
        path = "/sys/class/net/cable-a/statistics/tx_bytes"
        # A namespace shows its own devices in a /sys of its own, which `ip netns exec` mounts.
        return int(subprocess.run([*command, path], check=True, capture_output=True).stdout)


class Job:
    """The same command under torchrun on both hosts; `nodes` as torchrun has it, `1:3` say."""

    def __init__(self, folder: Path, words: tuple[str, ...], nodes: str = "2") -> None:
        self.folder, self.words, self.nodes = folder, words, nodes
        self.agents = [self._start(number) for number in range(2)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        flags = ["--nnodes", self.nodes, "--nproc-per-node", "1", "--max-restarts", "5"]
        flags += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}"]
        flags += ["--rdzv-id", self.folder.name, "--rdzv-conf", f"is_host={int(number == 0)}"]
        flags += ["--local-addr", ADDRESSES[number]]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": ("cable-a", "cable-b")[number],
            "HEADCOUNT_PATIENCE": str(ANSWER),
            # Otherwise a torchrun that is started later waits in vain for the first one's address.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        with (self.folder / f"host-{number}.log").open("ab") as log:
            return subprocess.Popen(
                ["ip", "netns", "exec", HOSTS[number], sys.executable, "-m",
                 "torch.distributed.run", *flags, "-m", "headcount", *self.words],
                cwd=self.folder, env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def workers(self, number: int) -> list[int]:
        """The processes of headcount on a host."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(path.read_text().rsplit(")", 1)[1].split()[1])
                words = path.with_name("cmdline").read_bytes()
            except OSError:
                continue
            if parent == self.agents[number].pid and b"headcount" in words:
                found.append(int(path.parent.name))
        return found

    def lose(self) -> None:
        """The second host is gone, with all that ran on it."""
        for process in (*self.workers(1), self.agents[1].pid):
            os.kill(process, signal.SIGKILL)
        self.agents[1].wait()

    def grow(self) -> None:
        """Two hosts in place of the lost one; they share its network."""
        self.agents[1:] = [self._start(1) for _ in range(2)]

    def world(self) -> int:
        """The number of processes that the first host's worker knows of; 0 where there is none."""
        for process in self.workers(0):
            with suppress(OSError):
                variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                return int(next((v[11:] for v in variables if v.startswith(b"WORLD_SIZE=")), b"0"))
        return 0

    def wait(self) -> None:
        """Until all have ended; where the second host's torchrun gave up it is started again."""
        deadline = time.monotonic() + PATIENCE
        while self.agents[0].poll() is None:
            if self.nodes == "2" and self.agents[1].poll() not in (None, 0):
                self.agents[1] = self._start(1)
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"it did not end; see {self.folder}")
            time.sleep(0.5)
        for agent in self.agents[1:]:
            agent.wait(PATIENCE)
        if self.agents[0].returncode != 0:
            raise RuntimeError(f"it ended with {self.agents[0].returncode}; see {self.folder}")

    def stop(self) -> None:
        """End everything that this job has started."""
        for agent in self.agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
                agent.wait()


def trained_for(run: Path, updates: int) -> bool:
    """Whether a run has come so far."""
    log = run / "metrics.jsonl"
    return log.is_file() and len(log.read_text().splitlines()) >= updates


def until(condition: Callable[[], bool], job: Job) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if job.agents[0].poll() is not None or time.monotonic() > deadline:
            job.stop()
            raise RuntimeError(f"it ended before anything was disturbed; see {job.folder}")
        time.sleep(0.02)


def make_folder(base: Path, name: str, run: Path | None = None) -> Path:
    folder = base / name
    shutil.rmtree(folder, ignore_errors=True)
    write_text_files(folder)
    recipe = folder / "recipe.yaml"
    text = recipe.read_text().replace("updates: 4", f"updates: {UPDATES}")
    text = text.replace("save_every: 2", "save_every: 5").replace("log_every: 3", "log_every: 1")
    recipe.write_text(text.replace("device_tokens: 60", "device_tokens: 30"))
    if run is not None:
        shutil.copytree(run, folder / "run")
    return folder


TRAIN = ("train", "recipe.yaml", "--out", "run", "--resume", "--quiet")
ANALYSES = {
    "rank": ("rank", "run", "--src", "text.en", "--ref", "text.fr", "--quiet"),
    "roles": ("roles", "run", "--conllu", "text.conllu", "--sites", "enc,dec,cross", "--quiet"),
}
RESULT = {
    "train": "run/model.safetensors",
    "rank": "run/analysis/head-table.json",
    "roles": "run/analysis/roles.json",
}


def run_case(network: Network, base: Path, name: str, words: tuple[str, ...], run: Path | None,
             disturb: Callable[[Job, Path], None], nodes: str = "2") -> str:  # fmt: skip
    """Print a line of the table; the hash of what the job makes."""
    folder = make_folder(base, name, run)
    began, sent = time.monotonic(), network.sent()
    job = Job(folder, words, nodes)
    try:
        disturb(job, folder)
        job.wait()
    finally:
        job.stop()
    digest = hashlib.sha256((folder / RESULT[words[0]]).read_bytes()).hexdigest()[:16]
    # torchrun starts workers again with another number of the attempt in their log folder.
    traffic = (network.sent() - sent) / 1e6
    seconds = time.monotonic() - began
    print(f"| {name} | {seconds:.0f} s | {traffic:.2f} MB | {digest} |", flush=True)
    return digest


def kill_worker(rng: random.Random, lines: int) -> Callable[[Job, Path], None]:
    def disturb(job: Job, folder: Path) -> None:
        until(lambda: trained_for(folder / "run", lines), job)
        victim = rng.randrange(2)
        for process in job.workers(victim):
            os.kill(process, signal.SIGKILL)

    return disturb


def cut_host(network: Network, lines: int) -> Callable[[Job, Path], None]:
    def disturb(job: Job, folder: Path) -> None:
        until(lambda: trained_for(folder / "run", lines), job)
        network.cable("down")
        time.sleep(2 * ANSWER)
        network.cable("up")

    return disturb


def lose_host(lines: int) -> Callable[[Job, Path], None]:
    def disturb(job: Job, folder: Path) -> None:
        until(lambda: trained_for(folder / "run", lines), job)
        job.lose()

    return disturb


def lose_and_grow(job: Job, folder: Path) -> None:
    """Two processes, then one, then three."""
    until(lambda: job.world() == 2 and trained_for(folder / "run", 12), job)
    job.lose()
    until(lambda: job.world() == 1 and trained_for(folder / "run", 30), job)
    alone = job.workers(0)[0]
    os.kill(alone, signal.SIGSTOP)  # or it would be done before the others have come
    job.grow()
    until(lambda: told_to_stop(alone), job)
    os.kill(alone, signal.SIGCONT)
    until(lambda: job.world() == 3, job)


def told_to_stop(process: int) -> bool:
    """Whether a SIGTERM waits for a process that has been halted."""
    status = Path(f"/proc/{process}/status").read_text()
    pending = int(status.split("ShdPnd:")[1].split()[0], 16)
    return bool(pending & 1 << (signal.SIGTERM - 1))


def logged(folder: Path) -> list[dict[str, float]]:
    """The lines of a training's log, one per update."""
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "train"]


def drift(one: Path, other: Path) -> float:
    """The largest relative difference of a logged loss; infinite where the text was another."""
    pairs = list(zip(logged(one), logged(other), strict=True))
    if any(a["source_tokens"] != b["source_tokens"] for a, b in pairs):
        return float("inf")
    return max(abs(a["loss"] / b["loss"] - 1) for a, b in pairs)


def kill_analysis(job: Job, folder: Path) -> None:
    until(lambda: bool(job.workers(1)), job)
    time.sleep(4)
    for process in job.workers(1):
        os.kill(process, signal.SIGKILL)


def main() -> None:
    """Run the cases and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=1)
    kinds = ["kill", "cut", "lost", "elastic", *ANALYSES]
    parser.add_argument("--only", nargs="*", choices=kinds, default=kinds)
    options = parser.parse_args()
    base = (options.folder or Path(tempfile.mkdtemp(prefix="headcount-hosts-"))).resolve()
    base.mkdir(parents=True, exist_ok=True)
    rng = random.Random(options.seed)
    wrong = 0
    print("| job | took | sent by one host | result |\n|---|---|---|---|")
    with Network() as network:
        first = "undisturbed"
        expected = run_case(network, base, first, TRAIN, None, lambda *_: None)
        cases = {f"kill-{n}": partial(kill_worker, rng) for n in range(options.kills)}
        cases |= {"cut": partial(cut_host, network), "lost": lose_host}
        for name, disturbance in cases.items():
            if name.split("-")[0] in options.only:
                disturb = disturbance(rng.randint(3, UPDATES - 20))
                wrong += run_case(network, base, name, TRAIN, None, disturb) != expected
        if "elastic" in options.only:
            run_case(network, base, "elastic", TRAIN, None, lose_and_grow, nodes="1:3")
            difference = drift(base / "elastic", base / first)
            print(f"elastic: losses differ by at most {difference:.1e} of their value", flush=True)
            wrong += difference > ROUNDING
        for name, words in ANALYSES.items():
            if name in options.only:
                run = base / first / "run"
                alone = run_case(network, base, name, words, run, lambda *_: None)
                again = run_case(network, base, f"{name}-kill", words, run, kill_analysis)
                wrong += again != alone
    print(f"{wrong} differ.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
