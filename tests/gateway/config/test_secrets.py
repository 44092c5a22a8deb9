"""Statement 37: a secret is in no error, repr, log or print-out, not even one that stands in the wrong place."""

import json
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import Config, ConfigError, digest_key, effective, hash_key, load_config, new_key, notes

CANARY = "CANARY-7f3a9c-swordfish"

RIGHT_PLACES = f"""
auth:
  keys: [{{key: {CANARY}, tenant: t, user: u}}]
  jwt: {{jwks_url: "https://id/keys?code={CANARY}", issuer: i, audience: a, tenant: t}}
store: {{durable_url: "redis://user:{CANARY}@db:6379/0?password={CANARY}"}}
embedder: {{base_url: "http://x", api_key: "${{SECRET}}"}}
backends: {{up: {{kind: remote, base_url: "http://x", api_key: {CANARY}}}}}
retrievers:
  a: {{kind: folder, path: docs, webhook_secret: {CANARY}}}
  b: {{kind: http, url: "http://u/search?key={CANARY}", headers: {{x-key: {CANARY}}}}}
  c: {{kind: openai, base_url: "http://x", api_key: {CANARY}, store: s}}
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "refrain.yaml"
    path.write_text(RIGHT_PLACES)
    return load_config(path, {"SECRET": CANARY})


def test_secrets_in_their_places_can_be_used(config: Config) -> None:
    assert config.auth.keys[0].digest == digest_key(CANARY)
    assert config.backends["up"].api_key.get_secret_value() == CANARY
    assert config.embedder.api_key.get_secret_value() == CANARY
    assert config.store.durable_url == f"redis://user:{CANARY}@db:6379/0?password={CANARY}"


def test_secrets_in_their_places_are_not_shown(config: Config) -> None:
    shown = effective(config)
    for text in (repr(config), str(config), f"{config.auth.keys[0]!r}", json.dumps(shown), "\n".join(notes(config))):
        assert CANARY not in text
    assert shown["auth"]["keys"][0]["key"] == "***"
    assert shown["auth"]["jwt"]["jwks_url"] == "https://id/keys?***"
    assert shown["store"]["durable_url"] == "redis://***@db:6379/0?***"
    assert shown["backends"]["up"]["api_key"] == "***"
    assert shown["retrievers"]["b"]["headers"] == {"x-key": "***"}


def everything(error: BaseException) -> str:
    return "".join((str(error), repr(error), *traceback.format_exception(error)))


def document(path: str, kind: str | None, value: object) -> dict[str, Any]:
    """A document with `value` at the path, and the `kind` that belongs beside it."""
    *parents, last = path.replace("[]", ".0").replace("<name>", "x").split(".")
    section: Any = {last: value}
    if kind is not None and last != "kind":
        section["kind"] = kind
    for step in reversed(parents):
        section = [section] if step == "0" else {step: section}
    return section


@pytest.mark.parametrize("value", [CANARY, [CANARY], {"x": CANARY}, f" {CANARY}\n", f"http://u:{CANARY}@h?{CANARY}#"])
def test_secrets_in_any_place_are_not_in_the_error(settings, tmp_path: Path, value: object) -> None:
    path = tmp_path / "refrain.yaml"
    refused = {}
    for setting in settings:
        path.write_text(yaml.safe_dump(document(setting.path, setting.kind, value)))
        try:
            load_config(path, {})
        except ConfigError as error:
            refused[setting.path] = everything(error)
    assert len(refused) > len(settings) / 2
    assert [path for path, text in refused.items() if CANARY in text] == []


@pytest.mark.parametrize(
    "text",
    [
        f"a: *{CANARY}",
        f"a: !{CANARY} x",
        f"a: !x!{CANARY} x",
        f'a: "{CANARY}',
        f"a: @{CANARY}",
        f"a: b: {CANARY}",
        f"a: {CANARY}\x00",
        f'a: "{CANARY}\\q"',
        f"a: &{CANARY} [*{CANARY}]",
        f"a: ${{{CANARY}}}",
        f"%{CANARY}",
    ],
)
def test_secrets_in_broken_files_are_not_in_the_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "refrain.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, {})
    # The last line of the traceback is ours; the lines of source above it are this file's.
    assert CANARY not in str(caught.value) + repr(caught.value)


def test_keys_are_new_and_long_and_kept_as_a_digest() -> None:
    token, digest = new_key()
    assert token.startswith("rf-")
    assert len(token) == 46
    assert digest == hash_key(token)
    assert digest == f"sha256:{digest_key(token).hex()}"
    assert len({new_key()[0] for _ in range(100)}) == 100


def test_the_hash_of_a_key_stays_the_same() -> None:
    assert hash_key("abc") == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
