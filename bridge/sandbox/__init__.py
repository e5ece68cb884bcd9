"""The boundary of one CLI process."""
