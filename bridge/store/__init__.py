"""Where tasks are kept. In memory for now; a durable store takes this place without others
noticing."""
