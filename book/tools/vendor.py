"""Fetch the scripts that the built pages use, so that the book needs no network when it is read.

    python book/tools/vendor.py

Needs npm. Without npm, or without a network, the pages take these scripts from their usual CDNs instead.
Files go to book/_static/vendor, which git ignores.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from vendored import VENDOR


@dataclass(frozen=True)
class Script:
    """One npm package: which files of it the book uses, and the hash of the archive that was looked at.

    Args:
        base: folder in the archive that the kept paths are relative to.
        keep: files or folders below ``base``.
    """

    package: str
    sha256: str
    folder: str
    base: str
    keep: tuple[str, ...]


SCRIPTS = (
    Script(
        "mathjax@3.2.2",
        "1b9c0a1c44df864e915690558e72adb9cc5203360daefd385084ced3b6c64c09",
        "mathjax",
        "package/es5/",
        ("tex-mml-chtml.js", "input/tex/extensions/", "output/chtml/fonts/"),
    ),
    Script(
        "requirejs@2.3.7",
        "31f3330c978fb28684622fe71165dc946432cf0210b2ea8a1ca0233e70f2737d",
        "requirejs",
        "package/",
        ("require.js",),
    ),
    Script(
        "@jupyter-widgets/html-manager@1.0.15",
        "2b9d65cb7913e1c7d671757a10008b32c9c2448d4429513371e55c07d6107638",
        "html-manager",
        "package/dist/",
        ("embed-amd.js",),
    ),
)


def main() -> int:
    missing = [script for script in SCRIPTS if not (VENDOR / script.folder / ".complete").exists()]
    if not missing:
        return 0
    npm = shutil.which("npm")
    if npm is None:
        print("note: npm is not installed; the pages will load MathJax from the network when they are read")
        return 0
    for script in missing:
        try:
            fetch(script, npm)
        except (OSError, subprocess.SubprocessError):
            print(f"note: npm could not fetch {script.package}; the pages will load it from the network")
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return 0


def fetch(script: Script, npm: str) -> None:
    """Download the package, compare its hash, and put the files that are kept in place, all or none."""
    VENDOR.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=VENDOR) as work:
        subprocess.run(
            [npm, "pack", "--silent", "--fetch-retries=1", script.package],
            cwd=work,
            check=True,
            timeout=120,
            stdout=subprocess.DEVNULL,
        )
        archive = next(Path(work).glob("*.tgz"))
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != script.sha256:
            raise ValueError(f"{script.package}: the archive's SHA-256 is {found}, expected {script.sha256}")
        part = Path(work) / "kept"
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                name = member.name.removeprefix(script.base)
                if member.isfile() and member.name != name and name.startswith(script.keep):
                    (part / name).parent.mkdir(parents=True, exist_ok=True)
                    (part / name).write_bytes(tar.extractfile(member).read())
        (part / ".complete").touch()
        shutil.rmtree(VENDOR / script.folder, ignore_errors=True)
        part.rename(VENDOR / script.folder)


if __name__ == "__main__":
    sys.exit(main())
