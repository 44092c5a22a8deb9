"""The batch lane: files of requests that nobody waits for, kept on the disk until each of them has its answer."""
