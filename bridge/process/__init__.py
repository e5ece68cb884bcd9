"""One child process: start, streams, exit, cleanup."""
