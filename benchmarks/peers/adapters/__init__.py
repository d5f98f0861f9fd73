"""One file per peer: the app that its workers serve and the client that calls it, using only that peer's packages."""
