from pathlib import Path

import pytest

from gateway.config import Config, ConfigError, backend_for, find_config, hash_key, load_config

KEY = "k" * 40
DATA = Path(__file__).parent / "data"


@pytest.fixture
def load(tmp_path: Path):
    def load(text: str, env: dict[str, str] | None = None, **options: object) -> Config:
        path = tmp_path / "refrain.yaml"
        path.write_text(text)
        return load_config(path, env or {}, **options)

    return load


def test_no_file_is_a_working_configuration() -> None:
    config = load_config(None, {})
    assert (config.server.host, config.server.port, config.server.max_body) == ("127.0.0.1", 8080, 10 * 2**20)
    assert (config.auth.required, config.auth.keys) == (False, ())
    assert (config.store.url, config.store.max_bytes) == ("sqlite:///.refrain/cache.db", 2 * 2**30)
    assert (config.store.memory, config.store.max_entry) == (256 * 2**20, 2**20)
    assert list(config.backends) == ["local"]
    assert config.backends["local"].model == "SmolLM2-135M-Instruct"
    assert dict(config.models) == {"*": "local"}
    assert config.decisions.ring == 100_000
    (endpoint,) = config.endpoints.values()
    assert list(config.endpoints) == ["default"]
    assert (endpoint.mode, endpoint.share, endpoint.normalize, endpoint.sampled) == (
        "stream", "tenant", "json", "reuse"
    )  # fmt: skip
    assert endpoint.cache.exact.ttl == 86_400
    assert (endpoint.cache.exact.stale_while_revalidate, endpoint.cache.exact.stale_if_error) == (0, 0)
    assert endpoint.cache.semantic is not None
    assert endpoint.volatile_ttl == 300


def test_the_design_page_is_accepted_as_it_stands() -> None:
    config = load_config(DATA / "design.yaml", {"OPENAI_API_KEY": "sk-1"})
    assert config.backends["openai"].api_key.get_secret_value() == "sk-1"
    assert config.backends["openai"].urls == ("https://api.openai.com/v1",)
    assert config.backends["fleet"].urls == ("http://10.0.0.1:8000/v1", "http://10.0.0.2:8000/v1")
    assert config.endpoints["invoice_json_extraction"].cache.semantic is None
    assert config.endpoints["chat_assistant"].cache.exact.ttl == 3_600
    assert config.auth.keys[0].permissions == {"hr", "finance"}
    assert config.auth.keys[1].delegate


