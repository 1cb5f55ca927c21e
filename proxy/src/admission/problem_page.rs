//! A problem as a page, for a person in front of a browser.
//!
//! The page is self-contained: one style, no script, nothing loaded. Its policy permits just that
//! style, by hash.

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderValue, StatusCode};
use maud::{DOCTYPE, PreEscaped, html};
use pingora::http::ResponseHeader;
use pingora_core::Result;
use postern_core::Problem;
use sha2::{Digest, Sha256};

/// The style of the page.
const STYLE: &str = include_str!("problem_page.css");

/// The value of `Content-Security-Policy`.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = BASE64.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    HeaderValue::from_str(&policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// Replaces the media type and adds the fields that protect the page.
pub(super) fn set_headers(response: &mut ResponseHeader) -> Result<()> {
    response.insert_header("Content-Type", "text/html; charset=utf-8")?;
    response.insert_header("Content-Security-Policy", POLICY.clone())?;
    response.insert_header("X-Content-Type-Options", "nosniff")?;
    response.insert_header("Referrer-Policy", "no-referrer")
}

/// Returns the page: status, description, what to do, and the request id to quote.
pub(super) fn render(problem: &Problem, request_id: &str) -> String {
    let code = problem.code();
    let (status, title) = (code.status(), code.title());
    let detail = Some(problem.message()).filter(|message| *message != title);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (status.as_u16()) " " (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main {
                    p.status { (status.as_u16()) " " (status.canonical_reason().unwrap_or_default()) }
                    h1 { (title) }
                    @if let Some(detail) = detail {
                        p { (detail) }
                    }
                    p { (advice(status)) }
                    dl {
                        dt { "Code" }
                        dd { code { (code.as_str()) } }
                        dt { "Request" }
                        dd { code { (request_id) } }
                    }
                }
            }
        }
    };
    page.into_string()
}

/// Returns what a person can do about a response with this status.
fn advice(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "Sign in, then open this page from the application again.",
        403 => {
            "You are not permitted to open this. If you should be, ask the operator of this service."
        }
        404 | 405 => "Check the address, or go back to the page that brought you here.",
        429 | 500..=599 => {
            "Try again in a moment. If it happens again, tell the operator of this service the \
             request below."
        }
        _ => "If you did not expect this, tell the operator of this service the request below.",
    }
}

#[cfg(test)]
mod tests {
    use postern_core::Code;

    use super::*;

    #[test]
    fn page_names_problem_and_request_and_escapes_both() {
        let hostile = "</title><script>alert(1)</script>\"'&";
        let problem = Problem::new(Code::NotFound).detail(hostile);
        let page = render(&problem, hostile);
        assert!(!page.contains("<script"), "{page}");
        let escaped = "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;'&amp;";
        assert_eq!(page.matches(escaped).count(), 2, "{page}");
        assert!(page.contains("404 Not Found") && page.contains("<code>not_found</code>"));
    }

    #[test]
    fn policy_permits_the_style_and_nothing_else() {
        let page = render(&Problem::new(Code::NotFound), "id");
        let style = page
            .split_once("<style>")
            .and_then(|(_, rest)| rest.split_once("</style>"));
        let style = style.map(|(style, _)| style).expect("a style");
        let hash = BASE64.encode(Sha256::digest(style));
        let policy = POLICY.to_str().expect("ASCII");
        assert!(policy.starts_with("default-src 'none'; "), "{policy}");
        assert!(
            policy.contains(&format!("style-src 'sha256-{hash}'")),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
    }

    #[test]
    fn every_code_has_a_page() {
        for code in Code::ALL {
            let page = render(&Problem::new(*code), "id");
            assert!(page.contains(code.as_str()), "{page}");
            assert!(page.contains("<h1>") && page.len() < 4 << 10, "{page}");
        }
    }
}
