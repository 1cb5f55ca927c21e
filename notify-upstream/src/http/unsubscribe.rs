//! Unsubscription by the link in a mail (RFC 8058).

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, REFERRER_POLICY,
};
use postern_core::{Code, Problem};
use postern_service::http::Raw;

use super::status::read;
use super::{AnonymousCaller, ApiState};
use crate::address::AddressHash;
use crate::delivery::mail_token::{TokenClaim, TokenPurpose};
use crate::notification::Channel;

const PAGE: &str = include_str!("unsubscribe.html");
const QUESTION: &str = r#"<p>Do you want no more e-mail of the category <b>{category}</b>?</p>
<form method="post"><button name="List-Unsubscribe" value="One-Click">Unsubscribe</button></form>"#;
const DONE: &str =
    "<p role=\"status\">You will get no more e-mail of the category <b>{category}</b>.</p>";
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; \
                      frame-ancestors 'none'; base-uri 'none'";

/// The address and the category that a token is valid for.
struct Subscription {
    address: AddressHash,
    category: String,
}

/// Handles `GET /unsubscriptions`: a page with a button. It changes nothing, because programs open
/// the links in mails too.
pub(super) async fn page(
    State(service): State<Arc<ApiState>>,
    RawQuery(query): RawQuery,
    _: AnonymousCaller,
) -> Result<Response, Problem> {
    let found = Subscription::of(&service, query.as_deref()).await?;
    Ok(html(QUESTION, &found.category))
}

/// Handles `POST /unsubscriptions`, of a mail program (RFC 8058) or of the page. The address of the
/// notification leaves the category of its template. Returns after the commit.
pub(super) async fn leave(
    State(service): State<Arc<ApiState>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    _: AnonymousCaller,
    Raw(body, _permit): Raw,
) -> Result<Response, Problem> {
    if !is_click(&body) {
        let detail = "the body must be List-Unsubscribe=One-Click";
        return Err(Problem::new(Code::InvalidRequest).detail(detail));
    }
    let Subscription { address, category } = Subscription::of(&service, query.as_deref()).await?;
    let lists = &service.suppression;
    let left = lists.unsubscribe(Channel::Email, address, &category, "unsubscribed");
    left.await?;
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    Ok(
        match accept.is_some_and(|accept| accept.contains("text/html")) {
            true => html(DONE, &category),
            false => StatusCode::NO_CONTENT.into_response(),
        },
    )
}

/// Returns a page. The name of a category has no character that HTML requires to be escaped.
fn html(content: &str, category: &str) -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    let page = PAGE.replace("{content}", content);
    (headers, page.replace("{category}", category)).into_response()
}

impl Subscription {
    /// Returns what the token of a query is valid for. The store is read only for tokens that this
    /// service issued.
    async fn of(service: &ApiState, query: Option<&str>) -> Result<Self, Problem> {
        let invalid_token = || Problem::new(Code::InvalidWebhookSignature);
        let claim = claim_of(query).ok_or_else(invalid_token)?;
        let tokens = service.mail_tokens.as_ref().ok_or_else(invalid_token)?;
        if !tokens.has_issued(TokenPurpose::Unsubscribe, claim) {
            return Err(invalid_token());
        }
        let known = read(service, claim.id).await?;
        let mail = known.filter(|snapshot| snapshot.record.lane.channel == Channel::Email);
        let mail = mail.ok_or_else(invalid_token)?;
        let purpose = TokenPurpose::Unsubscribe;
        let address = mail
            .addresses()
            .find(|it| tokens.verify(purpose, claim, it));
        let templates = service.templates.load();
        let category = templates.category(&mail.record.template);
        Ok(Self {
            address: address.ok_or_else(invalid_token)?,
            category: category.ok_or_else(invalid_token)?.to_owned(),
        })
    }
}

fn claim_of(query: Option<&str>) -> Option<TokenClaim> {
    let pairs = url::form_urlencoded::parse(query?.as_bytes());
    let mut pairs = pairs.filter(|(name, _)| name == "token");
    match (pairs.next(), pairs.next()) {
        (Some((_, token)), None) => TokenClaim::parse(&token),
        _ => None,
    }
}

/// Returns whether the body is the one-click form, URL-encoded or multipart (RFC 8058 section 3.2).
fn is_click(body: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(body) else {
        return false;
    };
    let mut form = url::form_urlencoded::parse(body);
    let part = text.split_once("name=\"List-Unsubscribe\"");
    let part = part.and_then(|(_, rest)| rest.split_once("\r\n\r\n"));
    form.any(|(name, value)| name == "List-Unsubscribe" && value.trim() == "One-Click")
        || part.is_some_and(|(_, value)| value.starts_with("One-Click\r\n"))
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
