"""Documents: what the gateway does with retrievers and with what they find."""
