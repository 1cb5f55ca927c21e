-- Where each lane of the queue begins: a process that starts does not step over what was claimed before it.
CREATE TABLE notify_mark (
    lane SMALLINT PRIMARY KEY,
    low  BIGINT   NOT NULL
) WITH (fillfactor = 50);
