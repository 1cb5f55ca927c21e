-- A migration waits at most this long for a lock; then the process exits and is started again.
SET LOCAL lock_timeout = '3s';

-- The first 8 bytes of the SHA-256 of the recipient (an address in lower case, or an actor id), by which notifications are
-- found. NULL in records of earlier releases. Building the indexes blocks inserts for about 5 s per million records.
ALTER TABLE notify_record ADD COLUMN recipient_key BIGINT;
CREATE INDEX notify_record_recipient ON notify_record (recipient_key, id) WHERE recipient_key IS NOT NULL;
CREATE INDEX notify_record_creator ON notify_record (creator, id);
