-- The same tables as in PostgreSQL; ids are text in their hyphenated form. See postgres.sql for what each is for.
CREATE TABLE notify_record (
    id               TEXT    PRIMARY KEY,
    lane             INTEGER NOT NULL,
    creator          TEXT    NOT NULL,
    addressee        TEXT,
    template         TEXT    NOT NULL,
    template_version INTEGER NOT NULL,
    locale           TEXT    NOT NULL,
    recipient        TEXT    NOT NULL,
    variables        TEXT    NOT NULL,
    created_at       INTEGER NOT NULL,
    send_at          INTEGER,
    expires_at       INTEGER,
    request_id       TEXT,
    trace_context    TEXT,
    recipient_key    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX notify_record_recipient ON notify_record (recipient_key, id) WHERE recipient_key IS NOT NULL;
CREATE INDEX notify_record_creator ON notify_record (creator, id);
CREATE INDEX notify_record_created ON notify_record (creator, recipient_key, id);

CREATE TABLE notify_result (
    id               TEXT    NOT NULL,
    attempt          INTEGER NOT NULL,
    kind             INTEGER NOT NULL,
    began_at         INTEGER,
    at               INTEGER NOT NULL,
    next_at          INTEGER,
    provider         TEXT,
    code             TEXT,
    detail           TEXT,
    address          BLOB,
    template_version INTEGER
) STRICT;
CREATE INDEX notify_result_id ON notify_result (id);

CREATE TABLE notify_queue (
    id      TEXT    PRIMARY KEY,
    lane    INTEGER NOT NULL,
    ord     INTEGER NOT NULL,
    fence   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    worker  INTEGER,
    since   INTEGER,
    caller  TEXT    NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
CREATE INDEX notify_queue_lane ON notify_queue (lane, caller, ord, id);

CREATE TABLE notify_delayed (
    id      TEXT    PRIMARY KEY,
    due     INTEGER NOT NULL,
    lane    INTEGER NOT NULL,
    fence   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    caller  TEXT    NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
CREATE INDEX notify_delayed_order ON notify_delayed (due, id);
CREATE INDEX notify_delayed_caller ON notify_delayed (caller) WHERE caller <> '';

CREATE TABLE notify_worker (
    id      INTEGER PRIMARY KEY,
    seen_at INTEGER NOT NULL
) STRICT;

CREATE TABLE notify_key (
    creator     TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    created_at  INTEGER NOT NULL,
    PRIMARY KEY (creator, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX notify_key_created ON notify_key (created_at);

CREATE TABLE notify_receipt (
    provider    TEXT    NOT NULL,
    event_id    TEXT    NOT NULL,
    id          TEXT    NOT NULL,
    kind        INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    code        TEXT,
    detail      TEXT,
    PRIMARY KEY (provider, event_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX notify_receipt_id ON notify_receipt (id);
CREATE INDEX notify_receipt_received ON notify_receipt (received_at);

CREATE TABLE notify_dead (
    id      TEXT    PRIMARY KEY,
    lane    INTEGER NOT NULL,
    fence   INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    code    TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX notify_dead_at ON notify_dead (at);

CREATE TABLE notify_suppression (
    channel  INTEGER NOT NULL,
    address  BLOB    NOT NULL,
    category TEXT    NOT NULL,
    reason   TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (channel, address, category)
) STRICT, WITHOUT ROWID;
CREATE INDEX notify_suppression_at ON notify_suppression (at);

CREATE TABLE notify_webhook_token (
    provider TEXT    NOT NULL,
    token    TEXT    NOT NULL,
    body     BLOB    NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (provider, token)
) STRICT, WITHOUT ROWID;
CREATE INDEX notify_webhook_token_at ON notify_webhook_token (at);

-- The providers that operators have paused. The process reads it each second.
CREATE TABLE notify_provider_pause (
    provider TEXT    PRIMARY KEY,
    operator TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    reason   TEXT
) STRICT, WITHOUT ROWID;
