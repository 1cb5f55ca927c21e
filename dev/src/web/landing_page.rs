//! The landing page of social sign-ins, for installations without a user interface. Shows the
//! temporary token from the URL fragment and the command that exchanges it. The page's script reads
//! the fragment and writes the heading.

use axum::Router;
use axum::response::Response;
use axum::routing::get;
use http::StatusCode;
use maud::html;

use crate::web::page::{Page, script};

/// Path of the page; the configured UI of the embedded authentication upstream.
pub(crate) const PATH: &str = "/signed-in";

/// Builds the router of the page. `gateway` is the base URL used in the command.
pub(crate) fn router(gateway: &str) -> Router {
    let gateway = gateway.to_owned();
    let show = move || {
        let response = page(&gateway);
        async move { response }
    };
    Router::new()
        .route(PATH, get(show))
        .route("/assets/landing_page.js", get(landing_script))
}

fn page(gateway: &str) -> Response {
    let start = format!("{gateway}/auth/social/login");
    let content = html! {
        p #outcome { "This page has no temporary token. Start at " a href=(start) { (start) } "." }
        div #result hidden {
            div.panel {
                h2 { "Temporary token" }
                div.copied {
                    pre #token {}
                    button type="button" data-copy="token" { "Copy" }
                }
            }
            div.panel {
                h2 { "Exchange it for tokens" }
                div.copied {
                    pre #command data-gateway=(gateway) {}
                    button type="button" data-copy="command" { "Copy" }
                }
            }
            p.muted #hint hidden {
                "The token is valid once, for five minutes. It was in the fragment of the URL, which is not sent to \
                 servers, and has been removed from the URL."
            }
        }
        p #again hidden { a href=(start) { "Sign in again" } }
    };
    Page {
        title: "Social sign-in",
        section: None,
        script: Some("/assets/landing_page.js"),
        content,
    }
    .respond(StatusCode::OK)
}

async fn landing_script() -> Response {
    script(include_str!("landing_page.js"))
}
