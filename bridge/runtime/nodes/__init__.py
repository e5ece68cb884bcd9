"""Several servers on one store: tasks and contexts of other servers."""
