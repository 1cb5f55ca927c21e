//! Compression of responses: the conditions, the head and the body.

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE,
    CONTENT_TYPE, COOKIE, ETAG, TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::{Error, ErrorType, OrErr, Result};
use postern_http::compression::{BodyEncoder, encoder_bytes, negotiate};
use postern_http::message::headers::{add_vary, has_member};

use crate::admission::authorize::content_length;
use crate::config::CompressionConfig;
use crate::config::compression::{MIN_COMPRESSED_BYTES, is_compressed_type};
use crate::state::request_context::{AdmittedRequest, ForwardingRecord};

/// Fields with a digest of the content, which compression would invalidate (RFC 9530; RFC 1864).
const DIGEST_FIELDS: [HeaderName; 4] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("content-md5"),
];

/// Decides whether the body of a final response is compressed, and changes its head accordingly.
/// `sets_cookie` is whether the upstream has sent `Set-Cookie`.
///
/// Responses to HEAD and responses with 304 get the same validators and `Vary` as the response to
/// GET (RFC 9110 sections 9.3.2 and 15.4.5), and no `Content-Encoding`.
pub(super) fn prepare(
    compression: &CompressionConfig,
    request: &RequestHeader,
    response: &mut ResponseHeader,
    sets_cookie: bool,
    admitted: &AdmittedRequest<'_>,
    record: &mut ForwardingRecord,
) -> Result<()> {
    if !is_compressible(response) {
        return Ok(());
    }
    // Also if this response is not compressed, so that caches do not use it for other requests.
    add_vary(response, "Accept-Encoding")?;
    let has_credentials = sets_cookie
        || admitted.caller.is_some()
        || [AUTHORIZATION, COOKIE]
            .iter()
            .any(|name| request.headers.contains_key(name));
    if (has_credentials && !compression.authenticated) || is_no_transform(&request.headers) {
        return Ok(());
    }
    let Some(coding) = negotiate(&request.headers) else {
        return Ok(());
    };
    let is_not_modified = response.status == StatusCode::NOT_MODIFIED;
    if request.method != Method::HEAD && !is_not_modified {
        let (state, client) = (admitted.state, admitted.client_share());
        let metrics = &state.metrics.compression;
        let Some(permit) = state.encoders.reserve(client, encoder_bytes(coding)) else {
            metrics.skipped.inc();
            return Ok(());
        };
        let labels = [coding.as_str()];
        metrics.responses.with_label_values(&labels).inc();
        let is_length_known = response.headers.contains_key(CONTENT_LENGTH);
        let encoder = BodyEncoder::new(coding, is_length_known, permit);
        record.encoder = Some(Box::new(encoder));
        response.insert_header(CONTENT_ENCODING, coding.as_str())?;
        response.insert_header(TRANSFER_ENCODING, "chunked")?;
    }
    response.remove_header(&CONTENT_LENGTH);
    response.remove_header(&ACCEPT_RANGES);
    weaken_etag(response)
}

/// Encodes a part of the body, if the response is compressed.
pub(super) fn encode(
    part: Option<Bytes>,
    end: bool,
    record: &mut ForwardingRecord,
) -> Result<Option<Bytes>> {
    match &mut record.encoder {
        None => Ok(part),
        Some(encoder) => encoder
            .encode(part.as_deref(), end)
            .or_err(ErrorType::InternalError, "compressing a response")
            .map_err(Error::into_in),
    }
}

/// Returns whether a request that accepts a coding gets this response compressed.
fn is_compressible(response: &ResponseHeader) -> bool {
    let headers = &response.headers;
    let length = content_length(headers);
    let is_not_modified = response.status == StatusCode::NOT_MODIFIED;
    let may_have_body = !matches!(
        response.status,
        StatusCode::NO_CONTENT | StatusCode::RESET_CONTENT | StatusCode::PARTIAL_CONTENT
    );
    let is_excluded = headers.contains_key(CONTENT_ENCODING)
        || headers.contains_key(CONTENT_RANGE)
        || DIGEST_FIELDS.iter().any(|name| headers.contains_key(name))
        || is_no_transform(headers);
    let is_listed = match headers.get(CONTENT_TYPE) {
        Some(value) => value.to_str().is_ok_and(is_compressed_type),
        // Usually omitted there: the type of the stored response is unknown.
        None => is_not_modified,
    };
    may_have_body
        && !is_excluded
        && is_listed
        && length.is_none_or(|length| length >= MIN_COMPRESSED_BYTES)
}

/// Returns whether `Cache-Control` forbids transformations (RFC 9111 sections 5.2.1.6 and 5.2.2.6).
fn is_no_transform(headers: &HeaderMap) -> bool {
    has_member(headers, CACHE_CONTROL, "no-transform")
}

/// Makes a strong validator weak: the bytes of the representation differ from those that it
/// identifies (RFC 9110 section 8.8.1).
fn weaken_etag(response: &mut ResponseHeader) -> Result<()> {
    let Some(etag) = response.headers.get(ETAG) else {
        return Ok(());
    };
    if etag.as_bytes().starts_with(b"\"") {
        let weak = [b"W/", etag.as_bytes()].concat();
        let weak = HeaderValue::from_bytes(&weak).or_err(ErrorType::InternalError, "weak ETag")?;
        response.insert_header(ETAG, weak)?;
    } else if !etag.as_bytes().starts_with(b"W/\"") {
        // Malformed: no validator at all.
        response.remove_header(&ETAG);
    }
    Ok(())
}
