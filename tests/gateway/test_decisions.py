import json
import re

from gateway.decisions import Decision, Tier, new_request_id
from gateway.principal import Principal
from gateway.ring import Ring


def decision(id: str = "req_1") -> Decision:
    return Decision(id, 1_800_000_000.25, "default", "chat")


def test_request_ids_are_new_every_time_and_safe_in_a_header() -> None:
    ids = [new_request_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(re.fullmatch(r"req_[0-9a-f]{12}_[0-9]+", id) for id in ids)


def test_a_new_decision_says_nothing_yet() -> None:
    shown = decision().as_dict()
    assert shown["outcome"] is None
    names = ("served", "consumed", "unserved", "saved", "input", "output", "billable", "estimated")
    assert shown["tokens"] == dict.fromkeys(names, 0)
    assert (shown["tenant"], shown["user"]) == ("", "")
    assert json.loads(json.dumps(shown)) == shown


def test_a_decision_shows_what_happened() -> None:
    d = decision()
    d.principal = Principal("acme", "alice", frozenset({"hr"}), "admin")
    d.tiers = (Tier("exact", "hit", ttl=59), Tier("semantic", "skipped", "tools"))
    d.key = b"\x01" * 32
    d.phases = {"auth": 0.12345}
    d.usd_saved = 0.25
    shown = d.as_dict()
    assert shown["tiers"] == [
        {"tier": "exact", "result": "hit", "ttl": 59},
        {"tier": "semantic", "result": "skipped", "why": "tools"},
    ]
    assert (shown["tenant"], shown["user"], shown["key"]) == ("acme", "alice", "01" * 32)
    assert shown["phases"] == {"auth": 0.123}
    assert shown["usd"] == {"consumed": None, "billable": None, "saved": 0.25, "overhead": None}
    assert json.loads(json.dumps(shown)) == shown


def test_a_tier_that_ends_now_still_shows_its_zero() -> None:
    assert Tier("exact", "hit", ttl=0).as_dict() == {"tier": "exact", "result": "hit", "ttl": 0}


def test_the_ring_keeps_the_latest_newest_first() -> None:
    ring = Ring(3)
    assert list(ring) == []
    for i in range(5):
        ring.add(decision(f"req_{i}"))
    assert [d.id for d in ring] == ["req_4", "req_3", "req_2"]
    found = ring.find("req_2")
    assert found is not None
    assert found.id == "req_2"
    assert ring.find("req_1") is None
    assert ring.find("") is None


def test_a_ring_can_change_its_length() -> None:
    ring = Ring(3)
    for i in range(3):
        ring.add(decision(f"req_{i}"))
    ring.resize(2)
    assert [d.id for d in ring] == ["req_2", "req_1"]
    ring.resize(3)
    ring.add(decision("req_3"))
    assert [d.id for d in ring] == ["req_3", "req_2", "req_1"]
    ring.add(decision("req_4"))
    assert [d.id for d in ring] == ["req_4", "req_3", "req_2"]


def test_two_decisions_share_nothing() -> None:
    one, two = decision(), decision()
    one.phases["auth"] = 1.0
    one.tiers += (Tier("exact", "miss"),)
    assert (two.phases, two.tiers) == ({}, ())


def test_the_repr_names_no_person_and_no_key() -> None:
    d = decision()
    d.principal = Principal("acme-corp", "alice")
    d.key = b"\xab" * 32
    assert "alice" not in repr(d)
    assert "abab" not in repr(d)
