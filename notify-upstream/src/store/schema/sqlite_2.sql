ALTER TABLE notify_result ADD COLUMN address BLOB;

CREATE TABLE notify_webhook_token (
    provider TEXT    NOT NULL,
    token    TEXT    NOT NULL,
    body     BLOB    NOT NULL,
    at       INTEGER NOT NULL,
    PRIMARY KEY (provider, token)
) STRICT, WITHOUT ROWID;
CREATE INDEX notify_webhook_token_at ON notify_webhook_token (at);
