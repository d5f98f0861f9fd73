"""Tools that read the web: a page, and what a search finds."""
