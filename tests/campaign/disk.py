"""A small disk in memory that can really be full, and limits in place of one."""

from __future__ import annotations

import os
import resource
import subprocess
from contextlib import suppress
from pathlib import Path

DISK = "300m"
PAGE = 4096


def mount(folder: Path) -> bool:
    """A small disk in memory, if this process may make one."""
    subprocess.run(["umount", "-l", folder], capture_output=True)  # of a campaign that was killed
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "headcount-campaign", folder]
    with suppress(FileNotFoundError):
        return subprocess.run(command, capture_output=True).returncode == 0
    return False


def fill(disk: Path, pages: int) -> None:
    """Leave this much space on a disk, and no more."""
    state = os.statvfs(disk)
    size = (state.f_bavail * state.f_frsize // PAGE - pages) * PAGE
    with (disk / "filler").open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, size)


def limit_files(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
