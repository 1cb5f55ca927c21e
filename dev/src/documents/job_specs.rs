//! `/job-specs`: job specifications, which recruiters and services add and everyone reads.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::response::Response;
use http::StatusCode;
use postern_core::problem::{Code, Problem};
use postern_service::http::{Json, json};
use serde_json::{Value, json};
use uuid::Uuid;

use super::MAX_LISTED;
use crate::caller::{VerifiedCaller, created};
use crate::samples::Samples;

const JOB_SPEC: &str = "job-spec";

pub(super) async fn add(
    State(samples): State<Arc<Samples>>,
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
        let at = samples.clock.now();
        Some(json!({ "jobSpecId": id, "title": title?, "description": text?, "createdAt": at }))
    })?;
    let owner = caller.0.subject();
    samples.insert(JOB_SPEC, &id, owner, &spec).await?;
    Ok(created(&format!("/job-specs/{id}"), &spec))
}

/// `GET /job-specs`: lists the newest 200.
pub(super) async fn list(
    State(samples): State<Arc<Samples>>,
    _caller: VerifiedCaller,
) -> Result<Response, Problem> {
    let specs = samples.all(JOB_SPEC).await?.into_iter().take(MAX_LISTED);
    let specs: Vec<Value> = specs.map(|spec| spec.content).collect();
    Ok(json(StatusCode::OK, &json!({ "jobSpecs": specs })))
}

pub(super) async fn get(
    State(samples): State<Arc<Samples>>,
    _caller: VerifiedCaller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let spec = samples.get(JOB_SPEC, &id).await?.ok_or(Code::NotFound)?;
    Ok(json(StatusCode::OK, &spec.content))
}
