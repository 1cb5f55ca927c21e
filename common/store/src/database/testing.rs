//! Temporary stores for tests. Each is a separate database that is removed when dropped. Not for
//! production.
//!
//! ```no_run
//! # async fn example() {
//! for test in postern_store::database::testing::both().await {
//!     test.database.ping().await.expect("a fresh store answers");
//! }
//! # }
//! ```

mod relay;

use std::path::PathBuf;
use std::str::FromStr;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use uuid::Uuid;

pub use self::relay::Relay;
use super::{Database, DatabaseOptions, PostgresPool};
use postern_core::testing::required;

/// An empty store. It must be kept until the test ends.
#[derive(Debug)]
pub struct TestDatabase {
    /// URL, for processes that open the store themselves.
    pub url: String,
    /// Open store without tables.
    pub database: Database,
    /// Removes the store on drop. Private, so that the other fields can be moved out.
    _cleanup: StoreCleanup,
}

#[derive(Debug)]
enum StoreCleanup {
    Folder(PathBuf),
    Postgres { admin: String, name: String },
}

/// Creates a database on the server that `POSTERN_TEST_POSTGRES` names.
pub async fn postgres() -> TestDatabase {
    let admin = required("POSTERN_TEST_POSTGRES");
    let name = format!("postern_test_{}", Uuid::new_v4().simple());
    let mut connection = PgConnection::connect(&admin)
        .await
        .expect("POSTERN_TEST_POSTGRES accepts connections");
    let create = AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"));
    connection
        .execute(create)
        .await
        .expect("POSTERN_TEST_POSTGRES may create databases");
    connection
        .close()
        .await
        .expect("the connection closes cleanly");
    let mut url = url::Url::parse(&admin).expect("POSTERN_TEST_POSTGRES is a URL");
    url.set_path(&name);
    let url = url.to_string();
    let database = open(&url).await;
    TestDatabase {
        url,
        database,
        _cleanup: StoreCleanup::Postgres { admin, name },
    }
}

/// Creates a SQLite file in a temporary directory.
pub async fn sqlite() -> TestDatabase {
    let folder = std::env::temp_dir().join(format!("postern-test-{}", Uuid::new_v4().simple()));
    let url = format!("sqlite://{}", folder.join("test.db").display());
    let database = open(&url).await;
    TestDatabase {
        url,
        database,
        _cleanup: StoreCleanup::Folder(folder),
    }
}

/// Creates one store of each kind, for tests that apply to both.
pub async fn both() -> [TestDatabase; 2] {
    [sqlite().await, postgres().await]
}

async fn open(url: &str) -> Database {
    Database::open(url, DatabaseOptions::new("postern-test"))
        .await
        .expect("a fresh store opens")
}

impl TestDatabase {
    /// Returns the pool of PostgreSQL.
    #[must_use]
    pub fn pool(&self) -> &PostgresPool {
        match &self.database {
            Database::Postgres(pool) => pool,
            Database::Sqlite(_) => panic!("a SQLite file has no pool of PostgreSQL"),
        }
    }

    /// Sets the clock of PostgreSQL ahead, for the connections that are opened after the first call.
    pub async fn set_clock(&self, ahead_s: i64) {
        let sql = format!(
            "CREATE OR REPLACE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS
            $$ BEGIN RETURN pg_catalog.clock_timestamp() + interval '{ahead_s} seconds'; END $$;
            DO $$ BEGIN
                EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', current_database());
            END $$"
        );
        self.administer(sql).await;
    }

    /// Makes all tables of PostgreSQL refuse changes as on a full disk, or accept them again.
    pub async fn set_full(&self, is_full: bool) {
        let fill = "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$;
            DO $$ DECLARE name text; BEGIN
                FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
                    EXECUTE format('CREATE TRIGGER refuse BEFORE INSERT OR UPDATE OR DELETE ON %I
                        EXECUTE FUNCTION public.refuse()', name);
                END LOOP;
            END $$";
        let empty = "DROP FUNCTION public.refuse CASCADE";
        self.administer(if is_full { fill } else { empty }.to_owned())
            .await;
    }

    async fn administer(&self, sql: String) {
        let connected = PgConnection::connect(&self.url).await;
        let mut connection = connected.expect("the database accepts connections");
        let done = connection.execute(AssertSqlSafe(sql)).await;
        done.expect("the statements are valid");
        connection
            .close()
            .await
            .expect("the connection closes cleanly");
    }
}

impl Drop for StoreCleanup {
    fn drop(&mut self) {
        match self {
            Self::Folder(folder) => {
                let _ = std::fs::remove_dir_all(folder);
            }
            Self::Postgres { admin, name } => {
                let (admin, name) = (admin.clone(), name.clone());
                // A separate thread, because the test's runtime may be shutting down.
                let _ = std::thread::spawn(move || drop_database(&admin, &name)).join();
            }
        }
    }
}

/// Drops the database. Errors are ignored: the test server is temporary.
fn drop_database(admin: &str, name: &str) {
    let Ok(options) = PgConnectOptions::from_str(admin) else {
        return;
    };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return;
    };
    let _ = runtime.block_on(async {
        let mut connection = PgConnection::connect_with(&options).await?;
        let sql = AssertSqlSafe(format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
        connection.execute(sql).await?;
        connection.close().await
    });
}
