//! One-click unsubscription (RFC 8058).

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use postern_common::http::Raw;
use postern_common::{Code, Problem};

use super::status::{read, unavailable};
use super::{AnonymousCaller, ApiState};
use crate::address::AddressHash;
use crate::delivery::mail_token::{TokenClaim, TokenPurpose};
use crate::notification::Channel;

/// Handles `POST /webhooks/unsubscribe`, the one-click unsubscription of RFC 8058. The address of
/// the notification gets no further e-mail of templates that offer unsubscription. Only e-mail of
/// such templates carries the token, which is valid for its address only. The store is read only
/// for tokens that this service issued. Returns 204 after the commit.
pub(super) async fn one_click(
    State(service): State<Arc<ApiState>>,
    RawQuery(query): RawQuery,
    _: AnonymousCaller,
    Raw(body, _permit): Raw,
) -> Result<Response, Problem> {
    if !is_click(&body) {
        return Err(Problem::new(Code::InvalidRequest)
            .detail("the body must be List-Unsubscribe=One-Click"));
    }
    let invalid_token = || Problem::new(Code::InvalidWebhookSignature);
    let claim = claim_of(query.as_deref()).ok_or_else(invalid_token)?;
    let tokens = service.mail_tokens.as_ref().ok_or_else(invalid_token)?;
    if !tokens.has_issued(TokenPurpose::Unsubscribe, claim) {
        return Err(invalid_token());
    }
    let known = read(&service, claim.id).await?;
    let mail = known.filter(|snapshot| snapshot.record.lane.channel == Channel::Email);
    let is_proven =
        |address: &AddressHash| tokens.verify(TokenPurpose::Unsubscribe, claim, address);
    let address = mail
        .and_then(|mail| mail.addresses().find(is_proven))
        .ok_or_else(invalid_token)?;
    service
        .suppression
        .unsubscribe(&[address])
        .await
        .map_err(|error| unavailable(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn claim_of(query: Option<&str>) -> Option<TokenClaim> {
    let mut pairs =
        url::form_urlencoded::parse(query?.as_bytes()).filter(|(name, _)| name == "token");
    match (pairs.next(), pairs.next()) {
        (Some((_, token)), None) => TokenClaim::parse(&token),
        _ => None,
    }
}

/// Returns whether the body is the one-click form, URL-encoded or multipart (RFC 8058 section 3.2).
/// A browser that opens the link sends neither.
fn is_click(body: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(body) else {
        return false;
    };
    let mut form = url::form_urlencoded::parse(body);
    form.any(|(name, value)| name == "List-Unsubscribe" && value.trim() == "One-Click")
        || text
            .split_once("name=\"List-Unsubscribe\"")
            .is_some_and(|(_, rest)| {
                rest.split_once("\r\n\r\n")
                    .is_some_and(|(_, value)| value.starts_with("One-Click\r\n"))
            })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_click_body_is_accepted_in_both_encodings_only() {
        assert!(is_click(b"List-Unsubscribe=One-Click"));
        let multipart = "--b\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--b--\r\n";
        assert!(is_click(multipart.as_bytes()));
        for no in [
            "",
            "List-Unsubscribe=One-Clic",
            "x=One-Click",
            "List-Unsubscribe",
            "One-Click",
        ] {
            assert!(!is_click(no.as_bytes()), "{no}");
        }
    }
}
