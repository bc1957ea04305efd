"""NeoRL2's environments, written from their published dynamics."""
