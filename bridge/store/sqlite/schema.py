"""The schema of the SQLite database, as the steps from each version to the next one."""

from __future__ import annotations

MIGRATIONS = (
    """
    CREATE TABLE context (
        agent TEXT NOT NULL,
        id TEXT NOT NULL,
        start BLOB NOT NULL,       -- SessionStart: directory, options, the CLI's own conversation
        PRIMARY KEY (agent, id)
    ) WITHOUT ROWID;
    CREATE TABLE task (
        place INTEGER PRIMARY KEY, -- in the order in which they came
        id TEXT NOT NULL UNIQUE,
        agent TEXT NOT NULL,
        context TEXT NOT NULL,
        created INTEGER NOT NULL,  -- microseconds since 1970, as all times
        thoughts INTEGER NOT NULL,
        prompt BLOB NOT NULL,      -- Message
        begun INTEGER NOT NULL     -- the CLI may have seen the prompt: never send it again
    );
    CREATE TABLE event (
        task INTEGER NOT NULL REFERENCES task ON DELETE CASCADE,
        batch INTEGER NOT NULL,    -- counts from 1: one is written once, however often attempted
        time INTEGER NOT NULL,
        events BLOB NOT NULL,
        last INTEGER NOT NULL,     -- number of the last update that they brought
        UNIQUE (task, batch)
    );
    CREATE TABLE session (
        id TEXT PRIMARY KEY,
        agent TEXT NOT NULL,
        context TEXT NOT NULL,
        start BLOB NOT NULL,       -- SessionStart, as it was launched
        position INTEGER NOT NULL  -- bytes of its output whose events are in `event`
    );
    CREATE TABLE told (
        number INTEGER PRIMARY KEY,
        session TEXT NOT NULL REFERENCES session ON DELETE CASCADE,
        told BLOB NOT NULL         -- AdapterInput
    );
    CREATE INDEX told_session ON told (session);
    CREATE TABLE taken (
        agent TEXT NOT NULL,
        message TEXT NOT NULL,     -- its id
        digest BLOB NOT NULL,
        task INTEGER NOT NULL REFERENCES task ON DELETE CASCADE,
        PRIMARY KEY (agent, message)
    ) WITHOUT ROWID;
    CREATE INDEX taken_task ON taken (task);
    """,
    # Earlier versions had one principal.
    "ALTER TABLE task ADD COLUMN owner TEXT NOT NULL DEFAULT 'local';",
    # Earlier versions identified a message by its id alone.
    """
    CREATE TABLE taken_by_content (
        agent TEXT NOT NULL,
        message TEXT NOT NULL,     -- its id
        digest BLOB NOT NULL,      -- of its content
        task INTEGER NOT NULL REFERENCES task ON DELETE CASCADE,
        PRIMARY KEY (agent, message, digest)
    ) WITHOUT ROWID;
    INSERT INTO taken_by_content SELECT agent, message, digest, task FROM taken;
    DROP TABLE taken;
    ALTER TABLE taken_by_content RENAME TO taken;
    CREATE INDEX taken_task ON taken (task);
    """,
    # Earlier versions canceled no task because its client had left.
    "ALTER TABLE task ADD COLUMN attended INTEGER NOT NULL DEFAULT 0;",
    # Earlier versions had a second database for push notifications.
    """
    CREATE TABLE push (
        task INTEGER NOT NULL REFERENCES task ON DELETE CASCADE,
        id TEXT NOT NULL,
        url TEXT NOT NULL,
        version TEXT NOT NULL,
        token TEXT,
        scheme TEXT,
        credentials TEXT,
        extended INTEGER NOT NULL,
        cursor INTEGER NOT NULL,   -- number of the newest update that was delivered or skipped
        attempts INTEGER NOT NULL, -- failed ones of the next notification
        due INTEGER NOT NULL,      -- time of its next attempt
        PRIMARY KEY (task, id)
    );
    CREATE TABLE push_failure (
        task INTEGER NOT NULL,
        config TEXT NOT NULL,
        number INTEGER NOT NULL,   -- of the update
        attempts INTEGER NOT NULL,
        error TEXT NOT NULL,
        time INTEGER NOT NULL,
        PRIMARY KEY (task, config, number),
        FOREIGN KEY (task, config) REFERENCES push ON DELETE CASCADE
    ) WITHOUT ROWID;
    """,
)
"""Each script brings a database from the version that is its index to the next one. Append scripts
only; never change one."""
