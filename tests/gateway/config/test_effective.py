from pathlib import Path

import pytest
import yaml

from gateway.config import Config, effective, load_config, notes

DATA = Path(__file__).parent / "data"
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def load(tmp_path: Path):
    def load(text: str) -> Config:
        path = tmp_path / "refrain.yaml"
        path.write_text(text)
        return load_config(path, {"OPENAI_API_KEY": "sk-1"})

    return load


def test_the_defaults_are_filled_in_human_form() -> None:
    shown = effective(load_config(None, {}))
    assert shown["server"]["max_body"] == "10MiB"
    assert shown["endpoints"]["default"]["cache"]["exact"] == {
        "ttl": "1d",
        "stale_while_revalidate": "0s",
        "stale_if_error": "0s",
    }
    assert shown["models"] == {"*": "local"}


ACME = "{key: rf-acme-0123456789abcdef, tenant: acme, user: a}"
GLOBEX = "{key: rf-globex-0123456789abcdef, tenant: globex, user: a}"
ADMIN = "{key: rf-admin-0123456789abcdef, tenant: ops, user: a, role: admin}"


def test_what_is_shown_is_a_configuration_that_means_the_same(load) -> None:
    first = load((DATA / "design.yaml").read_text())
    again = load(yaml.safe_dump(effective(first)))
    assert effective(again) == effective(first)
    assert again.endpoints == first.endpoints
    assert again.store == first.store
    assert effective(first)["endpoints"]["nightly_ticket_summary"]["cache"]["semantic"] == "off"
    assert effective(first)["auth"]["keys"][0]["limits"]["requests"] == "60/min"


def test_the_design_page_names_what_has_not_come(load) -> None:
    assert notes(load((DATA / "design.yaml").read_text())) == [
        "backends.fleet.replicas: only the first one is used yet",
        "endpoints: default, chat_assistant, nightly_ticket_summary, invoice_json_extraction: `allow.tenants` is not "
        "set, so all tenants may use them (every tenant of the identity provider)",
    ]


@pytest.mark.parametrize(
    ("text", "noted"),
    [
        ("", []),
        ("server: {workers: 1, admin_port: null}", []),
        ("server: {workers: 2}", ["server.workers: accepted, but does nothing yet"]),
        ("endpoints: {a: {cache: {semantic: off}, share: public}}", []),
        (
            "endpoints: {a: {cache: {semantic: {max_error: 0.02}}}}",
            ["endpoints.a.cache.semantic.max_error: accepted, but does nothing yet"],
        ),
        ("endpoints: {a: {cache: {exact: {ttl: 1h, stale_if_error: 1h}}}}", []),
        ("endpoints: {a: {mode: batch}}", []),
        ("{store: {url: 'memory://', durable_url: 'sqlite:///d.db'}, endpoints: {a: {mode: batch}}}", []),
        (
            "{store: {url: 'memory://'}, endpoints: {a: {mode: batch}}}",
            ["endpoints.a.mode: without a store on the disk nothing can wait, so calls are answered at once"],
        ),
        (
            "auth: {keys: [{key: short, tenant: t, user: u}]}",
            ["auth.keys.0.key: shorter than 20 characters; `refrain keys new` makes a good one"],
        ),
        (f"auth: {{keys: [{ACME}, {ADMIN}]}}", []),
        (
            "auth: {jwt: {jwks_url: 'http://idp.example/k', issuer: i, audience: a, tenant: t}}",
            [
                "auth.jwt.jwks_url: without https, whoever is on the way can put in keys of their own and sign tokens",
                "endpoints: default: `allow.tenants` is not set, so all tenants may use them "
                "(every tenant of the identity provider)",
            ],
        ),
        (
            f"auth: {{keys: [{ACME}, {GLOBEX}]}}",
            ["endpoints: default: `allow.tenants` is not set, so all tenants may use them (acme, globex)"],
        ),
        (
            f"{{auth: {{keys: [{ACME}, {GLOBEX}]}}, retrievers: {{files: {{kind: folder, path: docs}}}}, "
            "endpoints: {default: {share: public, allow: {tenants: [acme]}}}}",
            [
                "retrievers.files.tenants: not set, so its documents are for all tenants (acme, globex)",
                "endpoints.default.share: public, so one tenant may get an answer that another one's request has made",
            ],
        ),
        (
            "{backends: {a: {kind: remote, base_url: 'http://127.0.0.1:1/v1'}}, models: {'*': a}, "
            "endpoints: {default: {prefix_scope: user}}}",
            ["endpoints.default.prefix_scope: a does not heed it yet, only a local engine does"],
        ),
        (
            f"{{auth: {{keys: [{ACME}, {GLOBEX}]}}, endpoints: {{default: {{prefix_scope: public}}}}}}",
            [
                "endpoints: default: `allow.tenants` is not set, so all tenants may use them (acme, globex)",
                "endpoints.default.prefix_scope: public, so the time of an answer tells a tenant whether another one's "
                "prompts begin like its own",
            ],
        ),
        ("backends: {a: {kind: local, quantize: int8, max_running: 2, max_queue: 3, kv_memory: 2GiB}}", []),
        (
            "backends: {a: {kind: remote, base_url: 'http://x', max_running: 2, max_queue: 3}}",
            [],
        ),
        (
            "backends: {a: {kind: remote, base_url: 'http://x', max_queue: 3}}",
            ["backends.a.max_queue: without `max_running` nothing waits"],
        ),
    ],
)
def test_what_is_noted(load, text: str, noted: list[str]) -> None:
    assert notes(load(text)) == noted


SECRETS = {name: f"{name}-0123456789abcdef" for name in ("OPENAI_API_KEY", "REFRAIN_KEY", "WEBAPP_KEY", "ADMIN_KEY")}


@pytest.mark.parametrize("name", ["refrain.yaml", "many-people.yaml"])
def test_the_examples_are_valid_and_leave_nothing_to_note(name: str) -> None:
    assert name in {file.name for file in EXAMPLES.glob("*.yaml")}
    assert notes(load_config(EXAMPLES / name, SECRETS)) == []


def test_the_first_example_does_what_it_says() -> None:
    config = load_config(EXAMPLES / "refrain.yaml", {"OPENAI_API_KEY": "sk-1", "REFRAIN_KEY": "r" * 40})
    assert config.auth.required
    assert config.endpoints["chat_assistant"].share == "user"
