//! The pages of the mail catcher: the list with live update, and one mail with its
//! representations.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, Response};
use axum::routing::get;
use futures_util::Stream;
use futures_util::stream::unfold;
use http::StatusCode;
use maud::{Markup, html};
use postern_core::problem::{Code, Problem};
use postern_service::http::Query;

use super::mailbox::{Mailbox, Summary};
use super::mime::ParsedMail;
use super::web_api::read;
use crate::samples::store_problem;
use crate::web::page::{Page, Section, script, to_text};

pub(super) fn router() -> Router<Arc<Mailbox>> {
    let pages_script = || async { script(include_str!("pages.js")) };
    Router::new()
        .route("/mail", get(list_page))
        .route("/mail/list", get(list_fragment))
        .route("/mail/events", get(events))
        .route("/mail/{id}", get(mail_page))
        .route("/assets/mail.js", get(pages_script))
}

async fn list_page(State(mailbox): State<Arc<Mailbox>>) -> Result<Response, Problem> {
    let content = html! {
        div.bar { button.danger #clear type="button" { "Delete all" } }
        div #list aria-live="polite" { (list(&mailbox).await?) }
    };
    Ok(page("Mail", content))
}

/// `GET /mail/list`: the list alone, for the script of the page.
async fn list_fragment(State(mailbox): State<Arc<Mailbox>>) -> Result<Html<String>, Problem> {
    Ok(Html(to_text(list(&mailbox).await?)))
}

async fn list(mailbox: &Mailbox) -> Result<Markup, Problem> {
    let found = mailbox.list(None).await.map_err(store_problem)?;
    Ok(html! {
        @if found.is_empty() {
            div.panel { "No mail yet. Mail that Postern sends appears here at once." }
        } @else {
            ul.plain.panel.mails { @for summary in &found { (row(summary)) } }
        }
    })
}

fn page(title: &str, content: Markup) -> Response {
    let page = Page {
        title,
        section: Some(Section::Mail),
        script: Some("/assets/mail.js"),
        content,
    };
    page.respond(StatusCode::OK)
}

fn row(summary: &Summary) -> Markup {
    html! {
        li {
            a.subject href=(format!("/mail/{}", summary.id)) { (subject(summary)) }
            time datetime=(summary.received_at) { (short_time(&summary.received_at)) }
            div.people { bdi { (summary.from) } " → " bdi { (summary.recipients.join(", ")) } }
        }
    }
}

fn subject(summary: &Summary) -> &str {
    match summary.subject.as_str() {
        "" => "(no subject)",
        subject => subject,
    }
}

/// Returns `2026-11-20 07:30:00` of an RFC 3339 time.
fn short_time(time: &str) -> String {
    time.chars().take(19).collect::<String>().replace('T', " ")
}

/// `GET /mail/events`: an event after each change of the mailbox.
async fn events(
    State(mailbox): State<Arc<Mailbox>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let changes = unfold(mailbox.subscribe(), |mut changes| async move {
        changes.changed().await.ok()?;
        let count = *changes.borrow_and_update();
        Some((Ok(Event::default().data(count.to_string())), changes))
    });
    Sse::new(changes).keep_alive(KeepAlive::default())
}

async fn mail_page(
    State(mailbox): State<Arc<Mailbox>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let parameters = Query::parse(query.as_deref().unwrap_or_default(), &["view"]);
    let (summary, mail) = read(&mailbox, &id).await?;
    let shows_html = match parameters.get("view") {
        None => mail.html.is_some(),
        Some("html") if mail.html.is_some() => true,
        Some("text") => false,
        Some(_) => return Err(Code::NotFound.into()),
    };
    parameters.finish()?;
    let content = html! {
        (facts(&summary))
        div.bar {
            a.button href="/mail" { "All mail" }
            button.danger #delete type="button" data-id=(summary.id) { "Delete" }
        }
        (representation(&summary.id, &mail, shows_html))
    };
    Ok(page(subject(&summary), content))
}

fn facts(summary: &Summary) -> Markup {
    html! {
        p.muted {
            bdi { (summary.from) } " → " bdi { (summary.recipients.join(", ")) } ", "
            time datetime=(summary.received_at) { (short_time(&summary.received_at)) }
            ", " (summary.size) " bytes"
        }
    }
}

fn representation(id: &str, mail: &ParsedMail, shows_html: bool) -> Markup {
    let current = |is_shown: bool| is_shown.then_some("page");
    html! {
        nav.tabs aria-label="Representations" {
            @if mail.html.is_some() {
                a href=(format!("/mail/{id}?view=html")) aria-current=[current(shows_html)] { "HTML" }
            }
            a href=(format!("/mail/{id}?view=text")) aria-current=[current(!shows_html)] { "Text" }
            a href=(format!("/messages/{id}/raw")) { "Source" }
        }
        @if shows_html {
            iframe sandbox="" title="HTML of the mail" src=(format!("/messages/{id}/html")) {}
        } @else if let Some(text) = &mail.text {
            div.panel { pre tabindex="0" { (text) } }
        } @else {
            div.panel { "This mail has no plain text." }
        }
    }
}
