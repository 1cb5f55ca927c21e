ALTER TABLE notify_record ADD COLUMN recipient_key INTEGER;
CREATE INDEX notify_record_recipient ON notify_record (recipient_key, id) WHERE recipient_key IS NOT NULL;
CREATE INDEX notify_record_creator ON notify_record (creator, id);
