"""A folder of documents: read, cut, indexed, and watched."""