# One wrong thing each: (file, path of the field, part of the message). No message shows the value.
BAD = [
    ("server: {port: 70000}", "server.port", "at most 65535"),
    ("server: {port: http}", "server.port", "whole number"),
    ("server: {port: true}", "server.port", "number"),
    ("server: {prot: 1}", "server.prot", "did you mean `port`?"),
    ("server: {zzzzzz: 1}", "server.zzzzzz", "unknown setting"),
    ("server: {max_body: 10}", "server.max_body", "64KiB, 10MiB or 2GiB"),
    ("server: {workers: 0}", "server.workers", "at least 1"),
    ("server: {admin_port: 8080}", "server.admin_port", "must differ"),
    ("server:", "server", "mapping"),
    ("servr: {}", "servr", "did you mean `server`?"),
    ("[1]", "", "mapping"),
    ("server: {host: 0.0.0.0}", "auth.keys", "refrain keys new"),
    ("server: {host: 0.0.0.0}\nauth: {required: false}", "auth.required", "loopback"),
    ("auth: {}", "auth.keys", "refrain keys new"),
    ("auth: {required: 2}", "auth.required", "true or false"),
    ("auth: {keys: {a: b}}", "auth.keys", "list"),
    ("auth: {keys: [{tenant: t, user: u}]}", "auth.keys.0", "either `hash` or `key`"),
    (f"auth: {{keys: [{{key: {KEY}, hash: '{hash_key('x')}', tenant: t, user: u}}]}}", "auth.keys.0", "either"),
    ("auth: {keys: [{hash: abc, tenant: t, user: u}]}", "auth.keys.0.hash", "64 hexadecimal"),
    (f"auth: {{keys: [{{key: {KEY}, user: u}}]}}", "auth.keys.0.tenant", "is needed"),
    (f"auth: {{keys: [{{key: {KEY}, tenant: t, user: no}}]}}", "auth.keys.0.user", "in quotes"),
    (f"auth: {{keys: [{{key: {KEY}, tenant: t, user: ' x'}}]}}", "auth.keys.0.user", "blanks"),
    (f"auth: {{keys: [{{key: {KEY}, tenant: t, user: u, role: root}}]}}", "auth.keys.0.role", "'tenant_admin'"),
    (f"auth: {{keys: [{{key: {KEY}, tenant: t, user: u, permissions: hr}}]}}", "auth.keys.0.permissions", "list"),
    (f"auth: {{keys: [{{key: {KEY}, tenant: t, user: u, permissions: ['a,b']}}]}}", "auth.keys.0.permissions.0", "one"),
    (f"auth: {{keys: [{{key: {KEY}, tenant: t, user: u, limits: {{usd: 20}}}}]}}", "auth.keys.0.limits.usd", "20/day"),
    (f"auth: {{keys: [{{key: {KEY}, tenant: t, user: u, limits: {{tokens: 0.5/s}}}}]}}", "auth.keys.0.limits.tokens",
     "whole number per period"),
    ("auth: {keys: [{key: '', tenant: t, user: u}]}", "auth.keys.0.key", "not empty"),
    (f"auth: {{keys: [{{key: {KEY}, tenant: t, user: u}}, {{hash: '{hash_key(KEY)}', tenant: t, user: v}}]}}",
     "auth.keys.1", "the same key as auth.keys.0"),
    ("auth: {jwt: {jwks_url: 'ftp://x', issuer: i, audience: a, tenant: t}}", "auth.jwt.jwks_url", "http://"),
    ("store: {url: 'sqlite://x'}", "store.url", "sqlite:///path"),
    ("store: {url: 'sqlite:///'}", "store.url", "sqlite:///path"),
    ("store: {url: 'redis://localhost:6379/0'}", "store.url", "not supported yet"),
    ("store: {url: 'redis://'}", "store.url", "redis://host"),
    ("store: {url: 'redis://h:x'}", "store.url", "redis://host"),
    ("store: {max_entry: 512MiB}", "store.max_entry", "at most `memory`"),
    ("store: {max_bytes: 64KiB}", "store.max_entry", "`max_bytes`"),
    ("embedder: {api_key: x}", "embedder.api_key", "without `base_url`"),
    ("backends: {a: {}}", "backends.a.kind", "must be local or remote"),
    ("backends: {a: {kind: cloud}}", "backends.a.kind", "must be local or remote"),
    ("backends: {a: }", "backends.a", "mapping"),
    ("backends: []", "backends", "mapping"),
    ("backends: {a b: {kind: local}}", "backends.a b", "letters"),
    ("backends: {a: {kind: remote}}", "backends.a", "either `base_url` or `replicas`"),
    ("backends: {a: {kind: remote, base_url: 'http://x', replicas: ['http://y']}}", "backends.a", "either"),
    ("backends: {a: {kind: remote, base_url: 'ftp://x/v1'}}", "backends.a.base_url", "http://"),
    ("backends: {a: {kind: remote, base_url: x.com/v1}}", "backends.a.base_url", "http://"),
    ("backends: {a: {kind: remote, base_url: 'http://'}}", "backends.a.base_url", "http://"),
    ("backends: {a: {kind: remote, base_url: 'http://x:99999/v1'}}", "backends.a.base_url", "http://"),
    ("backends: {a: {kind: remote, base_url: 'http://u:p@x/v1'}}", "backends.a.base_url", "user or password"),
    ("backends: {a: {kind: remote, base_url: 'http://x/v1?k=v'}}", "backends.a.base_url", "query"),
    ("backends: {a: {kind: remote, base_url: 'http://x/v1#k'}}", "backends.a.base_url", "fragment"),
    ("backends: {a: {kind: remote, replicas: ['http://x', y]}}", "backends.a.replicas.1", "http://"),
    ("backends: {a: {kind: remote, base_url: 'http://x', kv_memory: 1GiB}}", "backends.a.kv_memory", "unknown"),
    ("backends: {a: {kind: remote, base_url: 'http://x', base_ur: y}}", "backends.a.base_ur", "`base_url`"),
    ("backends: {a: {kind: remote, base_url: 'http://x', timeouts: {connect: 5}}}", "backends.a.timeouts.connect",
     "250ms"),
    ("backends: {a: {kind: local, timeouts: {connect: 0s}}}", "backends.a.timeouts.connect", "more than 0"),
    ("backends: {a: {kind: local, hourly_cost: -1}}", "backends.a.hourly_cost", "at least 0"),
    ("backends: {a: {kind: local, hourly_cost: .nan}}", "backends.a.hourly_cost", "finite"),
    ("backends: {a: {kind: local, hourly_cost: .inf}}", "backends.a.hourly_cost", "finite"),
    ("backends: {a: {kind: local, utilization: 0}}", "backends.a.utilization", "more than 0"),
    ("backends: {a: {kind: local}, b: {kind: local}}", "models", "which backend serves which model"),
    ("models: {}", "models", "which backend serves which model"),
    ("models: {'gpt-*': openai}", "models.gpt-*", "defined: local"),
    ("models: {'gpt-*': [local]}", "models.gpt-*", "text"),
    ("retrievers: {r: {kind: ftp}}", "retrievers.r.kind", "folder or http or openai"),
    ("retrievers: {r: {kind: folder}}", "retrievers.r.path", "is needed"),
    ("retrievers: {r: {kind: folder, path: 5}}", "retrievers.r.path", "text"),
    ("retrievers: {r: {kind: http, url: 'http://u:p@x'}}", "retrievers.r.url", "user or password"),
    ("endpoints: {v1: {}}", "endpoints.v1", "taken"),
    ("endpoints: {Admin: {}}", "endpoints.Admin", "taken"),
    ("endpoints: {a/b: {}}", "endpoints.a/b", "letters"),
    ("endpoints: {'': {}}", "endpoints.", "letters"),
    ("endpoints: {ä: {}}", "endpoints.ä", "letters"),
    ("endpoints: {x: {mode: batched}}", "endpoints.x.mode", "'stream'"),
    ("endpoints: {x: {mdoe: stream}}", "endpoints.x.mdoe", "did you mean `mode`?"),
    ("endpoints: {x: {backend: nope}}", "endpoints.x.backend", "defined: local"),
    ("endpoints: {x: {fallback: [local, nope]}}", "endpoints.x.fallback.1", "defined: local"),
    ("endpoints: {x: {backend: local, fallback: [local]}}", "endpoints.x.fallback.0", "own backend"),
    ("endpoints: {x: {fallback: [local, local]}}", "endpoints.x.fallback.1", "named twice"),
    ("endpoints: {x: {budget: 2}}", "endpoints.x.budget", "250ms"),
    ("endpoints: {x: {volatile_ttl: 0s}}", "endpoints.x.volatile_ttl", "more than 0"),
    ("endpoints: {x: {valid: day}}", "endpoints.x.time_zone", "is needed"),
    ("endpoints: {x: {time_zone: UTC}}", "endpoints.x.time_zone", "without `valid`"),
    ("endpoints: {x: {valid: day, time_zone: Mars/Base}}", "endpoints.x.time_zone", "IANA"),
    ("endpoints: {x: {valid: day, time_zone: ../../etc/passwd}}", "endpoints.x.time_zone", "IANA"),
    ("endpoints: {x: {valid: day, time_zone: Europe}}", "endpoints.x.time_zone", "IANA"),
    ("endpoints: {x: {retrieval: {retriever: r}}}", "endpoints.x.retrieval.retriever", "defined: none"),
    ("endpoints: {x: {share: public, cache: {semantic: {}}}}", "endpoints.x.cache.semantic", "off on `share: public`"),
    ("endpoints: {x: {cache: {exact: }}}", "endpoints.x.cache.exact", "or `off`"),
    ("endpoints: {x: {cache: {exact: 1h}}}", "endpoints.x.cache.exact", "mapping"),
    ("endpoints: {x: {cache: {exact: {tll: 1h}}}}", "endpoints.x.cache.exact.tll", "did you mean `ttl`?"),
    ("endpoints: {x: {cache: {semantic: {max_error: 0}}}}", "endpoints.x.cache.semantic.max_error", "more than 0"),
    ("endpoints: {x: {cache: {semantic: {audit_budget: {usd: 1}}}}}", "endpoints.x.cache.semantic.audit_budget.usd",
     "20/day"),
    # Statement 29: never "no expiry".
    *[(f"endpoints: {{x: {{cache: {{exact: {{ttl: {ttl}}}}}}}}}", "endpoints.x.cache.exact.ttl", message)
      for ttl, message in [("0", "250ms"), ("0s", "write `off`"), ("-1", "250ms"), ("-1s", "250ms"), (".nan", "250ms"),
                           ("nan", "250ms"), (".inf", "250ms"), ("60", "250ms"), ("'60'", "250ms"), ("1e20", "250ms"),
                           ("1.0e+20", "250ms"), ("99999999999d", "3650d"), ("null", "250ms"), ("off", "250ms"),
                           ("true", "250ms"), ("1:30", "250ms"), ("[60s]", "250ms"), ("''", "250ms")]],
    ("endpoints: {x: {cache: {exact: {stale_if_error: 5}}}}", "endpoints.x.cache.exact.stale_if_error", "250ms"),
    ("prices: {m-4.1: {input: 1}}", "prices.m-4.1.output", "is needed"),
    ("prices: {m: {input: -1, output: 1}}", "prices.m.input", "at least 0"),
    ("prices: {m: {input: 1e999, output: 1}}", "prices.m.input", "number"),
    ("decisions: {ring: 0}", "decisions.ring", "at least 1"),
    ("decisions: {ring: 1.5}", "decisions.ring", "whole number"),
    ("request_log: {path: x, redact: ['(']}", "request_log.redact.0", "regular expression"),
    ("a: {b: 1, b: 2}", "a.b", "line 1"),
    ("server: {port: '${PORT}'}", "server.port", "PORT is not set"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "path", "message"), BAD)
