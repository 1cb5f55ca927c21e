//! Sign-ins.

use maud::{Markup, html};
use serde_json::Value;

use super::{Context, heading, periods};
use crate::config::ProcessKind::Auth;
use crate::widgets::Cell::{Link, Mono, Of, Text, Time};
use crate::widgets::{Column, plain, state};

const COLUMNS: &[Column] = &[
    ("Time", Time("at")),
    ("Event", Text("event")),
    ("Outcome", Of(outcome)),
    ("User", Link("/search?kind=user&q=", "subject")),
    ("Network", Mono("network")),
    ("Provider", Text("provider")),
    ("Request", Link("/search?kind=request&q=", "requestId")),
];

fn outcome(row: &Value) -> Markup {
    html! { (state(&plain(&row["outcome"]))) " " span.muted { (plain(&row["reason"])) } }
}

pub(super) async fn sign_ins(context: &Context<'_>) -> Markup {
    let parameters = context.parameters("email user request outcome reason since until cursor");
    html! {
        (heading("Sign-ins"))
        form.filters action="/sign-ins" {
            label { "E-mail address" input name="email" value=(context.parameter("email")); }
            label { "User" input name="user" value=(context.parameter("user")); }
            label { "Outcome" input name="outcome" placeholder="invalid_credentials" value=(context.parameter("outcome")); }
            label { "Reason" input name="reason" placeholder="throttled" value=(context.parameter("reason")); }
            label { "Last" select name="since" { (periods(context.parameter("since"))) } }
            button type="submit" { "Filter" }
        }
        (context.listing("/sign-ins", (Auth, "/admin/sign-ins"), ("signIns", COLUMNS, "No event matches."), &parameters).await)
    }
}
