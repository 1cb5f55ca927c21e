//! Summaries of SQL statements, such as `INSERT auth_audit`, for the names of spans.
//!
//! A summary has the operations and the tables of a statement in their order, as the OpenTelemetry
//! semantic conventions for databases describe it. It has nothing else of the statement: no value,
//! no column, no function.

/// Maximum length of a summary, from the conventions.
const MAX_SUMMARY_BYTES: usize = 255;

/// Words after `UPDATE` that are no table: `FOR UPDATE SKIP LOCKED`, `DO UPDATE SET`.
const NO_TABLES: [&str; 6] = ["SET", "SKIP", "NOWAIT", "OF", "SELECT", "LATERAL"];

/// The operations and tables of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StatementSummary<'a> {
    /// Operation and table, each pair once.
    parts: Vec<(&'static str, Option<&'a str>)>,
}

/// A word or a punctuation character of a statement.
#[derive(Clone, Copy, Debug)]
enum Token<'a> {
    Word(&'a str),
    Other(char),
}

// === impl StatementSummary ===

impl<'a> StatementSummary<'a> {
    /// Summarizes a statement. Common table expressions and functions are no tables.
    pub(super) fn of(sql: &'a str) -> Self {
        let tokens = tokens(sql);
        let expressions = common_table_expressions(&tokens);
        let is_table = |at: usize| match (tokens.get(at), tokens.get(at + 1)) {
            (Some(Token::Word(_)), Some(Token::Other('('))) => None,
            (Some(Token::Word(word)), _) if NO_TABLES.iter().any(|no| is(word, no)) => None,
            (Some(Token::Word(word)), _) => Some(*word).filter(|word| !expressions.contains(word)),
            _ => None,
        };
        let mut summary = Self { parts: Vec::new() };
        let mut operation = None;
        for (at, token) in tokens.iter().enumerate() {
            let Token::Word(word) = token else { continue };
            let table = match *word {
                word if is(word, "SELECT") => {
                    operation = Some("SELECT");
                    continue;
                }
                word if is(word, "INSERT") => {
                    operation = Some("INSERT");
                    continue;
                }
                word if is(word, "DELETE") => {
                    operation = Some("DELETE");
                    continue;
                }
                // `INSERT INTO notify_key (creator, …)` is followed by columns.
                word if is(word, "INTO") => match tokens.get(at + 1) {
                    Some(Token::Word(table)) => Some(*table),
                    _ => None,
                },
                word if is(word, "UPDATE") => {
                    let table = is_table(at + 1);
                    if table.is_some() {
                        operation = Some("UPDATE");
                    }
                    table
                }
                word if is(word, "FROM") || is(word, "JOIN") => {
                    let table = is_table(at + 1);
                    if operation != Some("SELECT") && operation != Some("DELETE") {
                        // `UPDATE a SET … FROM b` reads b.
                        operation = Some("SELECT");
                    }
                    table
                }
                _ => continue,
            };
            if let (Some(operation), Some(table)) = (operation, table) {
                summary.add(operation, Some(table));
            }
            if operation == Some("DELETE") {
                // What else a DELETE names is read.
                operation = Some("SELECT");
            }
        }
        if summary.parts.is_empty()
            && let Some(Token::Word(first)) = tokens.first()
        {
            summary.add(statement_name(first), None);
        }
        summary
    }

    fn add(&mut self, operation: &'static str, table: Option<&'a str>) {
        if !self.parts.contains(&(operation, table)) {
            self.parts.push((operation, table));
        }
    }

    /// Returns the text, such as `DELETE notify_queue INSERT notify_result`.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (operation, table) in &self.parts {
            let length = operation.len() + table.map_or(0, |table| 1 + table.len());
            if text.len() + 1 + length > MAX_SUMMARY_BYTES {
                break;
            }
            for word in std::iter::once(*operation).chain(*table) {
                if !text.is_empty() {
                    text.push(' ');
                }
                text.push_str(word);
            }
        }
        text
    }

    /// Returns the operation, if the statement has only one.
    pub(super) fn operation(&self) -> Option<&'static str> {
        let (first, ..) = self.parts.first()?;
        let is_only = self.parts.iter().all(|(operation, _)| operation == first);
        is_only.then_some(*first)
    }

    /// Returns the table, if the statement has only one.
    pub(super) fn table(&self) -> Option<&'a str> {
        let (_, first) = *self.parts.first()?;
        let is_only = self.parts.iter().all(|(_, table)| *table == first);
        first.filter(|_| is_only)
    }
}

