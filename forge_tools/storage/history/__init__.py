"""What people read: executions, attempts and events in pages, figures over them, and a stack at one moment.

Nothing here changes a call.
"""
