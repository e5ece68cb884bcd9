"""Principals, credentials and quotas."""
