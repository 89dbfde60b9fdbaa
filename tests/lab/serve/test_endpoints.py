"""The endpoints of the try-out page, driven through the ASGI test client."""

import base64
import io
import threading
import time

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

import codtdq
from codtdq.data import open_dataset
from codtdq.errors import ConfigError
from codtdq.lab.serve.app import create_app
from codtdq.lab.serve.limits import Limits
from codtdq.lab.serve.running import LOOPBACK_NAMES
from codtdq.lab.serve.variants import TITLES, Variant, Variants

NAME = "cfrn-small"
OCTETS = {"Content-Type": "application/octet-stream"}
READY = [method for method in TITLES if method != "cod-tdq-plus"]


class Uncalibrated(Variants):
    """All but the method that calibrates for a minute, which stands in for a failure."""

    def _plus(self):
        raise codtdq.CodtdqError("left out\nhere")


@pytest.fixture(scope="module")
def variants():
    return Uncalibrated(NAME)


@pytest.fixture(scope="module")
def client(variants):
    limits = Limits(bytes=2_000_000, pixels=1_000_000, waiting=16, seconds=60)
    with TestClient(create_app(variants, limits), base_url="http://localhost") as client:
        until = time.monotonic() + 300
        while any(one["state"] == "preparing" for one in client.get("/models").json()["methods"]):
            assert time.monotonic() < until, "the networks are never ready"
            time.sleep(0.2)
        yield client


def png(pixels, **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", **options)
    return buffer.getvalue()


def scene(number=0):
    return open_dataset("camosynth/test-easy", limit=number + 1)[number].image


def decoded(text):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def post(client, data, path="/predict?method=w4a4", **headers):
    return client.post(path, content=data, headers={**OCTETS, **headers})


def test_the_page_brings_all_it_needs_and_forbids_the_rest(client):
    page = client.get("/")
    assert page.status_code == 200 and "text/html" in page.headers["content-type"]
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "://" not in page.text  # no host but this one
    for name in ("serve.css", "serve.js"):
        assert name in page.text
        part = client.get(f"/{name}")
        assert part.status_code == 200 and "://" not in part.text
        assert part.headers["x-content-type-options"] == "nosniff"


def test_methods_say_size_and_state_and_a_failure_its_reason(client):
    known = {one["method"]: one for one in client.get("/models").json()["methods"]}
    assert list(known) == list(TITLES)
    assert [known[method]["state"] for method in READY] == ["ready"] * 3
    assert known["fp32"]["mib"] > 6 * known["w4a4"]["mib"] > 0
    assert known["cod-tdq-plus"]["state"] == "failed"
    assert known["cod-tdq-plus"]["reason"] == "left out here"
    answer = post(client, png(scene()), "/predict?method=cod-tdq-plus")
    assert answer.status_code == 400 and "could not be prepared" in answer.json()["error"]


def test_masks_are_those_of_predict(client, variants):
    image = scene()
    answer = post(client, png(image), f"/predict?method={','.join(READY)}")
    assert answer.status_code == 200
    found = answer.json()
    assert (found["model"], found["height"], found["width"]) == (NAME, *image.shape[:2])
    assert [one["method"] for one in found["masks"]] == READY
    for one in found["masks"]:
        expected = codtdq.predict(variants.get(one["method"]).model, image)
        assert np.array_equal(decoded(one["png"]), np.asarray(expected))
        assert one["milliseconds"] > 0 and one["mib"] > 0


def test_files_are_mask_and_cutout(client, variants):
    image = scene()
    mask = post(client, png(image), "/predict?method=fp32&output=mask")
    assert mask.headers["content-disposition"] == 'attachment; filename="mask-fp32.png"'
    expected = np.asarray(codtdq.predict(variants.get("fp32").model, image))
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(mask.content))), expected)
    cutout = post(client, png(image), "/predict?method=fp32&output=cutout")
    pixels = np.asarray(Image.open(io.BytesIO(cutout.content)))
    assert np.array_equal(pixels, np.dstack([image, expected]))


