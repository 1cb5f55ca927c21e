-- The providers that operators have paused. All replicas read it each second.
CREATE TABLE notify_provider_pause (
    provider TEXT   PRIMARY KEY,
    operator TEXT   NOT NULL,
    at       BIGINT NOT NULL,
    reason   TEXT
);
