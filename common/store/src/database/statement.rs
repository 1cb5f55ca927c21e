//! Client spans of statements of PostgreSQL. They have an operation and a table, and no value.

use std::io::ErrorKind;

use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgStatement};
use sqlx::{Error, Execute, Postgres, SqlStr};

use postern_core::trace::{ActiveSpan, KeyValue, Scope, SpanKind, set_server};

/// The database of a statement, for the attributes of its span.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanTarget<'a> {
    /// `db.namespace`: the name of the database on its server.
    pub(super) namespace: Option<&'a str>,
    /// Host and port, if there is only one.
    pub(super) server: Option<(&'a str, u16)>,
}

/// A query whose text can be read before it is executed.
pub(super) struct ReadableQuery {
    sql: SqlStr,
    statement: Option<PgStatement>,
    arguments: Option<Result<Option<PgArguments>, BoxDynError>>,
    is_persistent: bool,
}

/// The span of a statement in progress. A statement that is cancelled, for example because its
/// request has no time left, has failed.
struct StatementSpan(Option<ActiveSpan>);

/// Executes a statement within a client span, if the trace of the current scope is sampled. The
/// span includes the wait for a connection.
pub(super) async fn in_span<T>(
    target: SpanTarget<'_>,
    sql: Option<SqlStr>,
    statement: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let child = sql.and_then(|sql| {
        let (scope, mut span) = Scope::current()?.child("SQL", SpanKind::Client)?;
        describe(&mut span, target, summary(sql.as_str()));
        Some((scope, StatementSpan(Some(span))))
    });
    let Some((scope, mut span)) = child else {
        return statement.await;
    };
    let result = scope.run(statement).await;
    span.finish(result.as_ref().err());
    result
}

fn describe(span: &mut ActiveSpan, target: SpanTarget<'_>, summary: String) {
    span.rename(summary.clone());
    span.set(KeyValue::new("db.system.name", "postgresql"));
    span.set(KeyValue::new("db.query.summary", summary));
    if let Some(name) = target.namespace {
        span.set(KeyValue::new("db.namespace", name.to_owned()));
    }
    if let Some((host, port)) = target.server {
        set_server(span, host, Some(port));
    }
}

/// Returns the operation and the table of a statement, such as `INSERT auth_audit`. If it has
/// several, as with common table expressions, these are the first ones that change something.
/// Expects keywords in upper case.
pub(super) fn summary(sql: &str) -> String {
    let words: Vec<&str> = sql
        .split_whitespace()
        .map(|word| word.trim_start_matches('('))
        .collect();
    let table_after = |at: usize| {
        let word = words.get(at + 1)?.trim_end_matches([')', ',', ';']);
        let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
        (word.chars().all(is_name) && word != "SELECT").then_some(word)
    };
    let change = |at: usize| match words[at] {
        "INTO" => Some(("INSERT", table_after(at)?)),
        "DELETE" => Some(("DELETE", table_after(at + 1)?)),
        // Not the end of `SELECT … FOR UPDATE`, nor `ON CONFLICT … DO UPDATE`.
        "UPDATE" if at == 0 || !matches!(words[at - 1], "FOR" | "DO") => {
            Some(("UPDATE", table_after(at)?))
        }
        _ => None,
    };
    let read = |at: usize| (words[at] == "FROM").then(|| table_after(at))?;
    let table = (0..words.len()).find_map(change).or_else(|| {
        let table = (0..words.len()).find_map(read)?;
        Some(("SELECT", table))
    });
    match (table, words.first()) {
        (Some((operation, table)), _) => format!("{operation} {table}"),
        (None, Some(&"WITH")) => "SELECT".to_owned(),
        (None, first) => first.copied().unwrap_or_default().to_owned(),
    }
}

/// Returns the class of an error without a code.
fn error_type(error: &Error) -> &'static str {
    let is_late = matches!(error, Error::Io(error) if error.kind() == ErrorKind::TimedOut);
    if is_late || matches!(error, Error::PoolTimedOut) {
        "timeout"
    } else if matches!(error, Error::Io(_) | Error::Tls(_) | Error::PoolClosed) {
        "connect"
    } else {
        "_OTHER"
    }
}

// === impl StatementSpan ===

impl StatementSpan {
    fn finish(&mut self, error: Option<&Error>) {
        let Some(mut span) = self.0.take() else {
            return;
        };
        // A statement without the expected row was executed.
        let Some(error) = error.filter(|error| !matches!(error, Error::RowNotFound)) else {
            return;
        };
        match error.as_database_error().and_then(|error| error.code()) {
            Some(code) => {
                let code = code.into_owned();
                span.set(KeyValue::new("db.response.status_code", code.clone()));
                span.fail(code);
            }
            None => span.fail(error_type(error)),
        }
    }
}

impl Drop for StatementSpan {
    fn drop(&mut self) {
        if let Some(span) = &mut self.0 {
            span.fail("cancelled");
        }
    }
}

// === impl ReadableQuery ===

impl ReadableQuery {
    pub(super) fn new<'q>(mut query: impl Execute<'q, Postgres>) -> Self {
        Self {
            statement: query.statement().cloned(),
            arguments: Some(query.take_arguments()),
            is_persistent: query.persistent(),
            sql: query.sql(),
        }
    }

    /// Returns the text.
    pub(super) fn text(&self) -> SqlStr {
        self.sql.clone()
    }

    /// Returns the text for a span, or `None` if the trace of the current scope is not sampled.
    pub(super) fn recorded_text(&self) -> Option<SqlStr> {
        Scope::is_current_recorded().then(|| self.text())
    }
}

impl Execute<'_, Postgres> for ReadableQuery {
    fn sql(self) -> SqlStr {
        self.sql
    }

    fn statement(&self) -> Option<&PgStatement> {
        self.statement.as_ref()
    }

    fn take_arguments(&mut self) -> Result<Option<PgArguments>, BoxDynError> {
        self.arguments.take().unwrap_or(Ok(None))
    }

    fn persistent(&self) -> bool {
        self.is_persistent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_operation_and_table() {
        for (sql, expected) in [
            ("SELECT 1", "SELECT"),
            ("SELECT a FROM notes n WHERE n.a = $1", "SELECT notes"),
            (
                "SELECT extract(epoch FROM clock_timestamp()) FROM (SELECT 1 FROM notes)",
                "SELECT notes",
            ),
            (
                "INSERT INTO notes (a) VALUES ($1) ON CONFLICT (a) DO UPDATE SET a = excluded.a",
                "INSERT notes",
            ),
            (
                "DELETE FROM notes WHERE id IN (SELECT id FROM old JOIN older USING (id))",
                "DELETE notes",
            ),
            (
                "UPDATE notes n SET a = 1 FROM unnest($1) AS i(id) WHERE n.id = i.id",
                "UPDATE notes",
            ),
            (
                "WITH picked AS MATERIALIZED (SELECT id FROM record FOR UPDATE SKIP LOCKED), \
                 claimed AS (UPDATE queue SET worker = $1 WHERE id = ANY(ARRAY(SELECT id FROM picked))) \
                 SELECT * FROM claimed",
                "UPDATE queue",
            ),
            (
                "WITH clock AS (SELECT 1) SELECT now() FROM clock",
                "SELECT clock",
            ),
        ] {
            assert_eq!(summary(sql), expected, "{sql}");
        }
    }
}
