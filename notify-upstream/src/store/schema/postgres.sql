-- The accepted request. Never updated. Ids are UUIDv7 and sort by time.
CREATE TABLE notify_record (
    id               UUID     PRIMARY KEY,
    lane             SMALLINT NOT NULL,
    creator          TEXT     NOT NULL,
    addressee        TEXT,
    template         TEXT     NOT NULL,
    template_version INTEGER  NOT NULL,
    locale           TEXT     NOT NULL,
    recipient        TEXT     NOT NULL,
    variables        TEXT     NOT NULL,
    created_at       BIGINT   NOT NULL,
    send_at          BIGINT,
    expires_at       BIGINT,
    -- The request that created the notification, and the W3C `traceparent` of the span that accepted it.
    request_id       TEXT,
    trace_context    TEXT,
    -- The first 8 bytes of the SHA-256 of the recipient (an address in lower case, or an actor id), by which
    -- notifications are found.
    recipient_key    BIGINT
) WITH (autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX notify_record_recipient ON notify_record (recipient_key, id) WHERE recipient_key IS NOT NULL;
CREATE INDEX notify_record_creator ON notify_record (creator, id);
CREATE INDEX notify_record_created ON notify_record (creator, recipient_key, id);

-- The result of each attempt, and other events. Never updated.
CREATE TABLE notify_result (
    id               UUID     NOT NULL,
    attempt          INTEGER  NOT NULL,
    kind             SMALLINT NOT NULL,
    began_at         BIGINT,
    at               BIGINT   NOT NULL,
    next_at          BIGINT,
    provider         TEXT,
    code             TEXT,
    detail           TEXT,
    -- The address that the attempt went to, as SHA-256: a provider's report about an address is believed for that
    -- address alone.
    address          BYTEA,
    -- The version of the template that the attempt was made with; the record has that of the acceptance.
    template_version INTEGER
) WITH (autovacuum_vacuum_scale_factor = 0.01);
CREATE INDEX notify_result_id ON notify_result (id);

-- What is waiting or being sent; completion deletes it. A claim updates a row in place: no indexed column changes, and
-- each page has room for the claimed version of every row that waits there (of a service 76 bytes waiting, 92 claimed,
-- with line pointers).
CREATE TABLE notify_queue (
    id      UUID     PRIMARY KEY,
    lane    SMALLINT NOT NULL,
    ord     BIGINT   NOT NULL,
    fence   INTEGER  NOT NULL,
    attempt INTEGER  NOT NULL,
    worker  BIGINT,
    since   BIGINT,
    -- The user that created it; empty for all services.
    caller  TEXT     COLLATE "C" NOT NULL DEFAULT ''
) WITH (
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2
);
-- In the order in which rows are claimed: services, then each user; rows that were due at one instant have the same
-- `ord`.
CREATE INDEX notify_queue_lane ON notify_queue (lane, caller, ord, id);

CREATE TABLE notify_delayed (
    id      UUID     PRIMARY KEY,
    due     BIGINT   NOT NULL,
    lane    SMALLINT NOT NULL,
    fence   INTEGER  NOT NULL,
    attempt INTEGER  NOT NULL,
    caller  TEXT     COLLATE "C" NOT NULL DEFAULT ''
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
-- In the order in which rows are moved: without the id every batch sorts all that is due, and many may be due at one
-- instant.
CREATE INDEX notify_delayed_order ON notify_delayed (due, id);
CREATE INDEX notify_delayed_caller ON notify_delayed (caller) WHERE caller <> '';

CREATE TABLE notify_worker (
    id      BIGINT PRIMARY KEY,
    seen_at BIGINT NOT NULL
) WITH (fillfactor = 50);

-- Only requests that carry a key have a row.
CREATE TABLE notify_key (
    creator     TEXT   NOT NULL,
    key         TEXT   NOT NULL,
    id          UUID   NOT NULL,
    fingerprint BYTEA  NOT NULL,
    created_at  BIGINT NOT NULL,
    PRIMARY KEY (creator, key)
);
CREATE INDEX notify_key_created ON notify_key (created_at);

-- The inbox of provider reports: one row a provider event, whenever it comes and however often.
CREATE TABLE notify_receipt (
    provider    TEXT     NOT NULL,
    event_id    TEXT     NOT NULL,
    id          UUID     NOT NULL,
    kind        SMALLINT NOT NULL,
    at          BIGINT   NOT NULL,
    received_at BIGINT   NOT NULL,
    code        TEXT,
    detail      TEXT,
    PRIMARY KEY (provider, event_id)
);
CREATE INDEX notify_receipt_id ON notify_receipt (id);
CREATE INDEX notify_receipt_received ON notify_receipt (received_at);

-- What failed for good, until an operator replays or drops it.
CREATE TABLE notify_dead (
    id      UUID     PRIMARY KEY,
    lane    SMALLINT NOT NULL,
    fence   INTEGER  NOT NULL,
    attempt INTEGER  NOT NULL,
    at      BIGINT   NOT NULL,
    code    TEXT
);
CREATE INDEX notify_dead_at ON notify_dead (at);

-- Addresses that are proven not to exist, and those that have left a category (else empty), as SHA-256.
CREATE TABLE notify_suppression (
    channel  SMALLINT NOT NULL,
    address  BYTEA    NOT NULL,
    category TEXT     NOT NULL,
    reason   TEXT     NOT NULL,
    at       BIGINT   NOT NULL,
    PRIMARY KEY (channel, address, category)
);
CREATE INDEX notify_suppression_at ON notify_suppression (at);

-- Tokens of webhooks whose signature does not cover the body, with the body that each came with first.
CREATE TABLE notify_webhook_token (
    provider TEXT   NOT NULL,
    token    TEXT   NOT NULL,
    body     BYTEA  NOT NULL,
    at       BIGINT NOT NULL,
    PRIMARY KEY (provider, token)
);
CREATE INDEX notify_webhook_token_at ON notify_webhook_token (at);

-- The providers that operators have paused. All replicas read it each second.
CREATE TABLE notify_provider_pause (
    provider TEXT   PRIMARY KEY,
    operator TEXT   NOT NULL,
    at       BIGINT NOT NULL,
    reason   TEXT
);
