//! The pages of the mail catcher: the list with search and live update, and one mail with its
//! representations.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, RawQuery, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, Redirect, Response};
use axum::routing::get;
use futures_util::Stream;
use futures_util::stream::unfold;
use http::StatusCode;
use maud::{Markup, html};
use postern_common::problem::{Code, Problem};

use super::findings::Findings;
use super::mailbox::{Mailbox, Query, Summary};
use super::mime::ParsedMail;
use super::web_api::{mailbox_error, read};
use crate::web::page::{Page, Section, copyable, script, to_text};
use crate::web::query;

/// Maximum number of mails on the page of the list.
const PAGE_LENGTH: usize = 200;
/// Maximum bytes of a part that the page of a mail shows; the API returns all of it.
const MAX_SHOWN_BYTES: usize = 512 << 10;

/// A representation of a mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tab {
    Html,
    Text,
    Headers,
    Raw,
}

/// Returns the routes of the pages.
pub(super) fn router() -> Router<Arc<Mailbox>> {
    let pages_script = || async { script(include_str!("pages.js")) };
    Router::new()
        .route("/mail", get(list_page))
        .route("/mail/list", get(list_fragment))
        .route("/mail/events", get(events))
        .route("/mail/{id}", get(mail_page))
        .route("/view/{id}", get(old_path))
        .route("/assets/mail.js", get(pages_script))
}

/// Redirects from the path that the page of a mail had before.
async fn old_path(Path(id): Path<String>) -> Redirect {
    let id: String = url::form_urlencoded::byte_serialize(id.as_bytes()).collect();
    Redirect::permanent(&format!("/mail/{id}"))
}

fn search_of(query: Option<&str>) -> Result<String, Problem> {
    let mut parameters = query::parse(query, &["q"])?;
    Ok(parameters.remove("q").unwrap_or_default())
}

async fn list_page(
    State(mailbox): State<Arc<Mailbox>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let search = search_of(query.as_deref())?;
    let content = html! {
        form.bar role="search" method="get" action="/mail" {
            input.grow #search type="search" name="q" value=(search) aria-label="Search in mail"
                placeholder="Subject, address or text" autocomplete="off";
            button type="submit" { "Search" }
            button.danger #clear type="button" { "Delete all" }
        }
        div #list aria-live="polite" { (list(&mailbox, &search)) }
    };
    Ok(Page {
        title: "Mail",
        section: Some(Section::Mail),
        script: Some("/assets/mail.js"),
        content,
    }
    .respond(StatusCode::OK))
}

/// `GET /mail/list?q=`: the list alone, for the script of the page.
async fn list_fragment(
    State(mailbox): State<Arc<Mailbox>>,
    RawQuery(query): RawQuery,
) -> Result<Html<String>, Problem> {
    let list = list(&mailbox, &search_of(query.as_deref())?);
    Ok(Html(to_text(list)))
}

fn list(mailbox: &Mailbox, search: &str) -> Markup {
    let wanted = Query {
        text: Some(search.trim().to_lowercase()).filter(|text| !text.is_empty()),
        limit: Some(PAGE_LENGTH),
        ..Query::default()
    };
    let found = mailbox.list(&wanted);
    let (total, unread) = mailbox.counts();
    html! {
        p.muted {
            (total) " in all, " (unread) " unread"
            @if wanted.text.is_some() { ", " (found.len()) " found" }
            @if found.len() == PAGE_LENGTH { "; the newest " (PAGE_LENGTH) " are shown" }
        }
        @if found.is_empty() {
            div.panel {
                @if wanted.text.is_some() {
                    "No mail matches."
                } @else {
                    "No mail yet. Mail that Postern sends appears here at once."
                }
            }
        } @else {
            ul.plain.panel.mails {
                @for summary in &found { (row(summary, mailbox.is_read(&summary.id))) }
            }
        }
    }
}

