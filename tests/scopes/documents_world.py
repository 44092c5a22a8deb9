"""Who may ask what of which documents, and what can happen to these."""

from collections.abc import Mapping
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from random import Random
from typing import Any

from tests.scopes.questions import WORDINGS
from tests.scopes.steps import Ask, Burst, Release, Wait
from tests.scopes.world import ADMIN, Brief, Key, Person, Policy, World

KB, FOLDER = "kb", "folder"
DOCUMENTS = {KB: ("s1", "s2", "s3", "s4"), FOLDER: ("f1", "f2", "f3")}
TENANTS = ("acme", "globex", "initech")
FOR_TENANTS = {KB: TENANTS, FOLDER: TENANTS[:2]}
NEEDS = ("", "", "hr", "fin", "fin hr")
PERMISSIONS = ("", "hr", "fin", "fin hr", "hr other")
"""`other` is needed by no document: with it and without, one has the same effective permissions in a folder."""
TOPICS = tuple(sorted({wording.place for wording in WORDINGS}))


@dataclass(frozen=True)
class Library(World):
    """`retrieval`: which retriever an endpoint asks; `like`: endpoints which use results of like questions;
    `named`: the service names the permissions of each result instead of heeding those that it is told."""

    retrieval: Mapping[str, str]
    like: frozenset[str]
    named: bool

    @property
    def retrievers(self) -> tuple[str, ...]:
        return (KB, FOLDER) if FOLDER in self.retrieval.values() else (KB,)

    def endpoint_of(self, retriever: str) -> str:
        """One whose documents are this retriever's."""
        return next(name for name, asked in self.retrieval.items() if asked == retriever and name != "default")

    def library(self, store: Mapping[str, Any], url: str, place: Path) -> dict[str, Any]:
        """As a configuration file has it: the service at `url`, the folder in `place`."""
        settings = self.settings(store)
        kb = {"kind": "http", "url": url, "version": "$.version"}
        if self.named:
            kb |= {"url": url.replace("/search", "/named"), "permissions": "$.permissions"}
        folder = {"kind": "folder", "path": str(place / "docs"), "acl": str(place / "acl.yaml")}
        all = {KB: kb, FOLDER: {**folder, "tenants": list(FOR_TENANTS[FOLDER])}}
        settings["retrievers"] = {name: all[name] for name in self.retrievers}
        for name, retriever in self.retrieval.items():
            score = {"min_score": 0.9} if retriever == FOLDER else {}
            retrieval = {"retriever": retriever, "top_k": 20, "semantic": name in self.like, **score}
            settings["endpoints"][name]["retrieval"] = retrieval
        return settings


def new_library(random: Random, *, folder: bool) -> Library:
    first = Person(random.choice(TENANTS[:2]), "ann", frozenset(random.choice(PERMISSIONS).split()))
    people = [first, Person(first.tenant, "bob", first.permissions ^ {"other"})]
    for user in ("carol", "ann", "dave")[: random.randint(1, 3)]:
        permissions = frozenset(random.choice(PERMISSIONS).split())
        people.append(Person(random.choice((first.tenant, first.tenant, *TENANTS)), user, permissions))
    people.append(Person(TENANTS[-1], "ann", first.permissions))
    keys = [Key(f"rf-scopes-key-{n}", person) for n, person in enumerate(people)]
    keys.append(Key(ADMIN, Person("ops", "root", frozenset()), "admin"))
    names = ("default", "b", "c")
    endpoints = {name: _policy(random) for name in names}
    retrieval = dict.fromkeys(names, KB)
    if folder:
        retrieval |= {"default": random.choice((KB, FOLDER)), "b": FOLDER}
    like = frozenset(name for name in names if random.random() < 0.4)
    return Library(tuple(keys), endpoints, retrieval, like, named=random.random() < 0.5)


def _policy(random: Random) -> Policy:
    return Policy(
        share=random.choice(("user", "permissions", "permissions", "tenant", "tenant", "public")),
        mode=random.choice(("stream", "request_response")),
        ttl=random.choice((60.0, 60.0, 3600.0)),
        like=random.choice((None, 60.0, 3600.0)),
        revalidate=20.0 if random.random() < 0.5 else 0.0,
    )


@dataclass(frozen=True, repr=False)
class Search(Ask):
    """A search of its own, in OpenAI's shape."""

    retriever: str = KB

    @property
    def path(self) -> str:
        return super().path.replace("chat/completions", f"vector_stores/{self.retriever}/search")

    def body(self) -> bytes:
        return dumps({"query": self.wording.text, "max_num_results": 50, **self.control.body()}).encode()


@dataclass(frozen=True, repr=False)
class Change(Brief):
    """What happens to a document: `text` (it is another one, or new, with `topic`), `revert` (it has the text before
    the last one again), `delete`, `needs` (other permissions) or `erase` (somebody says that it is to be found no
    more). `how` the gateway learns of it: `watch` (a folder is watched), `notice`, `purge`, `silent` (not at all)."""

    document: str
    what: str
    how: str
    topic: str = TOPICS[0]
    needs: str = ""


@dataclass(frozen=True, repr=False)
class Meanwhile(Brief):
    """A change while requests are under way; `held`: while the service has found, and not said yet, what it found."""

    burst: Burst
    change: Change
    held: bool = False


@dataclass(frozen=True, repr=False)
class PurgeDocument(Brief):
    document: str


@dataclass(frozen=True, repr=False)
class Restart(Brief):
    """Of the application, on the same store; meanwhile something changes."""

    changes: tuple[Change, ...] = ()


def retriever_of(document: str) -> str:
    return FOLDER if document in DOCUMENTS[FOLDER] else KB


Step = Burst | Release | Wait | Change | Meanwhile | PurgeDocument | Restart
