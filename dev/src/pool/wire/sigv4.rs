//! Verification of AWS Signature Version 4 ("Create a signed AWS API request", AWS IAM User Guide).

use std::time::{Duration, SystemTime};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use postern_common::Secret;
use postern_common::clock::Timestamp;
use subtle::ConstantTimeEq;

use super::SignedRequest;
use crate::pool::error::{ApiError, ExceptionKind};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const SERVICE: &str = "cognito-idp";
/// Permitted clock difference of the signer, in milliseconds.
const MAX_CLOCK_SKEW_MS: u64 = 5 * 60 * 1000;
/// Headers that a signature must cover, so that no part that affects the result can be replaced.
const REQUIRED_SIGNED_HEADERS: [&str; 3] = ["host", "x-amz-date", "x-amz-target"];

/// The administrator's access key.
#[derive(Clone, Debug)]
pub(crate) struct AccessKey {
    pub(crate) id: String,
    pub(crate) secret: Secret,
}

/// The parts of an `AuthorizationHeader` header.
struct AuthorizationHeader<'a> {
    access_key_id: &'a str,
    date: &'a str,
    region: &'a str,
    service: &'a str,
    signed_headers: Vec<&'a str>,
    signature: &'a str,
}

/// Verifies that the administrator's key signed the request for this region and service within the
/// last five minutes.
pub(super) fn verify(
    request: &SignedRequest<'_>,
    key: &AccessKey,
    region: &str,
    now: Timestamp,
) -> Result<(), ApiError> {
    let header = request.headers.get(http::header::AUTHORIZATION);
    let header = header.ok_or_else(|| {
        ApiError::new(
            ExceptionKind::MissingAuthenticationToken,
            "Missing Authentication Token",
        )
    })?;
    let authorization = header.to_str().ok().and_then(parse).ok_or_else(|| {
        ApiError::new(
            ExceptionKind::IncompleteSignature,
            "Authorization header is not a complete AWS4-HMAC-SHA256 one",
        )
    })?;
    let names_key: bool = authorization
        .access_key_id
        .as_bytes()
        .ct_eq(key.id.as_bytes())
        .into();
    if !names_key {
        return Err(ApiError::new(
            ExceptionKind::UnrecognizedClient,
            "The security token included in the request is invalid.",
        ));
    }
    if (authorization.region, authorization.service) != (region, SERVICE) {
        return Err(invalid(&format!(
            "Credential should be scoped to {region}/{SERVICE}"
        )));
    }
    let sent_at =
        single_header(request, "x-amz-date").ok_or_else(|| invalid("X-Amz-Date is missing"))?;
    let sent_at = check_time(sent_at, authorization.date, now)?;
    if !REQUIRED_SIGNED_HEADERS
        .iter()
        .all(|name| authorization.signed_headers.contains(name))
    {
        return Err(invalid("host, x-amz-date and x-amz-target must be signed"));
    }
    let expected = signature(request, &authorization.signed_headers, key, region, sent_at)
        .ok_or_else(|| invalid("A signed header is missing or occurs more than once"))?;
    if bool::from(
        expected
            .as_bytes()
            .ct_eq(authorization.signature.as_bytes()),
    ) {
        return Ok(());
    }
    Err(invalid(
        "The request signature we calculated does not match the signature you provided. Check your AWS Secret \
         Access Key and signing method.",
    ))
}

fn invalid(message: &str) -> ApiError {
    ApiError::new(ExceptionKind::InvalidSignature, message)
}

fn parse(header: &str) -> Option<AuthorizationHeader<'_>> {
    let rest = header.strip_prefix(ALGORITHM)?.strip_prefix(' ')?;
    let mut credential = None;
    let mut signed_headers = None;
    let mut signature = None;
    for part in rest.split(',') {
        let (name, value) = part.trim().split_once('=')?;
        let place = match name {
            "Credential" => &mut credential,
            "SignedHeaders" => &mut signed_headers,
            "Signature" => &mut signature,
            _ => return None,
        };
        if place.replace(value).is_some() {
            return None;
        }
    }
    let mut scope = credential?.split('/');
    let authorization = AuthorizationHeader {
        access_key_id: scope.next()?,
        date: scope.next()?,
        region: scope.next()?,
        service: scope.next()?,
        signed_headers: signed_headers?.split(';').collect(),
        signature: signature?,
    };
    (scope.next() == Some("aws4_request") && scope.next().is_none()).then_some(authorization)
}

/// Checks that the time (`20261120T093000Z`) is within five minutes of `now` and on the day of the
/// credential's scope.
fn check_time(sent_at: &str, day: &str, now: Timestamp) -> Result<Timestamp, ApiError> {
    let at = basic_time(sent_at)
        .ok_or_else(|| invalid("X-Amz-Date is not of the form 20261120T093000Z"))?;
    if !sent_at.starts_with(day) || day.len() != 8 {
        return Err(invalid(
            "Date in Credential scope does not match YYYYMMDD from X-Amz-Date",
        ));
    }
    if at.0.abs_diff(now.0) > MAX_CLOCK_SKEW_MS {
        let side = if at < now {
            "Signature expired"
        } else {
            "Signature not yet current"
        };
        return Err(invalid(&format!(
            "{side}: {sent_at} is more than 5 min from {now}"
        )));
    }
    Ok(at)
}

fn basic_time(text: &str) -> Option<Timestamp> {
    let digits = |from: usize, to: usize| {
        text.get(from..to)
            .filter(|part| part.bytes().all(|b| b.is_ascii_digit()))
    };
    if text.len() != 16 || text.get(8..9)? != "T" || text.get(15..)? != "Z" {
        return None;
    }
    let (year, month, day) = (digits(0, 4)?, digits(4, 6)?, digits(6, 8)?);
    let (hour, minute, second) = (digits(9, 11)?, digits(11, 13)?, digits(13, 15)?);
    Timestamp::parse(&format!("{year}-{month}-{day}T{hour}:{minute}:{second}Z"))
}

