//! The options of the command palette: pages with what is done there, routes, people and ids.

use maud::{Markup, html};

use super::{Context, items, query_string};
use crate::actions::path_segment;
use crate::config::ProcessKind::{Auth, Gateway};
use crate::shell;
use crate::widgets::plain;

/// Maximum number of options that are found, without those for the text itself.
const MAX_FOUND: usize = 20;
/// Minimum characters for which people are searched.
const MIN_EMAIL_CHARACTERS: usize = 3;
/// Characters of a UUID, as the ids of users, requests and notifications are.
const ID_CHARACTERS: usize = 36;

/// Kind, title and address of an option.
type Choice = (&'static str, String, String);

/// Returns the options, the best first.
pub(super) async fn options(context: &Context<'_>) -> Markup {
    let text = context.parameter("q");
    let mut choices = matching(context, text).await;
    choices.truncate(MAX_FOUND);
    if !text.is_empty() {
        // An address or an id is searched; a word is a part of a name first.
        let is_id = text.contains('@') || text.len() == ID_CHARACTERS;
        let at = if is_id { 0 } else { choices.len() };
        let query = |name| query_string(&[(name, text)]);
        let requests = format!("/requests?{}", query("principal"));
        choices.insert(
            at,
            ("Search", format!("Requests of the caller {text}"), requests),
        );
        let timeline = format!("/search?{}", query("q"));
        choices.insert(at, ("Search", format!("Time line of {text}"), timeline));
    }
    html! {
        @for (at, (kind, title, address)) in choices.iter().enumerate() {
            div role="option" id={ "option-" (at) } aria-selected="false" data-href=(address) { span.kind { (kind) } " " (title) }
        }
    }
}

/// Returns the choices that contain every word of a text, those that begin with it first.
async fn matching(context: &Context<'_>, text: &str) -> Vec<Choice> {
    let page = |(path, title, _, tasks): &shell::Page| {
        ("Page", format!("{title}: {tasks}"), (*path).to_owned())
    };
    let mut choices: Vec<Choice> = shell::pages().map(page).collect();
    let routes = context.ask(Gateway, "/admin/routes").await;
    for route in items(&routes.unwrap_or_default()) {
        let [name, methods, path] = ["name", "methods", "path"].map(|it| plain(&route[it]));
        let address = format!("/routes?q={}", path_segment(&name));
        choices.push(("Route", format!("{name}: {methods} {path}"), address));
    }
    if text.chars().count() >= MIN_EMAIL_CHARACTERS {
        let path = format!("/admin/users?{}", query_string(&[("email", text)]));
        let users = context.ask(Auth, &path).await;
        for user in items(&users.unwrap_or_default()["users"]) {
            let address = format!("/users/{}", path_segment(&plain(&user["subject"])));
            choices.push(("Person", plain(&user["email"]), address));
        }
    }
    let text = text.to_lowercase();
    choices.retain(|(_, title, _)| {
        let title = title.to_lowercase();
        text.split_whitespace().all(|word| title.contains(word))
    });
    choices.sort_by_key(|(_, title, _)| !title.to_lowercase().starts_with(&text));
    choices
}
