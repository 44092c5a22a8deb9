"""The books: what was served, consumed and saved, kept over restarts."""
