//! The sample document service: resumes, streamed to disk.

mod file;
mod store;

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

use self::file::Incoming;
use self::store::{Resume, Store};
use super::multipart::{Event, Head, Multipart};
use super::{Caller, Verifies, store_failed};

/// Bytes of one upload.
const MAX_UPLOAD: u64 = 100 << 20;

/// Bytes of a text field.
const MAX_TEXT: usize = 256;

/// What the service works with.
#[derive(Debug)]
pub(crate) struct DocumentService {
    verifier: Arc<Verifier>,
    store: Store,
    folder: PathBuf,
    clock: Clock,
}

/// A form while it arrives.
#[derive(Debug, Default)]
struct Form {
    candidate_id: Option<Vec<u8>>,
    resume: Option<(Head, Incoming)>,
    field: Field,
    problems: Vec<(String, &'static str, String)>,
}

/// Which part is arriving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Field {
    #[default]
    None,
    CandidateId,
    Resume,
    /// Refused already; its bytes are passed over.
    Other,
}

/// A form that is in order; the file stands under a temporary name.
#[derive(Debug)]
struct Upload {
    candidate_id: String,
    head: Head,
    file: file::Whole,
}

impl DocumentService {
    /// Uploads that a crash left half-way are removed from `folder`.
    pub(crate) fn new(
        verifier: Arc<Verifier>,
        sqlite: Sqlite,
        folder: PathBuf,
        clock: Clock,
    ) -> std::io::Result<Arc<Self>> {
        file::sweep(&folder)?;
        Ok(Arc::new(Self {
            verifier,
            store: Store::new(sqlite),
            folder,
            clock,
        }))
    }
}

impl Verifies for DocumentService {
    fn verifier(&self) -> &Verifier {
        &self.verifier
    }
}

/// Every route of the service.
pub(crate) fn router(service: Arc<DocumentService>) -> Router {
    Router::new()
        .route("/resumes", post(upload))
        .route("/resumes/{id}", get(resume))
        .with_state(service)
}

/// `POST /resumes`. 201 means that the bytes and the row are on disk.
async fn upload(
    State(service): State<Arc<DocumentService>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Problem> {
    let reader = Multipart::of(&headers).ok_or_else(|| {
        let detail = "Content-Type must be multipart/form-data with a boundary";
        Problem::new(Code::UnsupportedMediaType).detail(detail)
    })?;
    let id = Uuid::now_v7().to_string();
    let mut form = Form::default();
    receive(&service, &id, reader, body, &mut form).await?;
    let Upload {
        candidate_id,
        head,
        file,
    } = form.check().await?;
    let resume = Resume {
        resume_id: id,
        candidate_id,
        uploaded_by: caller.0.subject().to_owned(),
        file_name: file::plain_name(head.file_name.as_deref().unwrap_or_default()),
        content_type: head
            .content_type
            .unwrap_or_else(|| "application/octet-stream".to_owned()),
        size: file.size,
        sha256: file.sha256.clone(),
        created_at: service.clock.now(),
    };
    file.keep(&service.folder, &resume.resume_id)
        .await
        .map_err(|error| disk_failed(&error))?;
    service
        .store
        .insert(&resume)
        .await
        .map_err(|error| store_failed(&error))?;
    let mut response = json(StatusCode::CREATED, &resume);
    if let Ok(location) = HeaderValue::from_str(&format!("/resumes/{}", resume.resume_id)) {
        response.headers_mut().insert(LOCATION, location);
    }
    Ok(response.into_response())
}

/// `GET /resumes/{id}` on this service: what was stored about an upload, for who uploaded it and
/// for services.
async fn resume(
    State(service): State<Arc<DocumentService>>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let found = service
        .store
        .get(&id)
        .await
        .map_err(|error| store_failed(&error))?;
    match found.filter(|resume| caller.may_see(&resume.uploaded_by)) {
        Some(resume) => Ok(json(StatusCode::OK, &resume)),
        None => Err(Code::NotFound.into()),
    }
}

/// Reads the whole body, the file to disk, whatever is wrong with it: every mistake is told at
/// once.
async fn receive(
    service: &DocumentService,
    id: &str,
    mut reader: Multipart,
    body: Body,
    form: &mut Form,
) -> Result<(), Problem> {
    let mut stream = body.into_data_stream();
    let mut received: u64 = 0;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| unreadable("the body did not arrive whole"))?;
        received += chunk.len() as u64;
        if received > MAX_UPLOAD {
            return Err(
                Problem::new(Code::BodyTooLarge).detail(format!("the limit is {MAX_UPLOAD} bytes"))
            );
        }
        reader.push(&chunk);
        while let Some(event) = reader.next().map_err(|malformed| unreadable(malformed.0))? {
            form.take(service, id, event).await?;
        }
    }
    if reader.is_done() {
        Ok(())
    } else {
        Err(unreadable("the last boundary is missing"))
    }
}

