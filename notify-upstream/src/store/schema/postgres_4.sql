-- Nobody waits long behind this: where a lock is not to be had, the process gives up and is started again.
SET LOCAL lock_timeout = '3s';

-- The version of the template that an attempt was made with; the record has that of the acceptance.
ALTER TABLE notify_result ADD COLUMN template_version INTEGER;
