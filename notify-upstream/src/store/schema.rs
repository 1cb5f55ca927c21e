use postern_common::database::Migrations;

/// The tables of this service, in both dialects.
pub(super) const MIGRATIONS: Migrations = Migrations {
    owner: "postern_notify",
    postgres: &[(1, include_str!("schema/postgres_1.sql"))],
    sqlite: &[(1, include_str!("schema/sqlite_1.sql"))],
};
