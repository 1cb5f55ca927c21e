//! HTML pages of the development services: a common layout and a strict content security policy.

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use maud::{DOCTYPE, Markup, html};
use postern_core::hidden_characters::reveal_in_html;

use crate::web::api_page;

/// Everything comes from the service itself, and nothing is inline. There is no `form-action`,
/// because the form of the social provider ends in a redirect to its client.
pub(crate) const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; \
    frame-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'";

const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName =
    HeaderName::from_static("cross-origin-resource-policy");

/// The pages with an entry in the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Mail,
    Api,
}

#[derive(Debug)]
pub(crate) struct Page<'a> {
    /// Title of the document and heading.
    pub(crate) title: &'a str,
    /// The current entry of the navigation; `None` for a page without navigation.
    pub(crate) section: Option<Section>,
    pub(crate) script: Option<&'static str>,
    pub(crate) content: Markup,
}

// === impl Page ===

impl Page<'_> {
    /// Returns the response, which [`protect`] completes.
    pub(crate) fn respond(&self, status: StatusCode) -> Response {
        let width = self.section.is_none().then_some("narrow");
        let document = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    title { (self.title) " · Postern" }
                    link rel="icon" href="/assets/icon.svg";
                    link rel="stylesheet" href="/assets/pages.css";
                    script src="/assets/copy.js" type="module" {}
                    @if let Some(script) = self.script {
                        script src=(script) type="module" {}
                    }
                }
                body {
                    a.skip href="#content" { "Skip to the content" }
                    header {
                        strong { "Postern" small { "development" } }
                        @if let Some(section) = self.section {
                            (navigation(section))
                        }
                    }
                    main #content class=[width] {
                        h1 { (self.title) }
                        (self.content)
                    }
                }
            }
        };
        let headers = [
            (CONTENT_TYPE, "text/html; charset=utf-8"),
            (CONTENT_SECURITY_POLICY, POLICY),
        ];
        (status, headers, to_text(document)).into_response()
    }
}

fn navigation(current: Section) -> Markup {
    let entries = [
        (Section::Mail, "/mail", "Mail"),
        (Section::Api, api_page::PATH, "API"),
    ];
    html! {
        nav aria-label="Pages" {
            @for (section, path, name) in entries {
                a href=(path) aria-current=[(section == current).then_some("page")] { (name) }
            }
        }
    }
}

/// Returns the text of a page or a part of one, with hidden characters as their numbers.
pub(crate) fn to_text(markup: Markup) -> String {
    reveal_in_html(markup.into_string())
}

/// Adds header fields to a response that has no policy of its own: it is not shown in a frame, not
/// interpreted as another type, and not kept.
pub(crate) async fn protect(mut response: Response) -> Response {
    let fields = [
        (
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; frame-ancestors 'none'",
        ),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (CACHE_CONTROL, "no-store"),
        (CROSS_ORIGIN_RESOURCE_POLICY, "same-origin"),
    ];
    let headers = response.headers_mut();
    for (name, value) in fields {
        let value = HeaderValue::from_static(value);
        headers.entry(name).or_insert(value);
    }
    response
}

pub(crate) fn assets<S: Clone + Send + Sync + 'static>() -> Router<S> {
    let style = || async { asset("text/css; charset=utf-8", include_str!("pages.css")) };
    let copy = || async { script(include_str!("copy.js")) };
    let icon = || async { asset("image/svg+xml", include_str!("icon.svg")) };
    Router::new()
        .route("/assets/pages.css", get(style))
        .route("/assets/copy.js", get(copy))
        .route("/assets/icon.svg", get(icon))
}

pub(crate) fn script(text: &'static str) -> Response {
    asset("text/javascript; charset=utf-8", text)
}

/// Returns a file of this program. Browsers ask again each time, because another version of the
/// program may serve the same path.
fn asset(content_type: &'static str, text: &'static str) -> Response {
    let headers = [(CONTENT_TYPE, content_type), (CACHE_CONTROL, "no-cache")];
    (headers, text).into_response()
}