def test_a_turned_photograph_is_answered_upright(client):
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    buffer = io.BytesIO()
    Image.fromarray(scene()[:64, :96]).save(buffer, format="JPEG", exif=exif)
    found = post(client, buffer.getvalue()).json()
    assert (found["width"], found["height"]) == (64, 96)


def test_evidence_is_what_the_quantizer_zeroed(client):
    data = png(scene())
    naive = post(client, data, "/evidence?method=w4a4").json()["layers"]
    paper = post(client, data, "/evidence?method=cod-tdq").json()["layers"]
    assert [one["layer"] for one in naive] == [one["layer"] for one in paper] and len(naive) > 100
    for one in naive:
        heat = decoded(one["png"])
        assert heat.shape == (112, 112) and 0 <= one["zero_mass"] <= 1
        assert (heat.max() > 0) or one["zero_mass"] < 0.01
    mean = [sum(one["zero_mass"] for one in layers) / len(layers) for layers in (naive, paper)]
    assert mean[0] > mean[1]  # token groups are there for that
    floats = post(client, data, "/evidence?method=fp32")
    assert floats.status_code == 400 and "rounds nothing" in floats.json()["error"]


def bomb():
    """A few bytes whose header promises a billion pixels."""
    data = bytearray(png(np.zeros((1, 1, 3), np.uint8)))
    data[16:24] = (40_000).to_bytes(4, "big") + (40_000).to_bytes(4, "big")
    return bytes(data)


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\nshowpage\n"


