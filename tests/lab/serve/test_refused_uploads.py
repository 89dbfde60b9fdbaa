"""Refusals over a real socket: the answer arrives although the client was still sending."""

import http.client
import json
import socket
import threading
import time

import pytest
import uvicorn

from codtdq.lab.serve.app import create_app
from codtdq.lab.serve.limits import Limits
from codtdq.lab.serve.variants import Variants

LARGE = 32 * 2**20  # more than the buffers of both sockets hold
OCTETS = {"Content-Type": "application/octet-stream"}
LAST = {"Connection": "close"}  # as urllib says it: a server then closes once it has answered


class Nothing(Variants):
    def prepare(self):
        pass


@pytest.fixture(scope="module")
def server():
    """The port, and the application behind it."""
    app = create_app(Nothing("cfrn-small"), Limits(bytes=2**20, upload_seconds=20.0))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    until = time.monotonic() + 60
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.05)
    yield server.servers[0].sockets[0].getsockname()[1], app.state.application
    server.should_exit = True
    thread.join(60)


def ask(port, path, headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, bytes(LARGE), {**headers, **LAST})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("path", "headers", "code", "text"),
    [
        ("/predict", OCTETS, 413, "larger than 1048576 bytes"),
        ("/predict", {"Content-Type": "text/plain"}, 415, "accepted: image/"),
        ("/predict?output=gif", OCTETS, 400, "output is 'gif'"),
        ("/nothing", OCTETS, 404, "Not Found"),
    ],
    ids=["bytes", "type", "output", "path"],
)
def test_an_answer_is_not_lost_to_a_client_that_still_sends(server, path, headers, code, text):
    status, body = ask(server[0], path, headers)
    assert status == code and text in json.loads(body)["error"]


def test_busy_is_said_to_a_client_that_still_sends(server, monkeypatch):
    monkeypatch.setattr(server[1].queue, "_taken", 99)
    status, body = ask(server[0], "/predict", OCTETS)
    assert status == 503 and "busy" in json.loads(body)["error"]


def test_a_client_that_asks_first_is_spared_the_upload(server):
    head = (
        f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {LARGE}\r\n"
        "Content-Type: image/jpeg\r\nExpect: 100-continue\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server[0]), 10) as connection:
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_memory_does_not_grow_with_what_is_thrown_away(server):
    import tracemalloc

    tracemalloc.start()
    try:
        body = bytes(2**16)

        def endless():
            for _ in range(LARGE // len(body)):
                yield body

        connection = http.client.HTTPConnection("127.0.0.1", server[0], timeout=60)
        connection.request("POST", "/predict", endless(), {**OCTETS, **LAST}, encode_chunked=True)
        assert connection.getresponse().status == 413
        connection.close()
        assert tracemalloc.get_traced_memory()[1] < LARGE / 2
    finally:
        tracemalloc.stop()
