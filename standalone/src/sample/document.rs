//! The sample document service: resumes, streamed to disk.

mod store;
mod upload_file;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures_util::StreamExt;
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use postern_common::Clock;
use postern_common::database::Sqlite;
use postern_common::http::json;
use postern_common::problem::{Code, Problem};
use postern_common::token::Verifier;
use uuid::Uuid;

use self::store::{ResumeMetadata, ResumeStore};
use self::upload_file::IncomingFile;
use super::multipart::{FormEvent, MultipartParser, PartHead};
use super::{ProvidesVerifier, VerifiedCaller, store_error};

/// Maximum size of a request body in bytes.
const MAX_UPLOAD_BYTES: u64 = 100 << 20;

/// Maximum number of bytes of a text field that are buffered.
const MAX_TEXT_BYTES: usize = 256;

/// The dependencies of the service.
#[derive(Debug)]
pub(crate) struct DocumentService {
    verifier: Arc<Verifier>,
    store: ResumeStore,
    folder: PathBuf,
    clock: Clock,
}

/// A form that is being received.
#[derive(Debug, Default)]
struct UploadForm {
    candidate_id: Option<Vec<u8>>,
    resume: Option<(PartHead, IncomingFile)>,
    field: FormField,
    problems: Vec<(String, &'static str, String)>,
}

/// The form field that is being received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FormField {
    #[default]
    None,
    CandidateId,
    Resume,
    /// A rejected field, whose bytes are discarded.
    Other,
}

/// A valid form. The file still has a temporary name.
#[derive(Debug)]
struct ValidUpload {
    candidate_id: String,
    head: PartHead,
    file: upload_file::CompleteFile,
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
            store: ResumeStore::new(sqlite),
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
        .route("/resumes", post(upload))
        .route("/resumes/{id}", get(resume))
        .with_state(service)
}

/// `POST /resumes`. The response 201 means that the file and its row are on disk.
async fn upload(
    State(service): State<Arc<DocumentService>>,
    caller: VerifiedCaller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let reader = MultipartParser::for_headers(&headers).ok_or_else(|| {
        let detail = "Content-Type must be multipart/form-data with a boundary";
        Problem::new(Code::UnsupportedMediaType).detail(detail)
    })?;
    let id = Uuid::now_v7().to_string();
    let mut form = UploadForm::default();
    receive_form(&service, &id, reader, body, &mut form).await?;
    let ValidUpload {
        candidate_id,
        head,
        file,
    } = form.validate().await?;
    let resume = ResumeMetadata {
        resume_id: id,
        candidate_id,
        uploaded_by: caller.0.subject().to_owned(),
        file_name: upload_file::sanitize_file_name(head.file_name.as_deref().unwrap_or_default()),
        content_type: head
            .content_type
            .unwrap_or_else(|| "application/octet-stream".to_owned()),
        size: file.size,
        sha256: file.sha256.clone(),
        created_at: service.clock.now(),
    };
    file.persist(&service.folder, &resume.resume_id)
        .await
        .map_err(|error| disk_error(&error))?;
    service
        .store
        .insert(&resume)
        .await
        .map_err(|error| store_error(&error))?;
    let mut response = json(StatusCode::CREATED, &resume);
    if let Ok(location) = HeaderValue::from_str(&format!("/resumes/{}", resume.resume_id)) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response.into_response())
}

/// `GET /resumes/{id}` on this service: returns the metadata of an upload to its uploader and to
/// services.
async fn resume(
    State(service): State<Arc<DocumentService>>,
    caller: VerifiedCaller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let found = service
        .store
        .get(&id)
        .await
        .map_err(|error| store_error(&error))?;
    match found.filter(|resume| caller.may_see(&resume.uploaded_by)) {
        Some(resume) => Ok(json(StatusCode::OK, &resume)),
        None => Err(Code::NotFound.into()),
    }
}

