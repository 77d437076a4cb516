"""Two hosts as network namespaces with a cable between them: a sum, and the cable pulled out.

Whole trainings with torchrun's restarts are in `two_hosts.py`, which takes minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from two_hosts import ADDRESSES, HOSTS, Network

WORKER = """
import sys, torch
from headcount.distribution import connect
from headcount.errors import UserError
with connect() as workers:
    print(workers.sum(torch.ones(1)).item(), flush=True)
    sys.stdin.readline()
    try:
        workers.sum(torch.ones(1))
    except UserError as error:
        print(error, flush=True)
    sys.stdout.close()
    import os
    os._exit(0)  # nobody is left to say goodbye to
"""


@pytest.fixture
def network() -> Iterator[Network]:
    try:
        with Network() as made:
            yield made
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs iproute2 and the right to make network namespaces")


def start(number: int) -> subprocess.Popen[str]:
    place = {"RANK": number, "WORLD_SIZE": 2, "LOCAL_RANK": 0}
    place |= {"MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": 29518, "HEADCOUNT_PATIENCE": 3}
    place |= {"GLOO_SOCKET_IFNAME": ("cable-a", "cable-b")[number], "OMP_NUM_THREADS": 1}
    return subprocess.Popen(
        ["ip", "netns", "exec", HOSTS[number], sys.executable, "-c", WORKER],
        env={**os.environ, **{name: str(value) for name, value in place.items()}},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_silent_host_is_noticed(network: Network) -> None:
    workers = [start(number) for number in range(2)]
    try:
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "2.0\n"
        assert network.sent() > 0
        network.cable("down")
        for worker in workers:
            said, _ = worker.communicate("go on\n", timeout=120)
            assert said.startswith("Another process of this job does not answer")
            assert "--max-restarts" in said
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
