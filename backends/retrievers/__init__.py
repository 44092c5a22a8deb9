"""What finds documents for a question: a folder of files, a search service, another server's vector store."""

from backends.retrievers.base import (
    Embeds,
    EmbedsError,
    Found,
    Retriever,
    RetrieverError,
    RetrieverReason,
    RetrieverState,
)

__all__ = ["Embeds", "EmbedsError", "Found", "Retriever", "RetrieverError", "RetrieverReason", "RetrieverState"]
