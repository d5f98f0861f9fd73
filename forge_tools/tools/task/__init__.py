"""Tools that keep what an agent has to remember: todo lists and notes. They touch no file."""
