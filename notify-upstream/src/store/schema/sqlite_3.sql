CREATE TABLE notify_suppression_lifted (
    channel INTEGER NOT NULL,
    address BLOB    NOT NULL,
    at      INTEGER NOT NULL,
    PRIMARY KEY (channel, address)
) STRICT, WITHOUT ROWID;
CREATE INDEX notify_suppression_lifted_at ON notify_suppression_lifted (at);
