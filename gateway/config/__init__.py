"""The configuration: read, checked, shown and watched. DESIGN 4 is its contract, docs/configuration.md its manual."""

from gateway.config.access import ApiKey, Auth, Jwt, Limits, Role
from gateway.config.backends import LocalBackend, RemoteBackend, Timeouts
from gateway.config.effective import effective, notes
from gateway.config.endpoints import CachePolicy, Endpoint, ExactPolicy, SemanticPolicy
from gateway.config.fields import is_loopback
from gateway.config.keys import digest_key, hash_key, new_key
from gateway.config.load import find_config, load_config
from gateway.config.models import Config, Decisions, Embedder, Price, Server, Store, backend_for
from gateway.config.problems import ConfigError, Problem
from gateway.config.retrievers import Retriever
from gateway.config.units import Rate
from gateway.config.watch import watch_config

__all__ = [
    "ApiKey",
    "Auth",
    "CachePolicy",
    "Config",
    "ConfigError",
    "Decisions",
    "Embedder",
    "Endpoint",
    "ExactPolicy",
    "Jwt",
    "Limits",
    "LocalBackend",
    "Price",
    "Problem",
    "Rate",
    "RemoteBackend",
    "Retriever",
    "Role",
    "SemanticPolicy",
    "Server",
    "Store",
    "Timeouts",
    "backend_for",
    "digest_key",
    "effective",
    "find_config",
    "hash_key",
    "is_loopback",
    "load_config",
    "new_key",
    "notes",
    "watch_config",
]
