"""The bytes of outputs that are kept: in parts, in files, in pages. Whose they are, and how long, is said elsewhere."""
