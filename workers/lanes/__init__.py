"""Where bodies run, apart from the engine: `loop` (async lane) and `children` with `child` (process lane)."""
