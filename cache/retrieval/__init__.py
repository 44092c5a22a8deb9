"""The retrieval tier: what a search has found, and the texts of what it found, kept apart from answers."""

from cache.retrieval.cache import LIFE, RetrievalCache, Run
from cache.retrieval.passages import Passage, Reference, refer, said
from cache.retrieval.search import Outcome, Results, Search

__all__ = ["LIFE", "Outcome", "Passage", "Reference", "Results", "RetrievalCache", "Run", "Search", "refer", "said"]
