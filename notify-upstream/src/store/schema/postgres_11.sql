-- The position of this database in the list of shards, of which it has one only. Databases that were used before are shard 0.
CREATE TABLE notify_shard (
    is_only BOOLEAN  PRIMARY KEY DEFAULT TRUE CHECK (is_only),
    number  SMALLINT NOT NULL
);
INSERT INTO notify_shard (number) SELECT 0 WHERE EXISTS (SELECT FROM notify_record);
