"""The schema of the PostgreSQL store, and its migrations.

Ids that clients choose are bytes (UTF-8), because text cannot contain U+0000, and because bytes are
ordered as Python orders the strings. Times are microseconds since 1970 by the clock of the writer.
"""

from __future__ import annotations

from psycopg import AsyncConnection, errors
from psycopg.rows import TupleRow

from bridge.errors import ConfigurationError

FENCED, FENCE_LOST, CONFLICT, WRITTEN = "BR001", "BR002", "BR003", "BR004"
"""SQLSTATEs: the incarnation of the node is fenced; another claim has a context; a message belongs
to another task; the group is committed already."""

LOCK_CLASS = 0x6272  # of the advisory locks of bridges; the second key is the schema or the node
LEAST_SERVER = 140000
LOCK_TRIES, LOCK_WAIT = 5, "2s"

# Each script brings a schema from the version that is its index to the next one, in one
# transaction. Append scripts only; never change one. The server may run next to one of the previous
# release, so scripts add, and a later release removes.
MIGRATIONS = (
    """
    CREATE SEQUENCE epochs;                  -- one value for each incarnation of a node
    CREATE SEQUENCE tokens;                  -- of contexts: a later claim has a larger one
    CREATE TABLE node (
        id text PRIMARY KEY,                 -- file `id` of the state folder: survives restarts
        epoch bigint NOT NULL,               -- of the present incarnation
        state text NOT NULL DEFAULT 'up' CHECK (state IN ('up', 'draining', 'fenced')),
        version text NOT NULL,               -- of the bridge
        seen timestamptz NOT NULL DEFAULT now(), -- for people: no decision uses it
        UNIQUE (id, epoch)                   -- so a change of the epoch waits for FOR KEY SHARE
    ) WITH (fillfactor = 50);
    CREATE TABLE progress (                  -- not in `node`: a heartbeat must not wait for commits
        node text PRIMARY KEY REFERENCES node ON DELETE CASCADE,
        written bigint NOT NULL              -- committed groups of the present incarnation
    ) WITH (fillfactor = 50);
    CREATE TABLE context (
        agent text NOT NULL, owner bytea NOT NULL, id bytea NOT NULL,
        node text,                           -- NULL: any node may claim it
        token bigint NOT NULL DEFAULT 0,     -- of the present claim
        start bytea,                         -- SessionStart; NULL before the first session
        PRIMARY KEY (agent, owner, id)
    );
    CREATE INDEX context_node ON context (node);
    CREATE TABLE task (
        place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, -- in the order of creation
        id bytea NOT NULL UNIQUE,
        agent text NOT NULL, owner bytea NOT NULL, context bytea NOT NULL,
        created bigint NOT NULL,
        thoughts boolean NOT NULL,
        attended boolean NOT NULL,
        prompt bytea NOT NULL,               -- Message
        begun boolean NOT NULL DEFAULT false, -- the CLI may have seen the prompt
        state text NOT NULL,                 -- from here on: a projection of the events
        changed bigint NOT NULL,             -- time of the newest status
        batch int NOT NULL DEFAULT 0,
        last int NOT NULL DEFAULT 0,
        size bigint NOT NULL                 -- bytes of prompt and events
    ) WITH (fillfactor = 70);
    CREATE INDEX task_changed ON task (changed DESC, id);
    CREATE INDEX task_of_owner ON task (owner, changed DESC, id);
    CREATE INDEX task_open ON task (agent, place)
        WHERE state NOT IN ('completed', 'canceled', 'failed', 'rejected');
    CREATE TABLE event (
        task bigint NOT NULL REFERENCES task ON DELETE CASCADE,
        batch int NOT NULL,                  -- counts from 1
        epoch bigint NOT NULL,               -- of its writer
        time bigint NOT NULL,
        last int NOT NULL,                   -- number of the last update of the batch
        events bytea NOT NULL,
        PRIMARY KEY (task, batch)
    );
    DO $$ BEGIN
        ALTER TABLE event ALTER events SET COMPRESSION lz4;
    EXCEPTION WHEN feature_not_supported THEN NULL; -- a PostgreSQL without lz4 uses pglz
    END $$;
    CREATE TABLE taken (
        agent text NOT NULL, owner bytea NOT NULL, message bytea NOT NULL, digest bytea NOT NULL,
        task bigint NOT NULL REFERENCES task ON DELETE CASCADE,
        PRIMARY KEY (agent, owner, message, digest)
    );
    CREATE INDEX taken_task ON taken (task);
    CREATE TABLE session (
        id bytea PRIMARY KEY,
        node text NOT NULL,                  -- its processes are on this node
        agent text NOT NULL, owner bytea NOT NULL, context bytea NOT NULL,
        start bytea NOT NULL,                -- SessionStart, as it was launched
        position bigint NOT NULL DEFAULT 0   -- bytes of output whose events are in `event`
    );
    CREATE TABLE told (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        session bytea NOT NULL REFERENCES session ON DELETE CASCADE,
        told bytea NOT NULL                  -- AdapterInput
    );
    CREATE INDEX told_session ON told (session);
    CREATE TABLE push (
        task bigint NOT NULL REFERENCES task ON DELETE CASCADE,
        id bytea NOT NULL,
        number bigint GENERATED ALWAYS AS IDENTITY, -- in the order of creation
        version text NOT NULL,
        extended boolean NOT NULL,
        sealed bytea NOT NULL,               -- URL and secrets, encrypted with BRIDGE_PUSH_KEY
        cursor int NOT NULL,
        attempts int NOT NULL,
        due bigint NOT NULL,
        PRIMARY KEY (task, id)
    );
    CREATE TABLE dead (
        task bigint NOT NULL, config bytea NOT NULL,
        number int NOT NULL,                 -- of the update
        attempts int NOT NULL, error text NOT NULL, time bigint NOT NULL,
        PRIMARY KEY (task, config, number),
        FOREIGN KEY (task, config) REFERENCES push ON DELETE CASCADE
    );

    -- The right of this incarnation to write, held until the end of the transaction.
    CREATE FUNCTION fence(me text, e bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
        PERFORM 1 FROM node WHERE id = me AND epoch = e AND state <> 'fenced' FOR KEY SHARE;
        IF NOT FOUND THEN RAISE EXCEPTION 'fenced' USING ERRCODE = 'BR001'; END IF;
    END $$;

    -- Begin group `number` of the node. The lock on `progress` also waits for the same group on a
    -- connection that was cut: it is committed then, or it is rolled back.
    CREATE FUNCTION begin_group(me text, e bigint, number bigint,
        agents text[], owners bytea[], ids bytea[], claims bigint[]) RETURNS void
    LANGUAGE plpgsql AS $$ DECLARE held int; BEGIN
        PERFORM fence(me, e);
        UPDATE progress SET written = number WHERE node = me AND written = number - 1;
        IF NOT FOUND THEN RAISE EXCEPTION 'written' USING ERRCODE = 'BR004'; END IF;
        IF cardinality(claims) > 0 THEN
            PERFORM 1 FROM unnest(agents, owners, ids, claims) AS c(agent, owner, id, token)
                JOIN context USING (agent, owner, id, token) FOR SHARE OF context;
            GET DIAGNOSTICS held = ROW_COUNT;
            IF held < cardinality(claims) THEN
                RAISE EXCEPTION 'fence lost' USING ERRCODE = 'BR002';
            END IF;
        END IF;
    END $$;

    -- Assign the message to the task, if it belongs to `replaces` or to no task yet.
    CREATE FUNCTION accept(a text, o bytea, m bytea, d bytea, wanted bytea, replaces bytea)
        RETURNS void LANGUAGE plpgsql AS $$ DECLARE known bytea; BEGIN
        IF replaces IS NULL THEN
            INSERT INTO taken SELECT a, o, m, d, place FROM task WHERE id = wanted
                ON CONFLICT DO NOTHING;
            IF FOUND THEN RETURN; END IF;
        END IF;
        SELECT task.id INTO known FROM taken JOIN task ON place = taken.task
            WHERE (taken.agent, taken.owner, message, digest) = (a, o, m, d) FOR UPDATE OF taken;
        IF known = wanted OR (known IS NULL AND replaces IS NULL) THEN RETURN; END IF;
        IF known IS DISTINCT FROM replaces THEN
            RAISE EXCEPTION 'conflict' USING ERRCODE = 'BR003';
        END IF;
        UPDATE taken SET task = place FROM task WHERE id = wanted
            AND (taken.agent, taken.owner, message, digest) = (a, o, m, d);
    END $$;
    """,
    """
    ALTER TABLE node ADD COLUMN name text NOT NULL DEFAULT ''; -- for people
    CREATE TABLE bus (hint_key bytea NOT NULL); -- of the authentication codes of hints
    INSERT INTO bus SELECT sha256(convert_to(
        gen_random_uuid()::text || gen_random_uuid()::text, 'UTF8'));
    """,
    """
    ALTER TABLE node ADD COLUMN beat bigint NOT NULL DEFAULT 0, -- of the present incarnation
        ADD COLUMN agents jsonb,             -- that it serves, as GET /agents shows them
        ADD COLUMN shares text[] NOT NULL DEFAULT '{}',
        ADD COLUMN slots int NOT NULL DEFAULT 0, -- for live sessions
        ADD COLUMN config bytea;             -- digest of the settings that all nodes must share
    ALTER TABLE context ADD COLUMN share text; -- its directory is on the nodes with this share;
                                             -- NULL: on `node` alone
    CREATE TABLE takeover (                  -- of an unfinished task, from the node of its context
        task bigint NOT NULL REFERENCES task ON DELETE CASCADE,
        epoch bigint NOT NULL,               -- of the next writer
        after int NOT NULL,                  -- number of the last batch of the writer before
        PRIMARY KEY (task, epoch)
    );
    CREATE TABLE command (                   -- requests to the node that holds the context
        id text PRIMARY KEY,                 -- by the sender
        number bigint GENERATED ALWAYS AS IDENTITY, -- in the order of their creation
        agent text NOT NULL, owner bytea NOT NULL, context bytea NOT NULL,
        kind text NOT NULL,
        principal bytea NOT NULL,
        body bytea NOT NULL,
        sender text NOT NULL,                -- the node that waits for the answer
        taker bigint,                        -- epoch of the node that executes it
        answer bytea,
        done boolean NOT NULL DEFAULT false,
        made timestamptz NOT NULL DEFAULT now()
    );
    CREATE INDEX command_waits ON command (agent, owner, context) WHERE NOT done;
    ALTER TABLE taken ALTER task DROP NOT NULL, -- NULL: a node decides about the message
        ADD COLUMN node text, ADD COLUMN epoch bigint; -- the incarnation that decides
    CREATE TABLE started (                   -- the starts of principals with limits
        owner bytea NOT NULL,
        task bytea NOT NULL PRIMARY KEY,     -- id
        at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE INDEX started_owner ON started (owner, at);

    -- Count a start of a principal. Returns the exceeded limit and its figure, or NULL. Starts of
    -- the last minute that have no task yet count as tasks.
    CREATE FUNCTION admit(me text, e bigint, o bytea, t bytea, tasks int, per_minute int,
        OUT exceeded text, OUT figure int) LANGUAGE plpgsql AS $$ DECLARE minute timestamptz; BEGIN
        PERFORM fence(me, e);
        PERFORM pg_advisory_xact_lock(25203, hashtext(current_schema() || encode(o, 'hex')));
        minute := clock_timestamp() - interval '1 minute';
        DELETE FROM started WHERE owner = o AND at < minute;
        IF EXISTS (SELECT 1 FROM started WHERE task = t) THEN RETURN; END IF;
        IF tasks > 0 THEN
            SELECT count(*) INTO figure FROM task WHERE owner = o
                AND state NOT IN ('completed', 'canceled', 'failed', 'rejected');
            SELECT figure + count(*) INTO figure FROM started WHERE owner = o
                AND NOT EXISTS (SELECT 1 FROM task WHERE task.id = started.task);
            IF figure >= tasks THEN exceeded := 'tasks'; RETURN; END IF;
        END IF;
        IF per_minute > 0 THEN
            SELECT count(*), ceil(extract(epoch FROM min(at) - minute)) INTO figure, tasks
                FROM started WHERE owner = o;
            IF figure >= per_minute THEN exceeded := 'starts'; figure := tasks; RETURN; END IF;
        END IF;
        INSERT INTO started (owner, task) VALUES (o, t);
    END $$;
    CREATE INDEX task_open_of_owner ON task (owner)
        WHERE state NOT IN ('completed', 'canceled', 'failed', 'rejected');

    -- As before, but the message may be reserved: its row has no task yet.
    CREATE OR REPLACE FUNCTION accept(a text, o bytea, m bytea, d bytea, wanted bytea,
        replaces bytea) RETURNS void LANGUAGE plpgsql AS $$ DECLARE known bytea; BEGIN
        IF replaces IS NULL THEN
            INSERT INTO taken (agent, owner, message, digest, task)
                SELECT a, o, m, d, place FROM task WHERE id = wanted
                ON CONFLICT (agent, owner, message, digest)
                DO UPDATE SET task = excluded.task WHERE taken.task IS NULL;
            IF FOUND THEN RETURN; END IF;
        END IF;
        SELECT task.id INTO known FROM taken JOIN task ON place = taken.task
            WHERE (taken.agent, taken.owner, message, digest) = (a, o, m, d) FOR UPDATE OF taken;
        IF known = wanted OR (known IS NULL AND replaces IS NULL) THEN RETURN; END IF;
        IF known IS DISTINCT FROM replaces THEN
            RAISE EXCEPTION 'conflict' USING ERRCODE = 'BR003';
        END IF;
        UPDATE taken SET task = place FROM task WHERE id = wanted
            AND (taken.agent, taken.owner, message, digest) = (a, o, m, d);
    END $$;
    """,
    """
    ALTER TABLE task ADD COLUMN hidden boolean NOT NULL DEFAULT false; -- it may still become a
                                             -- direct Message: only its node shows it
    """,
    """
    ALTER TABLE node ADD COLUMN offers jsonb; -- the skills, models and modes of its
                                             -- agents, by their ids
    """,
)
OLDEST = 1  # the version that a bridge must know to use a schema that this bridge has migrated


