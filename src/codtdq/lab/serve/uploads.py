"""Refusals that arrive: what a client still sends is read and thrown away before its answer."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOO_SLOW = 408  # whoever was given up for being slow is not waited for once more


class ReadToEnd:
    """Reads the rest of an upload before an error is sent.

    A server that answers and closes while a client still sends resets the connection, and most
    clients then report the reset instead of the answer. Nothing that is read here is kept.

    seconds: at most, for the rest of one upload.
    """

    def __init__(self, app: ASGIApp, seconds: float) -> None:
        self.app = app
        self.seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # a client that waits for permission to send has sent nothing, and asking for it permits
        asked, ended = "expect" not in Headers(scope=scope), False

        async def received() -> Message:
            nonlocal asked, ended
            asked = True
            message = await receive()
            ended = not message.get("more_body", False)
            return message

        async def rest() -> None:
            while not ended:
                await received()

        async def sent(message: Message) -> None:
            status = message.get("status", 0)
            if status >= 400 and status != TOO_SLOW and asked and not ended:
                try:
                    await asyncio.wait_for(rest(), self.seconds)
                except asyncio.TimeoutError:
                    pass  # answered all the same; whether that arrives is up to the client
            await send(message)

        await self.app(scope, received, sent)
