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

/// A stored document.
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
    ) -> Result<bool, StoreError> {
        let insert = sqlx::query(INSERT).bind(kind).bind(id).bind(owner);
        let insert = insert.bind(content.to_string()).bind(self.clock.now().0);
        let done = insert.execute(&self.sqlite.writer).await?;
        Ok(done.rows_affected() == 1)
    }

    pub(crate) async fn delete(&self, kind: &str, id: &str) -> Result<(), StoreError> {
        let delete = sqlx::query(DELETE).bind(kind).bind(id);
        delete.execute(&self.sqlite.writer).await?;
        Ok(())
    }

    pub(crate) async fn get(&self, kind: &str, id: &str) -> Result<Option<Sample>, StoreError> {
        let select = sqlx::query_as(SELECT).bind(kind).bind(id);
        let found = select.fetch_optional(&self.sqlite.readers).await?;
        Ok(found.and_then(read))
    }

    /// Returns all documents of a kind, newest first.
    pub(crate) async fn all(&self, kind: &str) -> Result<Vec<Sample>, StoreError> {
        let select = sqlx::query_as(SELECT_ALL).bind(kind);
        let found = select.fetch_all(&self.sqlite.readers).await?;
        Ok(found.into_iter().filter_map(read).collect())
    }
}

fn read((owner, content): (String, String)) -> Option<Sample> {
    let content = serde_json::from_str(&content).ok()?;
    Some(Sample { owner, content })
}

/// A store or folder that fails, which has been logged: 503 if it is unavailable, otherwise 500.
#[derive(Debug)]
pub(crate) struct StoreError(Code);

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        tracing::error!(%error, "sample store failed");
        Self(match postern_store::database::is_unavailable(&error) {
            true => Code::Unavailable,
            false => Code::Internal,
        })
    }
}

impl From<std::io::Error> for StoreError {
    fn from(error: std::io::Error) -> Self {
        tracing::error!(%error, "document folder access failed");
        Self(Code::Unavailable)
    }
}

impl From<StoreError> for Problem {
    fn from(StoreError(code): StoreError) -> Self {
        code.into()
    }
}
