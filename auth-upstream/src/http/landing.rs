//! The last step of a social sign-in: the browser goes back to the UI.

use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, LOCATION, REFERRER_POLICY,
};
use postern_common::{Code, Problem};
use sha2::{Digest, Sha256};
use url::Url;

use crate::config::Delivery;
use crate::social::Landing;

const SUBMIT: &str = "document.forms[0].submit()";

/// A redirect with the token in the fragment, or a form that posts itself. Neither puts it into a
/// query, a path or a Referer.
pub(super) fn answer(landing: &Landing) -> Result<Response, Problem> {
    let mut response = match landing.delivery {
        Delivery::Fragment => {
            let location =
                HeaderValue::from_str(fragment(landing).as_str()).map_err(|_| Code::Internal)?;
            (StatusCode::FOUND, [(LOCATION, location)]).into_response()
        }
        Delivery::FormPost => form_post(landing)?,
    };
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    Ok(response)
}

fn fragment(landing: &Landing) -> Url {
    let mut url = landing.ui.clone();
    let pair = url::form_urlencoded::Serializer::new(String::new())
        .append_pair(landing.name, &landing.value)
        .finish();
    url.set_fragment(Some(&pair));
    url
}

fn form_post(landing: &Landing) -> Result<Response, Problem> {
    let page = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>Signing in</title>\
         <form method=\"post\" action=\"{}\"><input type=\"hidden\" name=\"{}\" value=\"{}\">\
         <noscript><button>Continue</button></noscript></form><script>{SUBMIT}</script>",
        escape(landing.ui.as_str()),
        landing.name,
        escape(&landing.value)
    );
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; form-action {}; frame-ancestors 'none'; base-uri 'none'",
        STANDARD.encode(Sha256::digest(SUBMIT)),
        landing.ui.origin().ascii_serialization()
    );
    let policy = HeaderValue::from_str(&policy).map_err(|_| Code::Internal)?;
    let kind = HeaderValue::from_static("text/html; charset=utf-8");
    Ok((
        [(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, policy)],
        page,
    )
        .into_response())
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

    fn landing(delivery: Delivery, value: &str) -> Landing {
        let ui = Url::parse("https://ui.example/welcome?a=1&b=2").expect("URL");
        Landing {
            ui,
            delivery,
            name: "temporaryToken",
            value: value.to_owned(),
        }
    }

    #[test]
    fn the_token_stands_in_the_fragment_alone() {
        let url = fragment(&landing(Delivery::Fragment, "abc-_"));
        assert_eq!(
            url.as_str(),
            "https://ui.example/welcome?a=1&b=2#temporaryToken=abc-_"
        );
    }

    #[test]
    fn the_form_can_be_sent_to_the_ui_alone() {
        let response = answer(&landing(Delivery::FormPost, "\"><script>")).expect("page");
        let policy = response.headers()[CONTENT_SECURITY_POLICY]
            .to_str()
            .expect("text");
        assert!(
            policy.contains("form-action https://ui.example;"),
            "{policy}"
        );
        assert_eq!(response.headers()[REFERRER_POLICY], "no-referrer");
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
    }
}
