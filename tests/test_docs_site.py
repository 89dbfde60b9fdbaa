"""The documentation site: pages have a place, tables are drawn, nothing comes from elsewhere."""

import functools
import re
import subprocess
import sys
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
sys.path.insert(0, str(ROOT / "scripts"))
sys.path.insert(0, str(ROOT / "tests" / "lab"))

import chromium  # noqa: E402  a file of tests/lab


def test_every_page_stands_in_the_navigation_once():
    named = re.findall(r": ([\w-]+\.md)$", CONFIG, re.MULTILINE)
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert len(named) == len(set(named))
    assert set(named) == pages | {"contributing.md", "changelog.md"}


def test_the_readme_is_short_and_its_table_is_drawn():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 150
    assert readme.count("<!-- readme -->\n") == 1  # benchmarks/readme_table.py
    typed = re.sub(r"<!-- readme -->.*<!-- /readme -->", "", readme, flags=re.DOTALL)
    assert not re.search(r"^\|.*\d", typed, re.MULTILINE)
    assert not re.search(r"\d ms|\d MB", typed)


def test_arguments_of_docstrings_become_a_list():
    pytest.importorskip("griffe")
    from docs_arguments import listed

    text = "Quantize it.\n\nmodel: a model\n    or more.\nconfig, seed: the rest."
    assert listed(text) == (
        "Quantize it.\n\n- `model`: a model\n    or more.\n- `config`, `seed`: the rest."
    )
    assert listed("Note that a: b.") == "Note that a: b."


def test_links_and_lists_are_turned_and_tables_drawn():
    pytest.importorskip("mkdocs")
    import docs_site

    turned = docs_site._prose(
        "See [rows](../results/README.md#a) and [all](../results/), [how](../CONTRIBUTING.md):\n"
        "- one\n  - two\n[elsewhere](https://example.org/)",
        "docs/page.md",
        "page.md",
    )
    assert turned == (
        "See [rows](files/results/README.md#a) and all, [how](contributing.md):\n\n"
        "- one\n    - two\n[elsewhere](https://example.org/)"
    )
    table = docs_site.drawn("results/camosynth", "bits", "S")
    assert re.search(r"^\| FP32 \| 32\.00 ", table, re.MULTILINE)
    places = ("contributing.md", "files/results/README.md", "index.md")
    assert [docs_site.source_of(place) for place in places] == [
        "CONTRIBUTING.md",
        "results/README.md",
        "docs/index.md",
    ]


def test_formulas_become_mathml():
    pytest.importorskip("latex2mathml")
    pytest.importorskip("mkdocs")
    import docs_site

    formulas = []
    text = docs_site._without_formulas("a step $c_k / 7$ of `$ cod` and `$x$`, $5", formulas)
    place = docs_site.FORMULA.format(0)
    assert text == f"a step {place} of `$ cod` and `$x$`, $5" and len(formulas) == 1
    assert formulas[0].startswith("<math") and "<msub><mi>c</mi><mi>k</mi></msub>" in formulas[0]
    assert docs_site._shown("```python\nx\n```", formulas) == "```python\nx\n```"
    assert docs_site.FORMULA.format(1) in docs_site._shown("```math\nx^2\n```", formulas)
    assert 'display="block"' in formulas[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) >= 28
    outside = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"?https?:|<link[^>]+stylesheet[^>]+https?:"
    )
    for page in pages:
        assert not outside.search(page.read_text(encoding="utf-8")), page
    method = (site / "method.html").read_text(encoding="utf-8")
    stored = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    assert method.count('display="block"') == stored.count("```math") > 5
    assert "formula0" not in method and "$" not in method
    tables = (site / "results.html").read_text(encoding="utf-8")
    assert tables.count("<table>") >= 8 and "SmoothQuant" in tables


@pytest.mark.slow
def test_search_finds_a_page_on_the_served_site(site):
    if chromium.find() is None:
        pytest.skip(f"no Chromium on this machine (looked for {', '.join(chromium.NAMES)})")
    hits = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
    handler = functools.partial(SimpleHTTPRequestHandler, directory=site)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    browser = chromium.Chromium()
    try:
        home = f"http://127.0.0.1:{server.server_port}/"
        for page in sorted(site.glob("*.html")):
            browser.open_url(home + page.name, width=390)
            assert browser.run("document.documentElement.scrollWidth") <= 390, page  # sticks out
        browser.open_url(home + "results.html", width=390)
        wide = "document.querySelector('.md-typeset__scrollwrap')"
        assert browser.run(f"{wide}.scrollWidth > {wide}.clientWidth")
        assert "gradient" in browser.run(f"getComputedStyle({wide}).backgroundImage")  # its cue
        browser.open_url(home + "index.html")
        browser.type("input[name=query]", "zero-bin")
        until = time.monotonic() + 60
        while not (links := browser.run(hits)):
            assert time.monotonic() < until, "no hits"
            time.sleep(0.1)
        assert any("method.html" in link for link in links), links
        fetched = [url for url in browser.requests if not url.startswith(("data:", "blob:"))]
        assert fetched and [url for url in fetched if not url.startswith(home)] == []
    finally:
        browser.close()
        server.shutdown()