def test_what_is_wrong_is_named(load, text: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert message in problem.message


def test_all_problems_come_at_once_one_line_each(load) -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            "server: {port: x, hots: y}\n"
            "store: {max_entry: 1GiB}\n"
            "backends: {r: {kind: remote}}\n"
            "endpoints: {a: {cache: {exact: {ttl: 60}}}, b: {mode: x}}\n"
        )
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [
        "server.port",
        "server.hots",
        "store.max_entry",
        "backends.r",
        "endpoints.a.cache.exact.ttl",
        "endpoints.b.mode",
    ]


def test_problems_across_sections_come_at_once(load) -> None:
    with pytest.raises(ConfigError) as caught:
        load("models: {a: x}\nendpoints: {v1: {}, b: {backend: x}}\nauth: {}")
    assert [problem.path for problem in caught.value.problems] == [
        "auth.keys",
        "models.a",
        "endpoints.v1",
        "endpoints.b.backend",
    ]


@pytest.mark.parametrize("off", ["off", '"off"', "false", "'false'", "no", "'${SWITCH}'"])
def test_tiers_are_switched_off(load, off: str) -> None:
    cache = (
        load(f"endpoints: {{x: {{cache: {{exact: {off}, semantic: {off}}}}}}}", {"SWITCH": "off"}).endpoints["x"].cache
    )
    assert (cache.exact, cache.semantic) == (None, None)