fn single_header<'a>(request: &'a SignedRequest<'_>, name: &str) -> Option<&'a str> {
    let mut values = request.headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

/// Returns the signature that the key gives a request, in hexadecimal digits. Returns `None` if a
/// signed header does not occur exactly once.
fn signature(
    request: &SignedRequest<'_>,
    signed_headers: &[&str],
    key: &AccessKey,
    region: &str,
    at: Timestamp,
) -> Option<String> {
    let headers = signed_headers.iter();
    let headers: Option<Vec<_>> = headers
        .map(|name| Some((*name, single_header(request, name)?)))
        .collect();
    let body = SignableBody::Bytes(request.body);
    let uri = request.uri.to_string();
    let signable = SignableRequest::new("POST", uri, headers?.into_iter(), body).ok()?;
    let identity = Credentials::new(&key.id, key.secret.expose(), None, None, "").into();
    let mut settings = SigningSettings::default();
    // The client decides which headers it signs.
    settings.excluded_headers = None;
    let at = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(at.0).ok()?);
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(SERVICE)
        .time(at)
        .settings(settings)
        .build()
        .ok()?
        .into();
    Some(sign(signable, &params).ok()?.into_parts().1)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Uri};

    use super::*;

    const BODY: &[u8] = b"{}";
    const SENT: &str = "20261120T093000Z";

    fn key() -> AccessKey {
        AccessKey {
            id: "AKIDEXAMPLE".into(),
            secret: "secret".into(),
        }
    }

    fn headers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("host", HeaderValue::from_static("127.0.0.1:8503"));
        headers.insert("x-amz-date", HeaderValue::from_static(SENT));
        headers.insert("x-amz-target", HeaderValue::from_static("A.ListUsers"));
        headers
    }

    fn signed(
        mut headers: HeaderMap,
        signed: &str,
        change: impl Fn(String) -> String,
    ) -> HeaderMap {
        let uri = Uri::from_static("/");
        let request = SignedRequest {
            uri: &uri,
            headers: &headers,
            body: BODY,
        };
        let names: Vec<&str> = signed.split(';').collect();
        let at = basic_time(SENT).expect("a time");
        let signature = signature(&request, &names, &key(), "us-west-2", at).expect("headers");
        let credential = format!(
            "{ALGORITHM} Credential=AKIDEXAMPLE/20261120/us-west-2/cognito-idp/aws4_request"
        );
        let text = format!("{credential}, SignedHeaders={signed}, Signature=");
        let value = change(format!("{text}{signature}"));
        headers.insert(
            "authorization",
            HeaderValue::from_str(&value).expect("value"),
        );
        headers
    }

    fn verify_error(headers: &HeaderMap, body: &[u8], now: &str) -> Option<ExceptionKind> {
        let uri = Uri::from_static("/");
        let request = SignedRequest {
            uri: &uri,
            headers,
            body,
        };
        let now = Timestamp::parse(now).expect("instant");
        verify(&request, &key(), "us-west-2", now)
            .err()
            .map(|error| error.kind())
    }

    const ALL: &str = "host;x-amz-date;x-amz-target";

    #[test]
    fn signature_is_valid_for_its_request_and_five_minutes() {
        let good = signed(headers(), ALL, |value| value);
        assert_eq!(verify_error(&good, BODY, "2026-11-20T09:34:59Z"), None);
        assert_eq!(verify_error(&good, BODY, "2026-11-20T09:25:01Z"), None);
        assert_eq!(
            verify_error(&good, BODY, "2026-11-20T09:35:01Z"),
            Some(ExceptionKind::InvalidSignature)
        );
        assert_eq!(
            verify_error(&good, b"{ }", "2026-11-20T09:30:00Z"),
            Some(ExceptionKind::InvalidSignature)
        );
        let mut other_target = good.clone();
        other_target.insert(
            "x-amz-target",
            HeaderValue::from_static("A.AdminDeleteUser"),
        );
        assert_eq!(
            verify_error(&other_target, BODY, "2026-11-20T09:30:00Z"),
            Some(ExceptionKind::InvalidSignature)
        );
    }

    #[test]
    fn missing_or_mismatched_parts_return_specific_errors() {
        let now = "2026-11-20T09:30:00Z";
        assert_eq!(
            verify_error(&headers(), BODY, now),
            Some(ExceptionKind::MissingAuthenticationToken)
        );
        let cut = signed(headers(), ALL, |value| {
            value.replace(", Signature=", ", Sig=")
        });
        assert_eq!(
            verify_error(&cut, BODY, now),
            Some(ExceptionKind::IncompleteSignature)
        );
        let other_key = signed(headers(), ALL, |value| {
            value.replace("AKIDEXAMPLE", "AKIDSTRANGE")
        });
        assert_eq!(
            verify_error(&other_key, BODY, now),
            Some(ExceptionKind::UnrecognizedClient)
        );
        let elsewhere = signed(headers(), ALL, |value| {
            value.replace("us-west-2", "eu-west-1")
        });
        assert_eq!(
            verify_error(&elsewhere, BODY, now),
            Some(ExceptionKind::InvalidSignature)
        );
        let target_open = signed(headers(), "host;x-amz-date", |value| value);
        assert_eq!(
            verify_error(&target_open, BODY, now),
            Some(ExceptionKind::InvalidSignature)
        );
    }
}
