"""Access to the database: its address, its connections, how long to wait for them, and what their errors mean.

Nothing here knows what a row is.
"""
