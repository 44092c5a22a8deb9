"""A whole answer in the wire form that a client asked for; each form is made once and kept beside the answer."""

import asyncio

import msgspec

from cache.stores.memory import MemoryStore, Slot
from gateway.ask import Ask
from gateway.fill import Filled
from gateway.wire.render import render_stream

LARGE = 64 * 1024
"""An answer of more bytes is rendered in a thread, so that it does not hold up the event loop."""


async def stored_form(front: MemoryStore, ask: Ask, slot: Slot) -> bytes:
    """The stored answer as `ask` wants it."""
    if ask.form == "json":
        return slot.entry.body
    if (known := slot.rendered.get(ask.form)) is not None:
        return known
    data = await _rendered(ask, slot.entry.body)
    front.attach(slot, ask.form, data)
    return data


async def streamed_form(ask: Ask, filled: Filled) -> bytes:
    """An answer that came whole, as a stream; made once for all who wait for it."""
    made = filled.forms.get(ask.form)
    if made is None:
        made = filled.forms[ask.form] = asyncio.ensure_future(_rendered(ask, filled.raw))
    return await asyncio.shield(made)


async def _rendered(ask: Ask, body: bytes) -> bytes:
    return await asyncio.to_thread(_render, ask, body) if len(body) > LARGE else _render(ask, body)


def _render(ask: Ask, body: bytes) -> bytes:
    return render_stream(ask.api, msgspec.json.decode(body), include_usage=ask.form == "sse+usage")
