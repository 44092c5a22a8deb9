"""What is wrong with an input file: every fault is told, and none of its requests is given once there is one."""

from typing import Any

import pytest

from gateway.batch.records import Url
from tests.gateway.batch.input_lines import CHAT, brief, faults, line, read, request

EMBEDDINGS: Url = "/v1/embeddings"
LARGE = 10**400


@pytest.mark.parametrize(
    ("sent", "code", "param"),
    [
        pytest.param(b"{", "invalid_json_line", None, id="broken"),
        pytest.param(b"[1]", "invalid_json_line", None, id="a-list"),
        pytest.param(b"null", "invalid_json_line", None, id="null"),
        pytest.param(line() + line("b"), "invalid_json_line", None, id="two-on-one-line"),
        pytest.param(line()[:-1] + b",}", "invalid_json_line", None, id="a-comma-too-many"),
        pytest.param(line()[:-1] + b',"method":"POST"}', "invalid_json_line", "method", id="key-twice"),
        pytest.param(line(body={"model": "m", "x": 0}).replace(b"0", b"NaN"), "invalid_json_line", None, id="nan"),
        pytest.param(
            line(body={"model": "m", "x": {"y": 0}}).replace(b"0", b'0,"y":1'),
            "invalid_json_line",
            "y",
            id="key-twice-within",
        ),
        pytest.param(line("@").replace(b"@", rb"\ud800"), "invalid_json_line", None, id="lone-surrogate"),
        pytest.param(line("@").replace(b"@", b"\xff"), "invalid_json_line", None, id="not-utf-8"),
        pytest.param(line("@").replace(b"@", b"\t"), "invalid_json_line", None, id="control-character"),
        pytest.param(line("@").replace(b"@", b"\0"), "invalid_json_line", None, id="nul"),
        pytest.param(line().decode().encode("utf-16"), "invalid_json_line", None, id="utf-16"),
        pytest.param(b"[" * 900, "invalid_json_line", None, id="too-deep"),
        pytest.param(line(body={"model": "m", "x": LARGE}), "invalid_json_line", None, id="number-too-large"),
        pytest.param(line(custom_id=None), "missing_required_parameter", "custom_id", id="no-custom-id"),
        pytest.param(line(method=None), "missing_required_parameter", "method", id="no-method"),
        pytest.param(line(url=None), "missing_required_parameter", "url", id="no-url"),
        pytest.param(line(body=None), "missing_required_parameter", "body", id="no-body"),
        pytest.param(
            line("@").replace(b'"@"', b"null"), "missing_required_parameter", "custom_id", id="custom-id-null"
        ),
        pytest.param(line(""), "invalid_value", "custom_id", id="custom-id-empty"),
        pytest.param(line(custom_id=7), "invalid_value", "custom_id", id="custom-id-a-number"),
        pytest.param(line("é" * 513), "string_above_max_length", "custom_id", id="custom-id-too-long"),
        pytest.param(line(method="GET"), "invalid_method", "method", id="get"),
        pytest.param(line(method="post"), "invalid_method", "method", id="lower-case-post"),
        pytest.param(line(method=["POST"]), "invalid_method", "method", id="method-a-list"),
        pytest.param(line(url=EMBEDDINGS), "invalid_url", "url", id="another-url"),
        pytest.param(line(url="https://api.openai.com" + CHAT), "invalid_url", "url", id="whole-url"),
        pytest.param(line(url=CHAT + "/"), "invalid_url", "url", id="url-with-a-slash"),
        pytest.param(line(url={}), "invalid_url", "url", id="url-an-object"),
        pytest.param(line(body="{}"), "invalid_value", "body", id="body-a-string"),
        pytest.param(line(body=[]), "invalid_value", "body", id="body-a-list"),
        pytest.param(line(body={}), "invalid_request", "body.model", id="no-model"),
        pytest.param(line(body={"model": ""}), "invalid_request", "body.model", id="model-empty"),
        pytest.param(line(body={"model": ["m"]}), "invalid_request", "body.model", id="model-a-list"),
        pytest.param(line(body={"model": "m", "stream": True}), "streaming_unsupported", "body.stream", id="streaming"),
    ],
)
def test_a_line_that_is_no_request(sent: bytes, code: str, param: str | None) -> None:
    lines, reader = read(line("first") + b"\r\n\n" + sent + b"\n" + line("last"), max_line=2_000)
    assert brief(reader.faults) == [(code, param, 3)]
    assert [found.number for found in lines] == [1]  # what came before has been given
    assert reader.total == 3


