"""The bytes of stored outputs: in parts, in files, in pages. Other modules decide on ownership and retention."""
