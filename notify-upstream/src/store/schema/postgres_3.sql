-- Addresses that an operator has taken off the list: whoever knows the list by heart forgets them.
CREATE TABLE notify_suppression_lifted (
    channel SMALLINT NOT NULL,
    address BYTEA    NOT NULL,
    at      BIGINT   NOT NULL,
    PRIMARY KEY (channel, address)
);
CREATE INDEX notify_suppression_lifted_at ON notify_suppression_lifted (at);
