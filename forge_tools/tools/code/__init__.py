"""Tools that know code: what is defined where, what imports what, who uses it. The grammars are those of ast-grep."""
