//! `/job-specs`: job specifications, which recruiters and services add and everyone reads.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use postern_core::problem::{Code, Problem};
use postern_service::http::{Json, json};
use serde_json::{Value, json};
use uuid::Uuid;

use super::DocumentService;
use crate::caller::{StoreError, VerifiedCaller, created};

/// `POST /job-specs`.
pub(super) async fn add(
    State(service): State<Arc<DocumentService>>,
    caller: VerifiedCaller,
    body: Json,
) -> Result<Response, Problem> {
    caller.recruiter()?;
    let id = Uuid::now_v7().to_string();
    let spec = body.read(|object| {
        let title = object.required("title", |field| field.text(1..=200));
        let text = object.required("description", |field| {
            field.sized(1..=20_000).map(str::to_owned)
        });
        let at = service.clock.now();
        Some(json!({ "jobSpecId": id, "title": title?, "description": text?, "createdAt": at }))
    })?;
    let insert = sqlx::query("INSERT INTO job_spec (job_spec_id, content) VALUES (?1, ?2)");
    let insert = insert.bind(&id).bind(spec.to_string());
    let stored = insert.execute(&service.sqlite.writer).await;
    stored.map_err(StoreError::from)?;
    Ok(created(&format!("/job-specs/{id}"), &spec))
}

/// `GET /job-specs`: lists the newest 200.
pub(super) async fn list(
    State(service): State<Arc<DocumentService>>,
    _caller: VerifiedCaller,
) -> Result<Response, Problem> {
    let newest = "SELECT content FROM job_spec ORDER BY job_spec_id DESC LIMIT 200";
    let query = sqlx::query_scalar(newest);
    let found: Result<Vec<String>, _> = query.fetch_all(&service.sqlite.readers).await;
    let found = found.map_err(StoreError::from)?;
    let specs: Vec<Value> = found.iter().filter_map(|text| read(text)).collect();
    Ok(json(StatusCode::OK, &json!({ "jobSpecs": specs })))
}

/// `GET /job-specs/{id}`.
pub(super) async fn get(
    State(service): State<Arc<DocumentService>>,
    _caller: VerifiedCaller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let query = sqlx::query_scalar("SELECT content FROM job_spec WHERE job_spec_id = ?1");
    let query = query.bind(id).fetch_optional(&service.sqlite.readers);
    let found: Option<String> = query.await.map_err(StoreError::from)?;
    let spec = found.as_deref().and_then(read).ok_or(Code::NotFound)?;
    Ok(json(StatusCode::OK, &spec))
}

fn read(content: &str) -> Option<Value> {
    serde_json::from_str(content).ok()
}
