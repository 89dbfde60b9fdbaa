"""Starting the server: a socket, the application, and a line that says where it is."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable

from codtdq.environment import install_hint
from codtdq.errors import ConfigError, UnsupportedError
from codtdq.lab.serve.limits import Limits
from codtdq.lab.serve.variants import Variants
from codtdq.models import model_info

LOOPBACK_NAMES = ["127.0.0.1", "localhost", "[::1]"]


def serve(
    model: str,
    host: str,
    port: int,
    limits: Limits,
    *,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Serve a model until the process is interrupted.

    host: an address of this machine; one that is not loopback can be reached by others, which is
        said. port: 0 takes a free one.
    """
    try:
        import uvicorn

        from codtdq.lab.serve.app import create_app
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"the page needs {error.name}, which is not installed; {install_hint('serve')}"
        ) from error
    if model_info(model).weights is None:
        raise ConfigError(
            f"no weights of {model} come with the package; accepted: a model with weights, see "
            "`codtdq list models`"
        )
    loopback = _is_loopback(host)
    listener = _listener(host, port)
    app = create_app(Variants(model), limits, hosts=LOOPBACK_NAMES if loopback else None)
    settings = uvicorn.Config(
        app,
        log_level="warning",
        limit_concurrency=8 * (limits.waiting + 8),  # connections; the queue bounds the work
        timeout_keep_alive=5,
        server_header=False,
    )
    server = uvicorn.Server(settings)
    begin = server.startup

    async def startup(sockets: list[socket.socket] | None = None) -> None:
        """Say where it is once it answers, and ends well by a signal."""
        await begin(sockets=sockets)
        shown = f"[{host}]" if ":" in host else host
        say(f"{model} at http://{shown}:{listener.getsockname()[1]}/ (stop with Ctrl-C)")
        if not loopback:
            say(f"note: {host} can be reached by other machines, without a password")

    server.startup = startup  # type: ignore[method-assign]
    with listener:
        server.run(sockets=[listener])


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listener(host: str, port: int) -> socket.socket:
    """A bound socket; one line where the address cannot be had."""
    if not 0 <= port < 65536:
        raise ConfigError(f"--port is {port}; accepted: 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"{host}:{port} cannot be listened on ({error.strerror or error}); give another "
            "--port or --host"
        ) from error
    return listener
