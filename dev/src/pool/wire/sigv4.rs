//! The presence of an AWS Signature Version 4 ("Create a signed AWS API request", AWS IAM User Guide).
//! The signature itself is not verified: the pool accepts loopback connections only.

use http::HeaderMap;

use crate::pool::error::{ApiError, ApiResult, ExceptionKind};

/// Checks that the request has a signature by the administrator's access key.
pub(super) fn check(headers: &HeaderMap, access_key_id: &str) -> ApiResult {
    let Some(header) = headers.get(http::header::AUTHORIZATION) else {
        let kind = ExceptionKind::MissingAuthenticationToken;
        return Err(ApiError::new(kind, "Missing Authentication Token"));
    };
    let signed = format!("AWS4-HMAC-SHA256 Credential={access_key_id}/");
    if header.as_bytes().starts_with(signed.as_bytes()) {
        return Ok(());
    }
    let text = "The security token included in the request is invalid.";
    Err(ApiError::new(ExceptionKind::UnrecognizedClient, text))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn signature_of_the_access_key_is_required() {
        for (header, expected) in [
            (
                "AWS4-HMAC-SHA256 Credential=AKID/20261120/us-west-2/cognito-idp",
                None,
            ),
            ("Bearer AKID", Some(ExceptionKind::UnrecognizedClient)),
            (
                "AWS4-HMAC-SHA256 Credential=AKIDX/20261120",
                Some(ExceptionKind::UnrecognizedClient),
            ),
        ] {
            let value = (
                "authorization".parse().expect("a name"),
                HeaderValue::from_static(header),
            );
            let checked = check(&HeaderMap::from_iter([value]), "AKID");
            assert_eq!(
                checked.err().map(|error| error.kind()),
                expected,
                "{header}"
            );
        }
        let missing = check(&HeaderMap::new(), "AKID").expect_err("unsigned");
        assert_eq!(missing.kind(), ExceptionKind::MissingAuthenticationToken);
    }
}
