//! Classification of driver errors.

use std::io::ErrorKind;
use std::time::Duration;

use sqlx::postgres::{PgDatabaseError, PgSeverity};

/// Returns whether the session is unusable after this error: the connection is broken, the server
/// is read-only or shutting down, or the session's prepared statements are lost.
pub(super) fn breaks_connection(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(error) = error {
        let is_fatal = error
            .try_downcast_ref::<PgDatabaseError>()
            .is_some_and(|error| matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic));
        let code = error.code().unwrap_or_default();
        // 25006: read-only. 57P: server shutdown or startup. 26000, 42P05: the prepared statements
        // are those of another session.
        // 0A000: a migration invalidated a cached plan.
        let codes = ["08", "57P", "25006", "26000", "42P05", "0A000"];
        return is_fatal || codes.iter().any(|class| code.starts_with(class));
    }
    matches!(
        error,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed
    )
}

/// Returns whether a failed connection attempt may succeed later: the server is unreachable,
/// overloaded, starting or not promoted yet.
pub(super) fn is_transient(error: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(error) = error {
        let code = error.code().unwrap_or_default();
        let codes = ["08", "53", "57P", "25006"];
        return codes.iter().any(|class| code.starts_with(class));
    }
    matches!(error, sqlx::Error::Io(_) | sqlx::Error::Protocol(_))
}

/// Returns the error of a statement that exceeded its deadline.
pub(super) fn timeout_error(limit: Duration) -> sqlx::Error {
    let text = format!("PostgreSQL did not answer within {} ms", limit.as_millis());
    sqlx::Error::Io(std::io::Error::new(ErrorKind::TimedOut, text))
}
