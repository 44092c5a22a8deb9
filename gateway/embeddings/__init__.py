"""POST /v1/embeddings: a vector for each input, kept by input, so that only what nobody has asked for goes upstream."""
