//! The document service: resumes, streamed to disk, and job specifications.

mod job_specs;
mod store;
mod upload_file;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use multer::{Constraints, Field, Multipart, SizeLimit};
use postern_core::Clock;
use postern_core::problem::{Code, Problem};
use postern_core::token::Verifier;
use postern_service::http::{Query, json};
use postern_store::database::Sqlite;
use serde_json::json;
use uuid::Uuid;

use self::store::{ResumeMetadata, ResumeStore};
use self::upload_file::IncomingFile;
use crate::caller::{ProvidesVerifier, StoreError, VerifiedCaller, created};

/// Maximum size of a request body in bytes.
const MAX_UPLOAD_BYTES: u64 = 100 << 20;

/// Maximum number of bytes of a text field that are buffered.
const MAX_TEXT_BYTES: usize = 256;

/// The dependencies of the service.
#[derive(Debug)]
pub(crate) struct DocumentService {
    verifier: Arc<Verifier>,
    sqlite: Sqlite,
    store: ResumeStore,
    folder: PathBuf,
    clock: Clock,
}

/// A form that is being received.
#[derive(Debug, Default)]
struct UploadForm {
    candidate_id: Option<Vec<u8>>,
    resume: Option<(PartHead, IncomingFile)>,
    problems: Vec<(String, &'static str, String)>,
}

/// What the client says about the file.
#[derive(Debug)]
struct PartHead {
    file_name: String,
    content_type: Option<String>,
}

impl DocumentService {
    /// Creates the service and deletes incomplete uploads from `folder`.
    pub(crate) fn new(
        verifier: Arc<Verifier>,
        sqlite: Sqlite,
        folder: PathBuf,
        clock: Clock,
    ) -> std::io::Result<Arc<Self>> {
        upload_file::delete_incomplete(&folder)?;
        Ok(Arc::new(Self {
            verifier,
            store: ResumeStore::new(sqlite.clone()),
            sqlite,
            folder,
            clock,
        }))
    }
}

impl ProvidesVerifier for DocumentService {
    fn verifier(&self) -> &Verifier {
        &self.verifier
    }
}

/// Builds the router of the service.
pub(crate) fn router(service: Arc<DocumentService>) -> Router {
    Router::new()
        .route("/resumes", get(resumes).post(upload))
        .route("/resumes/{id}", get(resume))
        .route("/job-specs", get(job_specs::list).post(job_specs::add))
        .route("/job-specs/{id}", get(job_specs::get))
        .with_state(service)
}

/// `POST /resumes`. The response 201 means that the file and its row are on disk.
async fn upload(
    State(service): State<Arc<DocumentService>>,
    caller: VerifiedCaller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok());
    let boundary = multer::parse_boundary(content_type.unwrap_or_default()).map_err(|_| {
        let detail = "Content-Type must be multipart/form-data with a boundary";
        Problem::new(Code::UnsupportedMediaType).detail(detail)
    })?;
    let limit = SizeLimit::new().whole_stream(MAX_UPLOAD_BYTES);
    let limit = Constraints::new().size_limit(limit);
    let parts = Multipart::with_constraints(body.into_data_stream(), boundary, limit);
    let id = Uuid::now_v7().to_string();
    let form = receive_form(&service, &id, parts).await?;
    let (candidate_id, head, file) = form.validate()?;
    let (size, created_at) = (file.size, service.clock.now());
    let persisted = file.persist(&service.folder, &id).await;
    let resume = ResumeMetadata {
        resume_id: id,
        candidate_id,
        uploaded_by: caller.0.subject().to_owned(),
        file_name: upload_file::sanitize_file_name(&head.file_name),
        content_type: head
            .content_type
            .unwrap_or_else(|| "application/octet-stream".to_owned()),
        size,
        sha256: persisted.map_err(StoreError::from)?,
        created_at,
    };
    service.store.insert(&resume).await?;
    Ok(created(&format!("/resumes/{}", resume.resume_id), &resume))
}

/// `GET /resumes/{id}` on this service: returns the metadata of an upload to its uploader and to
/// services.
async fn resume(
    State(service): State<Arc<DocumentService>>,
    caller: VerifiedCaller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let found = service.store.get(&id).await?;
    match found.filter(|resume| caller.may_see(&resume.uploaded_by)) {
        Some(resume) => Ok(json(StatusCode::OK, &resume)),
        None => Err(Code::NotFound.into()),
    }
}

/// `GET /resumes?candidateId=…`: lists the candidate's resumes that the caller may see: its own
/// uploads; for recruiters and services, all.
async fn resumes(
    State(service): State<Arc<DocumentService>>,
    caller: VerifiedCaller,
    RawQuery(text): RawQuery,
) -> Result<Response, Problem> {
    let mut query = Query::parse(text.as_deref().unwrap_or_default(), &["candidateId"]);
    let id = query.get("candidateId").unwrap_or_default().to_owned();
    if id.is_empty() {
        query.fail("candidateId", "missing_field", "is required");
    }
    query.finish()?;
    let mut resumes = service.store.of_candidate(&id).await?;
    resumes.retain(|resume| caller.is_recruiter() || caller.may_see(&resume.uploaded_by));
    Ok(json(StatusCode::OK, &json!({ "resumes": resumes })))
}

