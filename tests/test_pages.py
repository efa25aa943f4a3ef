"""The prose pages of the book: what they count is counted again, and what they name is there."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml

import circuitlib as cl

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
sys.path.insert(0, str(BOOK / "tools"))
import chapter_map  # noqa: E402

PAGES = {path.stem: path.read_text("utf8") for path in sorted(BOOK.glob("*.md"))}
BIBLIOGRAPHY = (BOOK / "references.bib").read_text("utf8")
ENTRIES = dict(re.findall(r"^@\w+\{(\w+),\n(.*?)\n\}$", BIBLIOGRAPHY, flags=re.M | re.S))


def citations(text: str) -> set[str]:
    found = re.findall(r"\{cite:[tp]\}`([^`]+)`", text)
    return {key.strip() for keys in found for key in keys.split(",")}


def without_comments(text: str) -> str:
    return re.sub(r"^%.*\n?", "", text, flags=re.M)


# --- every page ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_in_the_table_of_contents_and_its_links_lead_somewhere(name):
    toc = (ROOT / "_toc.yml").read_text("utf8")
    assert re.search(rf"\bbook/{name}$", toc, flags=re.M)
    listed = set(re.findall(r"(?:book|notebooks)/\w+", toc))
    for address in re.findall(r"\]\(([^)\s#]+)", without_comments(PAGES[name])):
        if "://" not in address:
            target = (BOOK / address).resolve()
            assert target.exists(), address
            assert str(target.relative_to(ROOT).with_suffix("")) in listed, f"{address} is not a page of the book"


@pytest.mark.parametrize("name", PAGES)
def test_a_link_says_the_number_of_its_chapter(name):
    found = re.findall(r"\[([^\]]*)\]\(\.\./notebooks/(\w+?)_\w+\.ipynb\)", PAGES[name])
    for text, number in found:
        if said := re.search(r"\d+", text):
            assert said[0] == number.lstrip("0"), f"[{text}] leads to chapter {number}"


@pytest.mark.parametrize("name", PAGES)
def test_a_chapter_that_is_there_is_linked_to(name):
    """A comment that waits for a chapter is taken out of its comment when the chapter is in the table of contents."""
    toc = (ROOT / "_toc.yml").read_text("utf8")
    for line in re.findall(r"^%.*", PAGES[name], flags=re.M):
        waiting = re.findall(r"\.\./(notebooks/\w+)\.ipynb", line)
        assert waiting, f"a comment that waits for nothing: {line}"
        assert not all(re.search(rf"\b{notebook}$", toc, flags=re.M) for notebook in waiting), f"remove the %: {line}"


# --- sources ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
def test_citations_have_an_entry(name):
    assert citations(PAGES[name]) <= set(ENTRIES)


def test_every_source_has_its_place_in_further_reading():
    assert citations(PAGES["further_reading"]) == set(ENTRIES)


@pytest.mark.parametrize("key", ENTRIES)
def test_an_entry_is_complete(key):
    fields = dict(re.findall(r"^  (\w+)\s+= \{(.*)\},?$", ENTRIES[key], flags=re.M))
    assert {"title", "author", "year", "url"} <= set(fields)
    assert {"booktitle", "howpublished", "journal"} & set(fields)
    assert re.fullmatch(r"https://\S+", fields["url"])
    assert key.endswith(re.search(rf"{fields['year']}\w+$", key)[0])
    assert key.startswith(
        re.sub(r"\W|\{\\.|'", "", re.sub(r"\{\\.\{?(\w)\}?\}", r"\1", fields["author"]).split(",")[0]).lower()
    )
    if number := re.fullmatch(r"arXiv:(\S+)", fields.get("howpublished", "")):
        assert fields["url"] == f"https://arxiv.org/abs/{number[1]}"
        assert number[1].startswith(fields["year"][2:])


def test_no_source_is_listed_twice():
    urls = re.findall(r"^  url\s+= \{(.*)\}", BIBLIOGRAPHY, flags=re.M)
    assert len(ENTRIES) == len(urls) == len(set(urls))


def test_what_chapters_cite_is_in_the_bibliography():
    """Papers and posts, that is: what stands on arXiv, on the forums or at its author's."""
    known = set(re.findall(r"^  url\s+= \{(.*)\}", BIBLIOGRAPHY, flags=re.M))
    other_addresses = {
        "https://transformer-circuits.pub/2022/in-context-learning-and-induction-heads/index.html",  # olsson2022induction
    }
    sites = r"https://(?:arxiv\.org|transformer-circuits\.pub|www\.alignmentforum\.org|www\.neelnanda\.io|doi\.org)/[^\s)\"\\]+"
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cited = set(re.findall(sites, path.read_text("utf8")))
        assert cited <= known | other_addresses, f"{path.name}: {cited - known - other_addresses}"


