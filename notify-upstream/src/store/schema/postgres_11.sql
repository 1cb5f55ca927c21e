-- The position of this database in the list of shards, of which it has one only.
CREATE TABLE notify_shard (
    is_only BOOLEAN  PRIMARY KEY DEFAULT TRUE CHECK (is_only),
    number  SMALLINT NOT NULL
);
