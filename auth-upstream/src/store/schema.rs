//! The schema of the store.

use postern_store::database::Migrations;

pub(super) const MIGRATIONS: Migrations = Migrations {
    owner: "postern_auth",
    postgres: &[(1, include_str!("schema/postgres.sql"))],
    sqlite: &[(1, include_str!("schema/sqlite.sql"))],
};
