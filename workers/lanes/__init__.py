"""Where bodies run, separate from the engine: `loop` (async lane) and `children` with `child` (process lane)."""
