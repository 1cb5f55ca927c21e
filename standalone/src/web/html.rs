//! HTML pages of the development services: a common layout, escaped text, and a strict content
//! security policy.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};

const PAGE_STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.4rem .6rem;border-bottom:1px solid #ddd;\
vertical-align:top}pre{background:#f4f4f4;padding:1rem;overflow:auto;white-space:pre-wrap;word-break:break-all}\
iframe{width:100%;height:32rem;border:1px solid #ccc}button{font:inherit;padding:.5rem 1rem;margin:.2rem 0;\
cursor:pointer}fieldset{border:1px solid #ccc;margin:1rem 0}label{display:block;margin:.4rem 0}";

/// Returns a page. `body` is HTML; external text in it must be escaped with [`escape`].
pub(crate) fn page(status: StatusCode, title: &str, body: &str) -> Response {
    let title = escape(title);
    let html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{title}</title><style>{PAGE_STYLE}</style><h1>{title}</h1>{body}</html>"
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

/// Escapes text for use as HTML text or in a quoted attribute.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_characters_are_escaped() {
        assert_eq!(escape("<a b='\"&'>"), "&lt;a b=&#39;&quot;&amp;&#39;&gt;");
    }
}