def test_a_custom_id_may_have_512_characters() -> None:
    lines, reader = read(line("é" * 512), max_line=2_000)
    assert (len(lines), reader.faults) == (1, [])


def test_a_line_is_told_all_that_is_wrong_with_it() -> None:
    found = faults(line(), line(method=None, url="/v1", body={"stream": True}))
    assert brief(found) == [
        ("missing_required_parameter", "method", 2),
        ("invalid_url", "url", 2),
        ("invalid_request", "body.model", 2),
        ("streaming_unsupported", "body.stream", 2),
        ("duplicate_custom_id", "custom_id", 2),
    ]


def test_an_object_of_no_fields_lacks_all_of_them() -> None:
    assert [fault.param for fault in faults(b"{}")] == ["custom_id", "method", "url", "body"]


def test_every_line_at_fault_is_named_by_its_number() -> None:
    found = faults(b"", b"{", line("a"), b" ", line("b"), b"x", line("a"), b"\r", line("b"), line("a"))
    assert [fault.line for fault in found] == [2, 6, 7, 9, 10]


def test_a_duplicate_names_the_line_that_came_first() -> None:
    first, second = faults(line("a"), b"", line("b"), line("a"), line("a", method="GET"))[::2]
    assert (first.line, second.line) == (4, 5)
    assert "'a'" in first.message
    assert "line 1" in first.message
    assert "line 1" in second.message


def test_the_custom_id_of_a_line_at_fault_counts_too() -> None:
    assert brief(faults(line("a", method="GET"), line("a")))[1] == ("duplicate_custom_id", "custom_id", 2)


def test_a_custom_id_that_is_none_is_no_duplicate() -> None:
    assert brief(faults(line(""), line(""))) == [("invalid_value", "custom_id", 1), ("invalid_value", "custom_id", 2)]


def test_no_request_is_given_after_a_fault() -> None:
    lines, reader = read(line("a") + b"\n{\n", line("b") + b"\n", b"{\n", line("c"))
    assert [found.custom_id for found in lines] == ["a"]
    assert [fault.line for fault in reader.faults] == [2, 4]


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param([line("secret" * 80), line("secret" * 80)], id="custom-id"),
        pytest.param([line(method="secret" * 80)], id="method"),
        pytest.param([line(url="secret" * 80)], id="url"),
        pytest.param([b'{"' + b"secret" * 80 + b'":1,"' + b"secret" * 80 + b'":2}'], id="key"),
        pytest.param([line(body={"model": "m", "x": 10**800})], id="number"),
        pytest.param([line("\x1b[31m"), line("\x1b[31m")], id="control-characters"),
    ],
)
def test_a_fault_repeats_little_of_what_was_sent(sent: list[bytes]) -> None:
    (fault,) = faults(*sent, max_line=2_000)
    for text in (fault.message, fault.param or ""):
        assert text.isprintable()
        assert text.count("secret") <= 12
        assert len(text) < 250


# A file as a whole


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\n\r\n \t\n", b"\xef\xbb\xbf\r\n"])
def test_a_file_without_any_request_is_at_fault(data: bytes) -> None:
    lines, reader = read(data)
    assert (lines, brief(reader.faults), reader.total, reader.model) == ([], [("empty_file", None, None)], 0, None)


