-- A queue as one would write it by hand: one table, one partial index, SKIP LOCKED.
DROP TABLE IF EXISTS job;
CREATE TABLE job (id bigserial PRIMARY KEY, priority int NOT NULL, payload jsonb NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), done_at timestamptz);
CREATE INDEX job_waiting ON job (priority, id) WHERE done_at IS NULL;
