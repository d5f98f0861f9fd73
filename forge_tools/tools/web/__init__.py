"""Tools that read the web: a page, or the results of a search."""
