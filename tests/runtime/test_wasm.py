"""The runtime in WebAssembly: built, run in Node, and clicked through in a browser.

What is compared: masks and logits of the same program file in `codtdq.runtime`, in plain C++
(`CODTDQ_NATIVE=generic`), which the instruction set of WebAssembly has to give to the bit.
"""

import base64
import functools
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from codtdq.runtime import Runtime

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "src" / "codtdq" / "data" / "samples" / "Imgs" / "grass.jpg"

# A reference in a process of its own: an instruction set is chosen once.
GENERIC = """
import sys
import numpy as np
from codtdq.runtime import Runtime
network, values = Runtime(sys.argv[1], threads=1), np.load(sys.argv[2])
np.save(sys.argv[3], network.run(values) if values.dtype == np.float32 else network.predict(values))
"""
IN_NODE = """
import { readFileSync, writeFileSync } from "node:fs";
const [folder, program, from, to] = process.argv.slice(2);
const { Engine } = await import(`${folder}/codtdq.js`);
const engine = await Engine.load(readFileSync(`${folder}/codtdq.wasm`));
const network = engine.open(readFileSync(program));
const input = readFileSync(from);
writeFileSync(to, network.run(new Float32Array(input.buffer, input.byteOffset, input.length / 4)));
network.close();
let refusal = "";
try {
  engine.open(readFileSync(program).subarray(0, 1000));
} catch (error) {
  refusal = error.message;
}
console.log(JSON.stringify([engine.instructionSet, network.info, network.shapes[0], refusal]));
"""


@pytest.fixture(scope="module")
def site():
    """The folder that `make wasm` fills."""
    for tool in ("emcmake", "cmake"):
        if not shutil.which(tool):
            pytest.skip(f"no {tool} on this machine (make wasm says what to install)")
    subprocess.run(["make", "wasm"], cwd=ROOT, check=True, capture_output=True, text=True)
    return ROOT / "build" / "wasm"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The network of the page."""
    path = tmp_path_factory.mktemp("page") / "vit.codtdq"
    words = ["export", "vit-cod-w4a4", "--to", "program", "--out", str(path)]
    subprocess.run([sys.executable, "-m", "codtdq", *words], check=True, capture_output=True)
    return path


@pytest.fixture(scope="module")
def address(site, program):
    """The page with its network on a free port of this machine."""
    folder = program.parent
    shutil.copytree(site, folder, ignore=shutil.ignore_patterns("objects"), dirs_exist_ok=True)
    handler = functools.partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join(30)


class Quiet(SimpleHTTPRequestHandler):
    """Serves files, says nothing."""

    def log_message(self, *_):
        pass


def reference(program, values, folder):
    """What plain C++ gives on this processor."""
    np.save(folder / "values.npy", values)
    words = [sys.executable, "-c", GENERIC, program, folder / "values.npy", folder / "found.npy"]
    subprocess.run(words, check=True, env={**os.environ, "CODTDQ_NATIVE": "generic"})
    return np.load(folder / "found.npy")


def until(browser, text, seconds=600):
    """Wait for a line of the page's status."""
    end = time.monotonic() + seconds
    while (found := browser.text("#status")) != text:
        failed = browser.run("document.querySelector('#status').className === 'error'")
        assert not failed and time.monotonic() < end, f"{found}; expected: {text}"
        time.sleep(0.1)


def saved_mask(browser):
    """The file behind the link that saves the mask."""
    data = browser.run(
        "fetch(document.querySelector('#save').href).then(a => a.blob()).then(b => new Promise("
        "done => { const r = new FileReader(); r.onload = () => done(r.result);"
        "r.readAsDataURL(b); }))"
    )
    file = Image.open(io.BytesIO(base64.b64decode(data.partition(",")[2])))
    channels = np.asarray(file.convert("RGB"))
    assert (channels == channels[..., :1]).all()
    return channels[..., 0]


def test_node_gives_the_logits_of_plain_cpp(site, exported, tmp_path):
    if not shutil.which("node"):
        pytest.skip("no node on this machine")
    _, path = exported("cfrn-small")
    values = np.random.default_rng(0).normal(size=(1, 3, 160, 160)).astype(np.float32)
    (tmp_path / "input").write_bytes(values.tobytes())
    script = tmp_path / "run.mjs"
    script.write_text(IN_NODE)
    words = ["node", script, site, path, tmp_path / "input", tmp_path / "logits"]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    name, info, shape, refusal = json.loads(done.stdout)
    assert (name, info["model"], info["method"]) == ("wasm-simd128", "cfrn-small", "cod-tdq")
    here = Runtime(path).shapes[0]
    assert (shape["input"], shape["arenaBytes"]) == (list(here.input), here.arena_bytes)
    assert "cut off" in refusal and "\n" not in refusal
    logits = np.frombuffer((tmp_path / "logits").read_bytes(), np.float32)
    assert np.array_equal(logits, reference(path, values, tmp_path).ravel())


def test_a_visitor_gets_the_mask_of_the_runtime(browser, address, program, tmp_path):
    photo = Image.open(SAMPLE).convert("RGB").resize((300, 211))
    photo.save(tmp_path / "mine.png")
    browser.open_url(address)
    until(browser, "Ready: choose a picture.")
    assert browser.text("#network").startswith("vit-cod, cod-tdq-plus")
    assert "wasm-simd128" in browser.text("#network")
    browser.put_file("#file", tmp_path / "mine.png")
    until(browser, "Done.")
    mask = saved_mask(browser)
    assert mask.shape == (211, 300) and 0.02 < (mask > 127).mean() < 0.9
    # the resized picture, the network and the mask: no bit differs from plain C++ ...
    assert np.array_equal(mask, reference(program, np.asarray(photo), tmp_path))
    # ... and hardly any from the instruction set in use here, whose floats round otherwise
    other = Runtime(program).predict(np.asarray(photo))
    assert np.abs(mask.astype(int) - other).mean() < 1
    assert browser.run("document.querySelector('#save').download") == "mine-mask.png"
    assert browser.text("#time").endswith(" ms") and "300 x 211" in browser.text("#size")
    # a file of another kind is refused in one line, and the network stays
    browser.put_file("#program", tmp_path / "mine.png")
    end = time.monotonic() + 60
    while "not a program file" not in browser.text("#status"):
        assert time.monotonic() < end, browser.text("#status")
        time.sleep(0.1)
    assert browser.text("#network").startswith("vit-cod")
    assert not browser.errors


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_sample_is_drawn(browser, address, program, width, dark, tmp_path):
    browser.open_url(address, width=width, dark=dark)
    until(browser, "Ready: choose a picture.")
    browser.click("#samples button:nth-child(2)")
    until(browser, "Done.")
    # a JPEG file, which the browser decodes; the best instruction set here
    off = np.abs(saved_mask(browser).astype(int) - Runtime(program).predict(SAMPLE))
    assert off.mean() < 1
    seen = set()
    for view in ("mask", "photo", "overlay"):
        browser.click(f"#views input[value={view}]")
        seen.add(browser.run("document.querySelector('#view').toDataURL()"))
    assert len(seen) == 3
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.screenshot(tmp_path / f"{width}.png")
    assert all(url.startswith((address, "blob:", "data:")) for url in browser.requests)
    assert not browser.errors
