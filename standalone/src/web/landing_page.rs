//! The landing page of social sign-ins, for installations without a user interface. Shows the
//! temporary token from the URL fragment and the command that exchanges it. The page's script reads
//! the fragment and writes the heading.

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::web::html::{escape, page};

/// Path of the page; the configured UI of the embedded authentication upstream.
pub(crate) const PATH: &str = "/signed-in";

/// Builds the router of the page. `gateway` is the base URL used in the command.
pub(crate) fn router(gateway: &str) -> Router {
    let body = body(gateway);
    Router::new()
        .route(
            PATH,
            get(move || std::future::ready(page(StatusCode::OK, "Social sign-in", &body))),
        )
        .route("/signed-in.js", get(script))
}

fn body(gateway: &str) -> String {
    format!(
        "<p id=outcome>This page has no temporary token. Start at <a href=\"{0}/auth/social/login\">{0}/auth/social/login</a>.\
         <pre id=command data-gateway=\"{0}\" hidden></pre><p id=hint hidden>The token is valid once, for five minutes. \
         It was in the fragment of the URL, which is not sent to servers, and has been removed from the URL.\
         <script src=\"/signed-in.js\"></script>",
        escape(gateway)
    )
}

async fn script() -> Response {
    (
        [(CONTENT_TYPE, "text/javascript; charset=utf-8")],
        include_str!("landing_page.js"),
    )
        .into_response()
}
