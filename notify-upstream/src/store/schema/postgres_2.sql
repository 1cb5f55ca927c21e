-- Nobody waits long behind this: where a lock is not to be had, the process gives up and is started again.
SET LOCAL lock_timeout = '3s';

-- The address that an attempt went to, as SHA-256: what a provider reports of an address is believed of that one alone.
ALTER TABLE notify_result ADD COLUMN address BYTEA;

-- Tokens of webhooks whose signature does not cover the body, with the body that each came with first.
CREATE TABLE notify_webhook_token (
    provider TEXT   NOT NULL,
    token    TEXT   NOT NULL,
    body     BYTEA  NOT NULL,
    at       BIGINT NOT NULL,
    PRIMARY KEY (provider, token)
);
CREATE INDEX notify_webhook_token_at ON notify_webhook_token (at);
