"""The local engine: a model on torch in a process of its own, an OpenAI-style server on a socket.

`backends.local.backend.LocalBackend` is what the gateway uses; `backends.local.engine.run_engine` is the main of the
process. What is exported here is cheap: neither torch nor transformers is imported by it.
"""

from backends.local.models import DEFAULT_MODEL, ModelNotFound, revision
from backends.local.precision import Precision, resolve_precision

__all__ = ["DEFAULT_MODEL", "ModelNotFound", "Precision", "resolve_precision", "revision"]