/// Returns the name of a statement without tables.
fn statement_name(word: &str) -> &'static str {
    let known = ["SELECT", "BEGIN", "COMMIT", "ROLLBACK", "SET", "PRAGMA"];
    let known = known.into_iter().find(|name| is(word, name));
    known.unwrap_or("_OTHER")
}

fn is(word: &str, keyword: &str) -> bool {
    word.eq_ignore_ascii_case(keyword)
}

/// Returns the words and punctuation of a statement, without comments and literals.
fn tokens(sql: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = sql;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '-' if rest.starts_with("--") => rest.find('\n').unwrap_or(rest.len()),
            // A doubled quote begins a second literal, which is left out as well.
            '\'' => rest[1..].find('\'').map_or(rest.len(), |end| end + 2),
            first if is_word(first) => rest
                .find(|character| !is_word(character))
                .unwrap_or(rest.len()),
            first => first.len_utf8(),
        };
        let (token, after) = rest.split_at(end);
        match first {
            '-' | '\'' => {}
            first if first.is_whitespace() => {}
            first if first.is_alphabetic() || first == '_' => tokens.push(Token::Word(token)),
            first => tokens.push(Token::Other(first)),
        }
        rest = after;
    }
    tokens
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '_' | '.' | '$')
}

/// Returns the names in `WITH name AS (…)` and `, name AS MATERIALIZED (…)`.
fn common_table_expressions<'a>(tokens: &[Token<'a>]) -> Vec<&'a str> {
    let word = |at: usize| match tokens.get(at) {
        Some(Token::Word(word)) => Some(*word),
        _ => None,
    };
    let mut names = Vec::new();
    for at in 1..tokens.len() {
        let (Some(name), Some(keyword)) = (word(at - 1), word(at)) else {
            continue;
        };
        let mut next = at + 1;
        while word(next).is_some_and(|word| is(word, "NOT") || is(word, "MATERIALIZED")) {
            next += 1;
        }
        if is(keyword, "AS") && matches!(tokens.get(next), Some(Token::Other('('))) {
            names.push(name);
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_operations_and_tables_in_order() {
        for (sql, text, operation, table) in [
            ("SELECT 1", "SELECT", Some("SELECT"), None),
            ("BEGIN IMMEDIATE", "BEGIN", Some("BEGIN"), None),
            ("VACUUM main", "_OTHER", Some("_OTHER"), None),
            (
                "select a, 'x FROM secret' from notes n where n.a = $1 -- FROM comment",
                "SELECT notes",
                Some("SELECT"),
                Some("notes"),
            ),
            (
                "INSERT OR REPLACE INTO notes (a) SELECT value ->> 0 FROM json_each(?1)",
                "INSERT notes",
                Some("INSERT"),
                Some("notes"),
            ),
            (
                "INSERT INTO notes (a) VALUES ($1) ON CONFLICT (a) DO UPDATE SET a = excluded.a",
                "INSERT notes",
                Some("INSERT"),
                Some("notes"),
            ),
            (
                "DELETE FROM notes WHERE id IN (SELECT id FROM old JOIN older USING (id))",
                "DELETE notes SELECT old SELECT older",
                None,
                None,
            ),
            (
                "UPDATE notes n SET a = 1 FROM unnest($1) AS i(id) WHERE n.id = i.id RETURNING n.a",
                "UPDATE notes",
                Some("UPDATE"),
                Some("notes"),
            ),
            (
                "WITH picked AS MATERIALIZED (SELECT id FROM queue FOR UPDATE SKIP LOCKED), \
                 claimed AS (UPDATE queue SET worker = $1 WHERE id = ANY(ARRAY(SELECT id FROM picked))) \
                 SELECT extract(epoch FROM clock_timestamp()) FROM claimed c CROSS JOIN LATERAL \
                 (SELECT * FROM record WHERE id = c.id) r",
                "SELECT queue UPDATE queue SELECT record",
                None,
                None,
            ),
        ] {
            let summary = StatementSummary::of(sql);
            let found = (summary.text(), summary.operation(), summary.table());
            assert_eq!(found, (text.to_owned(), operation, table), "{sql}");
        }
    }

    #[test]
    fn long_summary_ends_after_a_whole_part() {
        let table = "t".repeat(100);
        let sql: String = (0..5)
            .map(|number| format!("SELECT 1 FROM {table}{number} UNION "))
            .collect();
        let text = StatementSummary::of(&sql).text();
        assert_eq!(text, format!("SELECT {table}0 SELECT {table}1"));
    }
}
