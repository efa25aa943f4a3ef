"""The address of the published book: written everywhere or nowhere, the same everywhere, and gone again without a trace."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from bs4 import BeautifulSoup
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book" / "tools"))
import stamp  # noqa: E402

import notebooks  # noqa: E402

REPO, REF = "Some-Owner/circuits.book", "v1.2.3"
URL = f"https://github.com/{REPO}"
OTHERS = ("_config.yml", "README.md", "CITATION.cff", "Makefile")


@pytest.fixture
def copy(tmp_path) -> Path:
    """What stamping reads and writes, without an address."""
    for name in OTHERS:
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*"))
    (tmp_path / "book").mkdir()
    shutil.copytree(
        ROOT / "book" / "tools", tmp_path / "book" / "tools", ignore=shutil.ignore_patterns("node_modules", "_*")
    )
    run(tmp_path, "", "")
    return tmp_path


def run(root: Path, repo: str, ref: str) -> int:
    return stamp.main([f"--repo={repo}", f"--ref={ref}"], root)


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def cells(path: Path) -> tuple[str, str]:
    """Text of the first cell and of the setup cell."""
    found = json.loads(path.read_text("utf8"))["cells"]
    setup = [cell for cell in found if "setup" in cell["metadata"].get("tags", [])]
    assert len(setup) == 1
    return "".join(found[0]["source"]), "".join(setup[0]["source"])


# --- what is committed --------------------------------------------------------------------------------------------


def test_the_committed_files_agree():
    """All carry one address, or none does; and what ``read`` says is what a plain search of each file finds."""
    address = stamp.read(ROOT)
    texts = [(ROOT / name).read_text("utf8") for name in ("_config.yml", "README.md", "CITATION.cff")]
    texts += [cell for path in notebooks.chapters() for cell in cells(path)] + [notebooks.SETUP_CELL.read_text("utf8")]
    pattern = r"(?:colab\.research\.google\.com/github/|https://github\.com/)([\w.-]+/[\w.-]+?)(?:@|/blob/|\"|$|>)"
    # A chapter may link to other projects of GitHub in its text, so of a chapter only the badge and the setup cell are searched.
    found = {repo for text in texts for repo in re.findall(pattern, text, flags=re.M)} - {"-/circuitlib"}
    assert found == ({address.repo} if address else set())


@pytest.mark.parametrize("path", notebooks.chapters(), ids=lambda path: path.stem)
def test_the_badge_is_there_if_and_only_if_there_is_an_address(path):
    address = stamp.read(ROOT)
    assert ("Open in Colab" in cells(path)[0]) == (address is not None)
    assert ('REPO = ""' in cells(path)[1]) == (address is None)


def test_the_badge_is_a_picture_of_the_books_own():
    picture = ElementTree.parse(ROOT / "book" / "_static" / "colab-badge.svg").getroot()
    assert picture.tag.endswith("svg") and picture.get("aria-label") == "Open in Colab"
    drawn = ElementTree.tostring(picture, encoding="unicode").replace("http://www.w3.org/2000/svg", "")
    assert "://" not in drawn and "href" not in drawn


# --- stamping -----------------------------------------------------------------------------------------------------


def test_a_stamped_copy_says_the_address_everywhere(copy):
    assert run(copy, REPO, REF) == 0
    config = yaml.safe_load((copy / "_config.yml").read_text("utf8"))
    assert config["repository"] == {"url": URL, "branch": REF, "path_to_book": ""}
    assert config["launch_buttons"]["colab_url"] == "https://colab.research.google.com"
    citation = yaml.safe_load((copy / "CITATION.cff").read_text("utf8"))
    assert citation["repository-code"] == URL and citation["url"] == "https://some-owner.github.io/circuits.book/"
    readme = (copy / "README.md").read_text("utf8")
    assert f'pip install "circuitlib @ git+{URL}@{REF}"' in readme and "pip install ." not in readme

    setup = (copy / "book/tools/setup_cell.ipy").read_text("utf8")
    assert f'\nREPO = "git+{URL}@{REF}"' in setup
    opens = f"https://colab.research.google.com/github/{REPO}/blob/{REF}/notebooks"
    for path in notebooks.chapters(copy / "notebooks"):
        first, cell = cells(path)
        assert f"\n\n[![Open in Colab](../book/_static/colab-badge.svg)]({opens}/{path.name})\n\n**Time:**" in first
        assert cell == setup.rstrip("\n")
    assert f"{opens}/01_activation_patching.ipynb" in readme
    assert stamp.read(copy) == stamp.Address(REPO, REF)


def test_pip_and_github_understand_the_addresses():
    address = stamp.Address("owner/Owner.github.io", "release/1.0")
    requirement = Requirement(f"circuitlib @ {address.install}")
    assert requirement.url == "git+https://github.com/owner/Owner.github.io@release/1.0"
    assert address.site == "https://owner.github.io/"


def test_notebooks_stay_canonical_and_keep_their_outputs(copy):
    before = {path.name: notebooks.read(path) for path in notebooks.chapters(copy / "notebooks")}
    run(copy, REPO, REF)
    paths = notebooks.chapters(copy / "notebooks")
    assert notebooks.main(["check", *map(str, paths)]) == 0
    for path in paths:
        after = notebooks.read(path)
        changed = [
            i for i, (old, new) in enumerate(zip(before[path.name]["cells"], after["cells"], strict=True)) if old != new
        ]
        assert changed == [0, 2]
        assert after["cells"][2].get("outputs") == [] and after["metadata"] == before[path.name]["metadata"]


def test_twice_is_once(copy, capsys):
    run(copy, REPO, REF)
    once = contents(copy)
    assert run(copy, REPO, REF) == 0
    assert contents(copy) == once
    assert "nothing to change" in capsys.readouterr().out


def test_a_new_address_leaves_nothing_of_the_old_one(copy):
    run(copy, "first/place", "v0.9")
    run(copy, REPO, REF)
    assert not [name for name, text in contents(copy).items() if b"first/place" in text or b"first.github.io" in text]


def test_taken_out_again_every_file_is_as_it_was(copy):
    before = contents(copy)
    run(copy, REPO, REF)
    assert contents(copy) != before
    assert run(copy, "", "") == 0
    assert contents(copy) == before
    assert stamp.read(copy) is None


def test_show(copy, capsys):
    capsys.readouterr()
    assert stamp.main(["--show"], copy) == 0
    assert capsys.readouterr().out == ""
    run(copy, REPO, REF)
    capsys.readouterr()
    assert stamp.main(["--show"], copy) == 0
    assert capsys.readouterr().out == f"{REPO} {REF}\n"


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("CITATION.cff", REPO, "else/where"),
        ("README.md", f"@{REF}", "@v9"),
        ("notebooks/03_induction_heads.ipynb", f"blob/{REF}", "blob/main"),
        ("notebooks/02_path_patching.ipynb", f"git+{URL}", "git+https://github.com/else/where"),
        ("book/tools/setup_cell.ipy", f"@{REF}", ""),
        ("_config.yml", "  colab_url: https://colab.research.google.com\n", ""),
    ],
)
def test_a_file_that_disagrees_is_named(copy, name, old, new):
    run(copy, REPO, REF)
    text = (copy / name).read_text("utf8")
    assert old in text
    (copy / name).write_text(text.replace(old, new), "utf8")
    named = (
        "" if name == "book/tools/setup_cell.ipy" else re.escape(name)
    )  # then it is the chapters that differ from the template
    with pytest.raises(
        ValueError, match=rf"{named}.*does not agree with _config.yml, which has {REPO} {REF}; run 'make stamp'"
    ):
        stamp.read(copy)


# --- what goes wrong ----------------------------------------------------------------------------------------------

BAD_REPOS = [
    "x", "a/b/c", "/b", "a/", "-a/b", "a-/b", "a--b/c", "a_b/c", "a/b c", "a/.", "a/..", "a/b.git", "https://github.com/a/b",
    "a/b\n", 'a/b"', "a/b;rm", "a/$(b)", "ä/b", "a" * 40 + "/b", "a/" + "b" * 101, "../b", "",
]  # fmt: skip
BAD_REFS = [
    "v 1", "-v1", ".v1", "v1.", "v1/", "/v1", "a//b", "a..b", "a/.b", "v1.lock", "a.lock/b", "v1\n", 'v"1', "v1#", "v1?", "v1*",
    "v[1]", "v~1", "v^1", "v:1", "v\\1", "v@{1}", "@", "$(v1)", "vé", "",
]  # fmt: skip
GOOD_REFS = ["v0.1.0", "main", "release/1.0", "a" * 40, "1.0-rc.1", "_x", "v1.locked", "a-b_c.d/e"]


@pytest.mark.parametrize(
    ("repo", "ref", "said"),
    [*((repo, "v1", "REPO: expected owner/name") for repo in BAD_REPOS), *(("a/b", ref, "REF: expected a tag") for ref in BAD_REFS)],
    ids=repr,
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path, capsys, repo, ref, said):
    assert (
        run(tmp_path, repo, ref) == 2
    )  # an empty folder: it would be an OSError, and 3, if the input were not looked at first
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith(f"error: {said}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ref", GOOD_REFS)
def test_git_takes_what_is_taken_here(ref):
    assert stamp.parse("a-b/c.d", ref) == stamp.Address("a-b/c.d", ref)
    if git := shutil.which("git"):
        assert subprocess.run([git, "check-ref-format", f"refs/tags/{ref}"]).returncode == 0


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("README.md", "<!-- address -->", "", "README.md: expected one place for the address"),
        ("README.md", "<!-- address -->\n", "<!-- address -->\n\n<!-- address -->\n", "README.md: expected one place"),
        ("_config.yml", "  branch: main\n", "", "_config.yml: expected one place"),
        ("CITATION.cff", "version: ", "edition: ", "CITATION.cff: expected one place"),
        ("book/tools/setup_cell.ipy", "REPO = ", "WHERE = ", "setup_cell.ipy: expected one place"),
        ("notebooks/a1_training_the_models.ipynb", "<!-- colab-badge -->", "<!-- badge -->", "a1_training_the_models.ipynb: expected one"),
        ("notebooks/12_your_own_task.ipynb", '"setup",', '"set-up",', "12_your_own_task.ipynb: expected one cell tagged 'setup', found 0"),
        ("notebooks/07_integrated_gradients.ipynb", '"cells"', '"cells', "error: "),
    ],
)  # fmt: skip
def test_a_place_that_is_missing_is_an_error_and_no_file_changes(copy, capsys, name, old, new, said):
    text = (copy / name).read_text("utf8")
    assert old in text
    (copy / name).write_text(text.replace(old, new), "utf8")
    before = contents(copy)
    capsys.readouterr()
    assert run(copy, REPO, REF) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert contents(copy) == before


def test_a_missing_file_is_3_and_no_file_changes(copy, capsys):
    (copy / "CITATION.cff").unlink()
    before = contents(copy)
    assert run(copy, REPO, REF) == 3
    assert "CITATION.cff" in capsys.readouterr().err
    assert contents(copy) == before


@pytest.mark.parametrize("method", ["write_text", "replace"])
@pytest.mark.parametrize("after", [0, 1, 5, 16])
def test_a_disk_that_fills_up_leaves_every_file_as_it_was(copy, monkeypatch, method, after):
    before, calls, real = contents(copy), [], getattr(Path, method)

    def full(self, *args, **kwargs):
        if self.suffix == ".part":
            calls.append(self)
            if len(calls) == after + 1:
                raise OSError(28, "No space left on device")
        return real(self, *args, **kwargs)

    monkeypatch.setattr(Path, method, full)
    assert run(copy, REPO, REF) == 3
    assert len(calls) == after + 1
    assert contents(copy) == before


# --- from a terminal, and in the book -----------------------------------------------------------------------------


def make(root: Path, *variables: str) -> subprocess.CompletedProcess:
    command = ["make", "stamp", f"PYTHON={sys.executable}", *variables]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_stamp(copy):
    before = contents(copy)
    done = make(copy, f"REPO={REPO}", f"REF={REF}")
    assert (
        done.returncode == 0
        and done.stdout.startswith(f"{REPO} at {REF}: ")
        and stamp.read(copy) == stamp.Address(REPO, REF)
    )
    for wrong in (
        [],
        [f"REPO={REPO}"],
        [f"REPO={REPO}", "REF=a;touch x"],
        ["REPO=`touch x`/a", "REF=v1"],
        ["REPO='", "REF=v1"],
    ):
        done = make(copy, *wrong)
        assert done.returncode == 2 and done.stderr.splitlines()[0].startswith("error: ")
    assert make(copy, "REPO=", "REF=").returncode == 0
    after = {name: text for name, text in contents(copy).items() if "__pycache__" not in name}
    assert after == {name: text for name, text in before.items() if "__pycache__" not in name}


@pytest.mark.slow
def test_the_stamped_book_builds_and_each_chapter_has_its_badge(tmp_path):
    """As ``make book`` builds it. Takes about a minute."""
    root = tmp_path / "book"
    ignored = shutil.ignore_patterns(".*", "_build", "node_modules", "dist", "build")
    shutil.copytree(ROOT, root, ignore=ignored)
    run(root, REPO, REF)
    command = [Path(sys.executable).with_name("jupyter-book"), "build", ".", "-W", "-n", "--keep-going"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for path in notebooks.chapters(root / "notebooks"):
        page = root / "_build/html/notebooks" / f"{path.stem}.html"
        soup = BeautifulSoup(page.read_text("utf8"), "html.parser")
        opens = f"https://colab.research.google.com/github/{REPO}/blob/{REF}/notebooks/{path.name}"
        badge = soup.select_one(f'article a[href="{opens}"] img')
        assert badge.find_parent("a")["href"] == opens  # the nearest: a link in a link would win
        assert badge["alt"] == "Open in Colab" and (page.parent / badge["src"]).resolve().exists()
        assert soup.select(f'.dropdown-launch-buttons a[href="{opens}"]'), "the theme's own button"
        fetched = [
            element.get("src") or element.get("href")
            for element in soup.select("img, script[src], link[rel=stylesheet]")
        ]
        assert not [source for source in fetched if "colab" in source and "://" in source]