@pytest.mark.parametrize(
    ("data", "path", "headers", "code", "text"),
    [
        (b"", "/predict", {}, 400, "the body is empty"),
        (b"no image", "/predict?method=w4a4", {}, 400, "no image that can be decoded"),
        (POSTSCRIPT, "/predict?method=w4a4", {}, 400, "no image that can be decoded"),
        (png(np.zeros((9, 9), np.uint8))[:45], "/predict?method=w4a4", {}, 400, "decoded"),
        (bomb(), "/predict?method=w4a4", {}, 400, ""),
        (png(np.zeros((1001, 1000), np.uint8)), "/predict?method=w4a4", {}, 400, "1000 x 1001"),
        (bytes(2_000_001), "/predict", {}, 413, "larger than 2000000 bytes"),
        (b"x", "/predict", {"Content-Type": "text/plain"}, 415, "'text/plain'; accepted: image"),
        (b"x", "/predict?method=w3a3", {}, 400, "method is 'w3a3'; accepted: fp32"),
        (b"x", "/predict?output=gif", {}, 400, "output is 'gif'; accepted: json"),
        (b"x", "/predict?output=mask&method=fp32,w4a4", {}, 400, "name one method"),
        (b"x", "/evidence?method=fp32,w4a4", {}, 400, "name one"),
    ],
    ids=[
        "empty",
        "text",
        "postscript",
        "cut",
        "bomb",
        "pixels",
        "bytes",
        "type",
        "method",
        "output",
        "two-files",
        "two-methods",
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(client, data, path, headers, code, text):
    answer = post(client, data, path, **headers)
    assert answer.status_code == code, answer.text
    message = answer.json()["error"]
    assert text in message and "\n" not in message and "/src/" not in message


def test_an_upload_without_a_length_is_cut_off(client):
    sent = []

    def endless():
        for _ in range(1000):
            sent.append(1)
            yield bytes(100_000)

    answer = client.post("/predict", content=endless(), headers=OCTETS)
    assert answer.status_code == 413


def test_unknown_paths_and_verbs(client):
    assert client.get("/predict").status_code == 405
    assert client.get("/samples/99").status_code == 404
    assert client.get("/../pyproject.toml").status_code == 404
    names = client.get("/models").json()["samples"]
    assert names == ["bricks", "grass", "gravel", "cat"]
    for number in range(len(names)):
        answer = client.get(f"/samples/{number}")
        assert answer.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(answer.content)).format == "JPEG"


def test_a_page_of_elsewhere_cannot_reach_it_by_another_name(variants):
    app = create_app(variants, hosts=LOOPBACK_NAMES)
    client = TestClient(app, base_url="http://localhost")  # without its start: nothing is built
    assert client.get("/models").status_code == 200
    assert client.get("/models", headers={"Host": "evil.example"}).status_code == 400


def test_the_description_names_every_endpoint_and_answer(client):
    told = client.get("/openapi.json").json()
    assert told["openapi"].startswith("3.") and told["info"]["version"] == codtdq.__version__
    assert set(told["paths"]) == {"/predict", "/evidence", "/models", "/samples/{number}"}
    schema = told["paths"]["/predict"]["post"]["responses"]["200"]["content"]["application/json"]
    properties = schema["schema"]["properties"]
    found = post(client, png(scene())).json()
    assert set(found) == set(properties) == set(schema["schema"]["required"])
    assert set(found["masks"][0]) == set(properties["masks"]["items"]["properties"])
    models = told["paths"]["/models"]["get"]["responses"]["200"]["content"]["application/json"]
    assert set(client.get("/models").json()) == set(models["schema"]["properties"])


class Slow(Variants):
    """A network that waits for a sign, to fill the queue."""

    def __init__(self):
        super().__init__(NAME)
        self.go = threading.Event()
        self.calls = 0

    def prepare(self):
        pass

    def get(self, method):
        self.calls += 1
        assert self.go.wait(30)
        raise ConfigError("served")


def in_threads(count, function):
    results = [None] * count

    def work(at):
        results[at] = function(at)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    return threads, results


def test_a_full_queue_says_busy_and_when_to_come_again():
    slow = Slow()
    with TestClient(create_app(slow, Limits(waiting=2, seconds=30))) as client:
        threads, results = in_threads(3, lambda at: post(client, b"x").status_code)
        application = client.app.state.application
        until = time.monotonic() + 20
        while application.queue.taken < 3:
            assert time.monotonic() < until
            time.sleep(0.01)
        answer = post(client, b"x")
        assert answer.status_code == 503 and answer.headers["retry-after"] == "2"
        assert "busy" in answer.json()["error"]
        slow.go.set()
        for thread in threads:
            thread.join(20)
        assert results == [400] * 3  # "served": nobody who waited was lost
        assert application.queue.taken == 0
        assert post(client, b"x").status_code == 400  # and there is room again


def test_a_request_that_takes_too_long_is_given_up():
    slow = Slow()
    with TestClient(create_app(slow, Limits(waiting=1, seconds=0.2))) as client:
        threads, results = in_threads(2, lambda at: post(client, b"x").status_code)
        for thread in threads:
            thread.join(20)
        assert results == [504, 504]
        slow.go.set()
    assert slow.calls == 1  # the one that waited was taken off


def test_a_network_that_is_not_ready_says_so():
    class Waiting(Variants):
        def prepare(self):
            pass

    with TestClient(create_app(Waiting(NAME))) as client:
        answer = post(client, b"x")
        assert answer.status_code == 503 and "preparing" in answer.json()["error"]
        assert int(answer.headers["retry-after"]) > 0


def test_eight_clients_at_a_time_get_their_own_answers(client, variants):
    shapes = [(64 + 8 * at, 120 - 8 * at) for at in range(8)]
    images = [scene(at)[:h, :w] for at, (h, w) in enumerate(shapes)]
    expected = [np.asarray(codtdq.predict(variants.get("w4a4").model, one)) for one in images]

    def ask(at):
        answers = [post(client, png(images[at])) for _ in range(3)]
        return all(
            np.array_equal(decoded(a.json()["masks"][0]["png"]), expected[at]) for a in answers
        )

    threads, results = in_threads(8, ask)
    for thread in threads:
        thread.join(120)
    assert results == [True] * 8


def test_nothing_is_left_on_disk(client, tmp_path, monkeypatch):
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (700, 700, 3), dtype=np.uint8)
    data = png(noise)
    assert len(data) > 2**20  # more than what other parsers keep in memory
    assert post(client, data).status_code == 200
    assert post(client, data, "/predict?method=w4a4&output=cutout").status_code == 200
    assert list(tmp_path.iterdir()) == []


def test_variants_are_plain_records():
    assert Variant("fp32", "FP32").to_dict() == {
        "method": "fp32",
        "title": "FP32",
        "state": "preparing",
    }
