"""Settings of retrievers, and of endpoints that use one, that could not work are refused at start."""

from pathlib import Path

import pytest

from gateway.config import ConfigError, load_config
from gateway.config.retrievers import HttpRetriever

HTTP = {"kind": "http", "url": "http://search/find"}


def problems(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "refrain.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    return {problem.path: problem.message for problem in caught.value.problems}


# One wrong thing each, of a retriever of kind http: (setting, path below the retriever, part of the message).
BAD = [
    ("results: '$.['", "results", "RFC 9535"),
    ("results: results", "results", "RFC 9535"),
    ("results: $..a..b", "results", "more than once"),
    ("results: '$[?search(@.id, \"a\")]'", "results", "RFC 9535"),
    ("results: '$.a | $.b'", "results", "RFC 9535"),
    ("id: '$.'", "id", "RFC 9535"),
    ("id: $..id", "id", "one value"),
    ("text: '$.parts[*].text'", "text", "one value"),
    ("score: '$[0:1]'", "score", "one value"),
    ("version: '$[?@.v]'", "version", "one value"),
    ("permissions: '$.acl[*]'", "permissions", "one value"),
    ("permissions: '$[''acl'', ''more'']'", "permissions", "one value"),
    ("body: '{\"q\": \"{query}\"}'", "body", "with its quotes"),
    ("body: '{\"q\": {query}'", "body", "must be JSON once it is filled"),
    ("body: '{\"q\": {question}}'", "body", "must hold {query}"),
    ("body: '{{query}: 1}'", "body", "where a value may stand"),
    ("body: '{\"q\": {query}, \"k\": \"{top_k}\"}'", "body", "where a value may stand"),
    ("{body: '{\"q\": {query}}', method: GET}", "body", "does nothing"),
    ("headers: {'x y': a}", "headers.x y", "name of a header"),
    ("headers: {'x:': a}", "headers.x:", "name of a header"),
    ("headers: {Content-Length: '5'}", "headers.Content-Length", "gateway itself"),
    ("headers: {x-a: b, X-A: c}", "headers.X-A", "there already"),
]  # fmt: skip


@pytest.mark.parametrize(("setting", "path", "message"), BAD)
def test_what_is_wrong_with_a_service_is_named(tmp_path: Path, setting: str, path: str, message: str) -> None:
    setting = setting.strip("{}") if setting.startswith("{body") else setting
    found = problems(tmp_path, f"retrievers: {{r: {{kind: http, url: 'http://x', {setting}}}}}")
    assert list(found) == [f"retrievers.r.{path}"]
    assert message in found[f"retrievers.r.{path}"]


def test_all_that_is_wrong_comes_at_once_and_quotes_nothing(tmp_path: Path) -> None:
    setting = "body: 'CANARY', results: 'CANARY', id: '$[?CANARY]', headers: {te: CANARY}"
    found = problems(tmp_path, f"retrievers: {{r: {{kind: http, url: 'http://x', {setting}}}}}")
    assert list(found) == [f"retrievers.r.{path}" for path in ("headers.te", "body", "results", "id")]
    assert "CANARY" not in "".join(found.values())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "GET", "headers": {"X-Api-Key": "k"}},
        {"results": "$.hits.hits", "id": "$._id", "text": "$._source.text", "score": "$._score"},
        {"results": "$.groups[?@.kind == 'page'].hits[*]", "permissions": "$['acl'][0]['names']", "version": "$.v"},
        {"results": "$"},
        {"body": '{"q": {query}}'},
        {"body": '{"match": {"text": {"query": {query}}}, "size": {top_k}, "terms": {"acl": {permissions}}}'},
        {"body": "[{query}, {query}, {top_k}]"},
    ],
    ids=str,
)
def test_what_is_right_is_accepted(settings: dict[str, object]) -> None:
    retriever = HttpRetriever.model_validate({**HTTP, **settings})
    assert retriever.model_dump(include={"results", "id", "body"}) == {
        "results": settings.get("results", "$.results"),
        "id": settings.get("id", "$.id"),
        "body": settings.get("body"),
    }


