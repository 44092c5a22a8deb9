"""ACL files: what a rule matches, and that nothing is read in a way that opens what was meant to be closed."""

from pathlib import Path

import pytest

from backends.retrievers.folder.acl import MAX_BYTES, Acl, AclError, load, parse

HR = frozenset({"hr"})
OPEN: frozenset[str] = frozenset()


def rule(path: str) -> Acl:
    return parse(f"default: []\nrules: [{{path: '{path}', permissions: [hr]}}]")


def refusal(text: str) -> str:
    with pytest.raises(AclError) as caught:
        parse(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("path", "matching", "others"),
    [
        ("hr/**", ["hr/a.md", "hr/x/y/b.md", "hr/.x/a"], ["hr", "hr.md", "xhr/a.md", "a/hr/b.md", "HR/a.md"]),
        ("hr/*", ["hr/a.md"], ["hr/x/a.md", "hr"]),
        ("**/secret.md", ["secret.md", "a/secret.md", "a/b/secret.md"], ["a/nosecret.md", "secret.md/x.md"]),
        ("a/**/b.md", ["a/b.md", "a/x/b.md", "a/x/y/b.md"], ["ab.md", "a/xb.md", "x/a/b.md"]),
        ("**", ["a.md", "a/b.md"], []),
        ("**/hr/**", ["hr/a.md", "x/hr/a/b.md"], ["hr", "xhr/a.md"]),
        ("*.md", ["a.md", ".md"], ["a/b.md", "a.mdx"]),
        ("pay-20??.pdf", ["pay-2024.pdf"], ["pay-204.pdf", "pay-20/4.pdf"]),
        ("a+b (1).$x^|.md", ["a+b (1).$x^|.md"], ["aab (1).$x^|.md"]),
        ("*", ["new\nline.md"], ["a/b"]),
        ("über/**", ["über/a.md", "u\u0308ber/a.md"], ["uber/a.md"]),
    ],
    ids=lambda value: ascii(value) if isinstance(value, str) else "",
)
def test_what_a_path_matches(path: str, matching: list[str], others: list[str]) -> None:
    acl = rule(path)
    assert {name: acl.required(name) for name in matching} == dict.fromkeys(matching, HR)
    assert {name: acl.required(name) for name in others} == dict.fromkeys(others, OPEN)


def test_the_first_rule_that_matches_wins_and_all_permissions_are_needed() -> None:
    acl = parse(
        """
        default: [staff]
        rules:
          - {path: "hr/public/**", permissions: []}
          - {path: "hr/**", permissions: [hr, staff]}
          - {path: "hr/secret.md", permissions: [board]}
        """
    )
    assert acl.required("hr/public/a.md") == OPEN
    assert acl.required("hr/secret.md") == acl.required("hr/a.md") == {"hr", "staff"}
    assert acl.required("a.md") == {"staff"}
    assert acl.named == {"hr", "staff", "board"}
    assert acl.unused(["hr/public/a.md", "hr/a.md", "hr/secret.md"]) == ["hr/secret.md"]
    assert acl.unused([]) == ["hr/public/**", "hr/**", "hr/secret.md"]


def test_without_a_file_everyone_may_see_all() -> None:
    assert (Acl.everyone().required("a/b.md"), Acl.everyone().named) == (OPEN, OPEN)
    assert parse("default: []") == Acl.everyone()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# all is commented out\n", "the file is empty"),
        ("rules: []", "default: line 1: is missing"),
        ("[]", "line 1: must have the fields default and rules"),
        ("default: hr", "default: line 1: must be a list"),
        ("default:", "default: line 1: must be a list"),
        ("default: [hr]\nrule: []", "rule: line 2: is unknown; there are default and rules"),
        ("default: []\nrules: {}", "rules: line 2: must be a list"),
        ("default: []\nrules: [a]", "rules.0: line 2: must have the fields path and permissions"),
        ("default: []\nrules:\n- {path: 'a'}", "rules.0.permissions: line 3: is missing"),
        ("default: []\nrules:\n- {permissions: [a]}", "rules.0.path: line 3: is missing"),
        ("default: []\ndefault: [hr]", "default: line 2: is there twice"),
        ("default: []\n1: x", "line 2: must be text; put it in quotes"),
    ],
)
def test_a_file_of_another_shape_is_refused(text: str, message: str) -> None:
    assert refusal(text) == message


