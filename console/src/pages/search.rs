//! The time line of an e-mail address, a user, a request or a notification.

use maud::{Markup, html};
use postern_core::Code;
use serde_json::Value;

use super::{Context, heading, items, periods, query_string};
use crate::actions::path_segment;
use crate::config::ProcessKind;
use crate::widgets::{Tone, action, badge, facts, members, mono, plain, state, time, words};

/// Members that the time line shows outside of the details of an event.
const SHOWN_MEMBERS: &str = "at source event outcome notificationId requestId";
/// Members in the sentence of an event, with the word before each.
const TOLD_MEMBERS: [(&str, &str); 6] = [
    ("template", "template"),
    ("channel", "by"),
    ("provider", "with"),
    ("network", "from"),
    ("reason", "because"),
    ("detail", ""),
];
/// Maximum number of subjects of a person that are followed.
const MAX_SUBJECTS: usize = 10;

/// A kind of a search term: the value of parameters, and the title.
type Term = (&'static str, &'static str);

const EMAIL: Term = ("email", "E-mail address");
const USER: Term = ("user", "User");
const REQUEST: Term = ("request", "Request");
const NOTIFICATION: Term = ("notification", "Notification");
const TERMS: [Term; 4] = [EMAIL, USER, REQUEST, NOTIFICATION];

/// Returns the kinds that a text may be of, the most likely first. The ids of requests and
/// notifications are version 7 UUIDs, those of users version 4.
fn candidates(text: &str, chosen: &str) -> Vec<Term> {
    if let Some(term) = TERMS.iter().find(|term| term.0 == chosen) {
        return vec![*term];
    }
    if text.contains('@') {
        return vec![EMAIL];
    }
    match text.as_bytes().get(14) {
        Some(b'7') if text.len() == 36 => vec![NOTIFICATION, REQUEST, USER],
        _ => vec![USER, REQUEST],
    }
}

pub(super) async fn render(context: &Context<'_>) -> Markup {
    let text = context.parameter("q");
    if text.is_empty() {
        return html! { (heading("Search")) p.muted { "Press " kbd { "/" } " and type an e-mail address or an id." } };
    }
    let since = match context.parameter("since") {
        "" => "24h",
        since => since,
    };
    let mut found = (USER, Found::default());
    let kinds = candidates(text, context.parameter("kind"));
    for term in kinds.iter().copied() {
        found = (term, Found::read(context, term, text, since).await);
        if !found.1.entries.is_empty() {
            break;
        }
    }
    let (term, found) = found;
    html! {
        (heading(text))
        form.filters action="/search" {
            input type="hidden" name="q" value=(text);
            label { "Kind" select name="kind" {
                option value="" { "as recognised" }
                @for (value, title) in TERMS { option value=(value) selected[value == context.parameter("kind")] { (title) } }
            } }
            label { "Last" select name="since" { (periods(since)) } }
            button type="submit" { "Search" }
        }
        @for message in &found.messages { (message) }
        @if found.entries.is_empty() {
            div.panel { (nothing_recorded(&kinds, text, since)) }
        } @else {
            div.grid {
                section.panel.full { h2 { (term.1) } (summary(&found, term, text)) }
                section.panel.full { h2 { (found.entries.len()) " events, times in UTC" @if found.is_truncated { ", older ones are left out" } }
                    ol.timeline { @for entry in &found.entries { (event(entry, context.is_operator())) } }
                }
            }
        }
    }
}

/// The events of a search.
#[derive(Debug, Default)]
struct Found {
    entries: Vec<Value>,
    subjects: Vec<String>,
    is_truncated: bool,
    /// Services that could not be asked.
    messages: Vec<Markup>,
}

// === impl Found ===

impl Found {
    /// Asks the authentication service first, and the notification service then, for a person by
    /// each of its subjects as well.
    async fn read(context: &Context<'_>, term: Term, text: &str, since: &str) -> Self {
        let mut found = Self::default();
        let path = |parameter: &str, value: &str| {
            let query = query_string(&[(parameter, value), ("since", since)]);
            format!("/admin/timeline?{query}")
        };
        let own = path(term.0, text);
        if term != NOTIFICATION {
            found.add(context.ask(ProcessKind::Auth, &own).await);
        }
        found.add(context.ask(ProcessKind::Notify, &own).await);
        if term == EMAIL {
            for subject in found.subjects.clone().iter().take(MAX_SUBJECTS) {
                let own = path("user", subject);
                found.add(context.ask(ProcessKind::Notify, &own).await);
            }
        }
        // The newest first: the fault of now is at the top.
        let newest_first = |entry: &Value| std::cmp::Reverse(plain(&entry["at"]));
        found.entries.sort_by_key(newest_first);
        found.entries.dedup();
        found
    }

