"""axe-core, the checker of accessibility, fetched once with npm; None where it cannot be had."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from headcount.data.fetch import cache_folder

VERSION = "4.14.0"


def axe_source() -> str | None:
    """The script, from the cache or from npm's registry."""
    kept = cache_folder() / "tests" / f"axe-core-{VERSION}.js"
    if kept.is_file():
        return kept.read_text(encoding="utf-8")
    if shutil.which("npm") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", "--silent", f"axe-core@{VERSION}"]
        try:
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
        except (subprocess.SubprocessError, OSError):
            return None
        packed = next(Path(folder).glob("*.tgz"))
        with tarfile.open(packed) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            source = member.read()
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{hashlib.sha256(source).hexdigest()[:8]}")
    partial.write_bytes(source)
    partial.replace(kept)
    return source.decode("utf-8")
