//! The HTTP client for an ACME server, which may be slow, broken or hostile.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use http::header::RETRY_AFTER;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use postern_core::exit::Exit;
use postern_core::files::read_regular;
use reqwest::redirect;

use crate::certificates::files::{MAX_FILE_BYTES, unreadable};

/// Maximum time of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of a response: a chain of certificates has a few KiB.
const MAX_RESPONSE_BYTES: usize = 256 << 10;
/// Maximum delay that the server may ask for.
const MAX_RETRY_AFTER_S: u64 = 3600;

/// A client with limits. Only https is used, and redirects are not followed.
#[derive(Clone, Debug)]
pub(super) struct AcmeHttpClient(reqwest::Client);

impl AcmeHttpClient {
    /// Creates a client that trusts these authorities, or those of the system.
    ///
    /// # Errors
    /// Status 64 if the file is invalid.
    pub(super) fn new(ca: Option<&Path>) -> Result<Self, Exit> {
        let mut builder = reqwest::Client::builder()
            .https_only(true)
            .redirect(redirect::Policy::none())
            .timeout(REQUEST_TIMEOUT);
        if let Some(path) = ca {
            let pem =
                read_regular(path, MAX_FILE_BYTES).map_err(|error| unreadable(path, &error))?;
            let roots = reqwest::Certificate::from_pem_bundle(&pem);
            builder = builder.tls_certs_only(roots.map_err(|error| unreadable(path, &error))?);
        }
        let client = builder.build();
        let client = client
            .map_err(|error| Exit::usage(format!("cannot set up the ACME client: {error}")))?;
        Ok(Self(client))
    }

    async fn send(self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse, Error> {
        let other = |error: reqwest::Error| Error::Other(Box::new(error));
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let response = self
            .0
            .request(parts.method, parts.uri.to_string())
            .headers(parts.headers)
            .body(body.unwrap_or_default())
            .send()
            .await
            .map_err(other)?;
        let mut head = Response::new(());
        *head.status_mut() = response.status();
        *head.headers_mut() = response.headers().clone();
        let delay = head.headers().get(RETRY_AFTER).map(|value| {
            let seconds = value
                .to_str()
                .ok()
                .and_then(|text| text.parse::<u64>().ok());
            seconds.is_some_and(|seconds| seconds <= MAX_RETRY_AFTER_S)
        });
        if delay == Some(false) {
            // Adding it to the current time could overflow.
            head.headers_mut().remove(RETRY_AFTER);
        }
        let (mut body, mut stream) = (Vec::new(), response.bytes_stream());
        while let Some(part) = stream.next().await {
            body.extend_from_slice(&part.map_err(other)?);
            if body.len() > MAX_RESPONSE_BYTES {
                return Err(Error::Str("a response is too long"));
            }
        }
        Ok(BytesResponse::from(
            head.map(|()| Full::new(Bytes::from(body))),
        ))
    }
}

impl HttpClient for AcmeHttpClient {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        Box::pin(self.clone().send(request))
    }
}
