//! The SQLite database shared by the development services.

use std::path::Path;

use postern_core::exit::Exit;
use postern_store::database::{Database, DatabaseOptions, Migrations, Sqlite};

use crate::data_folder::database_url;

const MIGRATIONS: Migrations = Migrations {
    owner: "postern_development",
    postgres: &[],
    sqlite: &[
        (
            1,
            "CREATE TABLE sample (
            kind TEXT NOT NULL,
            id TEXT NOT NULL,
            owner TEXT NOT NULL,
            content TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            PRIMARY KEY (kind, id)
        ) STRICT, WITHOUT ROWID;
        CREATE TABLE mail (
            id TEXT PRIMARY KEY,
            summary TEXT NOT NULL,
            message BLOB NOT NULL
        ) STRICT, WITHOUT ROWID;",
        ),
        (
            2,
            "CREATE TABLE pool_entity (
            kind TEXT NOT NULL,
            id TEXT NOT NULL,
            value TEXT NOT NULL,
            PRIMARY KEY (kind, id)
        ) STRICT;
        -- The rows of mail are wide: counting them from the newest reads this index instead.
        CREATE INDEX mail_ids ON mail (id);",
        ),
    ],
};

/// Opens the database and applies its migrations.
///
/// # Errors
/// Exits with status 69 if it is unavailable.
pub async fn open(path: &Path) -> Result<Sqlite, Exit> {
    let database = Database::open(
        &database_url(path),
        DatabaseOptions::new("postern-development"),
    )
    .await?;
    database.migrate(&MIGRATIONS).await?;
    match database {
        Database::Sqlite(sqlite) => Ok(sqlite),
        Database::Postgres(_) => Err(Exit::unavailable("the development services require SQLite")),
    }
}
