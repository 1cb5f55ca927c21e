//! SQL of the sample document service.

use postern_core::clock::Timestamp;
use postern_store::database::Sqlite;
use serde::Serialize;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::caller::StoreError;

/// The metadata of an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResumeMetadata {
    pub(super) resume_id: String,
    pub(super) candidate_id: String,
    #[serde(skip)]
    pub(super) uploaded_by: String,
    pub(super) file_name: String,
    pub(super) content_type: String,
    pub(super) size: u64,
    /// Lower-case hexadecimal.
    pub(super) sha256: String,
    pub(super) created_at: Timestamp,
}

#[derive(Debug)]
pub(super) struct ResumeStore(Sqlite);

// === impl ResumeStore ===

impl ResumeStore {
    pub(super) fn new(sqlite: Sqlite) -> Self {
        Self(sqlite)
    }

    pub(super) async fn insert(&self, resume: &ResumeMetadata) -> Result<(), StoreError> {
        let ResumeMetadata {
            resume_id,
            candidate_id,
            uploaded_by,
            file_name,
            content_type,
            size,
            sha256,
            created_at,
        } = resume;
        sqlx::query(
            "INSERT INTO resume (resume_id, candidate_id, uploaded_by, file_name, content_type, size, sha256,
                                 created_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )
        .bind(resume_id)
        .bind(candidate_id)
        .bind(uploaded_by)
        .bind(file_name)
        .bind(content_type)
        .bind(i64::try_from(*size).unwrap_or(i64::MAX))
        .bind(sha256)
        .bind(created_at.0)
        .execute(&self.0.writer)
        .await?;
        Ok(())
    }

    pub(super) async fn get(&self, resume_id: &str) -> Result<Option<ResumeMetadata>, StoreError> {
        let row = sqlx::query("SELECT * FROM resume WHERE resume_id = ?1")
            .bind(resume_id)
            .fetch_optional(&self.0.readers)
            .await?;
        row.as_ref().map(read).transpose()
    }

    /// Returns the candidate's newest 200 uploads.
    pub(super) async fn of_candidate(&self, id: &str) -> Result<Vec<ResumeMetadata>, StoreError> {
        let rows = sqlx::query(
            "SELECT * FROM resume WHERE candidate_id = ?1 ORDER BY created_at DESC LIMIT 200",
        )
        .bind(id)
        .fetch_all(&self.0.readers)
        .await?;
        rows.iter().map(read).collect()
    }
}

fn read(row: &SqliteRow) -> Result<ResumeMetadata, StoreError> {
    Ok(ResumeMetadata {
        resume_id: row.try_get("resume_id")?,
        candidate_id: row.try_get("candidate_id")?,
        uploaded_by: row.try_get("uploaded_by")?,
        file_name: row.try_get("file_name")?,
        content_type: row.try_get("content_type")?,
        size: u64::try_from(row.try_get::<i64, _>("size")?).unwrap_or(0),
        sha256: row.try_get("sha256")?,
        created_at: Timestamp(row.try_get("created_at")?),
    })
}
