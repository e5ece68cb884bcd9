"""What operators use: the state of tasks, health, sockets."""
