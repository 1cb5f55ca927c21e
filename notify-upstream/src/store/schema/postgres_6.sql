-- Nobody waits long behind this: where a lock is not to be had, the process gives up and is started again.
SET LOCAL lock_timeout = '3s';

-- Room in each page for the claimed version of every row that waits there: a claim then adds nothing to the indexes.
-- A row is 68 bytes while it waits and 84 once it is claimed, line pointers counted.
ALTER TABLE notify_queue SET (fillfactor = 45);
