//! The form of AWS Signature Version 4 ("Create a signed AWS API request", AWS IAM User Guide). The
//! signature itself is not verified: the pool accepts loopback connections only.

use http::HeaderMap;

use crate::pool::error::{ApiError, ExceptionKind};

const ALGORITHM: &str = "AWS4-HMAC-SHA256 ";

/// Checks that the request has a signature by the administrator's access key.
pub(super) fn check(headers: &HeaderMap, access_key_id: &str) -> Result<(), ApiError> {
    let header = headers.get(http::header::AUTHORIZATION).ok_or_else(|| {
        ApiError::new(
            ExceptionKind::MissingAuthenticationToken,
            "Missing Authentication Token",
        )
    })?;
    let named = header.to_str().ok().and_then(parse).ok_or_else(|| {
        ApiError::new(
            ExceptionKind::IncompleteSignature,
            "Authorization header is not a complete AWS4-HMAC-SHA256 one",
        )
    })?;
    if named == access_key_id {
        Ok(())
    } else {
        Err(ApiError::new(
            ExceptionKind::UnrecognizedClient,
            "The security token included in the request is invalid.",
        ))
    }
}

/// Returns the access key id of an `Authorization` header that has every part.
fn parse(header: &str) -> Option<&str> {
    let parts = header.strip_prefix(ALGORITHM)?;
    let part = |name: &str| parts.split(',').find_map(|it| it.trim().strip_prefix(name));
    let credential = part("Credential=")?;
    part("Signature=").filter(|it| !it.is_empty())?;
    match *credential.split('/').collect::<Vec<_>>() {
        [id, _date, _region, "cognito-idp", "aws4_request"] => Some(id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn missing_or_mismatched_parts_return_specific_errors() {
        let good = format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261120/us-west-2/cognito-idp/aws4_request, \
             SignedHeaders=host;x-amz-date, Signature={}",
            "0".repeat(64)
        );
        let error_of = |header: &str| {
            let mut headers = HeaderMap::new();
            let value = HeaderValue::from_str(header).expect("value");
            headers.insert("authorization", value);
            check(&headers, "AKIDEXAMPLE")
                .err()
                .map(|error| error.kind())
        };
        assert_eq!(error_of(&good), None);
        let missing = check(&HeaderMap::new(), "AKIDEXAMPLE").expect_err("unsigned");
        assert_eq!(missing.kind(), ExceptionKind::MissingAuthenticationToken);
        for (part, replacement) in [
            ("AWS4-HMAC-SHA256 ", "Bearer "),
            (", Signature=", ", Sig="),
            ("/cognito-idp/", "/sts/"),
            ("/aws4_request", ""),
        ] {
            assert_eq!(
                error_of(&good.replacen(part, replacement, 1)),
                Some(ExceptionKind::IncompleteSignature),
                "{part}"
            );
        }
        assert_eq!(
            error_of(&good.replace("AKIDEXAMPLE", "AKIDSTRANGE")),
            Some(ExceptionKind::UnrecognizedClient)
        );
    }
}
