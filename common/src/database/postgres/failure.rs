//! What an error of the driver says of the connection.

use std::io::ErrorKind;
use std::time::Duration;

use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// Whether the session cannot be used any more after this error: the connection is broken, or its
/// server takes no writes, ends or has lost what the session had prepared.
pub(super) fn breaks_connection(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(error) = error {
        let is_fatal = error
            .try_downcast_ref::<PgDatabaseError>()
            .is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic));
        let code = error.code().unwrap_or_default();
        // 25006: read-only. 57P: the server ends or starts. 26000, 42P05: another session answers.
        // 0A000: a cached plan that a migration has made wrong.
        return is_fatal
            || ["08", "57P"].iter().any(|class| code.starts_with(class))
            || matches!(&*code, "25006" | "26000" | "42P05" | "0A000");
    }
    matches!(
        error,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed
    )
}

/// Whether a server that answered so while a connection was made may let us in later: it is away,
/// full, starting or not promoted yet.
pub(super) fn is_away(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(error) = error {
        let code = error.code().unwrap_or_default();
        return ["08", "53", "57P"]
            .iter()
            .any(|class| code.starts_with(class))
            || code == "25006";
    }
    matches!(error, sqlx::Error::Io(_) | sqlx::Error::Protocol(_))
}

/// The error of a statement that has reached its deadline.
pub(super) fn no_answer(limit: Duration) -> sqlx::Error {
    let text = format!(
        "PostgreSQL has not answered within {} ms",
        limit.as_millis()
    );
    sqlx::Error::Io(std::io::Error::new(ErrorKind::TimedOut, text))
}
