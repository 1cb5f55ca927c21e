//! Names of statements of PostgreSQL: an operation and a table, and no value.

use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgStatement};
use sqlx::{Execute, Postgres, SqlStr};

/// A query whose text can be read before it is executed.
pub(super) struct ReadableQuery {
    sql: SqlStr,
    statement: Option<PgStatement>,
    arguments: Option<Result<Option<PgArguments>, BoxDynError>>,
    is_persistent: bool,
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

impl ReadableQuery {
    pub(super) fn new<'q>(mut query: impl Execute<'q, Postgres>) -> Self {
        Self {
            statement: query.statement().cloned(),
            arguments: Some(query.take_arguments()),
            is_persistent: query.persistent(),
            sql: query.sql(),
        }
    }

    pub(super) fn text(&self) -> SqlStr {
        self.sql.clone()
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
