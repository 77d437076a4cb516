"""Copy a run that was trained before into a study: `python -m headcount.study.adopt RUN OUT`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from headcount.files import atomic_folder
from headcount.run import load_run


def adopt(run: Path, out: Path) -> None:
    """Copy the files of a run, without its checkpoints and analyses."""
    load_run(run)  # a damaged run is refused before it is copied
    with atomic_folder(out) as partial:
        for path in run.iterdir():
            if path.is_file():
                shutil.copyfile(path, partial / path.name)


if __name__ == "__main__":
    adopt(Path(sys.argv[1]), Path(sys.argv[2]))
