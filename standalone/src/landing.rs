//! Where a social sign-in ends when there is no user interface yet: shows the temporary token of the fragment and
//! the command that exchanges it.

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::page::page;

/// The path of the page; the configured UI of the embedded authentication upstream.
pub(crate) const PATH: &str = "/signed-in";

pub(crate) fn router() -> Router {
    Router::new().route(PATH, get(landing)).route("/signed-in.js", get(script))
}

async fn landing() -> Response {
    let body = "<p id=outcome>No temporary token came with this page: begin at /auth/social/login on the gateway.\
                <pre id=command hidden></pre><p id=hint hidden>The token works once, within five minutes. It came in \
                the fragment of the address, which no server, log or Referer sees, and is gone from there now.\
                <script src=\"/signed-in.js\"></script>";
    page(StatusCode::OK, "Signed in", body)
}

async fn script() -> Response {
    ([(CONTENT_TYPE, "text/javascript; charset=utf-8")], include_str!("landing.js")).into_response()
}
