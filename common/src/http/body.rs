use axum::body::Body;
use axum::extract::{FromRequest, Request};
use http::header::CONTENT_TYPE;
use http_body_util::{BodyExt, Limited};

use super::Limits;
use crate::decode::{self, Mistakes, Node, Object};
use crate::problem::{Code, Problem};

/// A request body that is JSON: the content type is right, the size within the limit, every name stands once.
///
/// The refusals are 415, 413 and 400 `invalid_request`.
#[derive(Debug)]
pub struct Json(Node, Mistakes);

impl Json {
    /// Reads the body as an object; whatever `read` does not take is an unknown field.
    ///
    /// # Errors
    /// 400 or 422 with every mistake.
    pub fn read<T>(self, read: impl FnOnce(&Object<'_>) -> Option<T>) -> Result<T, Problem> {
        let Self(root, mistakes) = self;
        let value = mistakes.object(&root, read);
        mistakes.finish(value).map_err(Problem::from_mistakes)
    }

    /// The tree, for shapes that are the caller's business.
    ///
    /// # Errors
    /// 400 when a name stands twice.
    pub fn into_node(self) -> Result<Node, Problem> {
        let Self(root, mistakes) = self;
        mistakes.finish(Some(root)).map_err(Problem::from_mistakes)
    }
}

impl<S: Send + Sync> FromRequest<S> for Json {
    type Rejection = Problem;

    async fn from_request(request: Request, _state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        if !is_json(&parts.headers) {
            return Err(
                Problem::new(Code::UnsupportedMediaType).detail("Content-Type must be application/json")
            );
        }
        let limit = parts.extensions.get::<Limits>().copied().unwrap_or_default().body;
        let bytes = collect(body, limit).await?;
        let mistakes = Mistakes::default();
        match decode::json(&bytes, &mistakes) {
            Some(root) => Ok(Self(root, mistakes)),
            None => Err(Problem::from_mistakes(mistakes.finish::<()>(None).err().unwrap_or_default())),
        }
    }
}

async fn collect(body: Body, limit: usize) -> Result<bytes::Bytes, Problem> {
    match Limited::new(body, limit).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<http_body_util::LengthLimitError>() => {
            Err(Problem::new(Code::BodyTooLarge).detail(format!("the limit is {limit} bytes")))
        }
        Err(_) => Err(Problem::new(Code::InvalidRequest).detail("the body did not arrive whole")),
    }
}

/// `application/json` or `application/*+json`; a charset, if given, is UTF-8 (RFC 8259 section 8.1).
fn is_json(headers: &http::HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) else { return false };
    let mut parts = value.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default().to_ascii_lowercase();
    let named =
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    named
        && parts.all(|parameter| {
            let parameter = parameter.to_ascii_lowercase();
            match parameter.strip_prefix("charset=") {
                Some(charset) => charset.trim_matches('"') == "utf-8",
                None => true,
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refusal(content_type: &str, body: &'static str) -> Code {
        let request = Request::builder()
            .header(CONTENT_TYPE, content_type)
            .extension(Limits { body: 16, ..Limits::default() })
            .body(Body::from(body))
            .expect("request");
        Json::from_request(request, &()).await.expect_err("refused").code()
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_refused_by_name() {
        assert_eq!(refusal("text/plain", "{}").await, Code::UnsupportedMediaType);
        assert_eq!(refusal("application/json; charset=latin1", "{}").await, Code::UnsupportedMediaType);
        assert_eq!(refusal("application/json", "{\"a\":\"0123456789\"}").await, Code::BodyTooLarge);
        assert_eq!(refusal("application/json", "{\"a\":").await, Code::InvalidRequest);
    }
}
