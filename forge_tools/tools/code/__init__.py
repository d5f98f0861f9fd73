"""Tools that read code: what is defined where, what imports what, and what uses it. ast-grep provides the grammars."""
