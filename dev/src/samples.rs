//! What the actor and document services share: the token verifier, and one table of JSON documents.

use std::path::PathBuf;
use std::sync::Arc;

use postern_core::Clock;
use postern_core::problem::{Code, Problem};
use postern_core::token::Verifier;
use postern_store::database::Sqlite;
use serde_json::Value;

const INSERT: &str = "INSERT INTO sample (kind, id, owner, content, created_at) \
     VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (kind, id) DO NOTHING";
const DELETE: &str = "DELETE FROM sample WHERE kind = ?1 AND id = ?2";
const SELECT: &str = "SELECT owner, content FROM sample WHERE kind = ?1 AND id = ?2";
const SELECT_ALL: &str =
    "SELECT owner, content FROM sample WHERE kind = ?1 ORDER BY created_at DESC, id DESC";

/// The dependencies of both services.
#[derive(Debug)]
pub(crate) struct Samples {
    pub(crate) verifier: Arc<Verifier>,
    pub(crate) sqlite: Sqlite,
    /// The folder of uploaded files.
    pub(crate) folder: PathBuf,
    pub(crate) clock: Clock,
}

#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// The subject that has created it.
    pub(crate) owner: String,
    pub(crate) content: Value,
}

// === impl Samples ===

impl Samples {
    /// Stores a document. Returns false if there is one with this id.
    pub(crate) async fn insert(
        &self,
        kind: &str,
        id: &str,
        owner: &str,
        content: &Value,
    ) -> Result<bool, Problem> {
        let insert = sqlx::query(INSERT).bind(kind).bind(id).bind(owner);
        let insert = insert.bind(content.to_string()).bind(self.clock.now().0);
        let done = insert.execute(&self.sqlite.writer).await;
        Ok(done.map_err(store_problem)?.rows_affected() == 1)
    }

    pub(crate) async fn delete(&self, kind: &str, id: &str) -> Result<(), Problem> {
        let delete = sqlx::query(DELETE).bind(kind).bind(id);
        let done = delete.execute(&self.sqlite.writer).await;
        done.map(drop).map_err(store_problem)
    }

    pub(crate) async fn get(&self, kind: &str, id: &str) -> Result<Option<Sample>, Problem> {
        let select = sqlx::query_as(SELECT).bind(kind).bind(id);
        let found = select.fetch_optional(&self.sqlite.readers).await;
        Ok(found.map_err(store_problem)?.and_then(read))
    }

    pub(crate) async fn all(&self, kind: &str) -> Result<Vec<Sample>, Problem> {
        let select = sqlx::query_as(SELECT_ALL).bind(kind);
        let found = select.fetch_all(&self.sqlite.readers).await;
        let found = found.map_err(store_problem)?.into_iter();
        Ok(found.filter_map(read).collect())
    }
}

fn read((owner, content): (String, String)) -> Option<Sample> {
    let content = serde_json::from_str(&content).ok()?;
    Some(Sample { owner, content })
}

/// Logs a failure of the store or of the folder of uploaded files. Returns 503 if it is unavailable,
/// otherwise 500.
#[expect(
    clippy::needless_pass_by_value,
    reason = "used as an argument of map_err"
)]
pub(crate) fn store_problem(error: sqlx::Error) -> Problem {
    tracing::error!(%error, "sample store failed");
    let code = match postern_store::database::is_unavailable(&error) {
        true => Code::Unavailable,
        false => Code::Internal,
    };
    code.into()
}
