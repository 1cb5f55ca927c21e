use postern_common::database::Migrations;

/// The tables of this service, in both dialects. A step after the first only adds: a column that may be empty, a table.
/// Processes of the version before go on working on the new tables until they are replaced; a test holds that.
pub(super) const MIGRATIONS: Migrations = Migrations {
    owner: "postern_notify",
    postgres: &[(1, include_str!("schema/postgres_1.sql")), (2, include_str!("schema/postgres_2.sql"))],
    sqlite: &[(1, include_str!("schema/sqlite_1.sql")), (2, include_str!("schema/sqlite_2.sql"))],
};
