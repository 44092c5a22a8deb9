"""The settings that are read and checked, but whose feature has not come. When it comes, delete its lines here (and
the "not yet" in docs/configuration.md, which a test compares with this table).

`*` stands for one step: the name of an entry, or its index in a list.
"""

NOTHING_YET = "accepted, but does nothing yet"

NOT_YET: dict[str, str] = {
    "server.workers": NOTHING_YET,
    "server.admin_port": NOTHING_YET,
    "backends.*.retries": NOTHING_YET,
    "backends.*.replicas": "only the first one is used yet",
    "backends.*.balance": NOTHING_YET,
    "backends.*.upstream_batches": NOTHING_YET,
    "endpoints.*.cache.semantic.max_error": NOTHING_YET,
    "endpoints.*.cache.semantic.min_precision": NOTHING_YET,
    "endpoints.*.cache.semantic.adapt": NOTHING_YET,
    "endpoints.*.cache.semantic.audit_budget": NOTHING_YET,
    "decisions.log": NOTHING_YET,
    "request_log": NOTHING_YET,
}