async def migrate(connection: AsyncConnection[TupleRow]) -> None:
    """Bring the schema to the newest version. `connection` must be in autocommit mode. Raises
    ConfigurationError."""
    if connection.info.server_version < LEAST_SERVER:
        raise ConfigurationError("PostgreSQL 14 or newer is required: upgrade the server")
    for number, script in enumerate(MIGRATIONS, 1):
        for left in reversed(range(LOCK_TRIES)):
            try:
                await _migrate(connection, number, script)
                break
            except errors.LockNotAvailable as error:
                if not left:
                    raise ConfigurationError(
                        "another server has migrated the database for "
                        f"{LOCK_TRIES} x {LOCK_WAIT} without an end: look for a waiting statement "
                        "in pg_stat_activity, and start again"
                    ) from error


async def _migrate(connection: AsyncConnection[TupleRow], number: int, script: str) -> None:
    found = await _version(connection)
    if found >= number:
        return
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = '{LOCK_WAIT}'")
        await connection.execute(
            "SELECT pg_advisory_xact_lock(%s, hashtext(current_schema()))", (LOCK_CLASS,)
        )
        if await _version(connection) >= number:  # another server was faster
            return
        await connection.execute(
            "CREATE TABLE IF NOT EXISTS schema_version (version int NOT NULL, oldest int NOT NULL)"
        )
        await connection.execute(script.encode())
        await connection.execute("DELETE FROM schema_version")
        await connection.execute("INSERT INTO schema_version VALUES (%s, %s)", (number, OLDEST))


async def _version(connection: AsyncConnection[TupleRow]) -> int:
    """The version of the schema; 0 for an empty one."""
    cursor = await connection.execute(
        "SELECT current_schema(), EXISTS (SELECT 1 FROM pg_tables "
        "WHERE schemaname = current_schema() AND tablename = 'schema_version')"
    )  # to_regclass() has a cache, which does not have a table of a moment ago
    ((schema, exists),) = await cursor.fetchall()
    if schema is None:
        raise ConfigurationError(
            "the schema of its search_path does not exist: create it with CREATE SCHEMA"
        )
    if not exists:
        return 0
    cursor = await connection.execute("SELECT version, oldest FROM schema_version")
    ((version, oldest),) = await cursor.fetchall()
    if oldest > len(MIGRATIONS):
        raise ConfigurationError(
            "the database was written by a newer version of the bridge: install that version"
        )
    return int(version)