@pytest.mark.parametrize("name", ["''", "' '", "hr eng", "'hr,eng'", "'a;b'", '"a\\nb"', "x" * 201])
def test_a_permission_that_nobody_can_have_is_refused(name: str) -> None:
    assert refusal(f"default: [ok, {name}]") == (
        "default.1: line 1: must be one word, without blanks, commas and semicolons"
    )


@pytest.mark.parametrize("name", ["yes", "no", "1", "1.5", "null", "2026-01-31", "[a]", "{a: b}", "!x hr"])
def test_a_permission_that_is_no_text_is_refused(name: str) -> None:
    assert refusal(f"default: [{name}]") == "default.0: line 1: must be text; put it in quotes"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("hr/", "everything below the folder is `hr/**`"),
        ("/hr/**", "begins at the folder itself"),
        ("./hr/**", "begins at the folder itself"),
        ("hr/../**", "begins at the folder itself"),
        ("hr//a", "begins at the folder itself"),
        ("hr**", "must stand alone"),
        ("**.md", "must stand alone"),
        ("***", "must stand alone"),
        ("hr\\**", "may not have any of"),
        ("[hH]r/**", "may not have any of"),
        ("{a,b}/**", "may not have any of"),
        ("!hr/**", "may not have any of"),
        ("", "must have 1 to 1,000 characters"),
        ("a" * 1001, "must have 1 to 1,000 characters"),
        ("*a*a*a*a*a*a*a*a*a*a*a", "has more than 10 `*`"),
    ],
    ids=lambda text: ascii(text[:30]),
)
def test_a_path_that_would_match_something_else_than_was_meant_is_refused(path: str, message: str) -> None:
    with pytest.raises(AclError) as caught:
        rule(path)
    assert str(caught.value).startswith("rules.0.path: line 2: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("default: &a [hr]\nrules: [{path: a, permissions: *a}]", "line 2: aliases (`*name`) are not supported"),
        ("default: []\nrules: &a [*a]", "aliases"),
        ("default: []\nrules:\n- <<: {path: a}", "must be text"),
        ("default: [\n", "no valid YAML"),
        ("default: []\n---\ndefault: []", "no valid YAML"),
        ("default: [\x07]", "no valid YAML"),
        ("[" * 500_000, "no valid YAML"),
        ("- " * 500_000, "no valid YAML"),
        ("default: []\nrules: [" + "a," * 10_001 + "]", "rules: line 2: has more than 10,000 items"),
        ("default: [" + "a," * 101 + "]", "default: line 1: has more than 100 items"),
    ],
    ids=["alias", "alias of itself", "merge", "open", "two documents", "control", "deep", "deep lists", "long", "many"],
)
def test_a_hostile_or_broken_file_is_refused(text: str, message: str) -> None:
    assert message in refusal(text)


def test_a_file_is_read_from_disk(tmp_path: Path) -> None:
    path = tmp_path / "acl.yaml"
    path.write_bytes(b"\xef\xbb\xbfdefault: [hr]\n")
    assert load(path).default == HR


@pytest.mark.parametrize(
    ("data", "message"),
    [(None, "the file cannot be read: No such file or directory"), (b"\xff", "the file is not UTF-8 text")],
    ids=["missing", "no text"],
)
def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path, data: bytes | None, message: str) -> None:
    path = tmp_path / "acl.yaml"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(AclError, match=message):
        load(path)


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "acl.yaml"
    path.write_bytes(b"default: []\n" + b"#" * MAX_BYTES)
    with pytest.raises(AclError, match="more than 1,048,576 bytes"):
        load(path)
