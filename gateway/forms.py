"""A whole answer in the wire form that a client asked for; each form is made once and kept beside the answer."""

import msgspec

from cache.stores.memory import MemoryStore, Slot
from gateway.ask import Ask
from gateway.fill import Filled
from gateway.wire.render import render_stream


def stored_form(front: MemoryStore, ask: Ask, slot: Slot) -> bytes:
    """The stored answer as `ask` wants it."""
    if ask.form == "json":
        return slot.entry.body
    if (known := slot.rendered.get(ask.form)) is not None:
        return known
    data = render_stream(ask.api, msgspec.json.decode(slot.entry.body), include_usage=ask.form == "sse+usage")
    front.attach(slot, ask.form, data)
    return data


def streamed_form(ask: Ask, filled: Filled) -> bytes:
    """An answer that came whole, as a stream."""
    known = filled.forms.get(ask.form)
    if known is None:
        known = render_stream(ask.api, filled.answer, include_usage=ask.form == "sse+usage")
        filled.forms[ask.form] = known
    return known
