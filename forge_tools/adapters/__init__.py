"""The agent's side: tools as each model SDK takes them. An adapter imports its SDK where it is used, never at the top."""