/// Receives the whole body and writes the file to disk. Field errors are collected, so that all of
/// them are reported together.
async fn receive_form(
    service: &DocumentService,
    id: &str,
    mut parts: Multipart<'_>,
) -> Result<UploadForm, Problem> {
    let mut form = UploadForm::default();
    while let Some(field) = parts
        .next_field()
        .await
        .map_err(|error| body_error(&error))?
    {
        form.receive_field(service, id, field).await?;
    }
    Ok(form)
}

fn body_error(error: &multer::Error) -> Problem {
    if let multer::Error::StreamSizeExceeded { .. } = error {
        Problem::new(Code::BodyTooLarge).detail(format!("the limit is {MAX_UPLOAD_BYTES} bytes"))
    } else {
        malformed_body(&error.to_string())
    }
}

fn malformed_body(reason: &str) -> Problem {
    Problem::new(Code::InvalidRequest)
        .detail("The body is not well-formed form data.")
        .error("", "invalid_multipart", reason)
}

// === impl UploadForm ===

impl UploadForm {
    /// Receives one field. The bytes of a rejected field are discarded.
    async fn receive_field(
        &mut self,
        service: &DocumentService,
        id: &str,
        mut field: Field<'_>,
    ) -> Result<(), Problem> {
        let content_type = field.content_type().map(ToString::to_string);
        let name = field
            .name()
            .ok_or_else(|| malformed_body("a part has no name"))?;
        let pointer = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
        match (name, field.file_name()) {
            ("candidateId" | "resume", _) if self.has(name) => {
                self.reject_field(pointer, "duplicate_field", "this field is repeated");
            }
            ("candidateId", Some(_)) => {
                self.reject_field(pointer, "invalid_type", "must be text, not a file");
            }
            ("resume", None) => {
                self.reject_field(pointer, "invalid_type", "must be a file, not text");
            }
            ("candidateId", None) => {
                let mut text = Vec::new();
                while let Some(bytes) = field.chunk().await.map_err(|error| body_error(&error))? {
                    if text.len() <= MAX_TEXT_BYTES {
                        text.extend_from_slice(&bytes);
                    }
                }
                self.candidate_id = Some(text);
            }
            ("resume", Some(file_name)) => {
                let head = PartHead {
                    file_name: file_name.to_owned(),
                    content_type,
                };
                let created = IncomingFile::create(&service.folder, id).await;
                let mut file = created.map_err(StoreError::from)?;
                while let Some(bytes) = field.chunk().await.map_err(|error| body_error(&error))? {
                    file.write(&bytes).await.map_err(StoreError::from)?;
                }
                self.resume = Some((head, file));
            }
            _ => self.reject_field(pointer, "unknown_field", "is not a known field"),
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        if name == "resume" {
            self.resume.is_some()
        } else {
            self.candidate_id.is_some()
        }
    }

    fn reject_field(&mut self, pointer: String, code: &'static str, detail: &str) {
        self.problems.push((pointer, code, detail.to_owned()));
    }

    /// Validates the form. Returns 400 for malformed or missing fields, and 422 for an empty file.
    fn validate(mut self) -> Result<(String, PartHead, IncomingFile), Problem> {
        for name in ["candidateId", "resume"] {
            let pointer = format!("/{name}");
            if !self.has(name) && !self.problems.iter().any(|(known, ..)| *known == pointer) {
                self.reject_field(pointer, "missing_field", "is required");
            }
        }
        let text = self.candidate_id.take().map(String::from_utf8);
        let plain =
            |text: &String| (1..=128).contains(&text.len()) && !text.chars().any(char::is_control);
        let candidate_id = match text {
            Some(Ok(text)) if plain(&text) => text,
            Some(_) => {
                self.reject_field(
                    "/candidateId".to_owned(),
                    "invalid_length",
                    "must be 1 to 128 bytes of plain UTF-8",
                );
                String::new()
            }
            None => String::new(),
        };
        if let (Some((head, file)), true) = (self.resume, self.problems.is_empty()) {
            if file.size > 0 {
                return Ok((candidate_id, head, file));
            }
            return Err(Problem::new(Code::ValidationFailed).error(
                "/resume",
                "empty_file",
                "the file is empty",
            ));
        }
        let problem = Problem::new(Code::InvalidRequest);
        let add = |problem: Problem, (pointer, code, detail): (String, _, _)| {
            problem.error(&pointer, code, detail)
        };
        Err(self.problems.into_iter().fold(problem, add))
    }
}

#[cfg(test)]
mod tests;