# --- glossary -----------------------------------------------------------------------------------------------------

GLOSSARY = dict(
    re.findall(r"^(\S.*)\n  (.+)$", re.search(r"\{glossary\}\n(.*?)```", PAGES["glossary"], flags=re.S)[1], flags=re.M)
)


def test_the_glossary_is_in_order():
    terms = re.findall(r"^([^\s`].*)\n  ", PAGES["glossary"].partition("{glossary}")[2], flags=re.M)
    assert terms == sorted(terms, key=str.lower)
    assert len(terms) == len(set(terms)) == len(GLOSSARY)


def test_an_entry_is_a_sentence_or_a_few():
    for term, text in GLOSSARY.items():
        assert text.endswith("."), term
        assert len(text.split()) <= 80, term


def test_words_that_the_notation_defines_are_in_the_glossary():
    words = re.findall(r"\*\*([^*]+)\*\*", PAGES["notation"].partition("## Two heads, with numbers")[0])
    known = {term.lower() for term in GLOSSARY}
    meant = {"clean": "clean prompt", "corrupted": "corrupted prompt", "exact": "exact effect"}
    assert len(words) >= 12
    for word in words:
        assert meant.get(word.lower(), word.lower()) in known, word


@pytest.mark.parametrize("name", cl.__all__)
def test_methods_of_the_library_have_an_entry(name):
    """What a chapter calls by name is explained: the searches and the criteria."""
    terms = {
        "eap": "EAP", "eap_ig": "EAP-IG", "acdc": "ACDC", "exact": "exact effect", "roc": "ROC", "auc": "AUC", "cpr": "CPR",
        "cmd": "CMD", "faithfulness": "faithfulness", "minimality": "minimality", "completeness": "completeness",
        "stability": "stability", "jaccard": "Jaccard index", "composition": "composition", "ov_copying": "copying score",
        "roles": "role", "known_circuit": "known circuit", "published_circuit": "published circuit",
        "reference_circuit": "reference circuit", "random_circuit": "random circuit", "path_patching": "path patching",
        "activation_patching": "activation patching", "self_repair": "self-repair", "ov_circuit": "OV circuit",
        "direct_logit_attribution": "direct logit attribution",
    }  # fmt: skip
    if name in terms:
        assert terms[name] in GLOSSARY


# --- corrections --------------------------------------------------------------------------------------------------


def claims() -> list[str]:
    return re.split(r"^### ", PAGES["corrections"], flags=re.M)[1:]


def test_fifteen_claims_in_one_form():
    assert [int(re.match(r"\d+", claim)[0]) for claim in claims()] == list(range(1, 16))
    for claim in claims():
        claim = claim.partition("\n## ")[0]
        parts = re.findall(r"^\*\*(Often said|True|Evidence):\*\* (.+)$", claim, flags=re.M)
        assert [name for name, _ in parts] == ["Often said", "True", "Evidence"], claim
        evidence = parts[2][1]
        assert citations(evidence) or "omputed" in evidence, claim
        assert citations(claim) or "../notebooks/" in claim, claim


def said(number: int) -> str:
    return claims()[number - 1]


def test_the_edges_of_the_docstring_circuit():
    circuit = cl.published_circuit("docstring")
    direct = circuit.edge_count("acdc") - len(circuit)
    assert (
        f"The {circuit.edge_count('acdc')} edges touch {len(circuit.heads())} heads; `a0.2` and `a0.4` have none"
        in said(2)
    )
    assert f"only {len(circuit)} of them" in said(2) and f"The other {direct} are" in said(2)
    everything = cl.published_circuit("docstring", "heads")
    assert set(everything.heads()) - set(circuit.heads()) == {"a0.2", "a0.4"}
    roles = {head: role for role, heads in everything.roles.items() for head in heads}
    assert roles["a3.0"] == roles["a3.6"] == "mover" and "The movers are `a3.0` and `a3.6`" in said(1)
    for head in roles:
        assert f"`{head}`" in said(1).partition("**True:**")[2]


