use postern_common::database::Migrations;

/// The migrations of both databases. A step after the first only adds nullable columns or tables,
/// sets storage parameters, or changes an index, so that processes of earlier releases keep working
/// on the new schema until they are replaced; a test verifies this. A step that removes something
/// declares `-- oldest-binary: `, see [`Migrations`].
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
        (8, include_str!("schema/postgres_8.sql")),
        (9, include_str!("schema/postgres_9.sql")),
        (10, include_str!("schema/postgres_10.sql")),
    ],
    sqlite: &[
        (1, include_str!("schema/sqlite_1.sql")),
        (2, include_str!("schema/sqlite_2.sql")),
        (3, include_str!("schema/sqlite_3.sql")),
        (4, include_str!("schema/sqlite_4.sql")),
        (5, include_str!("schema/sqlite_5.sql")),
        (6, include_str!("schema/sqlite_6.sql")),
        (7, include_str!("schema/sqlite_7.sql")),
        (8, include_str!("schema/sqlite_8.sql")),
    ],
};
