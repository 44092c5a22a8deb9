"""A lost connection ends the body that is on it, whoever has closed it.

aiohttp tells the reader of a body only when the server has closed the connection. When aiohttp itself closes it, after
bytes that are no HTTP or together with the session, the reader would wait until its time is up.
"""

import asyncio

import aiohttp


class LostConnections:
    def __init__(self) -> None:
        # By the future that is done when their connection is lost: the body that is on it, or was the last one.
        self._bodies: dict[asyncio.Future[None], aiohttp.StreamReader] = {}

    def watch(self, response: aiohttp.ClientResponse) -> None:
        protocol = response.connection and response.connection.protocol
        if protocol is None:
            return  # the body has arrived to its end
        lost = protocol.closed
        if lost is None:
            _end(response.content)
            return
        if lost not in self._bodies:
            lost.add_done_callback(self._lost)
        self._bodies[lost] = response.content

    def _lost(self, lost: asyncio.Future[None]) -> None:
        if not lost.cancelled():
            lost.exception()  # seen: otherwise asyncio would report an idle connection that breaks
        _end(self._bodies.pop(lost))


def _end(body: aiohttp.StreamReader) -> None:
    if not body.is_eof() and body.exception() is None:
        body.set_exception(aiohttp.ServerDisconnectedError())
