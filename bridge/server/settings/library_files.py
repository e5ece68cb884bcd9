"""Files that libraries of the server read because a variable or an option of a URL names them:
keys, passwords, and the certificates that the server trusts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, urlsplit

from bridge.sandbox.own_files import OwnFile

_POSTGRES = "PGPASSFILE PGSERVICEFILE PGSSLKEY PGSSLCERT PGSSLROOTCERT PGSSLCRL".split()
_TLS = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_TRACES = tuple(
    f"OTEL_EXPORTER_OTLP_{traces}{name}"
    for traces in ("", "TRACES_")
    for name in ("CLIENT_KEY", "CLIENT_CERTIFICATE", "CERTIFICATE")
)
_OF_DATABASE = "passfile servicefile sslkey sslcert sslrootcert sslcrl sslcrldir".split()
_OF_REDIS = "ssl_keyfile ssl_certfile ssl_ca_certs ssl_ca_path".split()
_OPTIONS = frozenset((*_OF_DATABASE, *_OF_REDIS))
# They have no secrets. Only the operator may change them.
_PUBLIC = frozenset(
    (
        *(*_TLS, "PGSSLROOTCERT", "PGSSLCRL", *(one for one in _TRACES if "CLIENT" not in one)),
        *("sslrootcert", "sslcrl", "sslcrldir", "ssl_ca_certs", "ssl_ca_path"),
    )
)


def of_variables(variables: Mapping[str, str]) -> Iterator[OwnFile]:
    """The files that `variables` of the server name."""
    for name in (*_POSTGRES, *_TRACES, *_TLS):
        if path := variables.get(name):
            yield OwnFile(name, path, public=name in _PUBLIC)


def of_url(setting: str, url: str | None) -> Iterator[OwnFile]:
    """The files that options of the URL name. `setting` has the URL."""
    try:
        options = parse_qsl(urlsplit(url or "").query)
    except ValueError:  # not a URL, as another check says
        return
    for name, path in options:
        if name in _OPTIONS and path != "system":
            yield OwnFile(f"{setting} ({name})", path, public=name in _PUBLIC)
