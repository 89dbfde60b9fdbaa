"""The page of a diagnosis: what stands in it, and what happens when somebody uses it."""

import re
from html.parser import HTMLParser

import pytest

from codtdq.lab.pages import diagnosis_page
from codtdq.lab.pages.diagnosis import Drawing
from handmade_diagnosis import LAYERS, METHODS, handmade

PIXEL = (
    b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x00\x00\x00\x00:~\x9bU"
    b"\x00\x00\x00\nIDATx\x9cc`\x00\x00\x00\x02\x00\x01H\xaf\xa4q\x00\x00\x00\x00IEND\xaeB`\x82"
)


@pytest.fixture(scope="module")
def text():
    return diagnosis_page(handmade(), [Drawing("A figure", "What it <shows>.", PIXEL)])


@pytest.fixture
def page(text, browser, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    browser.open(file)
    yield browser
    assert browser.errors == []
    assert {url.partition(":")[0] for url in browser.requests} <= {"file", "data"}


class _Addresses(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found += [v for k, v in attributes if k in ("src", "href", "srcset", "action", "data")]


def test_nothing_is_loaded_from_anywhere(text):
    parser = _Addresses()
    parser.feed(text)
    assert parser.found and all(a.startswith(("#", "data:")) for a in parser.found)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest", text)
    assert "default-src &#x27;none&#x27;" in text


def test_text_of_others_is_escaped(text):
    assert "<weird" not in text and "<fast>" not in text and "<shows>" not in text


def test_the_same_diagnosis_is_the_same_page(text):
    assert diagnosis_page(handmade(), [Drawing("A figure", "What it <shows>.", PIXEL)]) == text


def test_scores_and_provenance_are_shown(page):
    rows = page.texts("#score-table tbody tr")
    assert [row.split("\t")[0] for row in rows] == [title for title, _, _ in METHODS.values()]
    assert "0.550" in rows[1] and "4.10" in rows[1]
    provenance = page.text("#provenance")
    assert "codtdq diagnose --method w4a4,cod-tdq-guarded,repq-vit --out 'my run'" in provenance
    assert "a <fast> one" in provenance and "gamma_boundary" in provenance
    assert page.run("document.querySelectorAll('#figures img').length") == 1


def column(page, key):
    return page.run(
        f"(() => {{ const i = [...document.querySelectorAll('#layer-table th')]"
        f".findIndex(h => h.dataset.key === '{key}');"
        "return [...document.querySelectorAll('#layer-table tbody tr')]"
        ".map(r => r.cells[i].innerText); })()"
    )


def test_layers_sort_both_ways_and_unknown_comes_last(page):
    assert [int(x) for x in column(page, "order")] == list(range(len(LAYERS)))
    page.click("#layer-table th[data-key=b_rho0] button")
    down = column(page, "b_rho0")
    assert down[-1] == "–" and down[:-1] == sorted(down[:-1], reverse=True)
    assert page.run("document.querySelector('#layer-table th[data-key=b_rho0]').ariaSort") == (
        "descending"
    )
    page.key("Enter")  # the button kept the focus: the keyboard sorts as well
    up = column(page, "b_rho0")
    assert up[-1] == "–" and up[:-1] == sorted(up[:-1])
    page.click("#layer-table th[data-key=name] button")
    names = column(page, "name")
    assert names == sorted(names) and page.run("document.querySelectorAll('[aria-sort]').length")


def test_layers_are_filtered_by_words_and_role(page):
    page.type("#layer-filter", "MLP stages.1")
    assert column(page, "name") == ["backbone.stages.1.mlp.fc2"]
    assert page.text("#layer-count") == "1 of 6 layers"
    page.type("#layer-filter", " ")
    page.select("#layer-role", "mlp")
    assert column(page, "role") == ["mlp", "mlp"]


def test_the_method_switch_changes_the_numbers(page):
    before = column(page, "rho0")
    page.click("#layer-method button[data-value=cod-tdq-guarded]")
    after = column(page, "rho0")
    assert before[0] == "0.200" and after[0] == "0.050"
    page.click("#layer-method button[data-value=repq-vit]")
    assert set(column(page, "step")) == {"–"}  # it has no steps, and none is made up


def test_a_chosen_layer_is_shown(page):
    page.click("#layer-table tbody tr:nth-child(5) button")
    assert page.run("document.getElementById('detail-layer').value") == LAYERS[4][0]
    assert "24×24" in page.text("#detail-facts")
    assert len(page.texts("#region-table tbody tr")) == 6
    page.select("#detail-layer", LAYERS[5][0])
    assert page.run("document.getElementById('region-table').parentElement.hidden")
    assert page.run("document.querySelectorAll('#detail-charts svg').length") >= 5


def test_profiles_follow_the_choice_and_the_keys(page):
    drawn = page.run("document.querySelector('#profile path').getAttribute('d')")
    page.select("#profile-what", "sqnr")
    assert page.run("document.querySelector('#profile path').getAttribute('d')") != drawn
    assert page.run("document.querySelectorAll('#profile path').length") == 3
    page.click("#profile-legend button:nth-child(2)")
    assert page.run("document.querySelectorAll('#profile path').length") == 2
    page.run("document.querySelector('#profile svg').focus()")
    page.key("ArrowRight")
    assert page.text("#profile-reading").startswith("backbone.stages.0.attn.qkv: W4A4 (naive) 7.0")
    page.key("Enter")
    assert page.run("document.getElementById('detail-layer').value") == LAYERS[1][0]


def sources(page):
    return page.run(
        "Object.fromEntries([...document.querySelectorAll('#tiles figure')]"
        ".map(f => [f.dataset.kind, [...f.querySelectorAll('img')].map(i => i.src)]))"
    )


def test_gallery_walks_switches_and_overlays(page):
    first = sources(page)
    assert set(first) == {"image", "truth", "float", "mask", "heat"}
    assert len(first["image"]) == 2 and len(first["heat"]) == 3
    page.click("#next")
    second = sources(page)
    assert page.text("#image-note") == "Image 2 of 3: scene-1"
    assert second["truth"] != first["truth"] and second["heat"] != first["heat"]
    page.click("#image-method button[data-value=cod-tdq-guarded]")
    third = sources(page)
    assert third["truth"] == second["truth"] and third["mask"] != second["mask"]
    assert "COD-TDQ (guarded), S 0.760" in page.text("#tiles")
    page.select("#image-layer", LAYERS[2][0])
    fourth = sources(page)
    assert fourth["mask"] == third["mask"] and fourth["heat"] != third["heat"]
    assert LAYERS[2][0] in page.text("#tiles figure[data-kind=heat]")
    page.click("#show-band")
    assert len(sources(page)["image"]) == 1
    page.run("document.getElementById('tiles').focus()")
    page.key("ArrowLeft")
    assert page.text("#image-note") == "Image 1 of 3: scene-0"
    page.click("#previous")
    assert page.text("#image-note") == "Image 3 of 3: scene-2"


def test_every_picture_can_be_decoded(page):
    broken = "[...document.images].filter(i => i.complete && i.naturalWidth === 0).length"
    page.run("Promise.all([...document.images].map(i => i.decode().catch(() => 0)))")
    assert page.run(broken) == 0


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_scrolls_down_only(text, browser, tmp_path, dark):
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    browser.open(file, width=390, height=844, dark=dark)
    wide = browser.run("[document.documentElement.scrollWidth, innerWidth]")
    assert wide == [390, 390]
    table = "document.querySelector('#layer-table').parentElement"
    assert browser.run(f"{table}.scrollWidth > {table}.clientWidth")  # it scrolls inside
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(18, 21, 26)") == dark


def test_keyboard_reaches_the_controls(page):
    page.run("document.body.focus()")
    page.key("Tab")
    assert page.run("document.activeElement.className") == "skip"
    reachable = (
        "[...document.querySelectorAll('button, select, input, .scroll')]"
        ".every(e => e.tabIndex >= 0)"
    )
    assert page.run(reachable)
    unnamed = (
        "[...document.querySelectorAll('select, input')].filter(e => !e.labels.length).length"
        "+ [...document.images].filter(i => !i.alt).length"
        "+ [...document.querySelectorAll('button')].filter(b => !b.innerText.trim()).length"
    )
    assert page.run(unnamed) == 0


def test_a_diagnosis_without_pictures_has_no_gallery(browser, tmp_path):
    plain = handmade()
    plain.gallery, plain.samples = [], []
    file = tmp_path / "report.html"
    file.write_text(diagnosis_page(plain), encoding="utf-8")
    browser.open(file)
    assert browser.errors == [] and not browser.run("document.getElementById('images')")
    assert not browser.run("document.getElementById('figures')")


def test_long_names_of_layers_are_cut_in_front(page):
    look = """(() => { const cell = document.querySelector('#layer-table tbody td.path');
        cell.style.maxWidth = '60px';
        const link = cell.querySelector('button'), name = link.querySelector('bdi');
        const box = link.getBoundingClientRect(), text = name.getBoundingClientRect();
        return [getComputedStyle(link).direction, link.scrollWidth > link.clientWidth,
            Math.abs(text.right - box.right) < 2, name.textContent]; })()"""
    direction, cut, end_is_seen, name = page.run(look)
    assert (direction, cut, end_is_seen) == ("rtl", True, True)
    assert name == LAYERS[0][0]


def test_a_wide_table_says_that_it_scrolls(text, browser, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(text, encoding="utf-8")
    browser.open(file, width=390, height=844)
    cue = "document.querySelector('#layer-table').parentElement.nextElementSibling"
    browser.run("new Promise((done) => setTimeout(done, 300))")
    assert browser.run(f"[{cue}.hidden, {cue}.textContent]") == [
        False,
        "Scroll sideways for more columns \u2192",
    ]
    browser.run("document.querySelector('#layer-table').parentElement.scrollLeft = 1e6")
    browser.run("new Promise((done) => setTimeout(done, 300))")
    assert browser.run(f"{cue}.hidden") is True
