//! The users of the pool.

use maud::{Markup, html};
use serde_json::Value;

use super::{Context, heading, items};
use crate::actions::path_segment;
use crate::config::ProcessKind::Auth;
use crate::widgets::Cell::{Link, Of, Text, Time};
use crate::widgets::{Column, Tone, action, badge, facts, first, mono, plain, time, words};

const COLUMNS: &[Column] = &[
    ("E-mail address", Text("email")),
    ("State", Of(status)),
    ("Since", Time("createdAt")),
    ("User", Link("/users/", "subject")),
];

/// Returns the state of a user.
fn status(user: &Value) -> Markup {
    html! {
        (badge(Tone::Plain, &words(&plain(&user["status"]))))
        @if user["enabled"] == false { " " (badge(Tone::Bad, "disabled")) }
        @if user["emailVerified"] == false { " " (badge(Tone::Plain, "address not verified")) }
    }
}

pub(super) async fn list(context: &Context<'_>) -> Markup {
    let parameters = context.parameters("email cursor");
    html! {
        (heading("Users"))
        form.filters action="/users" {
            label { "E-mail address begins with" input name="email" autocomplete="off" value=(context.parameter("email")); }
            button type="submit" { "Search" }
        }
        (context.listing("/users", (Auth, "/admin/users"), ("users", COLUMNS, "No user has such an address."), &parameters).await)
    }
}

pub(super) async fn one(context: &Context<'_>, subject: &str) -> Markup {
    let path = format!("/admin/users/{}", path_segment(subject));
    html! {
        @match context.ask(Auth, &path).await { Err(message) => { (heading("User")) (message) }, Ok(user) => {
            (heading(&plain(first(&user, &["email", "username"]))))
            section.panel {
                (facts(&[("E-mail address", html! { (plain(&user["email"])) }), ("State", status(&user)),
                    ("Since", time(&plain(&user["createdAt"]))), ("User", mono(subject))]))
                p { a href={ "/search?kind=user&q=" (path_segment(subject)) } { "What happened to this person" } }
            }
            section.panel { h2 { "Groups" } (groups(context, subject, &user)) }
            @if context.is_operator() { section.panel { h2 { "Account" } (buttons(subject, &user)) } }
        } }
    }
}

fn groups(context: &Context<'_>, subject: &str, user: &Value) -> Markup {
    let (groups, all) = (items(&user["groups"]), items(&user["allGroups"]));
    let others = all.iter().filter(|group| !groups.contains(group));
    html! {
        @if groups.is_empty() { p.muted { "This user is in no group." } }
        ul.plain { @for group in groups.iter().map(plain) { li { (group)
            @if context.is_operator() { (action("user.remove_from_group", &format!("Remove from {group}"), &[("target", subject), ("group", &group)],
                &format!("Remove this user from the group {group}?"), Tone::Bad)) }
        } } }
        @if context.is_operator() && groups.len() < all.len() {
            form.inline data-action="user.add_to_group" data-confirm="Add this user to the group?" {
                input type="hidden" name="target" value=(subject);
                label { "Group" select name="group" { @for group in others.map(plain) { option value=(group) { (group) } } } }
                button type="submit" { "Add" }
            }
        }
    }
}

fn buttons(subject: &str, user: &Value) -> Markup {
    let target = [("target", subject)];
    html! {
        div.buttons {
            @if user["enabled"] == false { (action("user.enable", "Enable", &target, "Let this user sign in again?", Tone::Plain)) }
            @else { (action("user.disable", "Disable", &target, "Refuse the sign-ins of this user, and end all present ones?", Tone::Bad)) }
            (action("user.sign_out", "Sign out everywhere", &target, "End all sign-ins of this user?", Tone::Bad))
            (action("user.reset_password", "Reset password", &target, "Make the password invalid, end all sign-ins, and send a code for a new password?", Tone::Bad))
        }
        p.muted { "Access tokens that were issued before are accepted until they expire." }
    }
}
