"""How long things take, and may take."""
