//! The authorization endpoint: checks the request, asks who to be, sends the code back.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{RawForm, RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::{CACHE_CONTROL, LOCATION, REFERRER_POLICY};
use url::Url;

use super::Provider;
use super::grants::{Grant, random};
use super::people::Person;
use crate::page::{escape, page};

/// An authorization request that is in order.
#[derive(Debug)]
struct Request {
    redirect_uri: String,
    scope: String,
    state: Option<String>,
    challenge: String,
    nonce: Option<String>,
}

/// Why it is not.
#[derive(Debug)]
enum Refusal {
    /// The client or its address is wrong: the person is told, and nobody is redirected (RFC 6749
    /// section 4.1.2.1).
    Told(&'static str),
    /// The client is told.
    Sent {
        redirect_uri: String,
        state: Option<String>,
        error: &'static str,
        description: &'static str,
    },
}

type Parameters = BTreeMap<String, String>;

/// `GET /authorize`
pub(super) async fn ask(
    State(provider): State<Arc<Provider>>,
    RawQuery(query): RawQuery,
) -> Response {
    answer(&provider, query.unwrap_or_default().as_bytes())
}

/// `POST /authorize`: the same request, with the choice from the page if it has been made.
pub(super) async fn decide(
    State(provider): State<Arc<Provider>>,
    RawForm(form): RawForm,
) -> Response {
    answer(&provider, &form)
}

fn answer(provider: &Provider, encoded: &[u8]) -> Response {
    let (parameters, repeated) = read(encoded);
    match check(provider, &parameters, repeated) {
        Err(Refusal::Told(reason)) => page(
            StatusCode::BAD_REQUEST,
            "This sign-in cannot go on",
            &format!("<p>{}", escape(reason)),
        ),
        Err(Refusal::Sent {
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
            None => ask_who(&parameters),
            Some(choice) => decided(provider, request, choice, &parameters),
        },
    }
}

/// The parameters, and whether one stands twice (RFC 6749 section 3.1). Empty ones count as absent.
fn read(encoded: &[u8]) -> (Parameters, bool) {
    let (mut parameters, mut repeated) = (Parameters::new(), false);
    for (name, value) in url::form_urlencoded::parse(encoded).filter(|(_, value)| !value.is_empty())
    {
        repeated |= parameters
            .insert(name.into_owned(), value.into_owned())
            .is_some();
    }
    (parameters, repeated)
}

fn check(provider: &Provider, parameters: &Parameters, repeated: bool) -> Result<Request, Refusal> {
    let get = |name: &str| parameters.get(name).map(String::as_str);
    if get("client_id") != Some(&provider.client.id) {
        return Err(Refusal::Told("client_id is not a client of this provider."));
    }
    let redirect_uri = get("redirect_uri").unwrap_or_default().to_owned();
    if !provider.client.redirect_uris.contains(&redirect_uri) {
        return Err(Refusal::Told(
            "redirect_uri is not registered for this client.",
        ));
    }
    let state = get("state").map(str::to_owned);
    let refuse = |error, description| {
        let (redirect_uri, state) = (redirect_uri.clone(), state.clone());
        Err(Refusal::Sent {
            redirect_uri,
            state,
            error,
            description,
        })
    };
    if repeated {
        return refuse("invalid_request", "a parameter stands more than once");
    }
    match get("response_type") {
        Some("code") => {}
        Some(_) => return refuse("unsupported_response_type", "response_type is code here"),
        None => return refuse("invalid_request", "response_type is missing"),
    }
    if get("request").is_some() || get("request_uri").is_some() {
        return refuse("request_not_supported", "request objects are not read here");
    }
    if get("response_mode").is_some_and(|mode| mode != "query") {
        return refuse("invalid_request", "response_mode is query here");
    }
    if get("prompt") == Some("none") {
        return refuse("login_required", "nobody is ever signed in here");
    }
    let challenge = get("code_challenge").unwrap_or_default().to_owned();
    let well_formed = challenge.len() == 43
        && challenge
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if !well_formed || get("code_challenge_method") != Some("S256") {
        return refuse("invalid_request", "PKCE with S256 is required");
    }
    let Some(scope) = granted(get("scope").unwrap_or_default()) else {
        return refuse(
            "invalid_scope",
            "scopes are openid, email, profile, offline_access",
        );
    };
    Ok(Request {
        redirect_uri,
        scope,
        state,
        challenge,
        nonce: get("nonce").map(str::to_owned),
    })
}

/// The scope as granted; `None` if it is empty or has something unknown in it.
fn granted(scope: &str) -> Option<String> {
    let known = ["openid", "email", "profile", "offline_access"];
    let scopes: Vec<&str> = scope.split(' ').collect();
    scopes
        .iter()
        .all(|scope| known.contains(scope))
        .then(|| scopes.join(" "))
}

fn decided(
    provider: &Provider,
    request: Request,
    choice: &str,
    parameters: &Parameters,
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
        "other" => Person::made_up(
            get("name"),
            get("email"),
            parameters.contains_key("email_verified"),
        ),
        short => Person::sample(short),
    };
    let Some(person) = person else {
        let body = "<p>A person needs a name, and an address if any like ada@example.com. Go back and try again.";
        return page(StatusCode::BAD_REQUEST, "Nobody is called that", body);
    };
    let authenticated_at = provider.clock.now();
    let grant = Grant {
        family: random(),
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

/// Back to the client, with `state` and `iss` (RFC 9207).
fn redirect(
    provider: &Provider,
    redirect_uri: &str,
    state: Option<&str>,
    parameters: &[(&str, &str)],
) -> Response {
    let Ok(mut url) = Url::parse(redirect_uri) else {
        return page(
            StatusCode::BAD_REQUEST,
            "This sign-in cannot go on",
            "<p>redirect_uri is not a URL.",
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

/// The page with everyone on it. It repeats the request in hidden fields; nothing is kept until the
/// choice.
fn ask_who(parameters: &Parameters) -> Response {
    let hidden: String = parameters
        .iter()
        .map(|(name, value)| {
            format!(
                "<input type=hidden name=\"{}\" value=\"{}\">",
                escape(name),
                escape(value)
            )
        })
        .collect();
    let mut body =
        "<p>This provider is for development: choose who signs in. There is no password."
            .to_owned();
    for (short, person) in Person::samples() {
        let known = match (&person.email, person.email_verified) {
            (Some(email), true) => email.clone(),
            (Some(email), false) => format!("{email}, not verified"),
            (None, _) => "no e-mail address".to_owned(),
        };
        body.push_str(&format!(
            "<form method=post action=/authorize>{hidden}<button name=person value={short}>{}</button> {}</form>",
            escape(&person.name),
            escape(&known),
        ));
    }
    body.push_str(&format!(
        "<form method=post action=/authorize>{hidden}<fieldset><legend>Someone else</legend>\
         <label>Name <input name=name required></label><label>E-mail <input name=email type=email></label>\
         <label><input type=checkbox name=email_verified value=true checked> verified</label>\
         <button name=person value=other>Sign in</button></fieldset></form>\
         <form method=post action=/authorize>{hidden}<button name=person value=nobody>Nobody: decline</button></form>"
    ));
    page(StatusCode::OK, "Who are you?", &body)
}
