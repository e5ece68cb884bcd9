"""The rules of the operator, and the spellings of commands and paths that they compare."""