@pytest.mark.parametrize("on", ["on", "true", "{}"])
def test_tiers_are_switched_on(load, on: str) -> None:
    cache = load(f"endpoints: {{x: {{cache: {{exact: {on}}}}}}}").endpoints["x"].cache
    assert cache.exact.ttl == 86_400


def test_public_endpoints_have_no_semantic_tier(load) -> None:
    endpoints = load(
        "endpoints: {a: {share: public}, b: {share: public, cache: {exact: {ttl: 1h}, semantic: off}}}"
    ).endpoints
    assert endpoints["a"].cache.semantic is None
    assert endpoints["a"].cache.exact is not None
    assert endpoints["b"].cache.semantic is None


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("", {"*": "local"}),
        ("backends: {local: {kind: local, model: other}}", {"*": "local"}),
        ("backends: {up: {kind: remote, base_url: 'http://x/v1/'}}", {"*": "up"}),
        (
            "backends: {up: {kind: remote, base_url: 'http://x'}}\nmodels: {a: up, '*': local}",
            {"a": "up", "*": "local"},
        ),
    ],
)
def test_models_default_to_the_only_backend(load, text: str, models: dict[str, str]) -> None:
    config = load(text)
    assert dict(config.models) == models
    assert "local" in config.backends


@pytest.mark.parametrize(
    ("model", "backend"),
    [
        ("gpt-5", "a"),
        ("GPT-5", "a"),
        ("gpt-5-mini", "a"),
        ("Llama-3", "b"),
        ("x", "local"),
        ("[x]", "local"),
        ("", None),
    ],
)
def test_the_first_glob_wins(load, model: str, backend: str | None) -> None:
    config = load(
        "backends: {a: {kind: remote, base_url: 'http://a'}, b: {kind: remote, base_url: 'http://b'}}\n"
        "models: {'gpt-*': a, 'gpt-5-mini': b, 'LLAMA-?': b, '?*': local}"
    )
    assert backend_for(config, model) == backend


