"""A software bill of materials: what headcount needs, as installed here (CycloneDX 1.5, JSON).

python tools/sbom.py > sbom.json
"""

from __future__ import annotations

import json
import sys
import uuid
from importlib import metadata
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(root: str, extras: tuple[str, ...] = ("",)) -> dict[str, set[str]]:
    """Installed distributions that `root` needs, with what each of them needs in turn."""
    graph: dict[str, set[str]] = {}
    to_do = [(canonicalize_name(root), extras)]
    while to_do:
        name, asked = to_do.pop()
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed
        known = graph.setdefault(name, set())
        for requirement in map(Requirement, requirements):
            environments = [dict(default_environment(), extra=extra) for extra in asked]
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate(e) for e in environments):
                continue
            other = canonicalize_name(requirement.name)
            if other not in known and _installed(other):
                known.add(other)
                to_do.append((other, ("", *sorted(requirement.extras))))
    return graph


def _installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def component(name: str, kind: str = "library") -> dict[str, Any]:
    """One distribution in CycloneDX's format."""
    about = metadata.metadata(name)
    version = metadata.version(name)
    licence = about.get("License-Expression") or (about.get("License") or "").split("\n")[0]
    entry: dict[str, Any] = {
        "type": kind,
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    if licence and len(licence) < 80:
        entry["licenses"] = [{"license": {"name": licence}}]
    return entry


def bill(root: str = "headcount") -> dict[str, Any]:
    """The whole bill of materials."""
    extras = ("", *sorted(metadata.metadata(root).get_all("Provides-Extra") or []))
    graph = needed(root, extras)
    references = {name: component(name)["bom-ref"] for name in graph}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, str(sorted(references)))}",
        "version": 1,
        "metadata": {"component": component(root, "application")},
        "components": [component(name) for name in sorted(graph) if name != root],
        "dependencies": [
            {"ref": references[name], "dependsOn": sorted(references[n] for n in others)}
            for name, others in sorted(graph.items())
        ],
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
    sys.stdout.write("\n")