    fn add(&mut self, answer: Result<Value, Markup>) {
        match answer {
            Ok(answer) => {
                self.entries.extend_from_slice(items(&answer["entries"]));
                let subjects = items(&answer["subjects"]).iter().map(plain);
                self.subjects.extend(subjects);
                self.subjects.sort_unstable();
                self.subjects.dedup();
                self.is_truncated |= answer["isTruncated"] == true;
            }
            Err(message) => self.messages.push(message),
        }
    }
}

/// Says that the services have no entry, and where requests are seen that leave none.
fn nothing_recorded(kinds: &[Term], text: &str, since: &str) -> Markup {
    let names: Vec<&str> = kinds.iter().map(|kind| kind.0).collect();
    html! {
        p { "No sign-in and no notification of this " (names.join(" or ")) " is recorded since " (since) " ago." }
        p.muted { "Requests that the gateway rejects or forwards to other services are not recorded. "
            @if kinds.contains(&USER) { a href=(requests_of(text)) { "Follow the requests of this user" } }
            @else { a href="/requests" { "Follow the requests" } }
            " while they are sent. A rejected token has no user." }
    }
}

/// Returns the address of the live tail of a user.
fn requests_of(subject: &str) -> String {
    format!("/requests?{}", query_string(&[("principal", subject)]))
}

/// Returns the links to the time line and to the requests of each subject.
fn subjects(found: &Found, term: Term) -> Markup {
    html! {
        @if found.subjects.is_empty() && term == EMAIL {
            "none: nobody has registered or signed in with this address in this time"
        }
        @for subject in &found.subjects {
            a href={ "/search?kind=user&q=" (path_segment(subject)) } { (mono(subject)) } " "
            a href=(requests_of(subject)) { "Follow the requests" } " "
        }
    }
}

fn summary(found: &Found, term: Term, text: &str) -> Markup {
    let last = |source: &str, name: &str| {
        let mut entries = found.entries.iter();
        let of_kind = |it: &&Value| it["source"] == source && plain(&it["event"]).starts_with(name);
        let last = entries.find(of_kind);
        html! { @if let Some(entry) = last { (time(&plain(&entry["at"]))) " " (state(&plain(&entry["outcome"]))) } }
    };
    let mut entries = found.entries.iter();
    let failed = entries.clone().filter(|entry| is_failure(entry)).count();
    let is_suppressed = entries.any(|entry| entry["event"] == "SUPPRESSED");
    let address = html! { @if is_suppressed { (badge(Tone::Bad, "suppressed")) } };
    let failed =
        html! { @if failed > 0 { (badge(Tone::Bad, &failed.to_string())) } @else { "none" } };
    let why = found.entries.iter().find(|entry| is_failure(entry));
    let why = why.map(sentence).unwrap_or_default();
    facts(&[
        ("Searched", mono(text)),
        ("Why the last step failed", html! { (why) }),
        ("Subjects", subjects(found, term)),
        ("Last sign-in", last("auth", "sign_in")),
        ("Address", address),
        ("Failed steps", failed),
    ])
}

fn is_failure(entry: &Value) -> bool {
    let event = plain(&entry["event"]);
    let outcome = plain(&entry["outcome"]);
    ["FAILED", "SUPPRESSED", "EXPIRED", "BOUNCED"].contains(&event.as_str())
        || !["", "ok"].contains(&outcome.as_str())
}

