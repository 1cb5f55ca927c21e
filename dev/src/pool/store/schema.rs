//! The schema. Times are Unix milliseconds, flags are 0 or 1.

use postern_common::database::Migrations;

const SCHEMA: &str = "
CREATE TABLE pool_pool (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    settings TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE TABLE pool_client (
    id TEXT PRIMARY KEY,
    pool_id TEXT NOT NULL REFERENCES pool_pool (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    secret TEXT,
    settings TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE TABLE pool_user (
    pool_id TEXT NOT NULL REFERENCES pool_pool (id) ON DELETE CASCADE,
    username TEXT NOT NULL,
    sub TEXT NOT NULL,
    alias TEXT,
    status TEXT NOT NULL,
    enabled BIGINT NOT NULL,
    attributes TEXT NOT NULL,
    password TEXT,
    password_version BIGINT NOT NULL DEFAULT 0,
    temporary_until BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (pool_id, username)
);
CREATE UNIQUE INDEX pool_user_alias ON pool_user (pool_id, alias);
CREATE UNIQUE INDEX pool_user_sub ON pool_user (pool_id, sub);
CREATE TABLE pool_group (
    pool_id TEXT NOT NULL REFERENCES pool_pool (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    description TEXT,
    precedence BIGINT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    PRIMARY KEY (pool_id, name)
);
CREATE TABLE pool_membership (
    pool_id TEXT NOT NULL,
    username TEXT NOT NULL,
    group_name TEXT NOT NULL,
    PRIMARY KEY (pool_id, username, group_name),
    FOREIGN KEY (pool_id, username) REFERENCES pool_user (pool_id, username) ON DELETE CASCADE,
    FOREIGN KEY (pool_id, group_name) REFERENCES pool_group (pool_id, name) ON DELETE CASCADE
);
CREATE TABLE pool_family (
    id TEXT PRIMARY KEY,
    pool_id TEXT NOT NULL,
    client_id TEXT NOT NULL REFERENCES pool_client (id) ON DELETE CASCADE,
    username TEXT NOT NULL,
    auth_time BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    revoked_at BIGINT,
    FOREIGN KEY (pool_id, username) REFERENCES pool_user (pool_id, username) ON DELETE CASCADE
);
CREATE INDEX pool_family_user ON pool_family (pool_id, username);
CREATE INDEX pool_family_expiry ON pool_family (expires_at);
CREATE TABLE pool_refresh_token (
    hash TEXT PRIMARY KEY,
    family TEXT NOT NULL REFERENCES pool_family (id) ON DELETE CASCADE,
    rotated_at BIGINT
);
CREATE INDEX pool_refresh_token_family ON pool_refresh_token (family);
CREATE INDEX pool_refresh_token_rotated ON pool_refresh_token (rotated_at) WHERE rotated_at IS NOT NULL;
CREATE TABLE pool_challenge (
    hash TEXT PRIMARY KEY,
    pool_id TEXT NOT NULL,
    client_id TEXT NOT NULL,
    username TEXT NOT NULL,
    expires_at BIGINT NOT NULL
);
CREATE TABLE pool_code (
    pool_id TEXT NOT NULL,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    hash TEXT NOT NULL,
    expires_at BIGINT NOT NULL,
    wrong BIGINT NOT NULL,
    wrong_in_window BIGINT NOT NULL DEFAULT 0,
    sent BIGINT NOT NULL,
    window_start BIGINT NOT NULL,
    PRIMARY KEY (pool_id, name, purpose)
);
CREATE TABLE pool_key (
    pool_id TEXT PRIMARY KEY REFERENCES pool_pool (id) ON DELETE CASCADE,
    der TEXT NOT NULL
);
CREATE TABLE pool_setting (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
";

/// The migration. There is none for PostgreSQL, which [`super::PoolStore::open`] rejects.
pub(crate) const MIGRATIONS: Migrations = Migrations {
    owner: "postern_pool",
    postgres: &[],
    sqlite: &[(1, SCHEMA)],
};
