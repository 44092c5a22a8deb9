"""Where documents lie: what is there really, whatever the gateway knows of it."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from tests.scopes.documents import MARK, Content
from tests.scopes.documents_world import DOCUMENTS, FOLDER, Change
from tests.support.retrievers import Document, Shelf

CLOSED = "closed"
"""What one file needs after every second change of the rules, and nobody has: so it shows when they are in force."""


@dataclass
class Shelves:
    """The folder's files and rules in `place`, and the service's `shelf`. `actual` is what lies there, by name; `gone`
    are those of which somebody has said that they are to be found no more, and which are still there."""

    place: Path
    shelf: Shelf
    actual: dict[str, Content] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    marked: bool = False
    _versions: dict[str, list[Content]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shelf.documents = {}
        (self.place / "docs").mkdir(parents=True, exist_ok=True)
        self._write(MARK, MARK)
        self._rule()

    def found(self, name: str) -> Content | None:
        return None if name in self.gone else self.actual.get(name)

    def change(self, change: Change) -> bool:
        """Whether anything there has become different. Of an erasure the place itself knows nothing."""
        name, before = change.document, self.actual.get(change.document)
        after = self._after(change, before)
        if after == before:
            return False
        if after is None:
            del self.actual[name]
        else:
            self.actual[name] = after
        if name not in DOCUMENTS[FOLDER]:
            # Another dictionary: the service reads the former one in its own thread.
            self.shelf.documents = {
                id: Document(content.text(id), str(content.version), content.needs)
                for id, content in self.actual.items()
                if id not in DOCUMENTS[FOLDER]
            }
        elif after is None:
            (self.place / "docs" / f"{name}.md").unlink()
        elif before is None or after.version != before.version:
            self._write(name, after.text(name))
        if after is not None and name in DOCUMENTS[FOLDER] and (before is None or before.needs != after.needs):
            self._rule()
        return True

    def _after(self, change: Change, before: Content | None) -> Content | None:
        past = self._versions.setdefault(change.document, [])
        match change.what:
            case "text":
                needs = frozenset(change.needs.split()) if before is None else before.needs
                after = Content(len(past) + 1, change.topic, needs)
                past.append(after)
                return after
            case "revert" if before is not None and len(past) > 1:
                older = past[-2]
                return Content(older.version, older.topic, before.needs)
            case "delete":
                return None
            case "needs" if before is not None:
                return Content(before.version, before.topic, frozenset(change.needs.split()))
        return before

    def _write(self, name: str, text: str) -> None:
        path = self.place / f"{name}.new"
        path.write_text(text)
        os.replace(path, self.place / "docs" / f"{name}.md")

    def _rule(self) -> None:
        self.marked = not self.marked
        needs = {name: sorted(self.actual[name].needs) for name in DOCUMENTS[FOLDER] if name in self.actual}
        needs[MARK] = [] if self.marked else [CLOSED]
        rules = [f"  - {{path: {name}.md, permissions: {needed}}}" for name, needed in needs.items()]
        path = self.place / "acl.new"
        path.write_text("\n".join(["default: [nobody]", "rules:", *rules, ""]))
        os.replace(path, self.place / "acl.yaml")
