//! Stores for tests: each is a database of its own, gone when it is dropped. Not for production.
//!
//! ```no_run
//! # async fn example() {
//! for test in postern_common::database::testing::both().await {
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
use super::{Database, Options};
use crate::config::Env;

/// An empty store. Keep it until the test ends.
#[derive(Debug)]
pub struct TestDatabase {
    /// For processes that open it themselves.
    pub url: String,
    /// Open, without tables.
    pub database: Database,
    /// Removes the store; private, so that the fields before it can be moved out.
    _remains: Remains,
}

#[derive(Debug)]
enum Remains {
    Folder(PathBuf),
    Postgres { admin: String, name: String },
}

/// A database on the server that `POSTERN_TEST_POSTGRES` names.
///
/// # Panics
/// If the variable is not set or the server refuses: a test cannot go on.
pub async fn postgres() -> TestDatabase {
    let admin = required("POSTERN_TEST_POSTGRES");
    let name = format!("postern_test_{}", Uuid::new_v4().simple());
    let mut connection = PgConnection::connect(&admin)
        .await
        .expect("POSTERN_TEST_POSTGRES answers");
    let create = AssertSqlSafe(format!("CREATE DATABASE {name} TEMPLATE template0"));
    connection
        .execute(create)
        .await
        .expect("POSTERN_TEST_POSTGRES may create databases");
    connection.close().await.expect("the server says goodbye");
    let mut url = url::Url::parse(&admin).expect("POSTERN_TEST_POSTGRES is a URL");
    url.set_path(&name);
    let url = url.to_string();
    let database = open(&url).await;
    TestDatabase {
        url,
        database,
        _remains: Remains::Postgres { admin, name },
    }
}

/// A SQLite file in a temporary folder of its own.
///
/// # Panics
/// If the folder for temporary files cannot be written.
pub async fn sqlite() -> TestDatabase {
    let folder = std::env::temp_dir().join(format!("postern-test-{}", Uuid::new_v4().simple()));
    let url = format!("sqlite://{}", folder.join("test.db").display());
    let database = open(&url).await;
    TestDatabase {
        url,
        database,
        _remains: Remains::Folder(folder),
    }
}

/// One of each: what a store promises, it promises over both.
///
/// # Panics
/// As [`postgres`] and [`sqlite`].
pub async fn both() -> [TestDatabase; 2] {
    [sqlite().await, postgres().await]
}

async fn open(url: &str) -> Database {
    Database::open(url, Options::new("postern-test"))
        .await
        .expect("a fresh store opens")
}

/// A variable that the test runner sets.
///
/// # Panics
/// If it is not set; the message says how to run the tests.
#[must_use]
#[track_caller]
pub fn required(variable: &str) -> String {
    Env::of_process()
        .get(variable)
        .unwrap_or_else(|| {
            panic!("{variable} is not set: run ./tests/run, which starts what the tests need")
        })
        .to_owned()
}

impl Drop for Remains {
    fn drop(&mut self) {
        match self {
            Self::Folder(folder) => {
                let _ = std::fs::remove_dir_all(folder);
            }
            Self::Postgres { admin, name } => {
                let (admin, name) = (admin.clone(), name.clone());
                // A thread of its own, because the test's runtime may be the one that is stopping.
                let _ = std::thread::spawn(move || drop_database(&admin, &name)).join();
            }
        }
    }
}

/// Best effort: what it cannot remove goes with the test server.
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
