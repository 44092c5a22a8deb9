"""The semantic tier; `cache.semantic.tier` is its face. Nothing is imported here: its worker process is one module."""
