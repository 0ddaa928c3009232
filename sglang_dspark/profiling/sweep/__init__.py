"""Compare ways of serving: arms x workloads x concurrency, in interleaved rounds."""
