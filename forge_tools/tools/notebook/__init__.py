"""Tools that read and change Jupyter notebooks, cell by cell."""
