"""Time the models of a study: `python -m headcount.study.bench_models OUT SRC RUN [RUN ...]`."""

from __future__ import annotations

import sys
from pathlib import Path

from headcount.bench.runs import bench
from headcount.data.cleaning import spread
from headcount.distribution import default_device
from headcount.files import read_lines, write_json

LINES = 128

if __name__ == "__main__":
    lines = spread(list(read_lines(Path(sys.argv[2]))), LINES)
    rows = bench([Path(run) for run in sys.argv[3:]], lines, device=default_device())
    write_json(Path(sys.argv[1]), [row.to_json() for row in rows])
