"""The same work in two processes, started as people start them: by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys

# Long enough for a machine that does many other things; a hang still ends.
PATIENCE = 600

TORCHRUN = (
    *(sys.executable, "-m", "torch.distributed.run"),
    *("--standalone", "--nproc-per-node", "2"),
)


def run_in_two_processes(*arguments: object) -> bytes:
    """What `torchrun ARGUMENTS` prints; the test fails with its errors where it fails."""
    done = subprocess.run(
        [*TORCHRUN, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return done.stdout
