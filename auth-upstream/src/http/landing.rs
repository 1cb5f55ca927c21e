//! The response to a callback of a social provider: a redirect of the browser to the UI.

use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, LOCATION, REFERRER_POLICY,
};
use sha2::{Digest, Sha256};
use url::Url;

use crate::config::TokenDelivery;
use crate::flows::SocialLanding;

const SUBMIT_SCRIPT: &str = "document.forms[0].submit()";

/// Returns a redirect with the token in the fragment, or a page with a form that submits itself.
/// Neither puts the token into a query, a path or `Referer`.
pub(super) fn landing_response(landing: &SocialLanding) -> Response {
    let mut response = match landing.delivery {
        TokenDelivery::Fragment => {
            let location = fragment_url(landing);
            (StatusCode::FOUND, [(LOCATION, location.as_str())]).into_response()
        }
        TokenDelivery::FormPost => form_post(landing),
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

fn fragment_url(landing: &SocialLanding) -> Url {
    let mut url = landing.ui.clone();
    let parameter = url::form_urlencoded::Serializer::new(String::new())
        .append_pair(landing.name, &landing.value)
        .finish();
    url.set_fragment(Some(&parameter));
    url
}

fn form_post(landing: &SocialLanding) -> Response {
    let page = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>Signing in</title>\
         <form method=\"post\" action=\"{}\"><input type=\"hidden\" name=\"{}\" value=\"{}\">\
         <noscript><button>Continue</button></noscript></form><script>{SUBMIT_SCRIPT}</script>",
        escape(landing.ui.as_str()),
        landing.name,
        escape(&landing.value)
    );
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; form-action {}; frame-ancestors 'none'; base-uri 'none'",
        STANDARD.encode(Sha256::digest(SUBMIT_SCRIPT)),
        landing.ui.origin().ascii_serialization()
    );
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, policy.as_str()),
    ];
    (headers, page).into_response()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn landing(delivery: TokenDelivery, value: &str) -> SocialLanding {
        let ui = Url::parse("https://ui.example/welcome?a=1&b=2").expect("URL");
        SocialLanding {
            ui,
            delivery,
            name: "temporaryToken",
            value: value.to_owned(),
        }
    }

    #[test]
    fn token_is_in_the_fragment_only() {
        let url = fragment_url(&landing(TokenDelivery::Fragment, "abc-_"));
        assert_eq!(
            url.as_str(),
            "https://ui.example/welcome?a=1&b=2#temporaryToken=abc-_"
        );
    }

    #[test]
    fn form_can_be_submitted_to_the_ui_only() {
        let response = landing_response(&landing(TokenDelivery::FormPost, "\"><script>"));
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str();
        let policy = policy.expect("text");
        let action = "form-action https://ui.example;";
        assert!(policy.contains(action), "{policy}");
        assert_eq!(response.headers()[REFERRER_POLICY], "no-referrer");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
    }
}
