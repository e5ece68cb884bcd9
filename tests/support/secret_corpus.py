"""Texts with the form of a credential, each of another kind. None is real."""

from __future__ import annotations

KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n-----END RSA PRIVATE KEY-----"
CORPUS = (
    "sk-ant-api03-abcdefghijklmnopqrstuv",
    "sk-proj-AbCdEfGhIjKlMnOpQrSt",
    *("gh" + kind + "_" + "a1B2" * 9 for kind in "pousr"),
    "github_pat_" + "a1B2" * 11,
    "glpat-" + "a1B2" * 6,
    "xoxb-1234567890-abcdef",
    "AKIAABCDEFGHIJKLMNOP",
    "AIza" + "a1B2_" * 7,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlc2lnbmF0dXJl",
    KEY,
)
