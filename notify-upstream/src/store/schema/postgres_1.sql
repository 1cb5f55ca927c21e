-- What was asked for. Never updated. Partitioned by id: ids are UUIDv7 and sort by time.
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
    expires_at       BIGINT
) PARTITION BY RANGE (id);
CREATE TABLE notify_record_default PARTITION OF notify_record DEFAULT;

-- How each attempt ended, and whatever else happened. Never updated.
CREATE TABLE notify_result (
    id       UUID     NOT NULL,
    attempt  INTEGER  NOT NULL,
    kind     SMALLINT NOT NULL,
    began_at BIGINT,
    at       BIGINT   NOT NULL,
    next_at  BIGINT,
    provider TEXT,
    code     TEXT,
    detail   TEXT
) PARTITION BY RANGE (id);
CREATE INDEX notify_result_id ON notify_result (id);
CREATE TABLE notify_result_default PARTITION OF notify_result DEFAULT;

-- What is waiting or being sent. A claim updates a row in place (no indexed column changes, hence the room in
-- each page); completion deletes it.
CREATE TABLE notify_queue (
    id      UUID     PRIMARY KEY,
    lane    SMALLINT NOT NULL,
    ord     BIGINT   NOT NULL,
    fence   INTEGER  NOT NULL,
    attempt INTEGER  NOT NULL,
    worker  BIGINT,
    since   BIGINT
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.2
);
CREATE INDEX notify_queue_lane ON notify_queue (lane, ord);

CREATE TABLE notify_delayed (
    id      UUID     PRIMARY KEY,
    due     BIGINT   NOT NULL,
    lane    SMALLINT NOT NULL,
    fence   INTEGER  NOT NULL,
    attempt INTEGER  NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX notify_delayed_due ON notify_delayed (due);

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

-- Addresses that are proven not to exist, as SHA-256.
CREATE TABLE notify_suppression (
    channel SMALLINT NOT NULL,
    address BYTEA    NOT NULL,
    reason  TEXT     NOT NULL,
    at      BIGINT   NOT NULL,
    PRIMARY KEY (channel, address)
);
CREATE INDEX notify_suppression_at ON notify_suppression (at);
