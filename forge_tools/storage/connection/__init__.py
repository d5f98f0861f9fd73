"""The way to the database: its address, its connections, how long they are waited for, and what their errors mean.

Nothing here knows what a row is.
"""
