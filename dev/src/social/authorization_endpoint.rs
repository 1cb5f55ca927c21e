//! The authorization endpoint: validates the request, shows the page to choose a person, and
//! redirects with a code.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawForm, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, LOCATION, REFERRER_POLICY};
use url::Url;

use super::SocialProvider;
use super::grants::PersonGrant;
use super::persons::SocialPerson;
use maud::{Markup, html};

use crate::web::page::Page;

/// A valid authorization request.
#[derive(Debug)]
struct AuthorizationRequest {
    redirect_uri: String,
    scope: String,
    state: Option<String>,
    challenge: String,
    nonce: Option<String>,
}

/// The reason why a request is invalid, by the way in which it is reported.
#[derive(Debug)]
enum RequestError {
    /// The client or redirect URI is invalid: an error page is shown without a redirect (RFC 6749
    /// section 4.1.2.1).
    ShownToPerson(&'static str),
    /// The error is returned to the client by a redirect.
    ReturnedToClient {
        redirect_uri: String,
        state: Option<String>,
        error: &'static str,
        description: &'static str,
    },
}

type RequestParameters = BTreeMap<String, String>;

/// `GET /authorize`: nobody is chosen, whatever the query says. A link is no choice.
pub(super) async fn show_form(
    State(provider): State<Arc<SocialProvider>>,
    RawQuery(query): RawQuery,
) -> Response {
    let (mut parameters, repeated) = parse_parameters(query.unwrap_or_default().as_bytes());
    parameters.remove("person");
    respond(&provider, &parameters, repeated)
}

/// `POST /authorize`: the same request, with the choice made on the page.
pub(super) async fn submit_form(
    State(provider): State<Arc<SocialProvider>>,
    RawForm(form): RawForm,
) -> Response {
    let (parameters, repeated) = parse_parameters(&form);
    respond(&provider, &parameters, repeated)
}

fn respond(provider: &SocialProvider, parameters: &RequestParameters, repeated: bool) -> Response {
    match validate(provider, parameters, repeated) {
        Err(RequestError::ShownToPerson(reason)) => page(
            StatusCode::BAD_REQUEST,
            "Invalid sign-in request",
            html! { p { (reason) } },
        ),
        Err(RequestError::ReturnedToClient {
            redirect_uri,
            state,
            error,
            description,
        }) => redirect(
            provider,
            &redirect_uri,
            state.as_deref(),
            &[("error", error), ("error_description", description)],
        ),
        Ok(request) => match parameters.get("person") {
            None => person_page(parameters),
            Some(choice) => handle_choice(provider, request, choice, parameters),
        },
    }
}

/// Parses the parameters. Returns them and whether one is repeated (RFC 6749 section 3.1). Empty
/// ones count as absent.
fn parse_parameters(encoded: &[u8]) -> (RequestParameters, bool) {
    let (mut parameters, mut repeated) = (RequestParameters::new(), false);
    for (name, value) in url::form_urlencoded::parse(encoded).filter(|(_, value)| !value.is_empty())
    {
        repeated |= parameters
            .insert(name.into_owned(), value.into_owned())
            .is_some();
    }
    (parameters, repeated)
}

fn validate(
    provider: &SocialProvider,
    parameters: &RequestParameters,
    repeated: bool,
) -> Result<AuthorizationRequest, RequestError> {
    let get = |name: &str| parameters.get(name).map(String::as_str);
    if get("client_id") != Some(&provider.client.id) {
        return Err(RequestError::ShownToPerson(
            "client_id is not a client of this provider.",
        ));
    }
    let redirect_uri = get("redirect_uri").unwrap_or_default().to_owned();
    if !provider.client.redirect_uris.contains(&redirect_uri) {
        return Err(RequestError::ShownToPerson(
            "redirect_uri is not registered for this client.",
        ));
    }
    let state = get("state").map(str::to_owned);
    let refuse = |error, description| {
        let (redirect_uri, state) = (redirect_uri.clone(), state.clone());
        Err(RequestError::ReturnedToClient {
            redirect_uri,
            state,
            error,
            description,
        })
    };
    if repeated {
        return refuse("invalid_request", "a parameter is repeated");
    }
    match get("response_type") {
        Some("code") => {}
        Some(_) => return refuse("unsupported_response_type", "response_type must be code"),
        None => return refuse("invalid_request", "response_type is missing"),
    }
    if get("request").is_some() || get("request_uri").is_some() {
        return refuse("request_not_supported", "request objects are not supported");
    }
    if get("response_mode").is_some_and(|mode| mode != "query") {
        return refuse("invalid_request", "response_mode must be query");
    }
    if get("prompt") == Some("none") {
        return refuse("login_required", "there is no signed-in session");
    }
    let challenge = get("code_challenge").unwrap_or_default().to_owned();
    let well_formed = challenge.len() == 43
        && challenge
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if !well_formed || get("code_challenge_method") != Some("S256") {
        return refuse("invalid_request", "PKCE with S256 is required");
    }
    let Some(scope) = granted_scope(get("scope").unwrap_or_default()) else {
        return refuse(
            "invalid_scope",
            "scopes are openid, email, profile, offline_access",
        );
    };
    Ok(AuthorizationRequest {
        redirect_uri,
        scope,
        state,
        challenge,
        nonce: get("nonce").map(str::to_owned),
    })
}

/// Returns the granted scope, or `None` if it is empty or has an unknown value.
fn granted_scope(scope: &str) -> Option<String> {
    let known = ["openid", "email", "profile", "offline_access"];
    let scopes: Vec<&str> = scope.split(' ').collect();
    scopes
        .iter()
        .all(|scope| known.contains(scope))
        .then(|| scopes.join(" "))
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
            let refused = [
                ("error", "access_denied"),
                ("error_description", "the person declined"),
            ];
            return redirect(
                provider,
                &request.redirect_uri,
                request.state.as_deref(),
                &refused,
            );
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
    let authenticated_at = provider.clock.now();
    let grant = PersonGrant {
        person,
        scope: request.scope,
        authenticated_at,
    };
    let redirect_uri = request.redirect_uri.clone();
    let code = provider
        .grants
        .issue_code(grant, redirect_uri, request.challenge, request.nonce);
    redirect(
        provider,
        &request.redirect_uri,
        request.state.as_deref(),
        &[("code", &code)],
    )
}

/// Redirects to the client, with `state` and `iss` (RFC 9207).
fn redirect(
    provider: &SocialProvider,
    redirect_uri: &str,
    state: Option<&str>,
    parameters: &[(&str, &str)],
) -> Response {
    let Ok(mut url) = Url::parse(redirect_uri) else {
        return page(
            StatusCode::BAD_REQUEST,
            "Invalid sign-in request",
            html! { p { "redirect_uri is not a URL." } },
        );
    };
    {
        let mut query = url.query_pairs_mut();
        query.extend_pairs(parameters);
        query.extend_pairs(state.map(|state| ("state", state)));
        query.append_pair("iss", &provider.issuer);
    }
    let headers = [
        (LOCATION, url.as_str()),
        (CACHE_CONTROL, "no-store"),
        (REFERRER_POLICY, "no-referrer"),
    ];
    (StatusCode::SEE_OTHER, headers).into_response()
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
