-- The providers that operators have paused. The process reads it each second.
CREATE TABLE notify_provider_pause (
    provider TEXT    PRIMARY KEY,
    operator TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    reason   TEXT
) STRICT, WITHOUT ROWID;
