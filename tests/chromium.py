"""Headless Chromium over the DevTools protocol, with nothing but the standard library."""

import base64
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find():
    """The program, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class WebSocket:
    """A client for one connection: text frames, as RFC 6455 has them."""

    def __init__(self, url, timeout=30):
        host, _, path = url.removeprefix("ws://").partition("/")
        name, _, port = host.partition(":")
        self.socket = socket.create_connection((name, int(port)), timeout)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self.stream = self.socket.makefile("rb")
        assert b"101" in self.stream.readline()
        while self.stream.readline().strip():
            pass

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        size = len(data)
        head = b"\x81" + (
            bytes([0x80 | size])
            if size < 126
            else struct.pack("!BH", 0xFE, size)
            if size < 65536
            else struct.pack("!BQ", 0xFF, size)
        )
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        self.socket.sendall(head + mask + masked)

    def receive(self):
        """The next text message."""
        message = b""
        while True:
            first, second = self.stream.read(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", self.stream.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self.stream.read(8))
            data = self.stream.read(size)
            opcode = first & 0x0F
            if opcode == 8:
                raise ConnectionError("Chromium closed the connection")
            if opcode in (0, 1, 2):
                message += data
                if first & 0x80:
                    return message.decode()

    def close(self):
        self.stream.close()
        self.socket.close()


class Chromium:
    """One browser with one tab. `errors` and `requests` collect what the page did."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="codtdq-chromium-")
        self.process = subprocess.Popen(
            [
                find(),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-dev-shm-usage",
                "--disable-background-networking",
                "--remote-debugging-port=0",
                f"--user-data-dir={self.folder.name}",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.errors, self.requests, self._number = [], [], 0
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _connect(self):
        told = Path(self.folder.name) / "DevToolsActivePort"
        until = time.monotonic() + 40
        tab = None
        while tab is None:
            if time.monotonic() > until or self.process.poll() is not None:
                raise RuntimeError("Chromium does not answer")
            time.sleep(0.05)
            if told.is_file() and (lines := told.read_text().splitlines()):
                with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list") as answer:
                    tabs = [t for t in json.load(answer) if t["type"] == "page"]
                tab = tabs[0] if tabs else None
        self.socket = WebSocket(tab["webSocketDebuggerUrl"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **params):
        """One command and its result; events that come in between are kept."""
        self._number += 1
        number = self._number
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.receive())
            if message.get("id") == number:
                assert "error" not in message, message["error"]
                return message["result"]
            self._event(message)

    def _event(self, message):
        name, params = message.get("method"), message.get("params", {})
        if name == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"])
        elif name == "Runtime.consoleAPICalled" and params["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.errors.append(params["args"])
        elif name == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"])
        elif name == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def open(self, path, **window):
        """Load a file as `open_url` loads an address."""
        self.open_url(Path(path).resolve().as_uri(), **window)

    def open_url(self, url, width=1280, height=900, dark=False):
        """Load a page in a window of this size and wait until its scripts have run."""
        self.errors.clear()
        self.requests.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)
        loaded = "location.protocol !== 'about:' && document.readyState === 'complete'"
        until = time.monotonic() + 60  # of a loaded machine
        while not self.run(loaded):
            assert time.monotonic() < until, "the page does not finish loading"
            time.sleep(0.02)

    def run(self, expression):
        """The value of an expression in the page."""
        result = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def text(self, selector):
        """Visible text of the first match."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def texts(self, selector):
        """Visible text of all matches."""
        query = f"document.querySelectorAll({json.dumps(selector)})"
        return self.run(f"[...{query}].map(e => e.innerText)")

    def click(self, selector):
        """Press and release the mouse in the middle of an element."""
        x, y = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', inline: 'center', behavior: 'instant'});"
            "const r = e.getBoundingClientRect();"
            "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def key(self, name):
        """Press one key on whatever has the focus."""
        code = {"Enter": 13, "ArrowRight": 39, "ArrowLeft": 37, "Tab": 9}[name]
        text = {"text": "\r"} if name == "Enter" else {}
        self.call(
            "Input.dispatchKeyEvent",
            type="keyDown",
            key=name,
            code=name,
            windowsVirtualKeyCode=code,
            **text,
        )
        self.call(
            "Input.dispatchKeyEvent", type="keyUp", key=name, code=name, windowsVirtualKeyCode=code
        )

    def type(self, selector, text):
        """Put the focus on a field, empty it, and type."""
        self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.focus();"
            "e.select(); })()"
        )
        self.call("Input.insertText", text=text)

    def select(self, selector, value):
        """Choose an option of a select."""
        self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            f"e.value = {json.dumps(value)}; e.dispatchEvent(new Event('change')); }})()"
        )

    def put_file(self, selector, path):
        """Choose a file in an input for files."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def screenshot(self, path):
        """The whole page as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def close(self):
        if hasattr(self, "socket"):
            self.socket.close()
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)  # its own session: the browser's helpers
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:  # a busy machine
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)
        self.folder.cleanup()