@pytest.mark.parametrize(
    ("text", "required"),
    [
        ("", False),
        ("server: {host: '::1'}", False),
        ("server: {host: localhost}", False),
        (f"server: {{host: 0.0.0.0}}\nauth: {{keys: [{{key: {KEY}, tenant: t, user: u}}]}}", True),
        (f"auth: {{keys: [{{key: {KEY}, tenant: t, user: u}}]}}", True),
        ("auth: {required: false}", False),
        ("auth: {jwt: {jwks_url: 'https://x', issuer: i, audience: a, tenant: t}}", True),
    ],
)
def test_when_a_key_is_required(load, text: str, required: bool) -> None:
    assert load(text).auth.required is required


def test_a_key_is_known_by_its_digest_however_it_is_written(load) -> None:
    by_hash = f"{{hash: '{hash_key('other')}', tenant: t, user: v}}"
    keys = load(
        f"auth: {{keys: [{{key: '${{KEY}}', tenant: t, user: u}}, {by_hash}]}}",
        {"KEY": KEY},
    ).auth.keys
    assert [f"sha256:{key.digest.hex()}" for key in keys] == [hash_key(KEY), hash_key("other")]
    assert (keys[0].permissions, keys[0].role, keys[0].delegate) == (frozenset(), "member", False)


def test_text_of_variables_becomes_numbers_and_switches(load) -> None:
    config = load(
        "server: {port: '${PORT}'}\nendpoints: {default: {finish: '${YES}'}}", {"PORT": "9000", "YES": "true"}
    )
    assert config.server.port == 9000
    assert config.endpoints["default"].finish is True


def test_a_variable_cannot_bring_settings_along(load) -> None:
    config = load(
        "endpoints: {default: {retrieval: null, backend: local}}\ndecisions: {log: '${LOG}'}", {"LOG": "a}\nauth: {}"}
    )
    assert str(config.decisions.log) == "a}\nauth: {}"
    assert config.auth.required is False


def test_the_command_line_wins_and_is_checked(load) -> None:
    assert load("server: {port: 1, workers: 2}", server={"port": 2}).server.port == 2
    assert load("", server={"port": 2}).server.port == 2
    with pytest.raises(ConfigError, match=r"auth\.keys: needs at least one key"):
        load("", server={"host": "0.0.0.0"})


def test_a_configuration_cannot_be_changed(load) -> None:
    config = load("prices: {m: {input: 1, output: 2}}")
    with pytest.raises(ValueError, match="frozen"):
        config.server.port = 1
    for mapping in (config.backends, config.models, config.endpoints, config.prices, config.retrievers):
        with pytest.raises(TypeError):
            mapping["x"] = None


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", "not UTF-8"), (b"#" * (2**20 + 1), "more than 1048576 bytes")],
)
def test_files_that_are_no_text(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "refrain.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        load_config(path, {})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_config(tmp_path / "none.yaml", {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config(tmp_path, {})


def test_which_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_config(None) is None
    Path("refrain.yaml").touch()
    assert find_config(None) == Path("refrain.yaml")
    assert find_config(Path("other.yaml")) == Path("other.yaml")
