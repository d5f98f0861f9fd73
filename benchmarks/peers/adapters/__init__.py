"""One file a peer: the app that its workers serve and the client that calls it, with that peer's packages alone."""