def test_how_the_docstring_circuit_composes():
    import networkx as nx

    edges = [edge for edge in cl.published_circuit("docstring").edges if edge.sender[0] == edge.receiver[0] == "a"]
    parts = Counter(edge.receiver[-1] for edge in edges)
    counts = f"Of the {len(edges)} edges from head to head, {parts['q']} go into a query, {parts['k']} into a key and {parts['v']} into a value"
    assert counts in said(7)
    graph = nx.DiGraph((edge.sender, edge.receiver[:-2]) for edge in edges)
    longest = nx.dag_longest_path(graph)
    assert longest[:3] == ["a0.5", "a1.4", "a2.0"] and len(longest) == 4
    assert "has four heads, `a0.5`, `a1.4`, `a2.0`, and a mover" in said(7)
    for mover in ("a3.0", "a3.6"):
        readers = {part: {edge.sender for edge in edges if edge.receiver == f"{mover}.{part}"} for part in "qkv"}
        assert readers == {"q": {"a1.4"}, "k": {"a1.2", "a2.0"}, "v": {"a0.5"}}


def shape(layers: int, heads: int, mlps: bool) -> cl.Graph:
    return cl.Graph.from_shape(layers, heads, mlps, d_model=heads)


def acdc_count(graph: cl.Graph) -> int:
    return graph.n_edges + sum(receiver.startswith("a") for receiver in graph.receivers)


def test_how_many_edges_there_are():
    small, gpt2 = shape(4, 8, False), shape(12, 12, True)
    assert f"GPT-2 small has {gpt2.n_edges:,} edges, or {acdc_count(gpt2):,} in ACDC's count" in said(13)
    assert f"the docstring model: {small.n_edges:,}, or {acdc_count(small):,} in ACDC's count" in said(13)
    passes = int(re.search(r"up to ([\d,]+) forward passes", said(13))[1].replace(",", ""))
    assert passes > gpt2.n_edges and round(passes / 3, -4) == 10_000 and "about ten thousand" in said(13)


def test_how_the_number_of_edges_grows():
    assert (
        "3H²·L(L−1)/2 edges from head to head, 3HL from the embedding into heads, and HL + 1 into the logits"
        in said(14)
    )
    for layers, heads in [(1, 1), (2, 3), (4, 8), (5, 2)]:
        graph = shape(layers, heads, False)
        assert 3 * heads**2 * layers * (layers - 1) // 2 + 3 * heads * layers + heads * layers + 1 == graph.n_edges


def test_true_edges_with_corrupted_values_and_with_zeros():
    counts = [len(cl.known_circuit("handmade-docstring", ablation=ablation)) for ablation in ("corrupted", "zero")]
    assert f"`handmade-docstring` has {counts[0]} true edges, with zeros it has {counts[1]}" in said(5)


def test_one_by_one_from_the_whole_model_an_or_gate_loses_both_inputs():
    model = cl.load_model("handmade-or")
    engine = cl.Engine(model, cl.default_task(model, n=4))
    scores = cl.exact(engine)
    assert all(abs(scores[edge]) < 1e-5 for edge in ("a0.0→m0", "a0.1→m0"))
    left = {str(edge) for edge in cl.acdc(engine, threshold=0.1)}
    assert len(left & {"a0.0→m0", "a0.1→m0"}) == 1
    assert "both inputs have effect 0 and both would go; ACDC removes one, and then needs the other" in said(15)


# --- the README ---------------------------------------------------------------------------------------------------


def test_the_readme_lists_the_chapters():
    readme = (ROOT / "README.md").read_text("utf8")
    listed = re.findall(r"^- \[(.+?)\]\((notebooks/\w+)\.ipynb\): \S.*[^.]$", readme, flags=re.M)
    chapters = [chapter for part in chapter_map.read_parts() for chapter in part.chapters]
    assert listed == [(f"{chapter.number} {chapter.title}", chapter.name) for chapter in chapters]


def test_the_parts_of_the_book_are_those_of_the_table_of_contents():
    """How to use this book names the parts in order, with the chapters that each has."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf8"))
    assert [part["caption"] for part in toc["parts"]][0] == "Before you start"
    named = re.findall(r"^\d\. \*\*(.+?)\*\* \((.+?)\)", PAGES["how_to_use"], flags=re.M)
    assert [name for name, _ in named] == ["By hand", "By algorithm", "Judging", "Your own circuits", "Training"]
    for part in chapter_map.read_parts():
        spans = [span for name, span in named if name.lower() in part.caption.lower()]
        assert len(spans) == 1, f"{part.caption!r} is not one of the parts that the page names"
        bounds = [int(number) for number in re.findall(r"\d+", spans[0])]
        for chapter in part.chapters:
            if chapter.number.isdigit():
                assert bounds[0] <= int(chapter.number) <= bounds[-1], f"chapter {chapter.number} in {part.caption!r}"
            else:
                assert spans == ["appendix"]
