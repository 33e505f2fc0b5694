"""What the store's tables are, as the steps by which they came to be. A step that has been released never changes."""

STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE groups (
            seq INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            owner TEXT NOT NULL,
            idempotency_key TEXT,
            digest TEXT NOT NULL,
            sealed INTEGER NOT NULL,
            total INTEGER NOT NULL,
            unfinished INTEGER NOT NULL,
            created REAL NOT NULL,
            ended REAL,
            UNIQUE (owner, idempotency_key)
        )""",
        """CREATE TABLE requests (
            seq INTEGER PRIMARY KEY,
            group_seq INTEGER NOT NULL REFERENCES groups (seq),
            place INTEGER NOT NULL,
            model TEXT NOT NULL,
            priority INTEGER NOT NULL,
            state TEXT NOT NULL,
            body TEXT NOT NULL,
            attempts INTEGER NOT NULL DEFAULT 0,
            worker TEXT,
            lease TEXT,
            until REAL,
            result TEXT,
            reason TEXT
        )""",
        "CREATE UNIQUE INDEX of_group ON requests (group_seq, place)",
        "CREATE INDEX waiting ON requests (model, priority, seq) WHERE state = 'queued'",
        "CREATE INDEX due ON requests (until) WHERE until IS NOT NULL",
        "CREATE INDEX ended ON groups (ended) WHERE ended IS NOT NULL",
        """CREATE TABLE counts (
            model TEXT NOT NULL,
            state TEXT NOT NULL,
            number INTEGER NOT NULL,
            PRIMARY KEY (model, state)
        )""",
        """CREATE TABLE keys (
            id TEXT PRIMARY KEY,
            digest TEXT NOT NULL,
            name TEXT NOT NULL,
            role TEXT NOT NULL,
            scopes TEXT NOT NULL,
            models TEXT NOT NULL,
            requests_per_minute INTEGER,
            tokens_per_minute INTEGER,
            tokens_per_day INTEGER,
            created REAL NOT NULL,
            expires REAL,
            revoked REAL
        )""",
        """CREATE TABLE usage (
            key TEXT NOT NULL,
            day TEXT NOT NULL,
            model TEXT NOT NULL,
            requests INTEGER NOT NULL,
            input_tokens INTEGER NOT NULL,
            output_tokens INTEGER NOT NULL,
            PRIMARY KEY (key, day, model)
        )""",
    ),
)
