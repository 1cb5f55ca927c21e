//! The few HTML pages of the development parts: one look, escaped text, a strict content security policy.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use postern_common::problem::{Code, Problem};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.4rem .6rem;border-bottom:1px solid #ddd;\
vertical-align:top}pre{background:#f4f4f4;padding:1rem;overflow:auto;white-space:pre-wrap;word-break:break-all}\
iframe{width:100%;height:32rem;border:1px solid #ccc}button{font:inherit;padding:.5rem 1rem;margin:.2rem 0;\
cursor:pointer}fieldset{border:1px solid #ccc;margin:1rem 0}label{display:block;margin:.4rem 0}";

/// A whole page. `body` is HTML: whatever comes from outside must have gone through [`escape`].
pub(crate) fn page(status: StatusCode, title: &str, body: &str) -> Response {
    let title = escape(title);
    let html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{title}</title><style>{STYLE}</style><h1>{title}</h1>{body}</html>"
    );
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; frame-src 'self'; \
             frame-ancestors 'self'; base-uri 'none'",
        ),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-store"),
    ];
    (status, headers, html).into_response()
}

/// Text as HTML text or as the value of a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// Refuses a request whose `Host` is not this machine: a page elsewhere that rebinds its name to 127.0.0.1
/// would otherwise read what is here.
pub(crate) async fn local_host_only(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').filter(|(_, port)| !port.contains(']')).map_or(host, |(name, _)| name);
    match name {
        "127.0.0.1" | "localhost" | "[::1]" => next.run(request).await,
        _ => Problem::new(Code::InvalidHeader).detail("Host must be 127.0.0.1 or localhost").into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::{Router, body::Body, middleware, routing::get};
    use tower::ServiceExt as _;

    #[test]
    fn text_cannot_leave_its_place() {
        assert_eq!(escape("<a b='\"&'>"), "&lt;a b=&#39;&quot;&amp;&#39;&gt;");
    }

    #[tokio::test]
    async fn a_foreign_host_is_refused() {
        let router =
            Router::new().route("/", get(|| async { "in" })).layer(middleware::from_fn(local_host_only));
        for (host, status) in [
            ("127.0.0.1:8508", 200),
            ("localhost", 200),
            ("[::1]:1", 200),
            ("evil.example:8508", 400),
            ("", 400),
        ] {
            let request =
                Request::builder().uri("/").header(HOST, host).body(Body::empty()).expect("request");
            let answer = router.clone().oneshot(request).await.expect("answer");
            assert_eq!(answer.status(), status, "{host}");
        }
    }
}
