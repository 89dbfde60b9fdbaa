"""The web application: a page, its parts, and the endpoints that programs use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from codtdq.errors import CodtdqError
from codtdq.lab.serve.headers import SafeHeaders
from codtdq.lab.serve.limits import Limits
from codtdq.lab.serve.openapi import description
from codtdq.lab.serve.queue import Busy, Overdue, Queue
from codtdq.lab.serve.samples import sample_pictures
from codtdq.lab.serve.service import Service
from codtdq.lab.serve.uploads import ReadToEnd
from codtdq.lab.serve.variants import PLUS, PREPARATION, Unready, Variants

ASSETS = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/serve.css": ("serve.css", "text/css; charset=utf-8"),
    "/serve.js": ("serve.js", "text/javascript; charset=utf-8"),
}
OUTPUTS = ("json", "mask", "cutout")
RETRY_BUSY, RETRY_UNREADY = 2, 5  # seconds after which it makes sense to ask again


class Application:
    """The state of a server: its networks, its queue and its limits."""

    def __init__(self, variants: Variants, limits: Limits) -> None:
        self.limits = limits
        self.service = Service(variants, limits)
        self.queue = Queue(limits.waiting)
        self.samples = sample_pictures()

    async def models(self, request: Request) -> Response:
        """Which networks there are, and how far they are."""
        known = [variant.to_dict() for variant in self.service.variants.all()]
        return JSONResponse(
            {
                "model": self.service.variants.name,
                "methods": known,
                "samples": [sample.name for sample in self.samples],
                "limits": {"bytes": self.limits.bytes, "pixels": self.limits.pixels},
            }
        )

    async def sample(self, request: Request) -> Response:
        """A picture to try, by its number."""
        number = request.path_params["number"]
        if number >= len(self.samples):
            raise HTTPException(404, f"there are {len(self.samples)} samples, from 0")
        return Response(self.samples[number].data, media_type="image/jpeg")

    async def predict(self, request: Request) -> Response:
        """Masks of the picture in the body."""
        output = request.query_params.get("output", "json")
        if output not in OUTPUTS:
            raise HTTPException(400, f"output is {output!r}; accepted: {', '.join(OUTPUTS)}")
        methods = _methods(request)
        if output != "json" and len(methods) > 1:
            raise HTTPException(400, f"output={output} is one file; name one method")
        data = await self._body(request)
        if output == "json":
            return JSONResponse(await self._run(self.service.predicted, data, methods))
        content = await self._run(self.service.file, data, methods[0], output)
        name = f'attachment; filename="{output}-{methods[0]}.png"'
        return Response(content, media_type="image/png", headers={"Content-Disposition": name})

    async def evidence(self, request: Request) -> Response:
        """Heat maps of the picture in the body."""
        methods = _methods(request)
        if len(methods) > 1:
            raise HTTPException(400, "evidence is shown of one method; name one")
        data = await self._body(request)
        return JSONResponse(await self._run(self.service.evidence, data, methods[0]))

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await self.queue.run(function, *arguments, seconds=self.limits.seconds)
        except Busy:
            raise _later("busy: as many pictures wait as may wait", RETRY_BUSY) from None
        except Unready:
            raise _later("preparing: this network is not ready yet", RETRY_UNREADY) from None
        except Overdue:
            limit = f"{self.limits.seconds:g}"
            raise HTTPException(504, f"no answer within {limit} seconds; try again") from None
        except CodtdqError as error:
            raise HTTPException(400, " ".join(str(error).split())) from None

    async def _body(self, request: Request) -> bytes:
        """The bytes of the upload; refused as soon as they are too many, or too slow."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not (kind.startswith("image/") or kind == "application/octet-stream"):
            raise HTTPException(
                415,
                f"content type is {kind[:40]!r}; accepted: image/... or application/octet-stream, "
                "with the bytes of an image file as the body",
            )
        if self.queue.taken > self.limits.waiting:  # not worth the upload
            raise _later("busy: as many pictures wait as may wait", RETRY_BUSY)
        try:
            return await asyncio.wait_for(self._read(request), self.limits.upload_seconds)
        except asyncio.TimeoutError:
            raise HTTPException(408, "the upload took too long; try again") from None
        except ClientDisconnect:
            raise HTTPException(400, "the upload ended early") from None

    async def _read(self, request: Request) -> bytes:
        limit, data = self.limits.bytes, bytearray()
        larger = HTTPException(
            413, f"the upload is larger than {limit} bytes; scale the picture down"
        )
        declared = request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > limit:
            raise larger
        async for chunk in request.stream():
            data += chunk
            if len(data) > limit:
                raise larger
        if not data:
            raise HTTPException(400, "the body is empty; send the bytes of an image file")
        return bytes(data)


def create_app(
    variants: Variants, limits: Limits | None = None, *, hosts: list[str] | None = None
) -> Starlette:
    """The application; networks are built in the background once it starts.

    hosts: names by which it may be called; a page of elsewhere that makes its own name point here
        is refused. None: any name.
    """
    state = Application(variants, limits or Limits())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        # beside the queue: whoever wants a network that is ready does not wait for the others
        threading.Thread(target=variants.prepare, name=PREPARATION, daemon=True).start()
        yield
        state.queue.close()

    routes = [Route(path, _asset(*file)) for path, file in ASSETS.items()]
    routes += [
        Route("/models", state.models),
        Route("/samples/{number:int}", state.sample),
        Route("/predict", state.predict, methods=["POST"]),
        Route("/evidence", state.evidence, methods=["POST"]),
        Route("/openapi.json", _described(state.limits)),
    ]
    middleware = [
        Middleware(ReadToEnd, seconds=state.limits.upload_seconds),
        Middleware(SafeHeaders),
    ]
    if hosts is not None:
        middleware.append(Middleware(TrustedHostMiddleware, allowed_hosts=hosts))
    app = Starlette(
        routes=routes,
        middleware=middleware,
        lifespan=lifespan,
        exception_handlers={HTTPException: _error},
    )
    app.state.application = state
    return app


def _methods(request: Request) -> list[str]:
    text = request.query_params.get("method", PLUS)
    return list(dict.fromkeys(text.split(",")))


def _later(reason: str, seconds: int) -> HTTPException:
    headers = {"Retry-After": str(seconds)}
    return HTTPException(503, f"{reason}; try again in {seconds} seconds", headers)


async def _error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def _asset(name: str, kind: str) -> Callable[[Request], Any]:
    content = (resources.files("codtdq.lab.serve") / "assets" / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(content, headers={"Content-Type": kind})

    return answer


def _described(limits: Limits) -> Callable[[Request], Any]:
    content = description(limits)

    async def answer(request: Request) -> Response:
        return JSONResponse(content)

    return answer
