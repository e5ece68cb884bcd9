"""The store on PostgreSQL. It needs the extra `postgres`; server/extras.py imports it when used."""