@pytest.mark.parametrize("setting", ["path", "acl"])
@pytest.mark.parametrize("value", ["''", "' '", '"a\\0b"'], ids=["empty", "blank", "nul"])
def test_an_empty_path_is_not_the_folder_of_the_configuration(tmp_path: Path, setting: str, value: str) -> None:
    paths = {"path": "docs", "acl": "acl.yaml", setting: value}
    text = f"retrievers: {{r: {{kind: folder, path: {paths['path']}, acl: {paths['acl']}}}}}"
    assert problems(tmp_path, text) == {f"retrievers.r.{setting}": "must be a path; the folder of this file is `.`"}


SAME_SECRETS = {
    "the same": ("a plain word", "a plain word"),
    "without its padding": ("whsec_c2VjcmV0cw==", "whsec_c2VjcmV0cw"),
    "in Base64 and plain": ("whsec_c2VjcmV0cw==", "secrets"),
}


@pytest.mark.parametrize("secrets", SAME_SECRETS.values(), ids=SAME_SECRETS)
def test_two_retrievers_with_one_secret_would_take_each_others_messages(
    tmp_path: Path, secrets: tuple[str, str]
) -> None:
    first, second = secrets
    text = (
        f"retrievers: {{a: {{kind: folder, path: docs, webhook_secret: '{first}'}}, b: {{kind: folder, path: docs}},"
        f" c: {{kind: http, url: 'http://x', webhook_secret: other}},"
        f" d: {{kind: openai, base_url: 'http://x', store: s, webhook_secret: '{second}'}}}}"
    )
    message = (
        "is the same secret as retrievers.a.webhook_secret, so each would take the other's messages;"
        " give each retriever a secret of its own"
    )
    assert problems(tmp_path, text) == {"retrievers.d.webhook_secret": message}


@pytest.mark.parametrize("secret", ["whsec_", "whsec_no Base64"])
def test_a_secret_that_only_looks_encoded(tmp_path: Path, secret: str) -> None:
    text = f"retrievers: {{a: {{kind: folder, path: docs, webhook_secret: '{secret}'}}}}"
    message = "begins with whsec_, but what follows is no Base64"
    assert problems(tmp_path, text) == {"retrievers.a.webhook_secret": message}


TEMPLATE_MESSAGE = "must hold {documents} once, and may hold {question} once"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", TEMPLATE_MESSAGE),
        ("{question}", TEMPLATE_MESSAGE),
        ("{ documents }", TEMPLATE_MESSAGE),
        ("{documents} {documents}", TEMPLATE_MESSAGE),
        ("{documents} {question} {question}", TEMPLATE_MESSAGE),
        ("{documents}" + 20_000 * "x", "must be at most 20000 characters long"),
    ],
    ids=["empty", "no documents", "blanks", "documents twice", "question twice", "too long"],
)
def test_templates_of_prompts(tmp_path: Path, template: str, message: str) -> None:
    text = (
        "retrievers: {r: {kind: folder, path: docs}}\n"
        f"endpoints: {{x: {{retrieval: {{retriever: r, template: '{template}'}}}}}}"
    )
    assert problems(tmp_path, text) == {"endpoints.x.retrieval.template": message}


@pytest.mark.parametrize("template", ["{documents}", "{question} of {people}:\n{documents}", '{"a": {documents}}'])
def test_templates_of_prompts_that_are_accepted(tmp_path: Path, template: str) -> None:
    path = tmp_path / "refrain.yaml"
    path.write_text(
        "retrievers: {r: {kind: folder, path: docs}}\n"
        "endpoints: {x: {retrieval: {retriever: r, template: '${TEMPLATE}'}}}"
    )
    retrieval = load_config(path, {"TEMPLATE": template}).endpoints["x"].retrieval
    assert retrieval is not None
    assert retrieval.template == template
