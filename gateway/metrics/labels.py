"""Under which names metrics show models: a label must not have values that a client can make up.

A client may ask for any model, and there are backends that answer whatever the name. So a model is shown by its name if
the configuration has it (in `models`, without wildcards, in `prices`, or as a local backend's), else by the name that
the price catalogue has for it; the others are "other". What a model was shown as at first it stays, or a counter would
go down when a configuration is changed.
"""

from gateway.config import Config, LocalBackend
from gateway.ledger.ledger import OTHER
from gateway.prices.catalogue import catalogue_name


class ModelLabels:
    """Is asked for models that have answered only, of which the ledger has a bounded number."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}

    def label(self, model: str, config: Config) -> str:
        found = self._labels.get(model)
        if found is None:
            found = self._labels[model] = model if is_ours(model, config) else catalogue_name(model) or OTHER
        return found


def is_ours(model: str, config: Config) -> bool:
    """Does the configuration speak of this model?"""
    local = {b.model for b in config.backends.values() if isinstance(b, LocalBackend)}
    literal = model in config.models and not set("*?[") & set(model)
    return literal or model in local or model in config.prices
