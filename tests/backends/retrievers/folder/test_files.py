"""Which files of a folder are documents; and that nothing outside it is opened, whatever is put in its place."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from backends.retrievers.folder import files
from backends.retrievers.folder.files import FileState, read, scan
from backends.retrievers.folder.formats_base import Unreadable

SECRET = b"the secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.md").write_bytes(SECRET)
    return folder


def put(root: Path, name: str, data: bytes = b"text") -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def refusal(root: Path, document: str) -> str:
    with pytest.raises(Unreadable) as caught:
        read(root, document)
    return str(caught.value)


def test_documents_have_their_path_as_id_and_a_state_that_tells_changes(root: Path) -> None:
    put(root, "README", b"no suffix")
    path = put(root, "hr/Leave Policy.MD", b"ten days")
    put(root, "hr/deep/er/guide.pdf")
    listing = scan(root, exclude=[])
    assert list(listing.files) == ["README", "hr/Leave Policy.MD", "hr/deep/er/guide.pdf"]
    assert listing.skipped == {}
    status = path.stat()
    assert listing.files["hr/Leave Policy.MD"] == FileState(8, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
    assert [read(root, name) for name in listing.files] == [b"no suffix", b"ten days", b"text"]
    path.write_bytes(b"six days")
    os.utime(path, ns=(status.st_mtime_ns + 1,) * 2)
    assert scan(root, exclude=[]).files["hr/Leave Policy.MD"] != listing.files["hr/Leave Policy.MD"]


def test_hidden_files_and_folders_are_no_documents_and_no_news(root: Path) -> None:
    put(root, ".git/notes.md")
    put(root, ".draft.md")
    put(root, "a/.obsidian/x.md")
    listing = scan(root, exclude=[])
    assert (listing.files, listing.skipped) == ({}, {})
    assert refusal(root, ".draft.md") == refusal(root, "a/.obsidian/x.md") == "is no name of a document"


def test_what_is_no_document_is_left_out_with_a_reason(root: Path) -> None:
    put(root, "logo.png")
    put(root, "notes.md~")
    os.mkfifo(root / "pipe.md")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(root)  # the address of a socket has little room
        try:
            server.bind("socket.md")
        finally:
            os.chdir(here)
    (root / "link.md").symlink_to("/etc/passwd")
    (root / "inside.md").symlink_to("notes.md~")
    (root / "folder").symlink_to("../outside")
    (root / "nowhere.md").symlink_to("gone")
    reasons = {
        "logo.png": "is of a kind that is not read (.png)",
        "notes.md~": "is of a kind that is not read (.md~)",
        "pipe.md": "is no file",
        "socket.md": "is no file",
        **dict.fromkeys(("link.md", "inside.md", "folder", "nowhere.md"), "is a link"),
    }
    listing = scan(root, exclude=[])
    assert (listing.files, listing.skipped) == ({}, reasons)
    assert refusal(root, "pipe.md") == "is no file"  # and it does not wait for a writer
    for name in ("link.md", "inside.md", "folder/secret.md", "nowhere.md", "socket.md"):
        assert refusal(root, name).startswith("cannot be read: "), name


def test_a_large_file_is_left_out_without_being_read(root: Path) -> None:
    with (root / "sparse.txt").open("wb") as file:
        file.truncate(2**30)
    put(root, "largest.txt", bytes(files.MAX_FILE))
    listing = scan(root, exclude=[])
    assert listing.skipped == {"sparse.txt": "has more than 20 MiB"}
    assert list(listing.files) == ["largest.txt"]
    assert refusal(root, "sparse.txt") == "has more than 20 MiB"
    assert len(read(root, "largest.txt")) == files.MAX_FILE


@pytest.mark.parametrize(
    "name",
    ["new\nline.md", "\"quotes\" & 'more'.md", "a@b%2F, c;d.md", "\u00e9.md", "e\u0301.md", "x: {query}.md"],
    ids=ascii,
)
def test_odd_names_are_kept_to_the_letter(root: Path, name: str) -> None:
    put(root, name, b"odd")
    assert list(scan(root, exclude=[]).files) == [name]
    assert read(root, name) == b"odd"


def test_a_name_that_is_not_utf8_is_left_out_and_its_folder_too(root: Path) -> None:
    folder = os.fsencode(root)
    with open(folder + b"/caf\xe9.md", "wb") as file:
        file.write(b"x")
    os.mkdir(folder + b"/d\xff")
    with open(folder + b"/d\xff/x.md", "wb") as file:
        file.write(b"x")
    listing = scan(root, exclude=[])
    assert listing.files == {}
    assert listing.skipped == dict.fromkeys(("caf\\xe9.md", "d\\xff"), "has a name that is not UTF-8")
    assert refusal(root, "caf\udce9.md") == "is no name of a document"


@pytest.mark.parametrize(
    "document",
    ["../outside/secret.md", "a/../../outside/secret.md", "/etc/passwd", "a//b.md", "a/", "", ".", "a\0.md", "./a.md"],
    ids=ascii,
)
def test_an_id_that_is_no_path_inside_is_refused(root: Path, document: str) -> None:
    put(root, "a/b.md")
    assert refusal(root, document) == "is no name of a document"


def test_the_folder_itself_may_be_a_link_and_may_be_moved_to_another_one(root: Path, tmp_path: Path) -> None:
    put(root, "a.md", b"old")
    link = tmp_path / "current"
    link.symlink_to(root)
    assert list(scan(link, exclude=[link / "b.md"]).files) == ["a.md"]
    assert read(link, "a.md") == b"old"
    put(tmp_path / "next", "a.md", b"new")
    link.unlink()
    link.symlink_to(tmp_path / "next")
    assert read(link, "a.md") == b"new"


@pytest.mark.parametrize("at", ["here", "through a link", "as a link"])
def test_excluded_files_are_neither_documents_nor_news(root: Path, tmp_path: Path, at: str) -> None:
    put(root, "acl.txt")
    put(root, "sub/acl.txt")
    excluded = {"here": root / "acl.txt", "through a link": tmp_path / "way" / "acl.txt", "as a link": tmp_path / "acl"}
    (tmp_path / "way").symlink_to(root)
    (tmp_path / "acl").symlink_to(root / "acl.txt")
    listing = scan(root, exclude=[excluded[at]])
    assert (list(listing.files), listing.skipped) == (["sub/acl.txt"], {})


@pytest.mark.parametrize("what", ["file", "folder", "upper folder"])
def test_a_link_swapped_in_between_two_steps_leads_nowhere(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """At every system call that opens something, the attacker has just put a link in its place."""
    put(root, "a/b/secret.md", b"harmless")
    (tmp_path / "outside" / "b").mkdir()
    (tmp_path / "outside" / "b" / "secret.md").write_bytes(SECRET)
    target = {"file": root / "a/b/secret.md", "folder": root / "a/b", "upper folder": root / "a"}[what]
    leads = {"file": "outside/secret.md", "folder": "outside/b", "upper folder": "outside"}[what]
    opened = os.open
    seen: list[bytes] = []

    def swap() -> None:
        target.rename(tmp_path / "away")
        target.symlink_to(tmp_path / leads)

    def swapping(steps: int) -> Callable[..., int]:
        left = [steps]

        def open_(*args: object, **kwargs: object) -> int:
            if left[0] == 0:
                swap()
            left[0] -= 1
            return opened(*args, **kwargs)  # type: ignore[arg-type]

        return open_

    for steps in range(4):
        monkeypatch.setattr(os, "open", swapping(steps))
        try:
            seen.append(read(root, "a/b/secret.md"))
        except Unreadable:
            seen.append(b"refused")
        monkeypatch.setattr(os, "open", opened)
        target.unlink()
        (tmp_path / "away").rename(target)
    assert set(seen) <= {b"harmless", b"refused"}
    assert b"refused" in seen


def test_a_folder_that_cannot_be_listed_is_no_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        scan(tmp_path / "gone", exclude=[])
    put(tmp_path, "file.md")
    with pytest.raises(NotADirectoryError):
        scan(tmp_path / "file.md", exclude=[])
    assert refusal(tmp_path / "gone", "a.md") == "is not there"


def test_bounds_leave_out_the_same_files_every_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILES", 2)
    monkeypatch.setattr(files, "MAX_DEPTH", 2)
    monkeypatch.setattr(files, "MAX_SKIPPED", 2)
    for name in ("c.md", "a.md", "b/x/y/z.md", "b/x/y.md", "d.md"):
        put(root, name)
    listing = scan(root, exclude=[])
    assert list(listing.files) == ["a.md", "b/x/y.md"]
    assert listing.skipped == {"b/x/y": "lies more than 2 folders deep", "c.md": "comes after the first 2 documents"}
    assert scan(root, exclude=[]) == listing


def test_a_path_of_more_bytes_than_an_id_may_have_is_left_out(root: Path) -> None:
    name = "/".join(["ö" * 100] * 6) + ".md"
    put(root, name)
    assert set(scan(root, exclude=[]).skipped.values()) == {"has a path of more than 1,000 bytes"}
    assert refusal(root, name) == "is no name of a document"
