"""The try-out page in a browser, clicked through at both widths."""

import base64
import threading
import time

import pytest
import uvicorn
from PIL import Image

from codtdq.lab.serve.app import create_app
from codtdq.lab.serve.limits import Limits
from codtdq.lab.serve.variants import Variants

METHODS = ["fp32", "w4a4", "cod-tdq", "cod-tdq-plus"]


class Quick(Variants):
    """The guarded setting stands in for the method that calibrates for a minute."""

    def _plus(self):
        from codtdq.api import quantize

        return quantize(self._float(), "cod-tdq-guarded")


@pytest.fixture(scope="module")
def address():
    """The page on a free port of this machine."""
    variants = Quick("cfrn-small")
    app = create_app(variants, Limits())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    until = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    while any(one.to_dict()["state"] == "preparing" for one in variants.all()):
        assert time.monotonic() < until + 240
        time.sleep(0.1)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(60)


def until(browser, expression, seconds=240):
    end = time.monotonic() + seconds
    while not browser.run(expression):
        assert time.monotonic() < end, f"{expression}: {browser.text('#status')}"
        time.sleep(0.1)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_a_visitor_clicks_through(browser, address, width, dark, tmp_path):
    browser.open_url(address, width=width, dark=dark)
    until(browser, "document.querySelectorAll('#samples button').length > 2")
    browser.click("#samples button")
    until(browser, "/done\\.$/.test(document.querySelector('#status').textContent)")
    found = browser.run("[...document.querySelectorAll('.card')].map(e => e.dataset.method)")
    assert found == METHODS
    assert len(browser.texts(".card .facts")) == 4
    assert all("ms" in text and "MiB" in text for text in browser.texts(".card .facts"))
    # the wipe: by keyboard on the slider, by pointer on a picture
    browser.run("document.querySelector('#wipe').focus()")
    browser.key("ArrowRight")
    clip = "document.querySelector('.card .mask').style.clipPath"
    assert browser.run("document.querySelector('#wipe').value") == "51"
    assert "49%" in browser.run(clip)
    browser.click(".card .view")
    assert 48 <= float(browser.run("document.querySelector('#wipe').value")) <= 52
    # where evidence is lost
    browser.click("#lost-run")
    until(browser, "!document.querySelector('#lost-view').hidden")
    until(browser, "document.querySelector('#heat-caption').textContent")
    layers = browser.run("document.querySelectorAll('#bars button').length")
    assert layers > 100
    browser.click("#bars button")
    assert "%" in browser.text("#heat-caption")
    assert browser.run("document.querySelector('#layer').value") == "0"
    assert browser.text("#lost-status").startswith("W4A4 naive: ")
    # a layer chosen by its name is in sight among the bars
    browser.select("#layer", str(layers - 1))
    assert browser.run(
        "(() => { const list = document.querySelector('#bars').getBoundingClientRect(),"
        "one = document.querySelector('#bars [aria-pressed=true]').getBoundingClientRect();"
        "return one.top >= list.top && one.bottom <= list.bottom; })()"
    )
    # nothing wider than the window, nothing that failed
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.screenshot(tmp_path / f"{width}.png")
    assert not browser.errors
    # another picture: what was said of the last one is gone
    browser.click("#samples button:nth-child(2)")
    until(browser, "document.querySelector('#status').textContent.startsWith('grass')")
    assert browser.run("document.querySelector('#lost-status').textContent") == ""


def test_a_bar_is_filled_over_its_whole_height(browser, address, tmp_path):
    browser.open_url(address)
    until(browser, "document.querySelectorAll('#samples button').length > 2")
    left, top, width, height = browser.run(
        "(() => { document.querySelector('#lost').hidden = false;"
        "document.querySelector('#lost-view').hidden = false;"
        "showLayers([{layer: 'one', zero_mass: 0.5, png: ''}], 'w4a4');"
        "const box = document.querySelector('#bars i').getBoundingClientRect();"
        "return [box.x + scrollX, box.y + scrollY, box.width, box.height]; })()"
    )
    browser.screenshot(tmp_path / "bar.png")
    drawn = Image.open(tmp_path / "bar.png").convert("RGB")

    def colours(across):
        column = range(round(top) + 1, round(top + height) - 1)
        return {drawn.getpixel((round(left + across * width), y)) for y in column}

    (filled,), (empty,) = colours(0.25), colours(0.75)
    assert filled == (0, 95, 153) and empty == (217, 221, 227)


def test_downloads_are_the_files_of_the_endpoint(browser, address):
    browser.open_url(address, width=1280)
    until(browser, "document.querySelectorAll('#samples button').length > 2")
    browser.run(
        "HTMLAnchorElement.prototype.click = function () {"
        "(window.saved ||= []).push([this.download, this.href]); }"
    )
    browser.click("#samples button:nth-child(2)")
    until(browser, "/done\\.$/.test(document.querySelector('#status').textContent)")
    browser.click(".card .saves button")
    browser.click(".card .saves button:nth-child(2)")
    until(browser, "(window.saved || []).length === 2")
    names = browser.run("saved.map(s => s[0])")
    assert names == ["mask-fp32.png", "cutout-fp32.png"]
    assert base64.b64decode(browser.run("saved[0][1].split(',')[1]"))[:4] == b"\x89PNG"
    assert browser.run("saved[1][1].startsWith('blob:')")


def test_a_file_of_the_visitor_and_one_that_is_no_picture(browser, address, tmp_path):
    browser.open_url(address, width=390)
    until(browser, "document.querySelectorAll('#samples button').length > 2")
    wrong = tmp_path / "<b>notes.png"
    wrong.write_text("no picture")
    browser.put_file("#file", wrong)
    until(browser, "document.querySelector('#status').className === 'error'")
    assert browser.text("#status").startswith("<b>notes.png: this browser cannot show it")
    assert browser.run("document.querySelector('#results').hidden")
    # one that the server would refuse is not sent
    large = tmp_path / "large.png"
    Image.new("1", (5000, 5000)).save(large)
    browser.put_file("#file", large)
    until(browser, "document.querySelector('#status').textContent.startsWith('large.png')")
    assert browser.text("#status") == (
        "large.png: 25.0 megapixels, at most 24 are taken; scale it down."
    )
    assert browser.run("document.querySelector('#results').hidden")
    assert not any("predict" in url for url in browser.requests)
    mine = tmp_path / "mine.png"
    Image.new("RGB", (120, 80), (90, 120, 60)).save(mine)
    browser.put_file("#file", mine)
    until(browser, "document.querySelector('#status').textContent === 'mine.png: done.'")
