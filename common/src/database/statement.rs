//! Client spans of statements. They have operations and tables, and no value.

use std::borrow::Cow;
use std::io::ErrorKind;

use sqlx::error::BoxDynError;
use sqlx::{Database, Error, Execute, SqlStr};

use super::summary::StatementSummary;
use crate::trace::{ActiveSpan, KeyValue, Scope, SpanKind, set_server};

/// The database of a statement, for the attributes of its span.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanTarget<'a> {
    /// `db.system.name`: `postgresql` or `sqlite`.
    pub(super) system: &'static str,
    /// `db.namespace`: the name of the database on its server.
    pub(super) namespace: Option<&'a str>,
    /// Host and port, if there is only one.
    pub(super) server: Option<(&'a str, u16)>,
}

/// A query whose text can be read before it is executed.
pub(super) struct ReadableQuery<DB: Database> {
    sql: SqlStr,
    statement: Option<DB::Statement>,
    arguments: Option<Result<Option<DB::Arguments>, BoxDynError>>,
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
        describe(&mut span, target, &StatementSummary::of(sql.as_str()));
        Some((scope, StatementSpan(Some(span))))
    });
    let Some((scope, mut span)) = child else {
        return statement.await;
    };
    let result = scope.run(statement).await;
    span.finish(result.as_ref().err());
    result
}

fn describe(span: &mut ActiveSpan, target: SpanTarget<'_>, summary: &StatementSummary<'_>) {
    let text = summary.text();
    span.rename(text.clone());
    span.set(KeyValue::new("db.system.name", target.system));
    span.set(KeyValue::new("db.query.summary", text));
    if let Some(operation) = summary.operation() {
        span.set(KeyValue::new("db.operation.name", operation));
    }
    if let Some(table) = summary.table() {
        span.set(KeyValue::new("db.collection.name", table.to_owned()));
    }
    if let Some(name) = target.namespace {
        span.set(KeyValue::new("db.namespace", name.to_owned()));
    }
    if let Some((host, port)) = target.server {
        set_server(span, host, Some(port));
    }
}

/// Returns the code that the database answered with: SQLSTATE, or the extended result code of
/// SQLite.
fn status_code(error: &Error) -> Option<Cow<'_, str>> {
    error.as_database_error()?.code()
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
        match status_code(error) {
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

impl<DB: Database> ReadableQuery<DB> {
    pub(super) fn new<'q>(mut query: impl Execute<'q, DB>) -> Self {
        Self {
            statement: query.statement().cloned(),
            arguments: Some(query.take_arguments()),
            is_persistent: query.persistent(),
            sql: query.sql(),
        }
    }

    /// Returns the text for a span, or `None` if the trace of the current scope is not sampled.
    pub(super) fn recorded_text(&self) -> Option<SqlStr> {
        Scope::is_current_recorded().then(|| self.sql.clone())
    }
}

impl<DB: Database> Execute<'_, DB> for ReadableQuery<DB> {
    fn sql(self) -> SqlStr {
        self.sql
    }

    fn statement(&self) -> Option<&DB::Statement> {
        self.statement.as_ref()
    }

    fn take_arguments(&mut self) -> Result<Option<DB::Arguments>, BoxDynError> {
        self.arguments.take().unwrap_or(Ok(None))
    }

    fn persistent(&self) -> bool {
        self.is_persistent
    }
}
