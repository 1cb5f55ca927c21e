use postern_common::database::Migrations;

/// The tables of this service, in both dialects. A step after the first only adds, a column that
/// may be empty or a table, says how much room pages keep, or changes an index. Processes of the
/// releases before go on working on the new tables, and may be started on them, until they are
/// replaced; a test holds that. A step that takes something away says `-- oldest-binary: `, see
/// [`Migrations`].
pub(crate) const MIGRATIONS: Migrations = Migrations {
    owner: "postern_notify",
    postgres: &[
        (1, include_str!("schema/postgres_1.sql")),
        (2, include_str!("schema/postgres_2.sql")),
        (3, include_str!("schema/postgres_3.sql")),
        (4, include_str!("schema/postgres_4.sql")),
        (5, include_str!("schema/postgres_5.sql")),
        (6, include_str!("schema/postgres_6.sql")),
        (7, include_str!("schema/postgres_7.sql")),
    ],
    sqlite: &[
        (1, include_str!("schema/sqlite_1.sql")),
        (2, include_str!("schema/sqlite_2.sql")),
        (3, include_str!("schema/sqlite_3.sql")),
        (4, include_str!("schema/sqlite_4.sql")),
        (5, include_str!("schema/sqlite_5.sql")),
    ],
};
