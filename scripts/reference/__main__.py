"""Writes every generated file, or with `--check` names the stale ones and exits 1."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from ajet.rollout.served.http import build_openapi
from scripts.reference.configuration import configuration_md, defaults_yaml
from scripts.reference.dialects import dialects_md
from scripts.reference.errors import errors_md
from scripts.reference.pages import (
    ROOT,
    WORDS,
    algorithms_md,
    choosing_md,
    cli_md,
    definitions_js,
    harnesses_md,
    install_md,
    llms_txt,
    metrics_md,
    packages_md,
    performance_md,
    test_environments_md,
    verl_keys_md,
    versions_md,
)
from scripts.reference.surface import COMMIT_ON_PURPOSE, FILE, compare_surface, describe_surface


def build_files() -> dict[Path, str]:
    """Return every generated file of the repository with the text it should have."""
    return {
        ROOT / "default_config" / "ajet_default.yaml": defaults_yaml(),
        ROOT / "docs" / "reference" / "configuration.md": configuration_md(),
        ROOT / "docs" / "reference" / "cli.md": cli_md(),
        ROOT / "docs" / "reference" / "metrics.md": metrics_md(),
        ROOT / "docs" / "reference" / "dialects.md": dialects_md(),
        ROOT / "docs" / "reference" / "errors.md": errors_md(ROOT),
        ROOT / "docs" / "openapi.json": json.dumps(build_openapi(), indent=1) + "\n",
        ROOT / "docs" / "reference" / "packages.md": packages_md(),
        ROOT / "docs" / "reference" / "algorithms.md": algorithms_md(),
        ROOT / "docs" / "performance.md": performance_md(),
        ROOT / "docs" / "harnesses.md": harnesses_md(),
        ROOT / "docs" / "choosing_an_algorithm.md": choosing_md(),
        ROOT / "docs" / "install.md": install_md(),
        ROOT / "docs" / "reference" / "test_environments.md": test_environments_md(),
        ROOT / "docs" / "reference" / "verl_keys.md": verl_keys_md(),
        ROOT / "docs" / "reference" / "versions.md": versions_md(),
        ROOT / "llms.txt": llms_txt(),
        ROOT / WORDS: definitions_js(),
        ROOT / FILE: describe_surface(ROOT),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or only compare them. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for path, text in build_files().items():
        recorded = path.read_text(encoding="utf-8") if path.exists() else ""
        if recorded == text:
            continue
        stale.append(path.relative_to(ROOT))
        if not check:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
        elif path == ROOT / FILE:
            print(f"{compare_surface(recorded, text)}\n\nThe public surface has changed; {COMMIT_ON_PURPOSE}")
    if stale and check:
        print(f"stale: {', '.join(map(str, stale))}; `make docs` writes them anew", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
