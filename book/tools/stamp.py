"""One place for the address under which the book is published.

    python book/tools/stamp.py --repo owner/name --ref v0.1.0    # or: make stamp REPO=owner/name REF=v0.1.0
    python book/tools/stamp.py --repo= --ref=                    # take the address out again
    python book/tools/stamp.py --show                            # prints "owner/name v0.1.0", or nothing

It goes into ``_config.yml``, the setup cell, every chapter (that cell, and a badge that opens the chapter in Colab), the README
and CITATION.cff. Stamping twice changes nothing the second time, and a new address takes the place of the old one. Either all
files are written or none.

Needs nothing but Python: it is run before anything is installed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import notebooks

ROOT = Path(__file__).resolve().parents[2]
FIRST_CHAPTER = "01_activation_patching.ipynb"

# What GitHub takes as an account and as the name of a repository, and the part of git's rules for refs that needs no quoting.
REPO = re.compile(
    r"(?P<owner>[A-Za-z0-9](?:-?[A-Za-z0-9]){0,38})/(?P<name>(?!\.\.?$)[\w.-]{1,100}(?<!\.git))", re.ASCII
)
REF = re.compile(r"(?!.*(\.\.|//|/\.|\.lock(/|$)))[A-Za-z0-9_][\w./-]*(?<![./])", re.ASCII)


@dataclass(frozen=True)
class Address:
    """Where the book is published.

    Args:
        repo: "owner/name" on GitHub.
        ref: the tag, branch or commit that Colab opens and installs.
    """

    repo: str
    ref: str

    @property
    def url(self) -> str:
        return f"https://github.com/{self.repo}"

    @property
    def install(self) -> str:
        """What pip installs."""
        return f"git+{self.url}@{self.ref}"

    @property
    def site(self) -> str:
        """Where GitHub Pages serves the book."""
        owner, name = self.repo.split("/")
        home = f"https://{owner.lower()}.github.io/"
        return home if name.lower() == f"{owner.lower()}.github.io" else f"{home}{name}/"

    def badge(self, chapter: str, picture: str) -> str:
        """Markdown of the button that opens ``chapter``, a file name; ``picture`` is the way to book/_static."""
        opens = f"https://colab.research.google.com/github/{self.repo}/blob/{self.ref}/notebooks/{chapter}"
        return f"[![Open in Colab]({picture}/colab-badge.svg)]({opens})"


def parse(repo: str, ref: str) -> Address | None:
    """The address, or None if both are empty.

    Raises:
        ValueError: one of them is empty, or is nothing that GitHub could have.
    """
    if not repo and not ref:
        return None
    if not REPO.fullmatch(repo):
        raise ValueError(
            f"REPO: expected owner/name as on GitHub, got {repo!r}; both REPO and REF empty take the address out"
        )
    if not REF.fullmatch(ref):
        raise ValueError(f"REF: expected a tag, branch or commit such as v0.1.0, got {ref!r}")
    return Address(repo, ref)


def stamped(root: Path, address: Address | None) -> dict[Path, str]:
    """The text of every file that carries the address, with this one; None stands for no address.

    Raises:
        ValueError: a file in which the place for it is missing, or there more than once.
        OSError: a file that is missing.
    """
    setup = _setup_cell(root / "book/tools/setup_cell.ipy", address)
    texts = {
        root / "_config.yml": _config(root / "_config.yml", address),
        root / "README.md": _readme(root / "README.md", address),
        root / "CITATION.cff": _citation(root / "CITATION.cff", address),
        root / "book/tools/setup_cell.ipy": setup,
    }
    return texts | {path: _chapter(path, setup, address) for path in notebooks.chapters(root / "notebooks")}


def read(root: Path = ROOT) -> Address | None:
    """The address that all files carry.

    Raises:
        ValueError: they don't all carry the same; the message names one that differs from ``_config.yml``.
    """
    config = (root / "_config.yml").read_text("utf8")
    found = re.search(r"^  url: https://github\.com/(\S+)\n(?:.*\n)*?  branch: (\S+)$", config, flags=re.M)
    if not found:
        raise ValueError("_config.yml: expected a repository with a url and a branch")
    address = None if found[1].startswith("-/") else parse(found[1], found[2])
    for path, text in stamped(root, address).items():
        if text != path.read_text("utf8"):
            said = f"{address.repo} {address.ref}" if address else "no address"
            raise ValueError(
                f"{path.relative_to(root)}: does not agree with _config.yml, which has {said}; run 'make stamp'"
            )
    return address


def write(texts: dict[Path, str]) -> list[Path]:
    """Write what differs, all of it or nothing; the paths that were written."""
    old = {path: path.read_text("utf8") for path in texts}
    new = {path: text for path, text in texts.items() if text != old[path]}
    parts = {path: path.with_name(f"{path.name}.part") for path in new}
    try:
        for path, part in parts.items():
            part.write_text(new[path], "utf8")
        for path, part in parts.items():
            part.replace(path)
    except BaseException:
        for path, part in parts.items():
            if not part.exists() and path.read_text("utf8") != old[path]:  # already in its place
                path.write_text(old[path], "utf8")
        raise
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
    return list(new)


# One function a kind of file: its text, with the address -----------------------------------------


def _config(path: Path, address: Address | None) -> str:
    text = path.read_text("utf8")
    # The theme wants an address of this form in any case. No account can have this name.
    text = _once(path, text, r"^  url: .*$", f"  url: {address.url if address else 'https://github.com/-/circuitlib'}")
    text = _once(path, text, r"^  branch: .*$", f"  branch: {address.ref if address else 'main'}")
    colab = "  colab_url: https://colab.research.google.com\n" if address else ""
    text = _once(path, text, r"^launch_buttons:\n(?:  colab_url: .*\n)?", f"launch_buttons:\n{colab}")
    for button in ("use_repository_button", "use_issues_button"):
        text = _once(path, text, rf"^  {button}: .*$", f"  {button}: {'true' if address else 'false'}")
    return text


def _setup_cell(path: Path, address: Address | None) -> str:
    return _once(path, path.read_text("utf8"), r'^REPO = "[^"\n]*"', f'REPO = "{address.install if address else ""}"')


def _chapter(path: Path, setup: str, address: Address | None) -> str:
    notebook = notebooks.read(path)
    first = notebook["cells"][0]
    badge = f"\n{address.badge(path.name, '../book/_static')}\n" if address else ""
    pattern = r"^<!-- colab-badge -->\n(?:\n\[!\[Open in Colab\].*\n)?"
    first["source"] = _once(path, "".join(first["source"]), pattern, f"<!-- colab-badge -->\n{badge}")
    cells = [cell for cell in notebook["cells"] if "setup" in cell["metadata"].get("tags", [])]
    if len(cells) != 1:
        raise ValueError(f"{path.name}: expected one cell tagged 'setup', found {len(cells)}")
    cells[0]["source"] = setup
    return notebooks.dumps(notebooks.canonical(notebook))


def _readme(path: Path, address: Address | None) -> str:
    text = path.read_text("utf8")
    where = f"Read it at <{address.site}>, or open the first chapter: {address.badge(FIRST_CHAPTER, 'book/_static')}\n\n" if address else ""  # fmt: skip
    text = _once(path, text, r"^<!-- address -->\n\n(?:Read it at .*\n\n)?", f"<!-- address -->\n\n{where}")
    install = f'pip install "circuitlib @ {address.install}"' if address else "pip install .    # in a clone"
    return _once(path, text, r'^pip install (?:\. .*|"circuitlib @ .*)$', install)


def _citation(path: Path, address: Address | None) -> str:
    lines = f'repository-code: "{address.url}"\nurl: "{address.site}"\n' if address else ""
    pattern = r"^(version: \S+\n)(?:repository-code: .*\n)?(?:url: .*\n)?"
    return _once(path, path.read_text("utf8"), pattern, lambda found: found[1] + lines)


def _once(path: Path, text: str, pattern: str, new: str | Callable[[re.Match], str]) -> str:
    """Replace the one place that matches."""
    text, count = re.subn(pattern, new if callable(new) else lambda _: new, text, flags=re.M)
    if count != 1:
        raise ValueError(f"{path.name}: expected one place for the address that matches {pattern!r}, found {count}")
    return text


# From a terminal ---------------------------------------------------------------------------------


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Write the book's address into every file that carries it.")
    parser.add_argument("--repo", help="owner/name on GitHub; empty to take the address out")
    parser.add_argument("--ref", help="a tag, branch or commit; empty to take the address out")
    parser.add_argument("--show", action="store_true", help="print the address that all files carry")
    options = parser.parse_args(arguments)
    try:
        if options.show:
            if address := read(root):
                print(address.repo, address.ref)
            return 0
        if options.repo is None or options.ref is None:
            raise ValueError(
                "expected both: make stamp REPO=owner/name REF=v0.1.0, or make stamp REPO= REF= to take it out"
            )
        address = parse(options.repo, options.ref)
        written = write(stamped(root, address))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3 if isinstance(error, OSError) else 2
    said = f"{address.repo} at {address.ref}" if address else "no address"
    print(f"{said}: {len(written)} files written" if written else f"{said}: nothing to change")
    return 0


if __name__ == "__main__":
    sys.exit(main())
