-- Nobody waits long behind this: where a lock is not to be had, the process gives up and is started again.
SET LOCAL lock_timeout = '3s';

-- In the order in which rows are moved: without the id every batch sorts all that is due, and many may be due at one
-- instant.
CREATE INDEX notify_delayed_order ON notify_delayed (due, id);
DROP INDEX notify_delayed_due;
