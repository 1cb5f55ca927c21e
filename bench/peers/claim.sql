WITH next AS (SELECT id FROM job WHERE done_at IS NULL ORDER BY priority, id LIMIT 100 FOR UPDATE SKIP LOCKED)
UPDATE job SET done_at = now() FROM next WHERE job.id = next.id;
