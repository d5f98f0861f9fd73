"""Tools that keep what an agent has to remember: lists of what is to be done, and notes. They touch no file."""
