"""Tools that run the commands an agent gives."""
