//! The document service: resumes, streamed to disk, and job specifications.

mod job_specs;
mod upload_file;

use std::path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use multer::{Constraints, Field, Multipart, SizeLimit};
use postern_core::problem::{Code, Problem};
use postern_service::http::{Query, json};
use serde_json::{Value, json};
use uuid::Uuid;

use self::upload_file::IncomingFile;
use crate::caller::{VerifiedCaller, created};
use crate::samples::{Sample, Samples, store_problem};

const RESUME: &str = "resume";

const MAX_LISTED: usize = 200;

const MAX_UPLOAD_BYTES: u64 = 100 << 20;

const MAX_ID_BYTES: u64 = 128;

pub(crate) fn router(samples: Arc<Samples>) -> Router {
    Router::new()
        .route("/resumes", get(resumes).post(upload))
        .route("/resumes/{id}", get(resume))
        .route("/job-specs", get(job_specs::list).post(job_specs::add))
        .route("/job-specs/{id}", get(job_specs::get))
        .with_state(samples)
}

/// `POST /resumes`. The response 201 means that the file and its row are on disk.
async fn upload(
    State(samples): State<Arc<Samples>>,
    caller: VerifiedCaller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let (candidate_id, file) = receive(&samples.folder, &headers, body).await?;
    let id = Uuid::now_v7().to_string();
    let content_type = file.content_type.clone();
    let mut resume = json!({
        "resumeId": id,
        "candidateId": candidate_id,
        "fileName": upload_file::sanitize_file_name(&file.name),
        "contentType": content_type.unwrap_or_else(|| "application/octet-stream".to_owned()),
        "size": file.size,
        "createdAt": samples.clock.now(),
    });
    let persisted = file.persist(&samples.folder, &id).await;
    resume["sha256"] = persisted.map_err(folder_problem)?.into();
    let owner = caller.0.subject();
    samples.insert(RESUME, &id, owner, &resume).await?;
    Ok(created(&format!("/resumes/{id}"), &resume))
}

/// `GET /resumes/{id}` on this service: returns the metadata of an upload to its uploader and to
/// services.
async fn resume(
    State(samples): State<Arc<Samples>>,
    caller: VerifiedCaller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let found = samples.get(RESUME, &id).await?;
    match found.filter(|resume| caller.may_see(&resume.owner)) {
        Some(resume) => Ok(json(StatusCode::OK, &resume.content)),
        None => Err(Code::NotFound.into()),
    }
}

/// `GET /resumes?candidateId=…`: lists the candidate's resumes that the caller may see: its own
/// uploads; for recruiters and services, all.
async fn resumes(
    State(samples): State<Arc<Samples>>,
    caller: VerifiedCaller,
    RawQuery(text): RawQuery,
) -> Result<Response, Problem> {
    let mut query = Query::parse(text.as_deref().unwrap_or_default(), &["candidateId"]);
    let id = query.get("candidateId").unwrap_or_default().to_owned();
    if id.is_empty() {
        query.fail("candidateId", "missing_field", "is required");
    }
    query.finish()?;
    let is_wanted = |resume: &Sample| {
        resume.content["candidateId"] == *id
            && (caller.is_recruiter() || caller.may_see(&resume.owner))
    };
    let resumes = samples.all(RESUME).await?.into_iter().filter(is_wanted);
    let resumes = resumes.take(MAX_LISTED).map(|resume| resume.content);
    let resumes: Vec<Value> = resumes.collect();
    Ok(json(StatusCode::OK, &json!({ "resumes": resumes })))
}

/// Receives the whole body and writes the file to disk. Fails with 400 for all missing and surplus
/// fields, and with 422 for an empty file.
async fn receive(
    folder: &path::Path,
    headers: &HeaderMap,
    body: Body,
) -> Result<(String, IncomingFile), Problem> {
    let content_type = headers.get(CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok());
    let boundary = multer::parse_boundary(content_type.unwrap_or_default()).map_err(|_| {
        let detail = "Content-Type must be multipart/form-data with a boundary";
        Problem::new(Code::UnsupportedMediaType).detail(detail)
    })?;
    let limit = SizeLimit::new()
        .whole_stream(MAX_UPLOAD_BYTES)
        .for_field("candidateId", MAX_ID_BYTES);
    let limit = Constraints::new().size_limit(limit);
    let mut parts = Multipart::with_constraints(body.into_data_stream(), boundary, limit);
    let (mut candidate_id, mut resume) = (String::new(), None);
    let mut mistakes = Vec::new();
    while let Some(field) = parts.next_field().await.map_err(body_error)? {
        match field.name().unwrap_or_default() {
            "candidateId" if candidate_id.is_empty() => {
                candidate_id = field.text().await.map_err(body_error)?;
            }
            "resume" if resume.is_none() => resume = Some(receive_file(folder, field).await?),
            other => {
                let pointer = format!("/{}", other.replace('~', "~0").replace('/', "~1"));
                mistakes.push((pointer, "unknown_field", "is not a field, or is repeated"));
            }
        }
    }
    for (name, is_absent) in [
        ("/candidateId", candidate_id.is_empty()),
        ("/resume", resume.is_none()),
    ] {
        if is_absent {
            mistakes.push((name.to_owned(), "missing_field", "is required"));
        }
    }
    match resume {
        Some(file) if mistakes.is_empty() && file.size > 0 => Ok((candidate_id, file)),
        Some(_) if mistakes.is_empty() => {
            let problem = Problem::new(Code::ValidationFailed);
            Err(problem.error("/resume", "empty_file", "the file is empty"))
        }
        Some(_) | None => {
            let problem = Problem::new(Code::InvalidRequest);
            let add = |problem: Problem, (pointer, code, detail): (String, _, _)| {
                problem.error(&pointer, code, detail)
            };
            Err(mistakes.into_iter().fold(problem, add))
        }
    }
}

async fn receive_file(folder: &path::Path, mut field: Field<'_>) -> Result<IncomingFile, Problem> {
    let name = field.file_name().unwrap_or_default().to_owned();
    let content_type = field.content_type().map(ToString::to_string);
    let created = IncomingFile::create(folder, name, content_type);
    let mut file = created.map_err(folder_problem)?;
    while let Some(bytes) = field.chunk().await.map_err(body_error)? {
        file.write(&bytes).await.map_err(folder_problem)?;
    }
    Ok(file)
}

fn folder_problem(error: std::io::Error) -> Problem {
    store_problem(error.into())
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "used as an argument of map_err"
)]
fn body_error(error: multer::Error) -> Problem {
    let is_too_large = matches!(
        error,
        multer::Error::StreamSizeExceeded { .. } | multer::Error::FieldSizeExceeded { .. }
    );
    if is_too_large {
        return Problem::new(Code::BodyTooLarge).detail(error.to_string());
    }
    Problem::new(Code::InvalidRequest)
        .detail("The body is not well-formed form data.")
        .error("", "invalid_multipart", error.to_string())
}

#[cfg(test)]
mod tests;