fn row(summary: &Summary, is_read: bool) -> Markup {
    html! {
        li.unread[!is_read] {
            a.subject href=(format!("/mail/{}", summary.id)) {
                (subject(summary))
                @if !is_read { " " span.badge.ok { "unread" } }
            }
            time datetime=(summary.received_at) { (short_time(&summary.received_at)) }
            div.people { bdi { (summary.from) } " → " bdi { (summary.recipients.join(", ")) } }
            @if !summary.excerpt.is_empty() { div.excerpt { (summary.excerpt) } }
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
    let parameters = query::parse(query.as_deref(), &["view"])?;
    let (summary, mail) = read(&mailbox, &id)?;
    mailbox
        .mark_read(&id)
        .map_err(|error| mailbox_error(&error))?;
    let first = if mail.html.is_some() {
        Tab::Html
    } else {
        Tab::Text
    };
    let tab = match parameters.get("view").map(String::as_str) {
        None => first,
        Some("html") if mail.html.is_some() => Tab::Html,
        Some("text") => Tab::Text,
        Some("headers") => Tab::Headers,
        Some("raw") => Tab::Raw,
        Some(_) => return Err(Code::NotFound.into()),
    };
    let content = html! {
        (facts(&summary))
        div.bar {
            a.button href="/mail" { "All mail" }
            button.danger #delete type="button" data-id=(summary.id) { "Delete" }
        }
        (findings(&mail))
        (attachments(&summary.id, &mail))
        (tabs(&summary.id, tab, mail.html.is_some()))
        (representation(&mailbox, &summary.id, &mail, tab)?)
    };
    Ok(Page {
        title: subject(&summary),
        section: Some(Section::Mail),
        script: Some("/assets/mail.js"),
        content,
    }
    .respond(StatusCode::OK))
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

fn findings(mail: &ParsedMail) -> Markup {
    let findings = Findings::of(mail.text.as_deref().unwrap_or_default());
    html! {
        @if !findings.codes.is_empty() || !findings.links.is_empty() {
            div.panel {
                h2 { "Codes and links" }
                @for (at, code) in findings.codes.iter().enumerate() {
                    (copyable(&format!("code-{at}"), code))
                }
                @for (at, link) in findings.links.iter().enumerate() {
                    (copyable(&format!("link-{at}"), link))
                }
            }
        }
    }
}

fn attachments(id: &str, mail: &ParsedMail) -> Markup {
    html! {
        @if !mail.attachments.is_empty() {
            div.panel {
                h2 { "Attachments" }
                ul.plain {
                    @for (at, attachment) in mail.attachments.iter().enumerate() {
                        li {
                            a href=(format!("/messages/{id}/attachments/{at}")) download {
                                (attachment.file_name.as_deref().unwrap_or("(unnamed)"))
                            }
                            span.muted { " " (attachment.content_type) ", " (attachment.size) " bytes" }
                        }
                    }
                }
            }
        }
    }
}

fn tabs(id: &str, current: Tab, has_html: bool) -> Markup {
    let tabs = [
        (Tab::Html, "html", "HTML"),
        (Tab::Text, "text", "Text"),
        (Tab::Headers, "headers", "Headers"),
        (Tab::Raw, "raw", "Source"),
    ];
    let tabs = tabs
        .iter()
        .filter(|(tab, ..)| has_html || *tab != Tab::Html);
    html! {
        nav.tabs aria-label="Representations" {
            @for (tab, view, name) in tabs {
                a href=(format!("/mail/{id}?view={view}"))
                    aria-current=[(*tab == current).then_some("page")] { (name) }
            }
        }
    }
}

fn representation(
    mailbox: &Mailbox,
    id: &str,
    mail: &ParsedMail,
    tab: Tab,
) -> Result<Markup, Problem> {
    Ok(match tab {
        Tab::Html => html! {
            iframe sandbox="" title="HTML of the mail" src=(format!("/messages/{id}/html")) {}
        },
        Tab::Text => match &mail.text {
            Some(text) => html! { div.panel { pre tabindex="0" { (shortened(text)) } } },
            None => html! { div.panel { "This mail has no plain text." } },
        },
        Tab::Headers => headers(mail),
        Tab::Raw => {
            let raw = mailbox.raw(id).map_err(|error| mailbox_error(&error))?;
            let raw = String::from_utf8_lossy(&raw.ok_or(Code::NotFound)?).into_owned();
            html! {
                p { a href=(format!("/messages/{id}/raw")) { "Plain" } " · " a href=(format!("/messages/{id}")) { "JSON" } }
                div.panel { pre tabindex="0" { (shortened(&raw)) } }
            }
        }
    })
}

fn headers(mail: &ParsedMail) -> Markup {
    html! {
        div.panel {
            table.stack {
                thead { tr { th scope="col" { "Field" } th scope="col" { "Value" } } }
                tbody {
                    @for (name, value) in &mail.headers {
                        tr { th scope="row" { (name) } td.mono { (value) } }
                    }
                }
            }
        }
    }
}

/// Returns the beginning of a text that is too long for a page.
fn shortened(text: &str) -> &str {
    let end = text
        .char_indices()
        .map(|(at, _)| at)
        .take_while(|at| *at <= MAX_SHOWN_BYTES)
        .last()
        .filter(|_| text.len() > MAX_SHOWN_BYTES)
        .unwrap_or(text.len());
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_shortened_at_a_character() {
        assert_eq!(shortened("déjà"), "déjà");
        let long = format!("a{}", "é".repeat(MAX_SHOWN_BYTES));
        assert_eq!(shortened(&long).len(), MAX_SHOWN_BYTES - 1);
    }

    #[test]
    fn time_is_short() {
        assert_eq!(
            short_time("2026-11-20T07:30:00.123Z"),
            "2026-11-20 07:30:00"
        );
        assert_eq!(short_time(""), "");
    }
}
