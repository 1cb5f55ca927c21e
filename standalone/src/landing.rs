//! Where a social sign-in ends when there is no user interface yet: shows the temporary token of
//! the fragment and the command that exchanges it. Only the script of the page knows how the
//! sign-in ended, and writes the heading.

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::page::{escape, page};

/// The path of the page; the configured UI of the embedded authentication upstream.
pub(crate) const PATH: &str = "/signed-in";

/// The page, which names the gateway in its command.
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
        "<p id=outcome>No temporary token came with this page: begin at <a href=\"{0}/auth/social/login\">{0}/auth/social/login</a>.\
         <pre id=command data-gateway=\"{0}\" hidden></pre><p id=hint hidden>The token works once, within five minutes. \
         It came in the fragment of the address, which no server, log or Referer sees, and is gone from there now.\
         <script src=\"/signed-in.js\"></script>",
        escape(gateway)
    )
}

async fn script() -> Response {
    (
        [(CONTENT_TYPE, "text/javascript; charset=utf-8")],
        include_str!("landing.js"),
    )
        .into_response()
}
