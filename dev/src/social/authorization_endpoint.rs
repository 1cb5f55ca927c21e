//! The authorization endpoint: validates the request, shows the page to choose a person, and
//! redirects with a code.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawForm, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::LOCATION;

use super::SocialProvider;
use super::codes::AuthorizationRequest;
use super::persons::SocialPerson;
use maud::{Markup, html};

use crate::web::page::Page;

type RequestParameters = BTreeMap<String, String>;

/// `GET /authorize`: nobody is chosen, whatever the query says. A link is no choice.
pub(super) async fn show_form(
    State(provider): State<Arc<SocialProvider>>,
    RawQuery(query): RawQuery,
) -> Response {
    let mut parameters = parse_parameters(query.unwrap_or_default().as_bytes());
    parameters.remove("person");
    respond(&provider, &parameters)
}

/// `POST /authorize`: the same request, with the choice made on the page.
pub(super) async fn submit_form(
    State(provider): State<Arc<SocialProvider>>,
    RawForm(form): RawForm,
) -> Response {
    respond(&provider, &parse_parameters(&form))
}

fn respond(provider: &SocialProvider, parameters: &RequestParameters) -> Response {
    match validate(provider, parameters) {
        Err(reason) => {
            let content = html! { p { (reason) } };
            page(StatusCode::BAD_REQUEST, "Invalid sign-in request", content)
        }
        Ok(request) => match parameters.get("person") {
            None => person_page(parameters),
            Some(choice) => handle_choice(provider, request, choice, parameters),
        },
    }
}

/// Parses the parameters. Empty ones count as absent.
fn parse_parameters(encoded: &[u8]) -> RequestParameters {
    url::form_urlencoded::parse(encoded)
        .into_owned()
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

/// Checks a request. A mistake is shown to the developer, where another provider would return it to the
/// client (RFC 6749 section 4.1.2.1).
fn validate(
    provider: &SocialProvider,
    parameters: &RequestParameters,
) -> Result<AuthorizationRequest, &'static str> {
    let get = |name: &str| parameters.get(name).map(String::as_str);
    let redirect_uri = get("redirect_uri").unwrap_or_default().to_owned();
    let challenge = get("code_challenge").unwrap_or_default().to_owned();
    let is_s256 = challenge.len() == 43 && get("code_challenge_method") == Some("S256");
    if get("client_id") != Some(&provider.client.id) {
        return Err("client_id is not a client of this provider.");
    }
    if !provider.client.redirect_uris.contains(&redirect_uri) {
        return Err("redirect_uri is not registered for this client.");
    }
    if get("response_type") != Some("code") {
        return Err("response_type must be code.");
    }
    if !is_s256 {
        return Err("PKCE with S256 is required.");
    }
    Ok(AuthorizationRequest {
        redirect_uri,
        scope: get("scope").unwrap_or_default().to_owned(),
        state: get("state").map(str::to_owned),
        challenge,
        nonce: get("nonce").map(str::to_owned),
    })
}

fn handle_choice(
    provider: &SocialProvider,
    request: AuthorizationRequest,
    choice: &str,
    parameters: &RequestParameters,
) -> Response {
    let get = |name: &str| parameters.get(name).map_or("", String::as_str);
    let person = match choice {
        "nobody" => {
            let (uri, state) = (&request.redirect_uri, request.state.as_deref());
            return redirect(provider, uri, state, ("error", "access_denied"));
        }
        "other" => SocialPerson::from_form(
            get("name"),
            get("email"),
            parameters.contains_key("email_verified"),
        ),
        short => SocialPerson::sample(short),
    };
    let Some(person) = person else {
        let content = html! {
            p { "Enter a name, and an e-mail address such as ada@example.com or none. Go back and try again." }
        };
        return page(StatusCode::BAD_REQUEST, "Invalid person", content);
    };
    let (redirect_uri, state) = (request.redirect_uri.clone(), request.state.clone());
    let code = provider.issue(person, request);
    redirect(provider, &redirect_uri, state.as_deref(), ("code", &code))
}

/// Redirects to the client, with `state` and `iss` (RFC 9207).
fn redirect(
    provider: &SocialProvider,
    redirect_uri: &str,
    state: Option<&str>,
    (name, value): (&str, &str),
) -> Response {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.append_pair(name, value);
    query.extend_pairs(state.map(|state| ("state", state)));
    query.append_pair("iss", &provider.issuer);
    let url = format!("{redirect_uri}?{}", query.finish());
    (StatusCode::SEE_OTHER, [(LOCATION, url)]).into_response()
}

fn page(status: StatusCode, title: &str, content: Markup) -> Response {
    Page {
        title,
        section: None,
        script: None,
        content,
    }
    .respond(status)
}

/// Returns the page to choose a person. It repeats the request in hidden fields, so that no state
/// is kept until the choice.
fn person_page(parameters: &RequestParameters) -> Response {
    let hidden = html! {
        @for (name, value) in parameters {
            input type="hidden" name=(name) value=(value);
        }
    };
    let content = html! {
        p.muted { "This provider is for development: choose who signs in. There is no password." }
        div.panel.persons {
            @for (short, person) in SocialPerson::samples() {
                form method="post" action="/authorize" {
                    (hidden)
                    button name="person" value=(short) { (person.name) }
                    (address(&person))
                }
            }
        }
        div.panel {
            h2 { "Someone else" }
            form method="post" action="/authorize" {
                (hidden)
                label { "Name" input type="text" name="name" required; }
                label { "E-mail, or nothing" input name="email" type="email"; }
                label { input type="checkbox" name="email_verified" value="true" checked; "The address is verified" }
                button.primary name="person" value="other" { "Sign in" }
            }
        }
        form method="post" action="/authorize" {
            (hidden)
            button.danger name="person" value="nobody" { "Decline" }
        }
    };
    page(StatusCode::OK, "Choose a person", content)
}

fn address(person: &SocialPerson) -> Markup {
    html! {
        @match &person.email {
            Some(email) => {
                span { (email) }
                @if !person.email_verified { span.badge.warn { "not verified" } }
            }
            None => span.muted { "no e-mail address" },
        }
    }
}
