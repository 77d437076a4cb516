"""A short, fixed part of the campaign: the same cases every time, under a minute.

`make campaign` runs as many others as there is time for.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).with_name("campaign.py")


@pytest.mark.slow
def test_the_first_cases_of_the_campaign(tmp_path: Path) -> None:
    """In a process of its own: it forks, and pytest may have threads."""
    command = [sys.executable, str(CAMPAIGN), "--folder", str(tmp_path), "--small"]
    done = subprocess.run(
        [*command, "--seed", "0", "--cases", "40", "--minutes", "10"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    last = done.stdout.splitlines()[-1].split()
    assert last[0] == "all"
    assert int(last[1]) >= 40
    assert int(last[-1]) == 0
