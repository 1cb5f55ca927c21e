-- A migration waits at most this long for a lock; then the process exits and is started again.
SET LOCAL lock_timeout = '3s';

-- The request that created the notification, and the W3C `traceparent` of the span that accepted it.
ALTER TABLE notify_record ADD COLUMN request_id TEXT;
ALTER TABLE notify_record ADD COLUMN trace_context TEXT;
