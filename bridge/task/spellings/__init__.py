"""The spellings of commands and paths that rules compare with patterns."""
