"""Keys of requests to RAG endpoints: the same in every version, and known once it is known what was found."""

import pytest

from tests.gateway.retrieval.test_grounds import FAILURE, Room


@pytest.mark.parametrize(
    ("endpoint", "key"),
    [
        ("hr", "19751f562bb26d96d9684f54de374663061a93c82bb32ee28932041c03d02680"),
        ("few", "69d833eeb64f54e9059f9eaf02807179085d9aa59ca2363034338daaee3682da"),
    ],
)
async def test_keys_with_documents_are_what_they_were(endpoint: str, key: str) -> None:
    """Stores that are full must not become empty."""
    room = Room()
    ask = room.understood(endpoint=endpoint)
    assert ask.key == b""
    assert (await room.ground(ask)).key.hex() == key


async def test_without_documents_it_is_the_key_of_the_request_alone() -> None:
    room = Room()
    ask = room.understood(endpoint="lenient")
    with_documents = await room.ground(ask)
    room.open.fails = FAILURE
    without = await room.ground(room.understood("unpaid", endpoint="lenient"))
    alone = room.understood("unpaid", endpoint="lenient").resting_on(None)
    assert without.key == alone.key
    assert alone.key.hex() == "df7a3b702d85a0d0e769998f98679b62e4b50936478e71ce0a676519bad79800"
    assert ask.resting_on(None).key != with_documents.key