fn unreadable(reason: &'static str) -> Problem {
    Problem::new(Code::InvalidRequest)
        .detail("The body is not well-formed form data.")
        .error("", "invalid_multipart", reason)
}

fn disk_failed(error: &std::io::Error) -> Problem {
    tracing::error!(%error, "document folder");
    Code::Unavailable.into()
}

// === impl Form ===

impl Form {
    async fn take(
        &mut self,
        service: &DocumentService,
        id: &str,
        event: Event,
    ) -> Result<(), Problem> {
        match event {
            Event::Begin(head) => {
                self.field = self.begin(&head);
                if self.field == Field::Resume {
                    let file = Incoming::create(&service.folder, id)
                        .await
                        .map_err(|error| disk_failed(&error))?;
                    self.resume = Some((head, file));
                }
            }
            Event::Data(bytes) => match (self.field, &mut self.candidate_id, &mut self.resume) {
                (Field::CandidateId, Some(text), _) if text.len() <= MAX_TEXT => {
                    text.extend_from_slice(&bytes);
                }
                (Field::Resume, _, Some((_, file))) => {
                    file.write(&bytes)
                        .await
                        .map_err(|error| disk_failed(&error))?;
                }
                _ => {}
            },
            Event::End => self.field = Field::None,
        }
        Ok(())
    }

    fn begin(&mut self, head: &Head) -> Field {
        let pointer = format!("/{}", head.name.replace('~', "~0").replace('/', "~1"));
        match head.name.as_str() {
            "candidateId" | "resume" if self.has(&head.name) => {
                self.note(pointer, "duplicate_field", "this field stands twice")
            }
            "candidateId" if head.file_name.is_some() => {
                self.note(pointer, "invalid_type", "must be text, not a file")
            }
            "candidateId" => {
                self.candidate_id = Some(Vec::new());
                Field::CandidateId
            }
            "resume" if head.file_name.is_none() => {
                self.note(pointer, "invalid_type", "must be a file, not text")
            }
            "resume" => Field::Resume,
            _ => self.note(pointer, "unknown_field", "is not a known field"),
        }
    }

    fn has(&self, name: &str) -> bool {
        if name == "resume" {
            self.resume.is_some()
        } else {
            self.candidate_id.is_some()
        }
    }

    fn note(&mut self, pointer: String, code: &'static str, detail: &str) -> Field {
        self.problems.push((pointer, code, detail.to_owned()));
        Field::Other
    }

    /// 400 for what cannot be read, else 422 for what is not acceptable, else the upload.
    async fn check(mut self) -> Result<Upload, Problem> {
        for name in ["candidateId", "resume"] {
            let pointer = format!("/{name}");
            if !self.has(name) && !self.problems.iter().any(|(known, ..)| *known == pointer) {
                self.note(pointer, "missing_field", "is required");
            }
        }
        let text = self.candidate_id.take().map(String::from_utf8);
        let plain =
            |text: &String| (1..=128).contains(&text.len()) && !text.chars().any(char::is_control);
        let candidate_id = match text {
            Some(Ok(text)) if plain(&text) => text,
            Some(_) => {
                self.note(
                    "/candidateId".to_owned(),
                    "invalid_length",
                    "must be 1 to 128 bytes of plain UTF-8",
                );
                String::new()
            }
            None => String::new(),
        };
        if let (Some((head, file)), true) = (self.resume, self.problems.is_empty()) {
            let file = file.finish().await.map_err(|error| disk_failed(&error))?;
            if file.size > 0 {
                return Ok(Upload {
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
