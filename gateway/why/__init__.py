"""Why a request was not answered from a cache."""
