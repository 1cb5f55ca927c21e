use postern_store::database::Migrations;

/// The schema of both databases.
pub(crate) const MIGRATIONS: Migrations = Migrations {
    owner: "postern_notify",
    postgres: &[(1, include_str!("schema/postgres.sql"))],
    sqlite: &[(1, include_str!("schema/sqlite.sql"))],
};