fn event(entry: &Value, is_operator: bool) -> Markup {
    let source = plain(&entry["source"]);
    let source = match source.as_str() {
        "auth" => "Sign-in",
        "notify" => "Notifications",
        "gateway" => "Gateway",
        other => other,
    };
    let (name, outcome) = (plain(&entry["event"]), plain(&entry["outcome"]));
    let is_cause = ["FAILED", "SUPPRESSED"].contains(&name.as_str());
    let id = plain(&entry["notificationId"]);
    let request = plain(&entry["requestId"]);
    let told = TOLD_MEMBERS.iter().map(|(name, _)| *name);
    let elsewhere: Vec<&str> = SHOWN_MEMBERS.split(' ').chain(told).collect();
    let details = members(entry, &elsewhere);
    html! {
        li class=[is_cause.then_some("cause")] {
            (time(&plain(&entry["at"])))
            div.service { (source) }
            div {
                strong { (sentence(entry)) } " " (state(&outcome)) " "
                @if !id.is_empty() { span.why { "notification " a.mono href={ "/notifications/" (path_segment(&id)) } { (short(&id)) } " " } }
                @if !request.is_empty() { span.why { "request " a.mono href={ "/search?kind=request&q=" (path_segment(&request)) } { (short(&request)) } } }
                @if !details.0.is_empty() { details.why { summary { "Details" } (details) } }
                @if is_cause && is_operator && !id.is_empty() {
                    div.buttons { (action("notification.retry", "Send again", &[("target", &id)], "Send this notification again?", Tone::Plain)) }
                }
            }
        }
    }
}

/// Returns what has happened in words, with the meaning of a problem code.
fn sentence(entry: &Value) -> String {
    let event = words(&plain(&entry["event"]));
    let mut letters = event.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    let mut told = vec![first.chain(letters).collect()];
    for (name, before) in TOLD_MEMBERS {
        let value = plain(&entry[name]);
        if !value.is_empty() {
            told.push(format!("{before} {value}").trim().to_owned());
        }
    }
    let mut codes = Code::ALL.iter();
    let code = codes.find(|code| entry["outcome"] == code.as_str());
    let meaning = code.map(|code| format!(": {}", code.title()));
    told.join(" ") + &meaning.unwrap_or_default()
}

/// Returns the distinctive part of an identifier.
fn short(id: &str) -> &str {
    id.get(..13).unwrap_or(id)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_are_recognised_by_their_version() {
        let first = |text| candidates(text, "")[0];
        for (text, expected) in [
            ("ada@example.com", EMAIL),
            ("019aa0c4-8f00-7c3a-b5d1-5a7f0c2e9d11", NOTIFICATION),
            ("b1f0a3ce-5f7a-4a40-9d5e-7c1f0c2e9d11", USER),
            ("gateway-made-id", USER),
        ] {
            assert_eq!(first(text), expected, "{text}");
        }
        let chosen = candidates("019aa0c4-8f00-7c3a-b5d1-5a7f0c2e9d11", "request");
        assert_eq!(chosen, [REQUEST]);
    }

    #[test]
    fn event_is_told_in_words() {
        let refused = json!({"event": "sign_in", "outcome": "invalid_credentials", "provider": "password", "network": "192.0.2.0/24"});
        let title = Code::InvalidCredentials.title();
        let failed = json!({"event": "FAILED", "outcome": "bounced", "provider": "smtp", "detail": "550 no such user"});
        let new = json!({"event": "THING", "attempt": 2});
        for (entry, expected) in [
            (
                refused,
                format!("Sign in with password from 192.0.2.0/24: {title}"),
            ),
            (failed, "Failed with smtp 550 no such user".to_owned()),
            (new, "Thing".to_owned()),
        ] {
            assert_eq!(sentence(&entry), expected);
        }
    }

    #[test]
    fn address_without_a_subject_is_said_to_have_none() {
        let mut found = Found::default();
        let shown = subjects(&found, EMAIL).into_string();
        assert!(
            shown.contains("nobody has registered or signed in"),
            "{shown}"
        );
        assert_eq!(subjects(&found, REQUEST).into_string(), "");
        found.subjects.push("a&b".to_owned());
        let shown = subjects(&found, EMAIL).into_string();
        assert!(
            shown.contains("href=\"/requests?principal=a%26b\""),
            "{shown}"
        );
        assert!(!shown.contains("nobody"), "{shown}");
    }

    #[test]
    fn search_without_entries_leads_to_the_requests() {
        let kinds = candidates("nordwind-olga", "");
        let shown = nothing_recorded(&kinds, "nordwind-olga", "24h").into_string();
        assert!(shown.contains("of this user or request"), "{shown}");
        assert!(
            shown.contains("href=\"/requests?principal=nordwind-olga\""),
            "{shown}"
        );
        let shown = nothing_recorded(&[REQUEST], "id", "24h").into_string();
        assert!(shown.contains("href=\"/requests\""), "{shown}");
    }
}
