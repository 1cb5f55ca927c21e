//! The HTTP client for an ACME server, which may be slow, broken or hostile.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Limited};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use postern_core::exit::Exit;
use postern_core::files::read_regular;
use reqwest::redirect;

use crate::certificates::files::{MAX_FILE_BYTES, unreadable};

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
        let Ok(body) = body.collect().await;
        let request = Request::from_parts(parts, body.to_bytes());
        let request = reqwest::Request::try_from(request).map_err(other)?;
        let mut response = Response::from(self.0.execute(request).await.map_err(other)?);
        limit_delay(response.headers_mut());
        let response = response.map(|body| Limited::new(body, MAX_RESPONSE_BYTES));
        Ok(BytesResponse::from(response))
    }
}

/// Removes an immense `Retry-After`: adding it to the current time could overflow.
fn limit_delay(headers: &mut HeaderMap) {
    let delay = headers.get(RETRY_AFTER).and_then(|it| it.to_str().ok());
    let delay = delay.and_then(|text| text.parse::<u64>().ok());
    if delay.is_some_and(|seconds| seconds > MAX_RETRY_AFTER_S) {
        headers.remove(RETRY_AFTER);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immense_delay_is_removed() {
        for (delay, is_kept) in [
            ("3600", true),
            ("Fri, 31 Dec 1999 23:59:59 GMT", true),
            ("18446744073709551615", false),
        ] {
            let value = delay.parse().expect("a value");
            let mut headers = HeaderMap::from_iter([(RETRY_AFTER, value)]);
            limit_delay(&mut headers);
            assert_eq!(headers.contains_key(RETRY_AFTER), is_kept, "{delay}");
        }
    }
}