def test_as_many_requests_as_may_be() -> None:
    lines, reader = read(b"\n\n".join(line(str(i)) for i in range(5)), most=5)
    assert (len(lines), reader.faults) == (5, [])


def test_too_many_requests_are_one_fault_and_the_rest_is_not_read() -> None:
    sent = [line(str(i)) for i in range(5)] + [b""] + [b"{"] * 100
    found, reader = read(b"\n".join(sent), most=5)
    assert brief(reader.faults) == [("too_many_tasks", None, 7)]
    assert len(found) == 5
    assert reader.feed(line("more") + b"\n") == []
    assert len(reader.faults) == 1


def test_a_file_of_nothing_but_faults_has_no_more_of_them_than_requests() -> None:
    _, reader = read(b"1\n" * 1_000, most=100)
    assert [fault.code for fault in reader.faults] == ["invalid_json_line"] * 100 + ["too_many_tasks"]


def _of_length(size: int) -> bytes:
    short = line(body={"model": "m", "x": ""})
    return short.replace(b'"x": ""', b'"x": "' + b"x" * (size - len(short)) + b'"')


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\r"], ids=["none", "lf", "crlf", "cr"])
@pytest.mark.parametrize("before", [b"", b" " * 700], ids=["plain", "after-blanks"])
@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
def test_how_long_a_line_may_be(end: bytes, before: bytes, bytewise: bool) -> None:
    for size, codes in ((500, []), (501, ["request_too_large"]), (502, ["request_too_large"])):
        data = before + _of_length(size) + end
        assert len(data) == len(before) + size + len(end)
        pieces = [data[i : i + 1] for i in range(len(data))] if bytewise else [data]
        _, reader = read(*pieces, max_line=500)
        assert [fault.code for fault in reader.faults] == codes


@pytest.mark.parametrize("bytewise", [False, True], ids=["whole", "bytewise"])
def test_what_follows_a_carriage_return_belongs_to_the_line(bytewise: bool) -> None:
    data = _of_length(500) + b"\r  \n"
    _, reader = read(*([data[i : i + 1] for i in range(len(data))] if bytewise else [data]), max_line=500)
    assert [fault.code for fault in reader.faults] == ["request_too_large"]


def test_a_line_that_is_too_long_hides_no_other() -> None:
    found = faults(line("a"), _of_length(501), b"{", max_line=500)
    assert [(fault.code, fault.line) for fault in found] == [("request_too_large", 2), ("invalid_json_line", 3)]


@pytest.mark.parametrize(
    ("inputs", "over"),
    [
        pytest.param([["a", "b"], ["c", "d", "e"]], None, id="texts"),
        pytest.param([["a", "b"], ["c", "d", "e", "f"]], 3, id="texts-too-many"),
        pytest.param(["abcdefgh", "b", "c", "d", "e"], None, id="text-alone"),
        pytest.param(["a", "b", "c", "d", "e", "f"], 7, id="texts-alone-too-many"),
        pytest.param([[1, 2, 3, 4, 5, 6, 7]], None, id="tokens-are-one-input"),
        pytest.param([[[1, 2]] * 5], None, id="tokens"),
        pytest.param([[[1, 2]] * 7], 1, id="tokens-too-many"),
    ],
)
def test_how_many_inputs_embeddings_may_have_in_all(inputs: list[Any], over: int | None) -> None:
    sent = [line(str(i), url=EMBEDDINGS, body={"model": "m", "input": x}) for i, x in enumerate(inputs)]
    found = faults(*sent, line("last", url=EMBEDDINGS, body={"model": "m"}), url=EMBEDDINGS, most_inputs=6)
    assert brief(found) == ([] if over is None else [("too_many_inputs", "body.input", over)])


def test_only_embeddings_have_inputs() -> None:
    body = request()["body"] | {"input": ["a"] * 7}
    assert faults(line(body=body), most_inputs=6) == []