/// Receives the whole body and writes the file to disk. Field errors are collected, so that all of
/// them are reported together.
async fn receive_form(
    service: &DocumentService,
    id: &str,
    mut reader: MultipartParser,
    body: Body,
    form: &mut UploadForm,
) -> Result<(), Problem> {
    let mut stream = body.into_data_stream();
    let mut received: u64 = 0;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| malformed_body("the body is incomplete"))?;
        received += chunk.len() as u64;
        if received > MAX_UPLOAD_BYTES {
            return Err(Problem::new(Code::BodyTooLarge)
                .detail(format!("the limit is {MAX_UPLOAD_BYTES} bytes")));
        }
        reader.push(&chunk);
        while let Some(event) = reader.next().map_err(|error| malformed_body(error.0))? {
            form.handle_event(service, id, event).await?;
        }
    }
    if reader.is_done() {
        Ok(())
    } else {
        Err(malformed_body("the last boundary is missing"))
    }
}

fn malformed_body(reason: &'static str) -> Problem {
    Problem::new(Code::InvalidRequest)
        .detail("The body is not well-formed form data.")
        .error("", "invalid_multipart", reason)
}

fn disk_error(error: &std::io::Error) -> Problem {
    tracing::error!(%error, "document folder access failed");
    Code::Unavailable.into()
}

// === impl UploadForm ===

impl UploadForm {
    async fn handle_event(
        &mut self,
        service: &DocumentService,
        id: &str,
        event: FormEvent,
    ) -> Result<(), Problem> {
        match event {
            FormEvent::Begin(head) => {
                self.field = self.start_part(&head);
                if self.field == FormField::Resume {
                    let file = IncomingFile::create(&service.folder, id)
                        .await
                        .map_err(|error| disk_error(&error))?;
                    self.resume = Some((head, file));
                }
            }
            FormEvent::Data(bytes) => {
                match (self.field, &mut self.candidate_id, &mut self.resume) {
                    (FormField::CandidateId, Some(text), _) if text.len() <= MAX_TEXT_BYTES => {
                        text.extend_from_slice(&bytes);
                    }
                    (FormField::Resume, _, Some((_, file))) => {
                        file.write(&bytes)
                            .await
                            .map_err(|error| disk_error(&error))?;
                    }
                    _ => {}
                }
            }
            FormEvent::End => self.field = FormField::None,
        }
        Ok(())
    }

    fn start_part(&mut self, head: &PartHead) -> FormField {
        let pointer = format!("/{}", head.name.replace('~', "~0").replace('/', "~1"));
        match head.name.as_str() {
            "candidateId" | "resume" if self.has(&head.name) => {
                self.reject_field(pointer, "duplicate_field", "this field is repeated")
            }
            "candidateId" if head.file_name.is_some() => {
                self.reject_field(pointer, "invalid_type", "must be text, not a file")
            }
            "candidateId" => {
                self.candidate_id = Some(Vec::new());
                FormField::CandidateId
            }
            "resume" if head.file_name.is_none() => {
                self.reject_field(pointer, "invalid_type", "must be a file, not text")
            }
            "resume" => FormField::Resume,
            _ => self.reject_field(pointer, "unknown_field", "is not a known field"),
        }
    }

    fn has(&self, name: &str) -> bool {
        if name == "resume" {
            self.resume.is_some()
        } else {
            self.candidate_id.is_some()
        }
    }

    fn reject_field(&mut self, pointer: String, code: &'static str, detail: &str) -> FormField {
        self.problems.push((pointer, code, detail.to_owned()));
        FormField::Other
    }

    /// Validates the form. Returns 400 for malformed or missing fields, and 422 for an empty file.
    async fn validate(mut self) -> Result<ValidUpload, Problem> {
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
            let file = file.finish().await.map_err(|error| disk_error(&error))?;
            if file.size > 0 {
                return Ok(ValidUpload {
                    candidate_id,
                    head,
                    file,
                });
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
